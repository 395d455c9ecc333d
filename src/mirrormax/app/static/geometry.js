// The Geometry page: controls, a question to the server while one of them moves, pictures and a player. What is on the
// screen is one plain object, the view, which the address holds too.

import { newest, upload } from "./api.js";
import { divergencePlot, massPlot } from "./curve.js";
import { alive, byId, make, render, say, short, tell, withinReach } from "./dom.js";
import { heatMaps } from "./heat.js";
import { makePlayer } from "./player.js";
import { colour, key, named } from "./plot.js";
import { startSharing } from "./sharing.js";
import { define, listSymbols } from "./symbols.js";
import { makeDraggable, reach, tokensPlot } from "./tokens.js";
import { startTour } from "./tour.js";
import { weightsPlot } from "./weights.js";
import { drawStrip } from "./strip.js";
import { fromAddress, OPENING, START, toAddress } from "./view.js";

const CHIPS = [1.1, 1.5, 1.75, 2, 3];
// Sliders move on a logarithmic scale, p by its distance from 1.
const P_SCALE = { read: (u) => 1 + 0.05 * 100 ** u, write: (p) => Math.log((p - 1) / 0.05) / Math.log(100) };
const LR_SCALE = { read: (u) => 0.01 * 100 ** u, write: (lr) => Math.log(lr / 0.01) / Math.log(100) };

