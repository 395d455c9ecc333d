// How far the direction of training is from the solution, step by step, on logarithmic axes.

import { draw } from "./dom.js";
import { decades, frame, HEIGHT, points } from "./plot.js";

const FLOOR = 1e-16;

export function curvePlot(svg, answer) {
  const { own, plain } = answer.divergence;
  const logs = (values) => values?.map((value) => (value === null ? null : Math.log10(Math.max(value, FLOOR))));
  const [ours, other] = [logs(own), logs(plain)];
  const steps = answer.steps.map(Math.log10);
  const seen = [...(ours ?? []), ...(other ?? [])].filter((value) => value !== null);
  const x = [0, Math.max(steps.at(-1), 1)];
  const y = seen.length ? range(Math.min(...seen), Math.max(...seen)) : [-2, 0];
  const plot = frame(svg, x, y, { xTicks: decades(x), yTicks: decades(y), xLabel: "training step", yLabel: "divergence D" });
  const way = (values) => points(steps.flatMap((step, k) => (values[k] === null ? [] : [[plot.x(step), plot.y(values[k])]])));

  const still = draw("g");
  if (other) still.append(draw("polyline", { class: "line-plain", points: way(other) }));
  if (ours) still.append(draw("polyline", { class: "line-training", points: way(ours) }));
  const moving = draw("g");
  plot.inside.append(still, moving);
  return (k) => {
    const left = plot.x(steps[k]);
    const marks = [draw("line", { class: "cursor", x1: left, x2: left, y1: 0, y2: HEIGHT })];
    if (ours && ours[k] !== null) marks.push(draw("circle", { class: "fill-training", cx: left, cy: plot.y(ours[k]), r: 6 }));
    moving.replaceChildren(...marks);
  };
}

/** A little more than what is seen, and never so little that no power of ten is in it. */
function range(low, high) {
  const room = 0.06 * Math.max(high - low, 1);
  return high - low < 1.2 ? [Math.floor(low - room), Math.ceil(high + room)] : [low - room, high + room];
}
