// Lines of a few series on one pair of axes: bands around them, a dot where a series is a single point, names beside their ends.

import { draw, render } from "./dom.js";
import { frame, points, ticks } from "./plot.js";

/** What is seen of all series along one axis, with a little room. */
function range(series, axis, given) {
  if (given) return given;
  const seen = series.flatMap(({ points: own, low = [], high = [] }) => [...own, ...low, ...high].map((one) => one[axis]));
  if (!seen.length) return [0, 1];
  const [least, most] = [Math.min(...seen), Math.max(...seen)];
  const room = 0.06 * (most - least) || 0.05 * Math.abs(most) || 1;
  return [least - room, most + room];
}

/**
 * Draw series `{ points, low, high, colour, dash, name, loose }` into an svg 360 wide: `low` and `high` are the edges of
 * a band, `loose` points are not joined. `level` is a line across with a name, `here` one upright.
 */
export function chart(svg, series, { x, y, xLabel, yLabel, level, here }) {
  const [across, up] = [range(series, 0, x), range(series, 1, y)];
  const height = svg.viewBox.baseVal.height - 44; // below its frame stand the numbers and the name of its axis
  const named = series.filter(({ name, points: own }) => name && own.length);
  const plot = frame(across, up, { xTicks: ticks(across), yTicks: ticks(up), xLabel, yLabel, height, names: named.map(({ name }) => name) });
  const at = (list) => list.map(([a, b]) => [plot.x(a), plot.y(b)]);
  const inside = series.flatMap(({ points: own, low, high, colour, dash, loose }) => {
    const lone = loose || own.length === 1;
    return [
      ...(low?.length > 1 ? [draw("polygon", { class: "band", fill: colour, points: points(at([...low, ...[...high].reverse()])) })] : []),
      ...(lone ? [] : [draw("polyline", { class: "line-training", stroke: colour, "stroke-dasharray": dash ?? "none", points: points(at(own)) })]),
      ...(lone ? at(own).map(([cx, cy]) => draw("circle", { class: "dot-strip", fill: colour, cx, cy, r: 5 })) : []),
    ];
  });
  if (level) {
    const top = plot.y(level.at);
    inside.unshift(draw("line", { class: "line-plain", x1: 0, x2: plot.width, y1: top, y2: top }), draw("text", { class: "line-name", x: 4, y: top - 4 }, level.name));
  }
  if (here !== undefined) inside.push(draw("line", { class: "cursor", x1: plot.x(here), x2: plot.x(here), y1: 0, y2: height }));
  const ends = named.map(({ name, points: own, colour }) => ({ label: name, y: plot.y(own.at(-1)[1]), stroke: colour }));
  render(svg, [...plot.around(...inside), plot.nameEnds(ends)]);
  svg.setAttribute("aria-label", `${yLabel} against ${xLabel}`);
}
