// How good the models of the Attention page are over the share of weights that is pruned.

import { byId, tell } from "./dom.js";
import { chart } from "./chart.js";
import { percent } from "./shades.js";

const TONES = [["var(--accent)", "none"], ["var(--adamw)", "7 4"]];

/** Draw the curves of models `{ title, brief, quality }` whose quality is known, with a line at the share that is shown. */
export function showQuality(models, share) {
  const all = models.filter(({ quality }) => quality?.points);
  const shown = all.filter(({ quality }) => quality.measure === all[0].quality.measure);
  byId("quality").hidden = !shown.length;
  tell(byId("quality-title"), null);
  const lacking = models.filter(({ quality }) => quality?.error).map(({ title, quality }) => `${title}: ${quality.error}`);
  tell(byId("quality-lacking"), lacking.join(" ") || null);
  if (!shown.length) return;
  const { measure, rows, chance } = shown[0].quality;
  const edge = ({ points }, place) => points.map((one) => [100 * one[0], one[place]]);
  chart(byId("quality-plot"), shown.map(({ brief, quality }, k) => ({
    points: edge(quality, 1), low: edge(quality, 2), high: edge(quality, 3), colour: TONES[k][0], dash: TONES[k][1], name: brief,
  })), {
    x: [0, 96], y: chance === null ? undefined : [chance - 0.04, Math.max(...shown.flatMap(({ quality }) => edge(quality, 3).map((one) => one[1]))) + 0.03], xLabel: "weights pruned, %", yLabel: measure,
    level: chance === null ? undefined : { at: chance, name: "the commonest answer" }, here: 100 * share,
  });
  const told = shown.map(({ brief, quality }) => `${value(quality, share)} for ${brief}`).join(" and ");
  const pruned = share ? `With the smallest ${Math.round(100 * share)} % of the weights pruned` : "With no weight pruned";
  tell(byId("quality-title"), `${pruned}, the ${measure} is ${told}.`);
  byId("quality-note").textContent = `${rows} rows that were not trained on; bands are 95 % intervals.`;
}

/** The measure at a share, between the two that were measured around it. */
function value({ points, measure }, share) {
  const next = Math.max(1, points.findIndex(([one]) => one >= share - 1e-9));
  const [[a, low], [b, high]] = [points[next - 1], points[next]];
  const here = low + ((share - a) / (b - a)) * (high - low);
  return measure === "accuracy" ? percent(here) : here.toFixed(3);
}
