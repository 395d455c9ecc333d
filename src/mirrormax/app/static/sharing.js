// What can be taken away from the Geometry page: pictures, the problem, Python, the address, and many seeds.

import { fetchFile, post } from "./api.js";
import { byId, short } from "./dom.js";
import { coloursOf } from "./heat.js";

const PICTURES = ["tokens", "weights", "curve", "mass"];
const SIZE = 360;
const HEAD = 30; // above the plots, for what they are of
const LINE = 17; // of the legend
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "paint-order", "font-size", "font-family", "font-weight"];
const SEEDS = 20;

export function startSharing({ question, caption, seeds }) {
  const note = (text) => {
    byId("take-note").textContent = text;
  };
  const carefully = (what) => async () => {
    try {
      const said = await what();
      if (said !== undefined) note(said);
    } catch (refusal) {
      note(refusal.message);
    }
  };
  const on = (id, what) => byId(id).addEventListener("click", carefully(what));
  on("save-svg", () => save(new Blob([picture(caption())], { type: "image/svg+xml" }), "mirrormax.svg"));
  on("save-png", async () => save(await asPng(picture(caption())), "mirrormax.png"));
  on("save-npz", async () => save(await fetchFile("/api/export", question()), "problem.npz"));
  on("copy-link", async () => {
    await navigator.clipboard.writeText(location.href);
    const own = document.body.dataset.live === undefined ? " Whoever opens it needs an explorer, and its token, of their own." : "";
    return `The address is on the clipboard.${own}`;
  });
  on("show-python", async () => {
    const { python } = await post("/api/snippet", question());
    byId("python").textContent = python;
    byId("python").hidden = false;
    return "";
  });
  on("run-seeds", async () => {
    note(`training ${SEEDS} seeds …`);
    const batch = await post("/api/seeds", { ...question(), seeds: SEEDS });
    seeds(batch);
    return (
      `${batch.count} seeds of the ${batch.of}: ${batch.separable} have a solution, ${batch.locally_optimal} are locally optimal, ` +
      `${batch.turned} have turned within ${short(1e-3)}. Grey band: the middle half of their divergences, with the median.`
    );
  });
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  return `${name} saved.`;
}

/** An SVG element of the file. */
function part(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The plots, the maps of the weights and the legend as one file, under a line that says what they are of. */
function picture(caption) {
  const { backgroundColor: paper, color: ink, fontFamily } = getComputedStyle(document.body);
  const [width, height] = [(PICTURES.length + 1) * SIZE, SIZE + HEAD];
  const text = (x, y, size, words) => part("text", { x, y, fill: ink, "font-size": size, "font-family": fontFamily }, words);
  const whole = part("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  whole.append(part("rect", { width: "100%", height: "100%", fill: paper }), text(12, 20, 14, caption));
  PICTURES.forEach((name, k) => whole.append(copied(byId(`${name}-plot`), { x: k * SIZE, y: HEAD, width: SIZE, height: SIZE })));
  const [maps, left] = [[...byId("heat").children], PICTURES.length * SIZE + 12];
  const side = (SIZE - 40) / Math.max(maps.length, 2);
  maps.forEach((map, k) => {
    const x = left + k * (side + 6);
    const name = map.querySelector("figcaption").textContent.split(":")[0];
    whole.append(text(x, HEAD + 16, 13, name), ...pixels(map.querySelector("canvas"), x, HEAD + 24, side));
  });
  const others = byId("others-legend");
  [...others.parentElement.children, ...others.children].filter((entry) => entry !== others).forEach((entry, k) => {
    const y = HEAD + side + 46 + k * LINE;
    whole.append(copied(entry.querySelector("svg"), { x: left, y: y - 10, width: 26, height: 12 }));
    whole.append(text(left + 34, y, 12, entry.textContent.trim().replace("Wmm", "Wₘₘ")));
  });
  return new XMLSerializer().serializeToString(whole);
}

/** A picture of the page at a place of the file, with the styles that it has on the page. */
function copied(svg, place) {
  const copy = svg.cloneNode(true);
  const to = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((element, k) => {
    const style = getComputedStyle(element);
    for (const name of ["class", "style", "tabindex"]) to[k].removeAttribute(name);
    for (const name of STYLES) to[k].setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, value);
  return copy;
}

/** A map of few pixels as squares. */
function pixels(canvas, x, y, side) {
  const { width, height } = canvas;
  const data = coloursOf(canvas);
  return Array.from({ length: width * height }, (_, k) => {
    const fill = `rgb(${data[4 * k]} ${data[4 * k + 1]} ${data[4 * k + 2]})`;
    const place = { x: x + ((k % width) * side) / width, y: y + (Math.floor(k / width) * side) / height };
    return part("rect", { ...place, width: side / width, height: side / height, fill });
  });
}

async function asPng(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * (PICTURES.length + 1) * SIZE, height: 2 * (SIZE + HEAD) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
