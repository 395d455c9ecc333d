// Two entries of the weights: the unit ball, the region of the largest margin, which touches it in one point,
// and the direction of training on its way to that point.

import { draw } from "./dom.js";
import { arrow, frame, points, ticks } from "./plot.js";

const TURNS = 240;

export function weightsPlot(svg, answer) {
  const { radius, path, solution, half_planes: halfPlanes, entries } = answer.weights;
  const range = 1.3 * Math.max(radius, ...path.flat().map(Math.abs));
  const view = [-range, range];
  const [a, b] = entries.map(([row, column]) => `W[${row}, ${column}] / ‖W‖ₚ`);
  const plot = frame(svg, view, view, { xTicks: ticks(view), yTicks: ticks(view), xLabel: a, yLabel: b });
  const at = ([x, y]) => [plot.x(x), plot.y(y)];
  const centre = at([0, 0]);

  const still = draw("g");
  still.append(draw("polygon", { class: "ball", points: points(ball(answer.p, radius).map(at)) }));
  if (solution) {
    const corner = region(halfPlanes, solution, 2 * range);
    if (corner.length) still.append(draw("polygon", { class: "region-area", points: points(corner.map(at)) }));
  }
  still.append(draw("polyline", { class: "line-faint", points: points(path.map(at)) }));
  if (solution) {
    still.append(arrow(centre, at(solution), { class: "line-solution" }));
  }
  const moving = draw("g");
  plot.inside.append(still, moving);
  return (k) => {
    const way = path.slice(0, k + 1).map(at);
    const [x, y] = way[k];
    moving.replaceChildren(
      draw("polyline", { class: "line-training", points: points(way) }),
      draw("line", { class: "line-training", x1: centre[0], y1: centre[1], x2: x, y2: y, opacity: 0.5 }),
      draw("circle", { class: "fill-training", cx: x, cy: y, r: 6 }),
    );
  };
}

/** |x|^p + |y|^p = radius^p, all around. */
function ball(p, radius) {
  return Array.from({ length: TURNS }, (_, k) => {
    const [c, s] = [Math.cos((2 * Math.PI * k) / TURNS), Math.sin((2 * Math.PI * k) / TURNS)];
    const size = radius / (Math.abs(c) ** p + Math.abs(s) ** p) ** (1 / p);
    return [size * c, size * s];
  });
}

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
