// Lines of a few series on one pair of axes: bands around them, a dot where a series is a single point, names at their ends.

import { draw, render } from "./dom.js";
import { endNames, frame, points, ticks, WIDTH } from "./plot.js";

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
  const plot = frame(across, up, { xTicks: ticks(across), yTicks: ticks(up), xLabel, yLabel, height });
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
    inside.unshift(draw("line", { class: "line-plain", x1: 0, x2: WIDTH, y1: top, y2: top }), draw("text", { class: "line-name", x: 4, y: top - 4 }, level.name));
  }
  if (here !== undefined) inside.push(draw("line", { class: "cursor", x1: plot.x(here), x2: plot.x(here), y1: 0, y2: height }));
  const named = series.filter(({ name, points: own }) => name && own.length).map(({ name, points: own }) => {
    const [left, top] = at([own.at(-1)])[0];
    return { label: name, x: left - 6, y: top - 7 };
  });
  render(svg, plot.around(...inside, ...endNames(named, height)));
  svg.setAttribute("aria-label", `${yLabel} against ${xLabel}`);
}
