// Two entries of the weights: the unit ball, the region of the largest margin, which touches it in one point,
// and the direction of training on its way to that point.

import { draw } from "./dom.js";
import { arrow, colour, dash, frame, points, roomFor, ticks } from "./plot.js";

/** What is seen at a frame, as a function of it. */
export function weightsPlot(answer) {
  const { ball, path, solution, half_planes: halfPlanes, entries } = answer.weights;
  const shown = [ball, path, ...answer.others.map((other) => other.path)].flat(2).map(Math.abs);
  const range = roomFor(Math.max(...shown));
  const view = [-range, range];
  const [a, b] = entries ? entries.map(([row, column]) => `W${subscript(row + 1, column + 1)} / ‖W‖ₚ`) : ["along Wₘₘ", "along W(1)"];
  const plot = frame(view, view, { xTicks: ticks(view), yTicks: ticks(view), xLabel: a, yLabel: b });
  const at = ([x, y]) => [plot.x(x), plot.y(y)];
  const centre = at([0, 0]);
  const way = path.map(at);

  const corner = solution ? region(halfPlanes, solution, 2 * range) : [];
  const still = draw("g", {},
    draw("polygon", { class: "ball", points: points(ball.map(at)) }),
    draw("polygon", { class: "region-area", points: points(corner.map(at)) }),
    draw("polyline", { class: "line-faint", points: points(way) }),
    ...answer.others.flatMap((other) => besides(other, at)),
    ...(solution ? [arrow(centre, at(solution), { class: "line-solution" }), draw("circle", { class: "target", cx: at(solution)[0], cy: at(solution)[1], r: 9 })] : []),
  );
  return (k) => {
    const [x, y] = way[k];
    return plot.around(
      still,
      draw("polyline", { class: "line-training", points: points(way.slice(0, k + 1)) }),
      draw("line", { class: "line-training", x1: centre[0], y1: centre[1], x2: x, y2: y, opacity: 0.5 }),
      draw("circle", { class: "fill-training", cx: x, cy: y, r: 6 }),
    );
  };
}

/** Another p: its ball where that is a cut along the same entries, its path, and where its own solution is. */
function besides({ p, ball, path, solution }, at) {
  const stroke = colour(p);
  const marks = [draw("polyline", { class: "line-other", stroke, "stroke-dasharray": dash(p), points: points(path.map(at)) })];
  if (ball) marks.push(draw("polygon", { class: "ball-other", stroke, points: points(ball.map(at)) }));
  if (solution) {
    const [cx, cy] = at(solution);
    marks.push(draw("circle", { class: "target", stroke, cx, cy, r: 6 }, draw("title", {}, `the solution of p = ${p}`)));
  }
  return marks;
}

const subscript = (...places) => places.map((place) => String.fromCharCode(0x2080 + place)).join("");

/** A large square, cut by every half-plane a·δx + b·δy + c ≥ 0 with δ counted from the solution. */
function region(halfPlanes, [x0, y0], far) {
  let corners = [[-far, -far], [far, -far], [far, far], [-far, far]];
  for (const [a, b, c] of halfPlanes) {
    const size = Math.hypot(a, b);
    if (!size) continue;
    const value = ([x, y]) => (a * (x - x0) + b * (y - y0) + c) / size;
    corners = corners.flatMap((corner, k) => {
      const next = corners[(k + 1) % corners.length];
      const [here, there] = [value(corner), value(next)];
      const kept = here >= 0 ? [corner] : [];
      if (here >= 0 === there >= 0) return kept;
      const share = here / (here - there);
      return [...kept, [corner[0] + share * (next[0] - corner[0]), corner[1] + share * (next[1] - corner[1])]];
    });
  }
  return corners;
}
