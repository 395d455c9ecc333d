// The Attention page: a review, one or two models, and what their heads look at.

import { get, newest } from "./api.js";
import { byId, draw, make, short, tell } from "./dom.js";

const REVIEWS = [
  "it is boring and far too long",
  "a warm , funny and wonderfully acted film",
  "the plot is dull and the jokes fall flat",
  "not a bad movie , but hardly a great one",
];
const MARKS = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1];
/** One scale for all: the root of a share, so that a few percent are seen too. The text keeps its colour on every shade. */
const shade = (share) => `rgb(var(--shade-rgb) / ${Math.sqrt(Math.max(0, share)).toFixed(3)})`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

export async function startAttention() {
  const error = byId("attention-error");
  const stage = byId("attention-stage");
  const [first, second] = [byId("model-a"), byId("model-b")];
  let query = 0;
  let readings = [];
  let models = [];

  byId("scale-steps").replaceChildren(...MARKS.map((share) => {
    const step = make("span", { textContent: `${100 * share} %` });
    step.style.backgroundColor = shade(share);
    return step;
  }));
  const redraw = () => {
    fillHeads(readings);
    const place = { layer: Number(byId("layer").value), head: byId("head").value };
    byId("readings").replaceChildren(...readings.map((reading) => card(reading, known(reading.name), place, choose)));
    tell(byId("difference"), difference(readings, (name) => known(name)?.label || name));
  };
  const known = (name) => models.find((model) => model.name === name);
  const choose = {
    query: (position) => {
      query = position;
      changed();
    },
    head: (layer, head) => {
      byId("layer").value = layer;
      byId("head").value = head;
      redraw();
    },
  };
  const ask = newest("/api/attention", {
    answered: (found) => {
      tell(error, null);
      stage.classList.remove("stale");
      readings = found;
      redraw();
    },
    refused: (sentence) => {
      tell(error, sentence);
      stage.classList.add("stale");
    },
  });
  const changed = () => {
    const chosen = [first.value, second.value].filter(Boolean);
    ask({ text: byId("review").value, models: chosen, query, words_only: byId("words-only").checked });
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
  second.value = models[1]?.name ?? "";
  byId("review").value = REVIEWS[0];
  for (const review of REVIEWS) byId("review-chips").append(chip(review));

  byId("attention-form").addEventListener("submit", (event) => event.preventDefault());
  byId("attention-form").addEventListener("input", ({ target }) => {
    if (target.id === "layer" || target.id === "head") redraw();
    else {
      if (target.id === "review") query = 0;
      changed();
    }
  });
  changed();
}

/** Models by what they are; by their folder too where two are alike, or where they do not say. */
function named(models) {
  const count = (label) => models.filter((model) => model.label === label).length;
  return models.map((model) => {
    const title = model.label ? (count(model.label) > 1 ? `${model.label} (${model.name})` : model.label) : model.name;
    return { ...model, title };
  });
}

function chip(review) {
  const button = make("button", { type: "button", textContent: review });
  button.addEventListener("click", () => {
    byId("review").value = review;
    byId("review").dispatchEvent(new Event("input", { bubbles: true }));
  });
  return button;
}

/** Offer the layers and heads that the models have, and keep what was chosen. The last head of each layer is the mean. */
function fillHeads(all) {
  const readings = all.filter(({ damaged }) => damaged === null);
  if (!readings.length) return;
  const layers = Math.max(...readings.map(({ layers }) => layers.length));
  const heads = Math.max(...readings.map(({ layers }) => layers[0].length - 1));
  refill(byId("layer"), layers, String(layers - 1));
  refill(byId("head"), heads, "0");
}

function refill(select, count, usual) {
  const mean = select.id === "head" ? [make("option", { value: "mean", textContent: "mean" })] : [];
  if (select.options.length === count + mean.length) return;
  select.replaceChildren(...mean, ...Array.from({ length: count }, (_, k) => make("option", { value: k, textContent: k + 1 })));
  select.value = usual;
}

/** What two models differ in, measured on their weights and not on one review. */
function difference(readings, title) {
  if (readings.length !== 2 || readings.some(({ damaged }) => damaged !== null)) return null;
  const [a, b] = readings;
  const roles = Object.keys(a.sparsity).filter((role) => role in b.sparsity);
  const apart = (role) => a.sparsity[role].top_mass - b.sparsity[role].top_mass;
  const most = roles.sort((one, two) => Math.abs(apart(two)) - Math.abs(apart(one)))[0];
  if (most === undefined) return null;
  const [one, two] = [a.sparsity[most], b.sparsity[most]];
  return (
    `The largest 1 % of the ${most} weights hold ${percent(one.top_mass)} of their sum of |w| in ${title(a.name)} and ${percent(two.top_mass)} in ` +
    `${title(b.name)} (Hoyer index ${short(one.hoyer)} and ${short(two.hoyer)}; 1 would be a single weight).`
  );
}

function card(reading, model, place, choose) {
  const title = make("h2", { textContent: model?.title ?? reading.name });
  if (reading.damaged !== null) {
    const why = make("p", { className: "error", textContent: `damaged: ${reading.damaged}` });
    return make("article", { className: "reading damaged" }, title, why);
  }
  const layer = reading.layers[Math.min(place.layer, reading.layers.length - 1)];
  const head = place.head === "mean" ? layer.at(-1) : layer[Math.min(Number(place.head), layer.length - 2)];
  const box = make("article", { className: "reading" }, title);
  if (model?.about) box.append(make("p", { className: "soft", textContent: model.about }));
  box.append(verdict(reading.prediction), words(reading, head, choose.query), sentence(reading, head));
  if (reading.cut) box.append(make("p", { className: "soft", textContent: `Only the first ${reading.tokens.length} tokens were read.` }));
  box.append(overview(reading, place, choose.head));
  return box;
}

function verdict(prediction) {
  const best = Math.max(...prediction.map(({ probability }) => probability));
  const rows = prediction.flatMap(({ name, probability }) => {
    const label = make(probability === best ? "b" : "span", { textContent: name });
    const bar = make("progress", { className: "bar", max: 1, value: probability });
    bar.setAttribute("aria-label", `probability of ${name}`);
    return [label, bar, make("span", { textContent: percent(probability) })];
  });
  return make("div", { className: "verdict" }, ...rows);
}

function words(reading, head, choose) {
  const line = make("p", { className: "words" });
  reading.tokens.forEach(({ text, special, joined, unknown }, t) => {
    const kinds = ["word"];
    if (special) kinds.push("special");
    if (unknown) kinds.push("unknown");
    if (t === head.pivot) kinds.push("pivot");
    if (head.support.includes(t)) kinds.push("support");
    const word = make("button", { type: "button", className: kinds.join(" "), textContent: text });
    word.title = `attention ${percent(head.attention[t])}${unknown ? ", not in the vocabulary" : ""}`;
    word.style.backgroundColor = shade(head.attention[t]);
    word.setAttribute("aria-pressed", t === reading.query);
    word.addEventListener("click", () => choose(t));
    line.append(joined ? "" : " ", word);
  });
  return line;
}

function sentence(reading, head) {
  const name = (t) => `“${reading.tokens[t].text}”`;
  let text = `${name(reading.query)} looks at ${name(head.pivot)} with ${percent(head.attention[head.pivot])} of its attention`;
  if (head.support.length) text += `, ahead of ${head.support.slice(0, 5).map(name).join(", ")} by ${short(head.lead)} in the logits`;
  return make("p", { className: "soft", textContent: `${text}; it is spread over ${short(head.tokens)} tokens (exp of its entropy).` });
}

/** All heads at once, a row each: a cell is a token, and a click chooses the head. */
function overview(reading, place, choose) {
  const rows = reading.layers.flatMap((layer, l) => layer.slice(0, -1).map((head, h) => ({ layer: l, head: h, ...head })));
  const [left, height, width] = [62, 13, 400];
  const step = (width - left) / reading.tokens.length;
  const svg = draw("svg", { class: "overview", viewBox: `0 0 ${width} ${rows.length * height + 2}`, role: "img" });
  svg.setAttribute("aria-label", "attention of every head");
  rows.forEach((row, r) => {
    const top = r * height + 1;
    svg.append(draw("text", { x: 0, y: top + height - 3.5, "font-size": "9" }, `${row.layer + 1}.${row.head + 1}`));
    row.attention.forEach((value, t) => {
      const cell = draw("rect", { class: "cell", x: left + t * step, y: top, width: Math.max(step - 1, 0.5), height: height - 1 });
      cell.style.fill = shade(value);
      cell.append(draw("title", {}, `layer ${row.layer + 1}, head ${row.head + 1}, “${reading.tokens[t].text}”: ${percent(value)}`));
      cell.addEventListener("click", () => choose(row.layer, row.head));
      svg.append(cell);
    });
    if (row.layer === place.layer && String(row.head) === place.head) {
      svg.append(draw("rect", { class: "chosen", x: left - 2, y: top - 1, width: width - left + 1, height: height + 1 }));
    }
  });
  return svg;
}
