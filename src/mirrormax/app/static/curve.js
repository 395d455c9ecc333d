// Curves over the training steps, on a logarithmic axis with step 0 at its left end; a click goes to a step.

import { draw } from "./dom.js";
import { colour, dash, decades, frame, HEIGHT, inData, named, points, ticks } from "./plot.js";

const FLOOR = 1e-16;
const ZERO = -0.45; // where step 0 stands, on an axis of log10(step)
const place = (step) => (step === 0 ? ZERO : Math.log10(step));

/** How far the direction of training is from the solution, with the other p, the rate and a batch of seeds. */
export function divergencePlot(answer, band) {
  const logs = (values) => values?.map((value) => (value === null ? null : Math.log10(Math.max(value, FLOOR))));
  const lines = [];
  const { own, plain } = answer.divergence;
  const add = (steps, values, attributes) => values && lines.push({ steps, values: logs(values), ...attributes });
  if (answer.rate) add(answer.steps, answer.rate, { class: "line-rate", label: "bound" });
  if (!answer.others.length) add(answer.steps, plain, { class: "line-plain", label: "to p = 2" });
  for (const other of answer.others) add(other.steps, other.divergence, { class: "line-other", stroke: colour(other.p), "stroke-dasharray": dash(other.p), label: `p = ${other.p}` });
  add(answer.steps, own, { class: "line-training", main: true, label: named(answer) });
  const edges = band ? [0, 2].map((q) => logs(band.quartiles[q])) : [];
  const seen = [...lines.flatMap(({ values }) => values), ...edges.flat()].filter((value) => value !== null);
  const y = seen.length ? range(Math.min(...seen), Math.max(...seen)) : [-2, 0];
  return curves(answer, lines, y, decades(y), typeof answer.norm === "string" ? "shortfall of the margin" : "divergence D", band && { steps: band.steps, low: edges[0], high: edges[1], middle: logs(band.quartiles[1]) });
}

/** How much attention the selected tokens get. */
export function massPlot(answer) {
  const lines = answer.others.map(({ p, steps, mass }) => ({ steps, values: mass, class: "line-other", stroke: colour(p), "stroke-dasharray": dash(p), label: `p = ${p}` }));
  lines.push({ steps: answer.steps, values: answer.mass, class: "line-training", main: true, label: named(answer) });
  return curves(answer, lines, [0, 1.1], ticks([0, 1]), "attention");
}

function curves(answer, lines, y, yTicks, yLabel, band) {
  const last = Math.max(...lines.map(({ steps }) => steps.at(-1)), answer.steps.at(-1), 10);
  const x = [ZERO, Math.log10(last)];
  const xTicks = [{ at: ZERO, text: "0" }, ...decades([0, x[1]])];
  const plot = frame(x, y, { xTicks, yTicks, xLabel: "training step", yLabel, names: lines.map(({ label }) => label) });
  const way = (steps, values) => points(steps.flatMap((step, k) => (values[k] === null ? [] : [[plot.x(place(step)), plot.y(values[k])]])));
  const still = lines.map(({ steps, values, main, label, ...attributes }) => draw("polyline", { ...attributes, points: way(steps, values) }));
  if (band) {
    const there = band.steps.map((step, k) => [step, k]).filter(([, k]) => band.low[k] !== null);
    const edge = (values, list) => list.map(([step, k]) => [plot.x(place(step)), plot.y(values[k])]);
    still.unshift(
      draw("polygon", { class: "band", points: points([...edge(band.low, there), ...edge(band.high, [...there].reverse())]) }),
      draw("polyline", { class: "line-band", points: way(band.steps, band.middle) }),
    );
  }
  const whole = draw("g", {}, ...still);
  const names = plot.nameEnds(ends(lines, plot));
  const ours = lines.find(({ main }) => main)?.values;
  return {
    /** What is seen at a frame. */
    at: (k) => {
      const left = plot.x(place(answer.steps[k]));
      const dot = ours && ours[k] !== null ? [draw("circle", { class: "fill-training", cx: left, cy: plot.y(ours[k]), r: 6 })] : [];
      return plot.around(whole, draw("line", { class: "cursor", x1: left, x2: left, y1: 0, y2: HEIGHT }), ...dot).concat(names);
    },
    /** The frame whose step is nearest to where a pointer is, the last at the names of the lines, or null to the left of the plot. */
    frameAt: (svg, event) => {
      const [left] = inData(svg, event);
      if (left < -12) return null;
      const away = answer.steps.map((step) => Math.abs(plot.x(place(step)) - left));
      return away.indexOf(Math.min(...away));
    },
  };
}

/** Where every line ends, with its name and colour. */
function ends(lines, plot) {
  return lines.flatMap(({ values, label, main, stroke = main ? "var(--training)" : "var(--soft)" }) => {
    const last = values.findLast((value) => value !== null);
    return last === undefined ? [] : [{ label, y: plot.y(last), stroke }];
  });
}

/** A little more than what is seen, up to halves of a power of ten, and never so little that no power of ten is in it. */
function range(low, high) {
  const room = 0.06 * Math.max(high - low, 1);
  return high - low < 1.2 ? [Math.floor(low - room), Math.ceil(high + room)] : [Math.floor(2 * (low - room)) / 2, Math.ceil(2 * (high + room)) / 2];
}
