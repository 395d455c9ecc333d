// The Runs page: a table of trained models whose curves can be laid over each other, reports, and results with pictures.

import { get } from "./api.js";
import { alive, byId, draw, make, render, short, tell } from "./dom.js";
import { colour } from "./plot.js";

const address = (place) => `/runs/${place.split("/").map(encodeURIComponent).join("/")}`;
const COLUMNS = [
  { name: "label", title: "run" },
  { name: "task", title: "task" },
  { name: "optimizer", title: "optimizer" },
  { name: "p", title: "p", number: true },
  { name: "lr", title: "lr", number: true },
  { name: "seed", title: "seed", number: true },
  { name: "data", title: "data" },
  { name: "epochs", title: "epochs", number: true },
  { name: "test_accuracy", title: "test accuracy", number: true },
  { name: "test_bits_per_byte", title: "test bits per byte", number: true, rare: true },
];
const DASHES = ["none", "7 4"]; // the first and the second of two runs
const hasP = ({ optimizer }) => ["md", "mirror"].includes(optimizer);
/** The colour of a run's method, as in every figure. */
const tone = (row) => (hasP(row) && typeof row.p === "number" ? colour(row.p) : `var(--${["adamw", "sgd", "adabreg"].includes(row.optimizer) ? row.optimizer : "accent"})`);

export async function startRuns() {
  let found;
  try {
    found = await get("/api/runs");
  } catch (refusal) {
    tell(byId("runs-error"), refusal.message);
    return;
  }
  byId("runs-lead").textContent = summary(found);
  byId("reports").replaceChildren(
    ...found.reports.map((place) => make("a", { href: address(place), target: "_blank", rel: "noopener", textContent: `Open ${place}` })),
  );
  const trained = found.results.filter((result) => result.training);
  byId("trained").hidden = !trained.length;
  if (trained.length) startTable(trained);
  byId("results").replaceChildren(...found.results.filter((result) => !result.training).map(card));
}

function summary({ folder, exists, results, left_out: leftOut }) {
  if (!exists) return `There is no folder ${folder} yet; 'mirrormax reproduce' makes one, or start with --runs and another.`;
  if (!results.length) return `No finished results in ${folder} yet; 'mirrormax reproduce' makes some.`;
  const damaged = results.filter((result) => result.damaged !== null).length;
  const broken = damaged ? `, ${damaged} of them damaged` : "";
  const more = leftOut ? `; ${leftOut} older ones are not shown` : "";
  return `${results.length} finished results in ${folder}${broken}, the newest first${more}.`;
}

