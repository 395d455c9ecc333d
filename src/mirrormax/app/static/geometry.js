// The Geometry page: controls, a question to the server when one of them moves, three plots and a player.

import { latest, upload } from "./api.js";
import { curvePlot } from "./curve.js";
import { byId, make, short, tell } from "./dom.js";
import { makePlayer } from "./player.js";
import { tokensPlot } from "./tokens.js";
import { weightsPlot } from "./weights.js";

const PAUSE = 60;
const CHIPS = [1.1, 1.75, 2, 3];
// Sliders move on a logarithmic scale, p by its distance from 1.
const P_SCALE = { read: (u) => 1 + 0.05 * 100 ** u, write: (p) => Math.log((p - 1) / 0.05) / Math.log(100) };
const LR_SCALE = { read: (u) => 0.01 * 100 ** u, write: (lr) => Math.log(lr / 0.01) / Math.log(100) };

export function startGeometry() {
  const form = byId("geometry-form");
  const error = byId("geometry-error");
  const stage = form.parentElement.querySelector(".stage");
  let answer = null;
  let file = null;
  let frames = [];

  const show = (k) => {
    for (const draw of frames) draw(k);
    byId("scrub-step").textContent = `step ${answer.steps[k]}`;
    tellFacts(answer, k);
  };
  const setFrames = makePlayer(byId("play"), byId("scrub"), show);

  const redraw = () => {
    const sample = Math.min(Number(form.elements.sample.value || 0), answer.shape.n - 1);
    frames = [
      tokensPlot(byId("tokens-plot"), answer, sample),
      weightsPlot(byId("weights-plot"), answer),
      curvePlot(byId("curve-plot"), answer),
    ];
    tellNotes(answer);
    setFrames(answer.steps.length);
  };
  const ask = latest("/api/geometry", PAUSE, {
    waiting: () => stage.classList.add("waiting"),
    answered: (found) => {
      answer = found;
      stage.classList.remove("waiting");
      tell(error, found.solution ? null : contradiction(found));
      mark("");
      fillSamples(form.elements.sample, found.shape.n);
      redraw();
      stage.dataset.p = found.p;
    },
    refused: (sentence) => {
      stage.classList.remove("waiting");
      tell(error, sentence);
      mark(sentence);
    },
  });

  const p = bindSlider("p", P_SCALE, 2, () => changed());
  const lr = bindSlider("lr", LR_SCALE, 3, () => changed());
  const changed = () => {
    const kind = form.elements.problem.value;
    byId("sphere-fields").hidden = kind !== "sphere";
    byId("file-fields").hidden = kind !== "file";
    if (kind === "file" && file === null) return;
    const numbers = Object.fromEntries(["seed", "n", "T", "d"].map((name) => [name, number(form.elements[name].value)]));
    ask({ problem: kind, file, ...numbers, p: p(), lr: lr(), steps: Number(form.elements.steps.value), start: form.elements.start.value });
  };
  for (const value of CHIPS) byId("p-chips").append(chip(value));

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.name === "sample") redraw();
    else if (event.target.name && event.target.name !== "upload") changed();
  });
  form.elements.upload.addEventListener("change", async ({ target }) => {
    if (!target.files.length) return;
    try {
      const found = await upload(`/api/problem?name=${encodeURIComponent(target.files[0].name)}`, target.files[0]);
      file = found.file;
      byId("file-note").textContent = `n = ${found.shape.n}, T = ${found.shape.T}, d = ${found.shape.d}`;
      changed();
    } catch (refusal) {
      tell(error, refusal.message);
    }
  });
  changed();
}

/** What a field says, as a number where it is one: the server tells what is wrong with anything else. */
function number(text) {
  const trimmed = text.trim();
  return trimmed !== "" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

/** Tie a slider to the number beside it; returns what reads the value. */
function bindSlider(name, scale, digits, changed) {
  const field = byId(`${name}-number`);
  const slider = byId(`${name}-slider`);
  const follow = () => {
    const value = number(field.value);
    const place = scale.write(value);
    if (Number.isFinite(place)) slider.value = place;
    slider.setAttribute("aria-valuetext", `${name} = ${field.value}`);
  };
  slider.addEventListener("input", () => {
    field.value = String(Number(scale.read(Number(slider.value)).toFixed(digits)));
    slider.setAttribute("aria-valuetext", `${name} = ${field.value}`);
    changed();
  });
  field.addEventListener("input", () => {
    follow();
    changed();
  });
  follow();
  return () => number(field.value);
}

/** Mark the fields that a refusal begins with. */
function mark(sentence) {
  const fields = { p: "#p-number", "step size": "#lr-number", seed: "[name=seed]", n: "[name=n]", T: "[name=T]", d: "[name=d]" };
  for (const [name, place] of Object.entries(fields)) {
    document.querySelector(place).setAttribute("aria-invalid", sentence.startsWith(`${name} must`));
  }
}

function chip(value) {
  const button = make("button", { type: "button", textContent: String(value), ariaLabel: `p = ${value}` });
  button.addEventListener("click", () => {
    byId("p-number").value = value;
    byId("p-number").dispatchEvent(new Event("input"));
  });
  return button;
}

function fillSamples(select, n) {
  if (select.options.length === n) return;
  select.replaceChildren(...Array.from({ length: n }, (_, i) => make("option", { value: i, textContent: `${i + 1} of ${n}` })));
}

const contradiction = (answer) =>
  `No weights select the tokens ${answer.alpha.map((t) => t + 1).join(", ")} of the samples with a margin, so there is no solution to turn to.`;

function tellFacts(answer, k) {
  const facts = answer.solution;
  const rows = [
    ["largest margin γ", facts ? short(facts.margin, 4) : "none"],
    ["divergence now", short(answer.divergence.own?.[k])],
    ["attention on selected", `${(100 * answer.mass[k]).toFixed(1)} %`],
    ["large entries of Wₘₘ", facts ? `${facts.large_entries} of ${facts.all_entries}` : "–"],
    ["locally optimal", facts ? (facts.locally_optimal ? "yes" : "no") : "–"],
    ["size of W, ‖W‖ₚ", short(answer.norm[k])],
  ];
  byId("facts").replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))),
  );
}

function tellNotes(answer) {
  const two = answer.shape.d === 2;
  byId("tokens-note").textContent =
    (two
      ? "Other samples in grey. "
      : `A view of ${answer.shape.d} dimensions: across, the direction Wₘₘz in which the margin is measured; up, where the first step W(1)z pointed apart from it. `) +
    "The fuller a token, the more attention it gets; the selected one is larger, support tokens are ringed. The band is the margin.";
  byId("weights-note").textContent =
    (two
      ? "Two entries of W, the others as in the solution: a cut through the unit ball. "
      : "The plane of the first step and the solution, with its cut through the unit ball; training is projected on it. ") +
    (answer.solution ? "All weights in the wedge have the largest margin or more; it touches the ball in one point, the solution." : "");
  byId("curve-note").textContent =
    (answer.p === 2
      ? "How far the direction of W(k) is from the ℓ₂ solution, where gradient descent turns."
      : `How far the direction of W(k) is from the ℓₚ solution, p = ${short(answer.p)}; dotted, from that of p = 2, where this path does not go.`) +
    (answer.joint ? " The head v starts at zero and is trained too." : "");
}
