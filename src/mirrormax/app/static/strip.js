// The solution over p: a film strip of its weights, and below it how many of them are large.

import { draw, make, render, say } from "./dom.js";
import { paintWeights, weightBytes } from "./heat.js";
import { colour, points } from "./plot.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [900, 160, 46, 46, 28, 34];
const INSET = 15; // of the first and last point, below the first and last picture and clear of the scale

/** Draw the strip of an answer into its figure; `choose(p)` when a picture is clicked. */
export function drawStrip(figure, answer, choose) {
  if (figure.hidden !== !answer.strip) figure.hidden = !answer.strip;
  if (!answer.strip) return;
  const { p: exponents, heat, large } = answer.strip;
  const [film, plot] = figure.querySelectorAll(".film, svg");
  const { d } = answer.shape;
  while (film.children.length > exponents.length) film.lastChild.remove();
  while (film.children.length < exponents.length) film.append(make("button", { type: "button" }, make("canvas"), make("span"), make("span", { className: "large" })));
  const bytes = weightBytes(heat);
  exponents.forEach((p, k) => {
    const button = film.children[k];
    const [canvas, name, count] = button.children;
    if (canvas.width !== d) Object.assign(canvas, { width: d, height: d });
    paintWeights(canvas, bytes.subarray(k * d * d, (k + 1) * d * d));
    say(name, `p = ${p}`);
    say(count, `${large[k]} large`);
    button.onclick = () => choose(p);
    button.setAttribute("aria-label", `p = ${p}: ${large[k]} of ${d * d} entries are large; show this p`);
    button.setAttribute("aria-current", p === answer.p);
  });
  render(plot, curve(exponents, large, d * d, answer.p));
}

/** Large entries against p; the axis is that of the strip, with the present p between its neighbours. */
function curve(exponents, large, all, p) {
  const step = (WIDTH - LEFT - RIGHT - 2 * INSET) / (exponents.length - 1);
  const x = (place) => LEFT + INSET + place * step;
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const line = exponents.map((_, k) => [x(k), y(large[k] / all)]);
  const here = placeOf(exponents, p);
  return [
    ...[0, 0.5, 1].map((share) => draw("g", {},
      draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) }),
      draw("text", { x: LEFT - 8, y: y(share) + 4, "text-anchor": "end" }, `${Math.round(share * all)}`))),
    draw("text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "p, from few large weights to all alike"),
    draw("polyline", { class: "line-strip", points: points(line) }),
    ...line.map(([cx, cy], k) => draw("g", {},
      draw("circle", { class: "dot-strip", cx, cy, r: 4.5, fill: colour(exponents[k]) }),
      draw("text", { class: "strong", x: cx, y: cy - 12, "text-anchor": "middle" }, `${large[k]}`))),
    ...(here === null ? [] : [draw("line", { class: "cursor", x1: x(here), x2: x(here), y1: TOP, y2: HEIGHT - BOTTOM })]),
  ];
}

/** Where p stands between its neighbours, by the logarithm of p − 1; null outside. */
function placeOf(exponents, p) {
  const logs = exponents.map((one) => Math.log(one - 1));
  const at = Math.log(p - 1);
  const next = logs.findIndex((value) => value >= at);
  if (next < 0 || at < logs[0]) return null;
  return next === 0 ? 0 : next - (logs[next] - at) / (logs[next] - logs[next - 1]);
}