/** A table that sorts by the column whose head is pressed, filters as one types, and overlays the last two chosen. */
function startTable(results) {
  const rows = results.map((result) => ({ ...result.training, place: result.place, when: result.when, title: result.training.label || result.name }));
  const columns = COLUMNS.filter(({ name, rare }) => !rare || rows.some((row) => typeof row[name] === "number"));
  let sort = { name: "test_accuracy", down: true };
  const alike = rows.map(({ task }) => rows.filter((row) => row.task === task)); // runs that can be compared
  let chosen = alike.sort((a, b) => b.length - a.length)[0].slice(0, 2).map(({ place }) => place);
  const compare = (a, b) => {
    const [x, y] = [a[sort.name], b[sort.name]];
    if (x === null || y === null || x === undefined || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return sort.down ? -order : order;
  };
  const matches = (row) => {
    const text = [row.title, row.place, ...COLUMNS.map(({ name }) => row[name])].join(" ").toLowerCase();
    return byId("runs-filter").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  };
  const show = () => {
    const head = make("tr", {}, make("th", { scope: "col", textContent: "show" }), ...columns.map((column) => headCell(column)), make("th", { scope: "col", textContent: "validation" }));
    const body = rows.filter(matches).sort(compare).map(line);
    byId("runs-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
    overlay(rows.filter(({ place }) => chosen.includes(place)));
  };
  const headCell = ({ name, title, number }) => {
    const arrow = sort.name === name ? (sort.down ? " ▾" : " ▴") : "";
    const button = make("button", { type: "button", className: "plain", textContent: `${title}${arrow}` });
    button.addEventListener("click", () => {
      sort = { name, down: sort.name === name ? !sort.down : Boolean(number) };
      show();
      [...byId("runs-table").querySelectorAll("th button")].find((one) => one.textContent.startsWith(title))?.focus();
    });
    const cell = make("th", { scope: "col" }, button);
    cell.setAttribute("aria-sort", sort.name !== name ? "none" : sort.down ? "descending" : "ascending");
    return cell;
  };
  const line = (row) => {
    const box = make("input", { type: "checkbox", checked: chosen.includes(row.place), ariaLabel: `show the curves of ${row.title}` });
    box.addEventListener("change", () => {
      chosen = box.checked ? [...chosen, row.place].slice(-2) : chosen.filter((place) => place !== row.place);
      show();
    });
    const cells = columns.map(({ name }) => make("td", { textContent: name === "label" ? row.title : cell(row, name) }));
    cells[0].title = `${row.place}, ${row.when}`;
    if (row.lr_is_found) cells[columns.findIndex(({ name }) => name === "lr")].title = "found by a rule; the largest at the end of an epoch";
    return make("tr", {}, make("td", {}, box), ...cells, make("td", {}, sparkline(row)));
  };
  byId("runs-filter").addEventListener("input", show);
  show();
}

function cell(row, name) {
  if (name === "p" && !hasP(row)) return "";
  return typeof row[name] === "number" ? short(row[name], 4) : String(row[name] ?? "");
}

const through = (values, width, height, [low, high]) =>
  values.map((value, k) => [k, value]).filter(([, value]) => value !== null)
    .map(([k, value]) => `${((k / Math.max(values.length - 1, 1)) * width).toFixed(1)},${(height - ((value - low) / (high - low || 1)) * height).toFixed(1)}`).join(" ");

/** What tells how a run went: the validation accuracy, or the loss of a language model. */
const measure = ({ task, curves }) => (task === "lm" || !curves.validation_accuracy ? ["validation_loss", "validation loss"] : ["validation_accuracy", "validation accuracy"]);

/** It, per epoch: accuracies from a half or less to 1, losses from the least to the largest. */
function sparkline(row) {
  const [name, label] = measure(row);
  const values = row.curves[name] ?? [];
  const known = values.filter((value) => value !== null);
  const range = name === "validation_accuracy" ? [Math.min(0.45, ...known), 1] : [Math.min(...known), Math.max(...known)];
  const line = draw("polyline", { class: "line-training", stroke: tone(row), points: through(values, 80, 20, range) });
  return alive(draw("svg", { class: "spark", viewBox: "-2 -2 84 24", role: "img", "aria-label": `${label} per epoch` }, draw("title", {}, `${label} per epoch`), line));
}

/** The curves of two runs on one pair of axes: how they went, and the training loss, per epoch. */
function overlay(pair) {
  byId("overlay").hidden = !pair.length;
  byId("overlay-title").replaceChildren(...pair.map((row, k) => {
    const line = draw("path", { class: "line-training", stroke: tone(row), "stroke-dasharray": DASHES[k], d: "M1 6H25" });
    const key = alive(draw("svg", { class: "key", viewBox: "0 0 26 12", "aria-hidden": "true" }, line));
    return make("span", { className: "run-name" }, key, row.title);
  }));
  const panels = pair.length ? [measure(pair[0]), ["train_loss", "training loss"]] : [];
  panels.forEach(([name, label], place) => {
    const svg = byId("overlay-plot").children[place];
    svg.setAttribute("aria-label", `${label} of the chosen runs`);
    render(svg, curves(pair, name, label));
  });
  const lacking = pair.filter((row) => measure(row)[0] !== panels[0][0]).map(({ title }) => title);
  byId("overlay-note").textContent = lacking.length ? `${lacking.join(", ")}: another task, whose losses are not on the same scale.` : "";
}

function curves(pair, name, label) {
  const values = pair.flatMap((row) => (row.curves[name] ?? []).filter((value) => value !== null));
  if (!values.length) return [];
  const range = [Math.min(...values), Math.max(...values)];
  const longest = Math.max(...pair.map(({ epochs }) => epochs), 1);
  const wide = (curve) => (300 * Math.max(curve.length - 1, 1)) / Math.max(longest - 1, 1);
  return [draw("g", { transform: "translate(50 24)" },
    draw("rect", { class: "frame", width: 300, height: 220 }),
    draw("text", { class: "strong", x: 0, y: -8 }, label),
    ...[[range[1], 10], [range[0], 218]].map(([value, y]) => draw("text", { x: -6, y, "text-anchor": "end" }, short(value))),
    draw("text", { x: 0, y: 238 }, "1"),
    draw("text", { x: 150, y: 238, "text-anchor": "middle" }, "epoch"),
    draw("text", { x: 300, y: 238, "text-anchor": "end" }, String(longest)),
    ...pair.map((row, k) => {
      const curve = row.curves[name] ?? [];
      return draw("polyline", { class: "line-training", stroke: tone(row), "stroke-dasharray": DASHES[k], points: through(curve, wide(curve), 220, range) });
    }))];
}

function card(result) {
  if (result.damaged !== null) {
    const why = make("p", { className: "error", textContent: `damaged: ${result.damaged}` });
    return make("div", { className: "result damaged" }, make("h2", { textContent: result.name || "this folder" }), why);
  }
  const box = make("details", { className: "result" });
  const time = result.seconds === null ? "" : `, ${short(result.seconds)} s`;
  box.append(
    make("summary", {}, make("h2", { textContent: result.name }), make("span", { className: "soft", textContent: `${result.when}${time}` })),
  );
  if (result.shows) box.append(make("p", { textContent: result.shows }));
  for (const place of result.pictures) {
    box.append(make("figure", {}, make("img", { src: address(place), alt: place, loading: "lazy" })));
  }
  if (result.comparisons.length) box.append(table(result.comparisons.map(compared), ["quantity", "beside", "ours", "verdict"]));
  if (result.rows.length) box.append(table(result.rows, [...new Set(result.rows.flatMap((row) => Object.keys(row)))]));
  const config = make("details", {}, make("summary", { textContent: "Configuration" }));
  config.append(make("pre", { textContent: JSON.stringify(result.config, null, 2) }));
  box.append(config);
  return box;
}

/** A comparison as the report tells it: of which p or method, and what ours stands beside. */
function compared({ quantity, column, published, source, ...rest }) {
  return { quantity: column ? `${quantity}, ${column}` : quantity, beside: source ? `${source}: ${published}` : published, ...rest };
}

function table(rows, columns) {
  const cell = (value) => make("td", { textContent: typeof value === "number" ? short(value, 4) : String(value ?? "") });
  const head = make("tr", {}, ...columns.map((name) => make("th", { textContent: name, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...columns.map((name) => cell(row[name]))));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
