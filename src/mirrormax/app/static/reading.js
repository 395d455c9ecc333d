// One model's reading of a text: prediction, the chosen head's view (words, map, path to the prediction), all heads.

import { make, short, subscript } from "./dom.js";
import { kindSentence, modelView } from "./heads.js";
import { paint, percent, shade, unpacked } from "./shades.js";

const LABELLED = 32; // tokens up to which a map has their names beside it
const TOLD = 9; // tokens of the path that are told one by one

/** The card of one reading; `kinds` are those of its model once they are known. */
export function card(reading, model, kinds, place, choose) {
  const title = make("h2", { textContent: model?.title ?? reading.name });
  if (reading.damaged !== null) {
    const why = make("p", { className: "error", textContent: `damaged: ${reading.damaged}` });
    return make("article", { className: "reading damaged" }, title, why);
  }
  const here = { layer: reading.layer, head: reading.head, kind: place.kind };
  const box = make("article", { className: "reading" }, title);
  if (model?.about) box.append(make("p", { className: "soft", textContent: model.about }));
  const chosen = here.head === "mean" ? "mean of its heads" : `head ${here.head}`;
  const left = make("section", {},
    make("h3", { textContent: `Layer ${here.layer}, ${chosen}` }),
    words(reading, choose.query), sentence(reading, kindSentence(kinds, here)), map(reading, choose.query));
  const right = make("section", {}, verdict(reading), path(reading, choose));
  if (reading.cut) left.append(make("p", { className: "soft", textContent: `Only the first ${reading.tokens.length} tokens were read.` }));
  box.append(make("div", { className: "parts" }, left, right), modelView(reading, kinds, here, choose));
  return box;
}

/** A token as it is spoken of; one that occurs several times with its number. */
export function label(reading, t) {
  const same = reading.tokens.flatMap(({ text }, k) => (text === reading.tokens[t].text ? [k] : []));
  return reading.tokens[t].text + (same.length > 1 ? subscript(same.indexOf(t) + 1) : "");
}
const name = (reading, t) => `“${label(reading, t)}”`;

function words(reading, choose) {
  const { attention, pivot, support } = reading.row;
  const line = make("p", { className: "words" });
  reading.tokens.forEach(({ text, special, joined, unknown }, t) => {
    const kinds = ["word"];
    if (special) kinds.push("special");
    if (unknown) kinds.push("unknown");
    if (t === pivot) kinds.push("pivot");
    if (support.includes(t)) kinds.push("support");
    const word = make("button", { type: "button", className: kinds.join(" "), textContent: text });
    word.title = `attention ${percent(attention[t])}${unknown ? ", not in the vocabulary" : ""}`;
    if (!special || attention[t] > 0) shade(word, attention[t]);
    word.setAttribute("aria-pressed", t === reading.query);
    if (t < reading.map.shape[0]) word.addEventListener("click", () => choose(reading, t));
    else word.disabled = true; // a learned sink asks nothing
    line.append(joined ? "" : " ", word);
  });
  return line;
}

function sentence(reading, kind) {
  const { attention, pivot, support, lead, tokens } = reading.row;
  let text = `${name(reading, reading.query)} sees no token but what is left out.`;
  if (pivot !== null) {
    text = `${name(reading, reading.query)} looks at ${name(reading, pivot)} with ${percent(attention[pivot])} of its attention`;
    if (support.length) text += `, ahead of ${support.slice(0, 5).map((t) => name(reading, t)).join(", ")} by ${short(lead)} in the logits`;
    text += `; it is spread over ${short(tokens)} tokens (exp of its entropy).`;
  }
  return make("p", { className: "soft", textContent: `${text} ${kind}` });
}

/** The whole map of the head: a row per query, a column per token. A click or the arrow keys choose the query. */
function map(reading, choose) {
  const [rows, columns] = reading.map.shape;
  const shares = unpacked(reading.map, 2);
  const canvas = make("canvas", { width: columns, height: rows, tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `attention of ${rows} queries on ${columns} tokens; the arrow keys choose the query`);
  paint(canvas, Array.from(shares, (share) => Math.sqrt(share / 65535)));
  const readout = make("p", { className: "soft readout", textContent: "Down: queries; across: the tokens they look at. Point at a cell for its share." });
  const cell = (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (value, size, count) => Math.max(0, Math.min(count - 1, Math.floor((value / size) * count)));
    return [at(event.clientY - box.top, box.height, rows), at(event.clientX - box.left, box.width, columns)];
  };
  canvas.addEventListener("mousemove", (event) => {
    const [i, t] = cell(event);
    readout.textContent = `${name(reading, i)} looks at ${name(reading, t)} with ${percent(shares[i * columns + t] / 65535)}`;
  });
  canvas.addEventListener("click", (event) => choose(reading, cell(event)[0]));
  canvas.addEventListener("keydown", (event) => {
    const to = reading.query + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0);
    if (to === reading.query) return;
    event.preventDefault();
    if (to >= 0 && to < rows) choose(reading, to);
  });
  const mark = make("span", { className: "query-mark" });
  mark.style.top = `${(100 * reading.query) / rows}%`;
  mark.style.height = `${100 / rows}%`;
  const picture = make("div", { className: "picture" }, canvas, mark);
  picture.style.aspectRatio = `${columns} / ${rows}`;
  const box = make("div", { className: "map" });
  if (Math.max(rows, columns) <= LABELLED) {
    const title = (_, t) => make("span", { textContent: label(reading, t), title: label(reading, t) });
    box.classList.add("labelled");
    box.append(make("div", { className: "across" }, ...reading.tokens.map(title)), make("div", { className: "down" }, ...reading.tokens.slice(0, rows).map(title)));
  }
  box.append(picture);
  return make("figure", {}, make("figcaption", { textContent: "Its whole map" }), box, readout);
}

