// What can be taken away from the Geometry page: pictures, the problem, Python, the address, and many seeds.

import { fetchFile, post } from "./api.js";
import { byId, short } from "./dom.js";
import { coloursOf } from "./heat.js";

const PICTURES = ["tokens", "weights", "curve", "mass"];
const SIZE = 360;
const HEAD = 30; // above the plots, for what they are of
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "font-size", "font-family", "font-weight"];
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
    const found = await post("/api/seeds", { ...question(), seeds: SEEDS });
    seeds(found);
    return (
      `${found.count} seeds of the ${found.of}: ${found.separable} have a solution, ${found.locally_optimal} are locally optimal, ` +
      `${found.turned} have turned within ${short(1e-3)}. Grey band: the middle half of their divergences, with the median.`
    );
  });
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  return `${name} saved.`;
}

/** The plots and the maps of the weights side by side as one file, under a line that says what they are of. */
function picture(caption) {
  const { backgroundColor: paper, color: ink, fontFamily } = getComputedStyle(document.body);
  const whole = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ xmlns: whole.namespaceURI, width: (PICTURES.length + 1) * SIZE, height: SIZE + HEAD, viewBox: `0 0 ${(PICTURES.length + 1) * SIZE} ${SIZE + HEAD}` })) whole.setAttribute(name, value);
  const back = document.createElementNS(whole.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: paper })) back.setAttribute(name, value);
  const line = document.createElementNS(whole.namespaceURI, "text");
  for (const [name, value] of Object.entries({ x: 12, y: 20, fill: ink, "font-size": 14, "font-family": fontFamily })) line.setAttribute(name, value);
  line.textContent = caption;
  whole.append(back, line);
  PICTURES.forEach((name, k) => {
    const plot = byId(`${name}-plot`);
    const copy = plot.cloneNode(true);
    const [from, to] = [plot.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((element, place) => {
      const style = getComputedStyle(element);
      for (const name of ["class", "style", "tabindex"]) to[place].removeAttribute(name);
      for (const name of STYLES) to[place].setAttribute(name, style.getPropertyValue(name));
    });
    for (const [attribute, value] of Object.entries({ x: k * SIZE, y: HEAD, width: SIZE, height: SIZE })) copy.setAttribute(attribute, value);
    whole.append(copy);
  });
  const maps = [...byId("heat").children];
  maps.forEach((map, k) => {
    const side = (SIZE - 40) / Math.max(maps.length, 2);
    const x = PICTURES.length * SIZE + 12 + k * (side + 6);
    const name = document.createElementNS(whole.namespaceURI, "text");
    for (const [attribute, value] of Object.entries({ x, y: HEAD + 16, fill: ink, "font-size": 13, "font-family": fontFamily })) name.setAttribute(attribute, value);
    name.textContent = map.querySelector("figcaption").textContent.split(":")[0];
    whole.append(name, ...pixels(map.querySelector("canvas"), x, HEAD + 24, side));
  });
  return new XMLSerializer().serializeToString(whole);
}

/** A map of few pixels as squares. */
function pixels(canvas, x, y, side) {
  const { width, height } = canvas;
  const data = coloursOf(canvas);
  return Array.from({ length: width * height }, (_, k) => {
    const square = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const fill = `rgb(${data[4 * k]} ${data[4 * k + 1]} ${data[4 * k + 2]})`;
    const place = { x: x + ((k % width) * side) / width, y: y + (Math.floor(k / width) * side) / height, width: side / width, height: side / height, fill };
    for (const [name, value] of Object.entries(place)) square.setAttribute(name, value);
    return square;
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
