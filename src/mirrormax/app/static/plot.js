// The frame of a plot: a square with margins, scales, ticks, and an inner picture that is cut at the edge.

import { draw, short, superscript } from "./dom.js";

const SIZE = 360;
const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 36;
export const WIDTH = SIZE - LEFT - RIGHT;
export const HEIGHT = SIZE - TOP - BOTTOM;

// As in every figure (mirrormax._drawing): cold below p = 2, dark at 2, warm above, each with a dash of its own.
const DASHES = {
  1.1: "none", 1.25: "9 2", 1.5: "5 2 2 2", 1.75: "8 3 2 3", 2: "6 4", 3: "11 3 2 3", 4: "7 4", 6: "2 3",
};

/** The p that looks as this one does: itself, or the nearest that has a look, by the logarithm of p − 1. */
function lookalike(p) {
  const apart = (one) => Math.abs(Math.log((one - 1) / (p - 1)));
  return Object.keys(DASHES).map(Number).sort((a, b) => apart(a) - apart(b))[0];
}

export const colour = (p) => `var(--p-${String(lookalike(p)).replace(".", "-")})`;
export const dash = (p) => DASHES[lookalike(p)];

/** Where a pointer is inside the frame of a plot, in picture units. */
export function inData(svg, event) {
  const box = svg.getBoundingClientRect();
  const scale = SIZE / box.width;
  return [(event.clientX - box.left) * scale - LEFT, (event.clientY - box.top) * scale - TOP];
}

const linear = ([low, high], length) => (value) => ((value - low) / (high - low)) * length;

/** Empty an svg and frame it; gives x and y from data to picture, and layers to draw in. */
export function frame(svg, x, y, { xTicks, yTicks, xLabel, yLabel }) {
  const place = { x: linear(x, WIDTH), y: (value) => HEIGHT - linear(y, HEIGHT)(value) };
  const back = draw("g", { transform: `translate(${LEFT} ${TOP})` });
  const inside = draw("svg", { x: LEFT, y: TOP, width: WIDTH, height: HEIGHT });
  for (const { at, text } of xTicks) {
    const left = place.x(at);
    back.append(
      draw("line", { class: "grid", x1: left, x2: left, y1: 0, y2: HEIGHT, opacity: 0.5 }),
      draw("text", { x: left, y: HEIGHT + 15, "text-anchor": "middle" }, text),
    );
  }
  for (const { at, text } of yTicks) {
    const top = place.y(at);
    back.append(
      draw("line", { class: "grid", x1: 0, x2: WIDTH, y1: top, y2: top, opacity: 0.5 }),
      draw("text", { x: -6, y: top + 4, "text-anchor": "end" }, text),
    );
  }
  back.append(
    draw("rect", { class: "frame", width: WIDTH, height: HEIGHT }),
    draw("text", { x: WIDTH / 2, y: HEIGHT + 31, "text-anchor": "middle" }, xLabel),
    draw("text", { transform: `translate(-34 ${HEIGHT / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  svg.replaceChildren(back, inside);
  return { ...place, inside };
}

/** About five round numbers between two. */
export function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k += 1) {
    found.push({ at: k * step, text: short(k * step).replace("-", "−") });
  }
  return found;
}

/** Powers of ten between two logarithms, not more than fit. */
export function decades([low, high], most = 6) {
  const every = Math.max(1, Math.ceil((high - low) / most));
  const found = [];
  for (let k = Math.ceil(low / every) * every; k <= high; k += every) {
    found.push({ at: k, text: k === 0 ? "1" : k === 1 ? "10" : `10${superscript(k)}` });
  }
  return found;
}

export const points = (list) => list.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");

/** An arrow as one path, from one place in the picture to another. */
export function arrow([x1, y1], [x2, y2], attributes) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length < 2) return draw("g");
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  const head = Math.min(9, length / 2);
  const wing = (side) => [x2 - head * ux + side * 0.5 * head * uy, y2 - head * uy - side * 0.5 * head * ux];
  const [a, b] = [wing(1), wing(-1)];
  const group = draw("g");
  group.append(
    draw("path", { ...attributes, d: `M${x1} ${y1}L${x2} ${y2}` }),
    draw("path", { ...attributes, "stroke-dasharray": "none", d: `M${a[0]} ${a[1]}L${x2} ${y2}L${b[0]} ${b[1]}` }),
  );
  return group;
}