export function startGeometry() {
  const form = byId("geometry-form");
  const error = byId("geometry-error");
  const stage = byId("stage");
  const svg = byId("tokens-plot");
  let view = fromAddress();
  let answer = null;
  let shown = null; // the question that it answers
  let plots = {};
  let band = null;
  let range = 1;
  let dragging = false;
  let opening = null; // the questions since a view was opened, until one is answered
  let picked = null; // the step that somebody went to, until all frames are there to find it among

  const sample = () => Math.min(view.sample, answer.shape.n - 1);
  const show = (k) => {
    if (!answer) return;
    render(svg, plots.tokens(k));
    render(byId("weights-plot"), plots.weights(k));
    render(byId("curve-plot"), plots.curve.at(k));
    render(byId("mass-plot"), plots.mass.at(k));
    plots.heat(k);
    stage.dataset.frame = k;
    say(byId("scrub-step"), k === 0 ? "start" : `step ${answer.steps[k]}`);
    tellFacts(answer, k);
  };
  const player = makePlayer(byId("play"), byId("scrub"), show);

  /** Draw the answer, at the step that was shown if it has it. */
  const redraw = (step = answer.steps[stage.dataset.frame]) => {
    if (!dragging) range = reach(answer, sample());
    const tone = answer.potential === "Hypentropy" || typeof answer.norm === "string" ? "var(--accent)" : colour(answer.p);
    if (stage.style.getPropertyValue("--training") !== tone) stage.style.setProperty("--training", tone);
    plots = {
      tokens: tokensPlot(answer, sample(), range),
      weights: weightsPlot(answer),
      curve: divergencePlot(answer, band),
      mass: massPlot(answer),
      heat: heatMaps(byId("heat"), answer),
    };
    if (shown.draft === undefined) drawStrip(byId("strip-figure"), answer, (p) => changed({ p, others: view.others.filter((other) => other !== p) }));
    tellNotes(answer, dragging, shown.draft !== undefined);
    tellOthers(answer);
    player.take(answer.steps.length, answer.steps.indexOf(step));
    stage.dataset.redraws = Number(stage.dataset.redraws ?? 0) + 1;
  };
  const fresh = () => {
    stage.classList.remove("stale");
    tell(byId("stale-note"), null);
  };
  const stale = () => {
    if (!answer) return;
    stage.classList.add("stale");
    tell(byId("stale-note"), `The pictures below are of the last answer, p = ${short(answer.p)}, step size ${short(answer.lr)}.`);
  };
  const awaitsFile = () => view.problem === "file" && view.file === null;
  const ask = newest("/api/geometry", stage, {
    answered: (given, asked) => {
      const step = picked ?? answer?.steps[stage.dataset.frame];
      stage.classList.toggle("others-wait", given.others === null); // those of the last answer stay, and fade
      answer = { ...given, others: given.others ?? answer?.others ?? [] };
      shown = asked;
      if (awaitsFile()) stale();
      else fresh();
      tell(error, given.solution ? null : contradiction(given));
      markFields("");
      fillSamples(form.elements.sample, given.shape.n, sample());
      redraw(step);
      if (opening?.has(asked)) {
        opening = null;
        if (view.frame !== null) player.stay(view.frame);
        else if (matchMedia("(prefers-reduced-motion: reduce)").matches) player.stay(given.steps.length - 1);
        else player.play();
      } else if (picked !== null && asked.draft === undefined) {
        picked = null;
        view = { ...view, frame: Number(stage.dataset.frame) };
        toAddress(view);
      }
      stage.dataset.p = given.p;
      stage.dataset.lr = given.lr;
      return asked.draft === undefined || awaitsFile() ? null : question(view); // all frames, once the hand is still
    },
    refused: (sentence) => {
      tell(error, sentence);
      markFields(sentence);
      stale();
    },
  });

  const p = bindSlider("p", P_SCALE, 2, (value, live) => changed({ p: value }, { live }));
  const lr = bindSlider("lr", LR_SCALE, 3, (value, live) => changed({ lr: value }, { live }));

  /**
   * Take a change of the view, show it in the controls, ask the server, and put it into the address a little later. A
   * live one is under somebody's hand: fewer frames are asked for, so that the picture keeps up. One that opens another
   * view goes to its frame, or plays, with the first answer to what was asked since.
   */
  const changed = (change, { keepBand = false, live = false, opens = false } = {}) => {
    view = { ...view, ...change };
    if (opens) opening = new Set();
    if ("frame" in change) picked = null;
    if (!keepBand) band = null;
    write();
    toAddress(view);
    if (awaitsFile()) {
      tell(error, null);
      stale();
      return;
    }
    const few = live && !opening; // what is opened needs all frames
    const asked = few ? { ...question(view), draft: picked ?? answer.steps[stage.dataset.frame] } : question(view);
    opening?.add(asked);
    ask(asked);
  };
  const write = () => {
    const names = ["problem", "steps", "start", "rule", "potential", "seed", "n", "T", "d", "beta"];
    for (const name of names) put(form.elements[name], view[name]);
    put(form.elements.alpha, Array.isArray(view.alpha) ? "mine" : view.alpha);
    p(view.p);
    lr(view.lr);
    hide("sphere-fields", view.problem !== "sphere");
    hide("file-fields", view.problem !== "file");
    hide("p-block", view.rule !== "mirror");
    hide("beta-field", view.potential !== "Hypentropy");
    hide("put-back", !view.moves.x.length && !view.moves.z.length);
    for (const chip of byId("other-chips").children) mark(chip, "aria-pressed", view.others.includes(Number(chip.value)));
  };

  for (const value of CHIPS) {
    byId("p-chips").append(chip(value, () => changed({ p: value, others: view.others.filter((p) => p !== value) })));
    byId("other-chips").append(chip(value, () => changed({ others: toggled(view.others, value) })));
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    const { name, value } = target;
    if (name === "sample") {
      view = { ...view, sample: Number(value) };
      toAddress(view);
      if (answer) redraw();
    } else if (name === "alpha") changed({ alpha: value === "mine" ? [...(answer?.alpha ?? [])] : value });
    else if (["problem", "seed", "n", "T", "d"].includes(name)) changed({ [name]: number(value), ...untouched(name, value) });
    else if (name && name !== "upload") changed({ [name]: number(value) });
  });
  form.elements.upload.addEventListener("change", async ({ target }) => {
    if (!target.files.length) return;
    try {
      const problem = await upload(`/api/problem?name=${encodeURIComponent(target.files[0].name)}`, target.files[0]);
      byId("file-note").textContent = `n = ${problem.shape.n}, T = ${problem.shape.T}, d = ${problem.shape.d}`;
      changed({ file: problem.file, ...untouched("file") });
    } catch (refusal) {
      tell(error, refusal.message);
      stale();
    }
  });
  byId("put-back").addEventListener("click", () => changed({ moves: { x: [], z: [] } }));
  byId("hero").addEventListener("click", () => {
    changed({ ...START, file: view.file }, { opens: true });
  });
  byId("reset").addEventListener("click", () => changed({ ...OPENING, file: view.file }, { opens: true }));
  /** A step that somebody went to belongs to the view; one that is played past does not. */
  const chosen = (frame) => {
    if (opening) return; // the picture is still that of another view
    picked = frame === null ? null : answer.steps[frame];
    if (picked !== null && shown.draft !== undefined) return; // its frames are not those of the address
    view = { ...view, frame };
    toAddress(view);
  };
  for (const name of ["curve", "mass"]) {
    const goTo = (event) => {
      const frame = answer && plots[name].frameAt(byId(`${name}-plot`), event);
      if (frame === null || !answer) return;
      player.stay(frame);
      chosen(frame);
    };
    byId(`${name}-plot`).addEventListener("pointerdown", (event) => {
      byId(`${name}-plot`).setPointerCapture(event.pointerId);
      goTo(event);
    });
    byId(`${name}-plot`).addEventListener("pointermove", (event) => event.buttons && goTo(event));
  }
  byId("scrub").addEventListener("input", () => chosen(Number(byId("scrub").value)));
  byId("play").addEventListener("click", () => chosen(null));

  let axes = null; // of the plane on which something is dragged: it is held until it is let go
  makeDraggable(svg, {
    range: () => range,
    began: () => {
      dragging = true;
      axes = answer.tokens.axes?.[sample()] ?? null;
    },
    moved: (handle, by, last) => {
      axes ??= answer.tokens.axes?.[sample()] ?? null;
      const whole = axes ? axes[0].map((a, j) => by[0] * a + by[1] * axes[1][j]) : by;
      const moves = withMove(view.moves, handle, sample(), whole);
      const held = axes && !last ? [sample(), axes.flat()] : null;
      if (last) {
        dragging = false;
        axes = null;
      }
      changed({ moves, held }, { live: !last });
    },
    picked: (t) => changed({ alpha: Object.assign([...answer.alpha], { [sample()]: t }) }),
    sampled: (i) => {
      form.elements.sample.value = i;
      view = { ...view, sample: i };
      redraw();
    },
  });

  withinReach(byId("p-block"), document.querySelector(".player"));
  startSharing({
    question: () => question(view),
    caption: () => {
      if (!answer) throw new Error("There is no picture yet; wait for the first answer.");
      return captionOf({ ...shown, sample: view.sample }, answer, stage.dataset.frame);
    },
    seeds: (quartiles) => {
      band = quartiles;
      redraw();
    },
  });
  const toured = (change) => {
    opening = null; // the tour goes to its own steps, even if it is begun before anything is there to see
    changed({ frame: null, ...change });
  };
  startTour({ change: toured, play: () => player.play(), stay: (share) => answer && player.stay(Math.round(share * (answer.steps.length - 1))) });
  define();
  listSymbols(byId("symbols"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => answer && redraw()); // maps are pixels
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#geometry?")) changed(fromAddress(), { opens: true });
  });
  changed({}, { keepBand: true, opens: true });
}

