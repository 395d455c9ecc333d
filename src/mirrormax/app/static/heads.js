// The model view: a small map of every head, the kinds that heads have, and one of them chosen.

import { make } from "./dom.js";
import { paint, percent, unpacked } from "./shades.js";

/** All heads of a reading, a row per layer; `kinds` may still be on its way. */
export function modelView(reading, kinds, place, choose) {
  const [, height, width] = reading.thumbs.shape;
  const values = unpacked(reading.thumbs);
  const grid = make("div", { className: "heads" });
  grid.style.setProperty("--heads", Math.max(...reading.heads));
  grid.style.setProperty("--layers", reading.heads.length);
  grid.classList.toggle("deep", reading.heads.length > 1.5 * Math.max(...reading.heads));
  grid.setAttribute("role", "group");
  grid.setAttribute("aria-label", "all heads; arrow keys go from one to the next");
  const maps = [];
  reading.heads.forEach((count, l) => {
    grid.append(make("span", { className: "layer-name", textContent: l }));
    for (let h = 0; h < Math.max(...reading.heads); h += 1) grid.append(h < count ? thumb(l, h) : make("span"));
  });

  function thumb(l, h) {
    const first = maps.length * width * height;
    const roots = Array.from(values.subarray(first, first + width * height), (value) => value / 255);
    const canvas = make("canvas", { width, height });
    const kind = kinds?.layers?.[l]?.[h]?.kind;
    const chosen = l === place.layer && h === place.head;
    const button = make("button", { type: "button", className: "thumb", tabIndex: chosen ? 0 : -1 }, canvas);
    button.title = `layer ${l}, head ${h}${kind ? `: ${kind}` : ""}`;
    button.setAttribute("aria-label", button.title);
    button.setAttribute("aria-pressed", chosen);
    if (place.kind) button.classList.toggle("faded", kind !== place.kind);
    button.addEventListener("click", () => choose.head(l, h));
    maps.push({ l, h, button });
    paint(canvas, roots);
    return button;
  }

  if (!maps.some(({ button }) => button.tabIndex === 0)) maps[0].button.tabIndex = 0;
  grid.addEventListener("keydown", (event) => {
    const across = getComputedStyle(grid).gridAutoFlow === "column"; // layers from left to right
    const [vertical, horizontal] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    const [down, right] = across ? [horizontal, vertical] : [vertical, horizontal];
    const from = maps.find(({ button }) => button === document.activeElement);
    if (!from || (!down && !right)) return;
    event.preventDefault();
    const to = maps.find(({ l, h }) => l === from.l + down && h === from.h + right);
    if (!to) return;
    to.button.focus();
    to.button.click();
  });
  const exact = reading.thumbs.exact ? "" : " Of this long text a pixel is the largest share of its cells.";
  const note = `The numbers are layers; a map is a head: down its queries, across the tokens they look at.${exact}`;
  return make("section", { className: "model-view" }, make("h3", { textContent: "All heads" }), chips(reading, kinds, place, choose), grid, make("p", { className: "soft", textContent: note }));
}

/** How many heads there are of each kind; a press shows which. */
function chips(reading, kinds, place, choose) {
  const box = make("div", { className: "chips" });
  if (!kinds) return make("p", { className: "soft", textContent: "Looking for the kinds of heads…" });
  if (kinds.error) return make("p", { className: "soft", textContent: `The kinds of heads could not be found: ${kinds.error}` });
  const all = kinds.layers.flat().map(({ kind }) => kind);
  for (const name of Object.values(kinds.names)) {
    const count = all.filter((kind) => kind === name).length;
    if (!count) continue;
    const button = make("button", { type: "button", textContent: `${name} ${count}` });
    button.setAttribute("aria-pressed", place.kind === name);
    button.addEventListener("click", () => choose.kind(place.kind === name ? null : name));
    box.append(button);
  }
  const none = all.filter((kind) => kind === null).length;
  box.append(make("span", { className: "soft", textContent: `${none} of ${all.length} without a clear pattern, on ${kinds.texts} reviews` }));
  return box;
}

/** What the shares of one head say, beside what an even choice would give. */
export function kindSentence(kinds, place) {
  const head = kinds?.layers?.[place.layer]?.[place.head];
  if (!head) return "";
  const share = (name) => `${percent(head.shares[name])}; chance ${percent(head.chances[name])}`;
  const best = Object.keys(kinds.names).filter((name) => name in head.shares).sort((a, b) => head.shares[b] - head.shares[a])[0];
  const own = Object.keys(kinds.names).find((name) => kinds.names[name] === head.kind);
  return own ? `Pattern: ${head.kind} (${share(own)}).` : `No clear pattern (closest: ${kinds.names[best]}, ${share(best)}).`;
}
