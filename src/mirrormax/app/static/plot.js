// The frame of a plot: a square with margins, scales, ticks, and an inner picture that is cut at the edge.

import { draw, short, superscript } from "./dom.js";

const SIZE = 360;
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 36;
/** How a training is called: by its rule, or by p. */
export const named = ({ p, potential, rule }) =>
  ({ sign: "sign descent", adam: "Adam", muon: "Muon" })[rule] ?? (potential === "Hypentropy" ? "hypentropy" : `p = ${p}`);

export const WIDTH = SIZE - LEFT - RIGHT;
export const HEIGHT = SIZE - TOP - BOTTOM;

// As in every figure (mirrormax._drawing): cold below p = 2, dark at 2, warm above, each with a dash of its own.
const DASHES = {
  1.1: "none", 1.25: "9 2", 1.5: "5 2 2 2", 1.75: "8 3 2 3", 2: "6 4", 3: "11 3 2 3", 4: "7 4", 6: "2 3",
};

/** The p that looks as this one does: itself, or the nearest that has a look, by the logarithm of p − 1. */
function lookalike(p) {
  const apart = (other) => Math.abs(Math.log((other - 1) / (p - 1)));
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

/**
 * The frame of a plot: x and y from data to picture, and `around`, which puts nodes inside it, cut at its edge. To the
 * right of it is room for `names`, which `nameEnds` writes.
 */
export function frame(x, y, { xTicks, yTicks, xLabel, yLabel, height = HEIGHT, names = [] }) {
  const width = WIDTH - roomForNames(names);
  const place = { x: linear(x, width), y: (value) => height - linear(y, height)(value) };
  const back = draw("g", { transform: `translate(${LEFT} ${TOP})` },
    ...xTicks.map(({ at, text }) => {
      const left = place.x(at);
      return draw("g", {},
        draw("line", { class: "grid", x1: left, x2: left, y1: 0, y2: height, opacity: 0.5 }),
        draw("text", { x: left, y: height + 15, "text-anchor": "middle" }, text));
    }),
    ...yTicks.map(({ at, text }) => {
      const top = place.y(at);
      return draw("g", {},
        draw("line", { class: "grid", x1: 0, x2: width, y1: top, y2: top, opacity: 0.5 }),
        draw("text", { x: -4, y: top + 4, "text-anchor": "end" }, text));
    }),
    draw("rect", { class: "frame", width, height }),
    draw("text", { x: width / 2, y: height + 31, "text-anchor": "middle" }, xLabel),
    draw("text", { transform: `translate(-42 ${height / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  const around = (...inside) => [back, draw("svg", { x: LEFT, y: TOP, width, height }, ...inside)];
  const nameEnds = (ends) => draw("g", { transform: `translate(${LEFT + width} ${TOP})` }, ...endNames(ends, height));
  return { ...place, width, around, nameEnds };
}

/** The line of a p in a legend. */
export const key = (p) => draw("svg", { class: "key", viewBox: "0 0 26 12", "aria-hidden": "true" }, draw("path", { class: "line-other", stroke: colour(p), "stroke-dasharray": dash(p), d: "M1 6H25" }));

/** A little more than a size, in steps of a quarter of its power of ten: a frame that stays while p moves a little. */
export function roomFor(size) {
  const step = 10 ** Math.floor(Math.log10(size)) / 4;
  return step * Math.ceil((1.1 * size) / step);
}

/** About five round numbers between two. */
export function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const digits = Math.max(3, Math.floor(Math.log10(size)) - Math.floor(Math.log10(step)) + 1); // which tell neighbours apart
  const marks = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k += 1) {
    marks.push({ at: k * step, text: short(k * step, digits).replace("-", "−") });
  }
  return marks;
}

/** Powers of ten between two logarithms, not more than fit. */
export function decades([low, high], most = 6) {
  const every = Math.max(1, Math.ceil((high - low) / most));
  const marks = [];
  for (let k = Math.ceil(low / every) * every; k <= high; k += every) {
    marks.push({ at: k, text: k === 0 ? "1" : k === 1 ? "10" : `10${superscript(k)}` });
  }
  return marks;
}

export const points = (list) => list.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");

const LEADER = 10; // between the end of a line and its name
const roomForNames = (names) => (names.length ? LEADER + 10 + 7.6 * Math.max(...names.map((name) => name.length)) : 0);

/** Names beside the ends of lines `{ label, y, stroke }`, moved apart where two would overlap, each led to by its line's colour. */
function endNames(ends, height) {
  const spread = ends.map((end) => ({ ...end, at: end.y })).sort((a, b) => a.y - b.y);
  spread.forEach((end, k) => {
    end.at = Math.min(Math.max(end.y, k === 0 ? 6 : spread[k - 1].at + 14), height - 6 - 14 * (spread.length - 1 - k));
  });
  return spread.flatMap(({ label, y, at, stroke }) => [
    draw("line", { class: "leader", stroke, x1: 1, y1: y, x2: LEADER - 2, y2: at }),
    draw("text", { class: "line-name", x: LEADER, y: at + 4 }, label),
  ]);
}

/** An arrow, from one place in the picture to another. */
export function arrow([x1, y1], [x2, y2], attributes) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  if (length < 2) return draw("g");
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  const head = Math.min(9, length / 2);
  const wing = (side) => [x2 - head * ux + side * 0.5 * head * uy, y2 - head * uy - side * 0.5 * head * ux];
  const way = (...places) => `M${places.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`;
  return draw("g", {},
    draw("path", { ...attributes, d: way([x1, y1], [x2, y2]) }),
    draw("path", { ...attributes, "stroke-dasharray": "none", d: way(wing(1), [x2, y2], wing(-1)) }));
}