/** What the server is asked. */
function question({ file, sample, frame, ...view }) {
  return view.problem === "file" ? { ...view, file } : view;
}

/** What is on the screen, in a line: of the answer that is drawn, whatever was asked since. */
function captionOf({ problem, seed, sample, start, rule, potential, beta }, answer, frame) {
  const { n, T, d } = answer.shape;
  const name = { example1: "Example 1", example2: "Example 2", sphere: `sphere, seed ${seed}`, file: "a file" }[problem];
  const others = answer.others.map(({ p }) => `, ${p}`).join("");
  const mirror = rule && rule !== "mirror" ? named(answer) + others.replace(",", ", beside p =") : potential === "Hypentropy" ? `hypentropy, β = ${beta}` : `p = ${answer.p}${others}${potential === "Lp" ? "" : ", ‖w‖ₚ²/2"}`;
  return `${name} (n = ${n}, T = ${T}, d = ${d}), sample ${Math.min(sample, n - 1) + 1}; ${mirror}; η = ${answer.lr}, ${start} start, step ${answer.steps[frame]} of ${answer.steps.at(-1)}`;
}

/** Another problem has other tokens: nothing of it was moved or chosen yet. */
function untouched(name, value) {
  const kept = name === "problem" && value === "file" ? {} : { frame: null };
  return { moves: { x: [], z: [] }, held: null, alpha: "trained", sample: 0, ...kept };
}

const toggled = (list, value) => (list.includes(value) ? list.filter((p) => p !== value) : [...list, value].sort((a, b) => a - b).slice(-4));

function withMove(moves, handle, sample, by) {
  const name = handle === "z" ? "z" : "x";
  const place = handle === "z" ? [sample] : [sample, Number(handle)];
  const is = (move) => place.every((index, k) => move[k] === index);
  const old = moves[name].find(is)?.at(-1) ?? by.map(() => 0);
  const sum = old.map((value, k) => Number((value + by[k]).toFixed(6)));
  return { ...moves, [name]: [...moves[name].filter((move) => !is(move)), [...place, sum]] };
}

