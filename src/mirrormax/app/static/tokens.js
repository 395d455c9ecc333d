// The tokens of one sample, where attention looks, and the margin between the selected token and the rest. Tokens and
// the query can be dragged, with the mouse, a finger or the arrow keys.

import { draw, short } from "./dom.js";
import { arrow, frame, HEIGHT, inData, points, roomFor, ticks, WIDTH } from "./plot.js";

const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** How far the picture reaches, for one answer and sample. */
export function reach(answer, sample) {
  const { places, present, queries, direct } = answer.tokens;
  const shown = direct ? [...places.flat(), ...queries] : [...places[sample].filter((_, t) => present[sample][t]), queries[sample]];
  return roomFor(1.1 * Math.max(...shown.flat().map(Math.abs), 1e-9));
}

/** What is seen at a frame, as a function of it. */
export function tokensPlot(answer, sample, range) {
  const { places, aim, direct, queries } = answer.tokens;
  const here = places[sample];
  const view = [-range, range];
  const labels = direct
    ? { xLabel: "x₁", yLabel: "x₂" }
    : { xLabel: answer.solution ? "along Wₘₘz" : "along W z, trained", yLabel: "along W(1)z" };
  const plot = frame(view, view, { xTicks: ticks(view), yTicks: ticks(view), ...labels });
  const at = ([x, y]) => [plot.x(x), plot.y(y)];
  const centre = at([0, 0]);
  const end = ([x, y]) => at([0.62 * range * x, 0.62 * range * y]);

  const still = draw("g", {},
    ...(answer.solution ? [strip(answer, sample, here, aim[sample], at, range), arrow(centre, end(aim[sample]), { class: "line-solution" })] : []),
    ...(direct ? others(places, sample, at) : []));
  const asking = query(queries[sample], here, at);
  return (k) =>
    plot.around(
      still,
      arrow(centre, end(answer.tokens.turning[k][sample]), { class: "line-training" }),
      draw("g", {}, asking, ...here.map((place, t) => token(answer, sample, t, at(place), answer.tokens.attention[k][sample][t]))),
    );
}

/**
 * Let tokens, the query and other samples be reached: `moved(handle, [dx, dy], last)` in data units, `picked(t)` when a
 * token is double-clicked or Enter is pressed on it, `sampled(i)` when a token of another sample is clicked.
 */
export function makeDraggable(svg, { range, began, moved, picked, sampled }) {
  let drag = null;
  const inUnits = (event) => {
    const [x, y] = inData(svg, event);
    return [(2 * range() * x) / WIDTH - range(), range() - (2 * range() * y) / HEIGHT];
  };
  svg.addEventListener("pointerdown", (event) => {
    const other = event.target.closest("[data-sample]");
    if (other) sampled(Number(other.dataset.sample));
    const handle = event.target.closest("[data-handle]");
    if (!handle) return;
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
    drag = { handle: handle.dataset.handle, from: inUnits(event) };
    handle.focus({ preventScroll: true });
    began(drag.handle);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = inUnits(event);
    moved(drag.handle, [to[0] - drag.from[0], to[1] - drag.from[1]], false);
    drag.from = to;
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    svg.addEventListener(kind, () => {
      if (drag) moved(drag.handle, [0, 0], true);
      drag = null;
    });
  }
  svg.addEventListener("dblclick", (event) => {
    const handle = event.target.closest("[data-handle]")?.dataset.handle;
    if (handle && handle !== "z") picked(Number(handle));
  });
  svg.addEventListener("keydown", (event) => {
    const handle = event.target.dataset?.handle;
    if (handle === undefined) return;
    if (event.key === "Enter" && handle !== "z") picked(Number(handle));
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    const length = (event.shiftKey ? 0.1 : 0.02) * range();
    moved(handle, [step[0] * length, step[1] * length], true);
  });
}

/** A diamond; a large one around a token where both are in one place, so that either can be grasped. */
function query(place, tokens, at) {
  const [x, y] = at(place);
  const r = tokens.some((token) => Math.hypot(at(token)[0] - x, at(token)[1] - y) < 14) ? 19 : 9;
  const label = `query z at ${short(place[0])}, ${short(place[1])}; arrow keys move it`;
  return draw("g", { class: "handle", tabindex: 0, role: "button", "aria-label": label, "data-handle": "z" },
    draw("title", {}, "the query z: drag it"),
    draw("path", { class: "query", d: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z` }),
    draw("text", { class: "strong", x: x - 4, y: y + r + 13 }, "z"));
}

function token(answer, sample, t, [cx, cy], attention) {
  if (!answer.tokens.present[sample][t]) return draw("g");
  const chosen = answer.alpha[sample] === t;
  const r = chosen ? 8 : 6;
  const place = answer.tokens.places[sample][t];
  const kind = chosen ? ", selected" : "";
  const label = `token ${t + 1}${kind} at ${short(place[0])}, ${short(place[1])}; arrow keys move it, Enter selects it for the SVM`;
  const ring = answer.solution?.support[sample][t] ? [draw("circle", { class: "token-ring", cx, cy, r: r + 3.5 })] : [];
  return draw("g", { class: "handle", tabindex: 0, role: "button", "aria-label": label, "data-handle": t },
    draw("title", {}, `token ${t + 1}: attention ${short(attention)}`),
    draw("circle", { class: "grasp", cx, cy, r: 20 }),
    draw("circle", { class: "token-back", cx, cy, r }),
    draw("circle", { class: "token", cx, cy, r, "fill-opacity": attention }),
    draw("text", { class: chosen ? "strong" : "", x: cx + r + 5, y: cy - r }, `${t + 1}`),
    ...ring);
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
    i === sample ? [] : tokens.map((place) => draw("circle", { class: "token-other", "data-sample": i, cx: at(place)[0], cy: at(place)[1], r: 5 })),
  );
}
