// The weights entry by entry, one map per p: blue is positive, orange negative, paper is zero.

import { make } from "./dom.js";

/** Draw a map per p into the box; returns what shows one frame of all of them. */
export function heatMaps(box, answer) {
  const { d } = answer.shape;
  const tracks = [
    { p: answer.p, steps: answer.steps, heat: answer.heat, large: answer.solution?.large_entries },
    ...answer.others.map(({ p, steps, heat, large, divergence }) => ({ p, steps, heat, large: divergence && large })),
  ];
  const maps = tracks.map(({ p, steps, heat, large }) => {
    const bytes = Int8Array.from(atob(heat), (letter) => letter.charCodeAt(0));
    const canvas = make("canvas", { width: d, height: d });
    const count = large ? `, ${large} of ${d * d} entries of its solution are large` : "";
    const hypentropy = answer.potential === "Hypentropy";
    const name = make("figcaption", { textContent: (hypentropy ? "hypentropy" : `p = ${p}`) + count });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `weights at p = ${p}${count}`);
    return { steps, bytes, canvas, figure: make("figure", {}, canvas, name) };
  });
  box.replaceChildren(...maps.map(({ figure }) => figure));
  const tone = palette();
  return (k) => {
    const step = answer.steps[k];
    for (const { steps, bytes, canvas } of maps) {
      const frame = Math.max(0, steps.findLastIndex((one) => one <= step));
      paint(canvas, bytes.subarray(frame * d * d, (frame + 1) * d * d), tone);
    }
  };
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
  return { zero: read("--zero-rgb"), positive: read("--positive-rgb"), negative: read("--negative-rgb") };
}

function paint(canvas, values, { zero, positive, negative }) {
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, k) => {
    const end = value < 0 ? negative : positive;
    const share = Math.abs(value) / 127;
    for (let c = 0; c < 3; c += 1) picture.data[4 * k + c] = zero[c] + share * (end[c] - zero[c]);
    picture.data[4 * k + 3] = 255;
  });
  context.putImageData(picture, 0, 0);
}