function verdict(reading) {
  const { of, choices, among } = reading.prediction;
  const titles = { class: "Prediction", "next token": `Next token after ${name(reading, reading.query)}`, number: "Output" };
  const box = make("div", {}, make("h3", { textContent: titles[of] ?? "No prediction" }));
  if (!of) {
    box.append(make("p", { className: "soft", textContent: "This model has no readout: it turns a text into vectors." }));
    return box;
  }
  const best = Math.max(...choices.map(({ logit }) => logit));
  const rows = choices.flatMap(({ name: of, logit, probability }) => {
    const label = make(logit === best ? "b" : "span", { textContent: of.trim() ? of : JSON.stringify(of) });
    const bar = make("progress", { className: "bar", max: 1, value: probability ?? 0 });
    bar.setAttribute("aria-label", `probability of ${of}`);
    return [label, make("span", { className: "soft", textContent: `logit ${plain(logit)}` }), bar, make("span", { textContent: probability === null ? "" : percent(probability) })];
  });
  box.append(make("div", { className: "verdict" }, ...rows));
  if (of !== "number") box.append(make("p", { className: "soft", textContent: `Probabilities are the softmax of ${among.toLocaleString("en")} logits.` }));
  return box;
}

/** Token, logit, softmax, and what each logit does to the prediction. */
function path(reading, choose) {
  const box = make("div", {}, make("h3", { textContent: "From tokens to the prediction" }));
  if (!reading.path) {
    box.append(make("p", { className: "soft", textContent: "Choose one head to see its logits: a mean of heads has none." }));
    return box;
  }
  const { tokens, logits, shares, effects, log_sum: logSum } = reading.path;
  const order = tokens.map((_, k) => k).sort((a, b) => shares[b] - shares[a]);
  const most = order.length === TOLD + 1 ? TOLD + 1 : TOLD; // one alone is no others
  const [told, rest] = [order.slice(0, most), order.slice(most)];
  const sum = (values, which) => which.reduce((total, k) => total + values[k], 0);
  const acts = effects.every((effect) => effect !== null);
  const cells = (tag, ...texts) => make("tr", {}, ...texts.map((text) => (text instanceof Node ? text : make(tag, { textContent: text }))));
  const row = (k) => {
    const share = make("td", { textContent: percent(shares[k]) });
    shade(share, shares[k]);
    const t = tokens[k];
    const button = make("button", { type: "button", className: "ablate", textContent: label(reading, t), title: "keep this head from seeing the token" });
    button.setAttribute("aria-pressed", t === reading.ablated?.token);
    button.addEventListener("click", () => choose.without(reading, t === reading.ablated?.token ? null : t));
    return cells("td", make("td", {}, button), plain(logits[k]), share, ...(acts ? [signed(effects[k])] : []));
  };
  const head = make("thead", {}, cells("th", "token t", "logit lₜ", "softmax sₜ", ...(acts ? ["effect of lₜ"] : [])));
  const body = make("tbody", {}, ...told.map(row));
  if (rest.length) body.append(cells("td", `${rest.length} others`, "", percent(sum(shares, rest)), ...(acts ? [signed(sum(effects, rest))] : [])));
  box.append(make("div", { className: "scroll" }, make("table", { className: "path" }, head, body)));
  const best = [...reading.prediction.choices].sort((a, b) => b.logit - a.logit)[0];
  const what = acts
    ? ` The effect sₜ(γₜ − Σ sγ) is the derivative of the log-odds of “${best.name.trim()}” by the logit, through this head alone.`
    : reading.prediction.of ? " The prediction does not depend on this query in this layer." : "";
  const aside = reading.path.aside > 0 ? ` The tokens left out take ${percent(reading.path.aside)} of all its attention.` : "";
  box.append(make("p", { className: "soft", textContent: `sₜ = exp(lₜ ${logSum < 0 ? "+" : "−"} ${short(Math.abs(logSum))}).${aside}${what}` }));
  if (acts) box.append(ablation(reading, best.name.trim()));
  return box;
}

/** What the log-odds did when the head did not see a token, beside what the effects foretell. */
function ablation(reading, best) {
  const { token, predicted, real } = reading.ablated ?? {};
  if (token === undefined) return make("p", { className: "soft", textContent: "Choose a token of the table to keep this head from seeing it." });
  const box = make("p", { className: "ablation", role: "status" });
  if (real === null) box.append(`${name(reading, token)} is all that this head sees.`);
  else {
    const [told, did] = [predicted, real].map((value) => make("b", { textContent: value === null ? "unknown" : signed(value) }));
    box.append(`Without ${name(reading, token)} in this head the log-odds of “${best}” change by `, did, "; its effect predicts ", told, " to first order.");
  }
  return box;
}

const plain = (value) => `${value < 0 ? "−" : ""}${short(Math.abs(value))}`;
const signed = (value) => `${value < 0 ? "−" : "+"}${short(Math.abs(value))}`;