/** What a field says, as a number where it is one: the server tells what is wrong with anything else. */
function number(text) {
  const trimmed = text.trim();
  return trimmed !== "" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

/** Tie a slider to the number beside it; returns what writes a value into both. */
function bindSlider(name, scale, digits, changed) {
  const field = byId(`${name}-number`);
  const slider = byId(`${name}-slider`);
  slider.addEventListener("input", () => changed(Number(scale.read(Number(slider.value)).toFixed(digits)), true));
  field.addEventListener("input", () => changed(number(field.value), false));
  return (value) => {
    if (document.activeElement !== field || number(field.value) !== value) field.value = value;
    const place = scale.write(value);
    if (Number.isFinite(place) && document.activeElement !== slider) slider.value = place;
    slider.setAttribute("aria-valuetext", `${name} = ${value}`);
  };
}

/** Mark the fields that a refusal begins with. */
function markFields(sentence) {
  const fields = { p: "#p-number", "step size": "#lr-number", seed: "[name=seed]", n: "[name=n]", T: "[name=T]", d: "[name=d]", beta: "[name=beta]" };
  for (const [name, place] of Object.entries(fields)) {
    mark(document.querySelector(place), "aria-invalid", sentence.startsWith(`${name} must`));
  }
}

function chip(value, chosen) {
  const button = make("button", { type: "button", value, textContent: String(value), ariaLabel: `p = ${value}` });
  button.addEventListener("click", chosen);
  return button;
}

// What is so already is not written again: a browser would style and lay out the page anew for it.
function put(field, value) {
  if (field.value !== String(value)) field.value = value;
}

function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function hide(id, hidden) {
  if (byId(id).hidden !== hidden) byId(id).hidden = hidden;
}

function fillSamples(select, n, chosen) {
  if (select.options.length !== n) {
    select.replaceChildren(...Array.from({ length: n }, (_, i) => make("option", { value: i, textContent: `${i + 1} of ${n}` })));
  }
  put(select, chosen);
}

const contradiction = (answer) =>
  `No weights select the tokens ${answer.alpha.map((t) => t + 1).join(", ")} of the samples with a margin, so training has no solution to converge to.`;

function tellFacts(answer, k) {
  const facts = answer.solution;
  const rows = [
    ["largest margin γ", "margin", facts ? short(facts.margin, 4) : "none"],
    ["certified within", "gap", facts ? short(Math.max(facts.gap, facts.violation, 1e-16), 2) : "–"],
    [typeof answer.norm === "string" ? "margin it lacks" : "divergence now", "D", short(answer.divergence.own?.[k])],
    ["attention on selected", "mass", `${(100 * answer.mass[k]).toFixed(1)} %`],
    ["large entries of Wₘₘ", "entries", facts ? `${facts.large_entries} of ${facts.all_entries}` : "–"],
    ["locally optimal", "local", facts ? (facts.locally_optimal ? "yes" : "no") : "–"],
    ["size of W, ‖W‖", "norm", short(answer.norms[k])],
  ];
  const list = byId("facts");
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(([name, symbol]) => {
      const term = make("dt", {}, make("span", { textContent: name }));
      term.firstChild.dataset.sym = symbol;
      return make("div", {}, term, make("dd"));
    }));
    define(list);
  }
  rows.forEach(([name, , value], place) => {
    say(list.children[place].firstChild.firstChild, name);
    say(list.children[place].lastChild, value);
  });
}

function tellOthers(answer) {
  const legend = byId("others-legend");
  if (legend.dataset.shown === String(answer.others.map(({ p }) => p))) return;
  legend.dataset.shown = answer.others.map(({ p }) => p);
  legend.replaceChildren(...answer.others.map(({ p }) => make("span", { className: "other-p" }, alive(key(p)), ` p = ${p}`)));
}

function tellNotes(answer, dragging, draft) {
  const two = answer.shape.d === 2;
  say(byId("tokens-note"),
    (dragging && !two ? "The view is held while you drag. " : "") +
    (two
      ? "Other samples in grey. "
      : `A view of ${answer.shape.d} dimensions: across, the direction Wₘₘz in which the margin is measured; up, where the first step W(1)z pointed apart from it. `) +
    "The fuller a token, the more attention it gets; the selected one is larger, support tokens are ringed. The band is the margin.");
  say(byId("weights-note"),
    (two
      ? "Two entries of W, the others as in the solution: a section of the unit ball. "
      : "The plane of the first step and the solution, with its section of the unit ball; training is projected on it. ") +
    (answer.solution ? "All weights in the wedge have the largest margin or more; it touches the ball in one point, the solution." : ""));
  const near = answer.potential === "Hypentropy" ? " For hypentropy this is the ℓ1.01 solution, which stands in for the ℓ1 one." : "";
  const apart = answer.others.length ? " Thin lines: the other p, each from its own solution." : answer.norm === 2 ? "" : " Dotted: distance to the p = 2 solution, which this run does not approach.";
  const norm = { linf: "ℓ∞", spectral: "spectral" }[answer.norm];
  const adam = answer.rule === "adam" ? " Adam’s second moments remember early gradients, so that its steps are not those of the sign." : "";
  say(byId("curve-note"),
    norm ? `By how much the margin of W(k) falls short of the largest in the ${norm} norm, in which ${named(answer)} is steepest descent${adam && ", nearly"}.${adam} The solution shown may be one of several.` :
    `How far the direction of W(k) is from the ℓₚ solution, p = ${short(answer.norm)}.${near}${apart}` +
    (answer.rate ? " Dashed: Theorem 4's bound, scaled to lie above the run." : "") +
    (answer.joint ? " The readout v starts at zero and is trained too." : "") +
    (draft ? " Fewer points while you drag." : " Click to go to a step."));
}
