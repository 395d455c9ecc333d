// The Attention page: a text, one or two models, and what their heads look at.

import { get, newest, post } from "./api.js";
import { byId, make, short, tell, withinReach } from "./dom.js";
import { showQuality } from "./quality.js";
import { card } from "./reading.js";
import { percent, steps } from "./shades.js";

const TEXTS = [
  "it is boring and far too long",
  "a warm , funny and wonderfully acted film",
  "not a bad movie , but hardly a great one",
  "The cat sat on the mat. The cat sat on the",
];

export async function startAttention() {
  const error = byId("attention-error");
  const stage = byId("attention-stage");
  const [first, second] = [byId("model-a"), byId("model-b")];
  const kinds = new Map(); // by the model's name; null while they are looked for
  const qualities = new Map(); // likewise
  let readings = [];
  let models = [];
  let place = { kind: null };
  let queries = [null, null];
  let without = [null, null]; // the token that the chosen head of each model does not see

  byId("scale-steps").replaceChildren(...steps(make));
  const known = (name) => models.find((model) => model.name === name);
  const pruned = () => Number(byId("pruned").value) / 100;
  const redrawQuality = () => {
    const briefs = briefly(readings.map(({ name }) => known(name)));
    showQuality(readings.map(({ name }, k) => ({ ...known(name), brief: briefs[k], quality: qualities.get(name) })), pruned());
  };
  const redraw = () => {
    fillHeads(readings);
    const cards = readings.map((reading) => card(reading, known(reading.name), kinds.get(reading.name), place, choose));
    const focus = focused();
    byId("readings").replaceChildren(...cards);
    focus?.();
    tell(byId("difference"), difference(readings, briefly(readings.map(({ name }) => known(name)))));
    redrawQuality();
  };
  /** What gives the focus back to the same thing of the same card after it is drawn anew. */
  function focused() {
    const active = document.activeElement;
    const cards = [...byId("readings").children];
    const at = cards.findIndex((one) => one.contains(active));
    if (at < 0) return null;
    const kind = ["thumb", "word", "ablate"].find((name) => active.classList.contains(name));
    const which = kind ? `.${kind}` : active.tagName === "CANVAS" ? ".map canvas" : ".chips button";
    const [text, title] = [active.textContent, active.title];
    return () => {
      const all = [...(byId("readings").children[at]?.querySelectorAll(which) ?? [])];
      const same = kind === "ablate" ? all.find((one) => one.textContent === text) : all.find((one) => one.ariaPressed === "true") ?? all.find((one) => one.title === title);
      (same ?? all[0])?.focus({ preventScroll: true });
    };
  }
  const choose = {
    query: (reading, t) => {
      const begin = reading.tokens[t].begin;
      queries = readings.map((one) => {
        if (one.name === reading.name) return t;
        const same = one.tokens?.findIndex((token) => token.begin !== null && token.begin === begin) ?? -1;
        return same < 0 ? null : same; // tokens of another model: the one that begins where this does
      });
      without = [null, null];
      changed();
    },
    without: (reading, t) => {
      without = readings.map((one, k) => (one.name === reading.name ? t : without[k]));
      changed();
    },
    head: (layer, head) => {
      byId("layer").value = layer;
      byId("head").value = head;
      without = [null, null];
      changed();
    },
    kind: (kind) => {
      place = { ...place, kind };
      redraw();
    },
  };
  const ask = newest("/api/attention", stage, {
    asked: () => {
      const fresh = [first.value, second.value].some((name) => name && !readings.some((one) => one.name === name));
      tell(byId("attention-note"), fresh ? "Reading the model; a large one takes a while." : null);
    },
    answered: (given) => {
      tell(error, null);
      tell(byId("attention-note"), null);
      stage.classList.remove("stale");
      readings = given;
      queries = given.map(({ query }) => query ?? null);
      redraw();
      for (const { name, damaged } of given) if (damaged === null) find("/api/kinds", kinds, name).then(() => find("/api/quality", qualities, name));
    },
    refused: (sentence) => {
      tell(error, sentence);
      tell(byId("attention-note"), null);
      stage.classList.add("stale");
    },
  });
  /** Ask once what is known of a model whatever text it is given. */
  const find = async (path, answers, name) => {
    if (answers.has(name)) return;
    answers.set(name, null);
    try {
      answers.set(name, await post(path, { model: name }));
    } catch (refusal) {
      answers.set(name, { error: refusal.message });
    }
    redraw();
  };
  const changed = () => {
    const chosen = [first.value, second.value].filter(Boolean);
    const [layer, head] = [byId("layer").value, byId("head").value];
    ask({
      text: byId("review").value, models: chosen, queries: chosen.map((_, k) => queries[k] ?? null), words_only: byId("words-only").checked,
      layer: layer === "" ? null : Number(layer), head: head === "mean" ? head : Number(head),
      pruned: pruned(), without: chosen.map((_, k) => without[k] ?? null),
    });
  };

  try {
    models = await get("/api/models");
  } catch (refusal) {
    tell(error, refusal.message);
    return;
  }
  byId("models-damaged").replaceChildren(
    ...models.filter(({ damaged }) => damaged !== null).map(({ name, damaged }) => make("li", { textContent: `${name} is damaged: ${damaged}` })),
  );
  models = named(models.filter(({ damaged }) => damaged === null));
  if (!models.length) {
    tell(error, "There is no checkpoint yet; train one with 'mirrormax train sentiment' and start again with --models.");
    return;
  }
  const options = () => models.map(({ name, title }) => make("option", { value: name, textContent: title }));
  first.replaceChildren(...options());
  second.replaceChildren(make("option", { value: "", textContent: "none" }), ...options());
  [first.value, second.value] = pair(models);
  byId("review").value = TEXTS[0];
  for (const text of TEXTS) byId("review-chips").append(chip(text));

  byId("attention-form").addEventListener("submit", (event) => event.preventDefault());
  const edited = ({ target }) => {
    if (["review", "model-a", "model-b"].includes(target.id)) queries = [null, null];
    if (target.id !== "pruned") without = [null, null];
    byId("pruned-share").textContent = `${byId("pruned").value} %`;
    redrawQuality();
    changed();
  };
  for (const part of ["attention-form", "prune-bar"]) byId(part).addEventListener("input", edited);
  withinReach(byId("prune-block"), byId("prune-bar"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  changed();
}

/** The models to open with: the first, and another trained like it, since only these are worth comparing; AdamW second. */
function pair([first, ...others]) {
  const second = first.label ? others.find(({ label }) => label) : undefined;
  if (!second) return [first.name, ""];
  return first.label.startsWith("AdamW") ? [second.name, first.name] : [first.name, second.name];
}

/** Models by what they are; by their folder too where two are alike, or where they do not say. */
function named(models) {
  const count = (label) => models.filter((model) => model.label === label).length;
  return models.map((model) => {
    const title = model.label ? (count(model.label) > 1 ? `${model.label} (${model.name})` : model.label) : model.name;
    return { ...model, title };
  });
}

/** Names of models of which two are on the page: their methods, or their places where the methods are one or long. */
function briefly(models) {
  const methods = models.map((model) => (model?.label || model?.name || "").split(",")[0]);
  const told = new Set(methods).size === models.length && methods.every((method) => method && method.length <= 14);
  return told ? methods : ["the first model", "the second"];
}

function chip(text) {
  const button = make("button", { type: "button", textContent: text });
  button.addEventListener("click", () => {
    byId("review").value = text;
    byId("review").dispatchEvent(new Event("input", { bubbles: true }));
  });
  return button;
}

/** Offer the layers and heads that the models have, and show the chosen ones. */
function fillHeads(all) {
  const readings = all.filter(({ damaged }) => damaged === null);
  if (!readings.length) return;
  refill(byId("layer"), Math.max(...readings.map(({ heads }) => heads.length)), Math.max(...readings.map(({ layer }) => layer)));
  refill(byId("head"), Math.max(...readings.flatMap(({ heads }) => heads)), readings[0].head);
}

function refill(select, count, chosen) {
  const mean = select.id === "head" ? [make("option", { value: "mean", textContent: "mean" })] : [];
  if (select.options.length === count + mean.length) return;
  select.replaceChildren(...mean, ...Array.from({ length: count }, (_, k) => make("option", { value: k, textContent: k })));
  select.value = chosen;
}

/** What two models differ in, measured on their weights and not on one text. */
function difference(readings, [first, second]) {
  if (readings.length !== 2 || readings.some(({ damaged }) => damaged !== null)) return null;
  const [a, b] = readings;
  const roles = Object.keys(a.sparsity).filter((role) => role in b.sparsity);
  const apart = (role) => a.sparsity[role].top_mass - b.sparsity[role].top_mass;
  const most = roles.sort((one, two) => Math.abs(apart(two)) - Math.abs(apart(one)))[0];
  if (most === undefined) return null;
  const [one, two] = [a.sparsity[most], b.sparsity[most]];
  return (
    `In ${first} the largest 1 % of the ${most} weights hold ${percent(one.top_mass)} of the sum of |w|, in ${second} ${percent(two.top_mass)} ` +
    `(Hoyer index ${short(one.hoyer)} and ${short(two.hoyer)}; 1 would be a single weight).`
  );
}
