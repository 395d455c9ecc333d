// The tokens of one sample, where attention looks, and the margin between the selected token and the rest.

import { draw, short } from "./dom.js";
import { arrow, frame, points, ticks } from "./plot.js";

const dot = (a, b) => a[0] * b[0] + a[1] * b[1];

/** Draw what stays, and return what draws one frame. */
export function tokensPlot(svg, answer, sample) {
  const { places, present, aim, direct } = answer.tokens;
  const here = places[sample];
  const shown = direct ? places.flat() : here.filter((_, t) => present[sample][t]);
  const range = 1.25 * Math.max(...shown.flat().map(Math.abs), 1e-9);
  const view = [-range, range];
  const labels = direct
    ? { xLabel: "x₁", yLabel: "x₂" }
    : { xLabel: answer.solution ? "along Wₘₘz" : "along W z, trained", yLabel: "along W(1)z" };
  const plot = frame(svg, view, view, { xTicks: ticks(view), yTicks: ticks(view), ...labels });
  const at = ([x, y]) => [plot.x(x), plot.y(y)];
  const centre = at([0, 0]);
  const reach = ([x, y]) => at([0.62 * range * x, 0.62 * range * y]);

  const still = draw("g");
  if (answer.solution) still.append(strip(answer, sample, here, aim[sample], at, range));
  if (direct) still.append(...others(places, sample, at));
  if (answer.solution) still.append(arrow(centre, reach(aim[sample]), { class: "line-solution" }));
  const moving = draw("g");
  plot.inside.append(still, moving);
  return (k) => {
    const turning = answer.tokens.turning[k][sample];
    moving.replaceChildren(
      arrow(centre, reach(turning), { class: "line-training" }),
      ...here.map((place, t) => token(answer, sample, t, at(place), answer.tokens.attention[k][sample][t])),
    );
  };
}

function token(answer, sample, t, [x, y], attention) {
  if (!answer.tokens.present[sample][t]) return draw("g");
  const selected = answer.alpha[sample] === t;
  const radius = selected ? 8 : 6;
  const mark = draw("g", {}, draw("title", {}, `token ${t + 1}: attention ${short(attention)}`));
  mark.append(
    draw("circle", { class: "token-back", cx: x, cy: y, r: radius }),
    draw("circle", { class: "token", cx: x, cy: y, r: radius, "fill-opacity": attention }),
  );
  if (answer.solution?.support[sample][t]) {
    mark.append(draw("circle", { class: "token-ring", cx: x, cy: y, r: radius + 3.5 }));
  }
  mark.append(draw("text", { class: selected ? "strong" : "", x: x + radius + 5, y: y - radius }, `${t + 1}`));
  return mark;
}

/** Between the selected token and the next one along the solution's direction: the margin of this sample. */
function strip(answer, sample, here, aim, at, range) {
  const along = here.map((place) => dot(place, aim));
  const top = along[answer.alpha[sample]];
  const rivals = along.filter((_, t) => t !== answer.alpha[sample] && answer.tokens.present[sample][t]);
  const next = Math.max(...rivals);
  const size = dot(aim, aim);
  const far = 4 * range;
  const edge = (value, side) => at([(value * aim[0] - side * far * aim[1]) / size, (value * aim[1] + side * far * aim[0]) / size]);
  const line = (value) => {
    const [[x1, y1], [x2, y2]] = [edge(value, 1), edge(value, -1)];
    return draw("line", { class: "strip-edge", x1, y1, x2, y2 });
  };
  const area = points([edge(top, 1), edge(top, -1), edge(next, -1), edge(next, 1)]);
  return draw("g", {}, draw("polygon", { class: "strip", points: area }), line(top), line(next));
}

function others(places, sample, at) {
  return places.flatMap((tokens, i) =>
    i === sample ? [] : tokens.map((place) => draw("circle", { class: "token-other", cx: at(place)[0], cy: at(place)[1], r: 4 })),
  );
}
