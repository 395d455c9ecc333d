// The weights entry by entry, one map per p: blue is positive, orange negative, paper is zero.

import { make, say } from "./dom.js";
import { named } from "./plot.js";

/** What draws one frame of a map per p into the box. */
export function heatMaps(box, answer) {
  const { d } = answer.shape;
  const tracks = [
    { title: named(answer), steps: answer.steps, heat: answer.heat, large: answer.solution?.large_entries },
    ...answer.others.map(({ p, steps, heat, large, divergence }) => ({ title: `p = ${p}`, steps, heat, large: divergence && large })),
  ];
  while (box.children.length > tracks.length) box.lastChild.remove();
  while (box.children.length < tracks.length) {
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    box.append(make("figure", {}, canvas, make("figcaption")));
  }
  const maps = tracks.map(({ title, steps, heat, large }, place) => {
    const [canvas, name] = box.children[place].children;
    if (canvas.width !== d) Object.assign(canvas, { width: d, height: d });
    const count = large ? `: ${large} of ${d * d} large in the solution` : "";
    say(name, title + count);
    canvas.setAttribute("aria-label", `weights, ${title}${count}`);
    return { steps, canvas, bytes: weightBytes(heat) };
  });
  return (k) => {
    const step = answer.steps[k];
    for (const { steps, bytes, canvas } of maps) {
      const frame = Math.max(0, steps.findLastIndex((one) => one <= step));
      paintWeights(canvas, bytes.subarray(frame * d * d, (frame + 1) * d * d));
    }
  };
}

let known = null; // reading colours from the style sheet makes a browser lay the page out
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known = null;
});

function palette() {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
  known = { zero: read("--zero-rgb"), positive: read("--positive-rgb"), negative: read("--negative-rgb") };
  return known;
}

/** Weights as they come with an answer: bytes from −127 to 127. */
export const weightBytes = (heat) => Int8Array.from(atob(heat), (letter) => letter.charCodeAt(0));

const painted = new WeakMap();
/** The colours of a map, four bytes per entry; reading them from the canvas would be slow. */
export const coloursOf = (canvas) => painted.get(canvas);

/** One map of weights, a pixel per entry. */
export function paintWeights(canvas, values) {
  const { zero, positive, negative } = palette();
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, k) => {
    const end = value < 0 ? negative : positive;
    const share = Math.abs(value) / 127;
    for (let c = 0; c < 3; c += 1) picture.data[4 * k + c] = zero[c] + share * (end[c] - zero[c]);
    picture.data[4 * k + 3] = 255;
  });
  context.putImageData(picture, 0, 0);
  painted.set(canvas, picture.data);
}
