// The Runs page: trained models as curves, bands over seeds and a table; reports, and results with pictures.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { alive, byId, draw, make, short, tell } from "./dom.js";
import { colour } from "./plot.js";

const AGAIN = 5000; // milliseconds until a folder with runs under way is looked at again
const QUIET = 900; // seconds without an epoch after which a run is not said to be running
const address = (place) => `/runs/${place.split("/").map(encodeURIComponent).join("/")}`;
const COLUMNS = [
  { name: "label", title: "run" },
  { name: "p", title: "p", number: true },
  { name: "lr", title: "lr", number: true },
  { name: "seed", title: "seed", number: true },
  { name: "epochs", title: "epochs", number: true },
  { name: "test_accuracy", title: "test accuracy", number: true },
  { name: "test_bits_per_byte", title: "test bits per byte", number: true, rare: true },
  { name: "sparsity", title: "sparsity", number: true },
];
const hasP = ({ optimizer }) => ["md", "mirror"].includes(optimizer);
/** The colour of a run's method, as in every figure. */
const tone = (row) => (hasP(row) && typeof row.p === "number" ? colour(row.p) : `var(--${["adamw", "sgd", "adabreg"].includes(row.optimizer) ? row.optimizer : "accent"})`);
const DASHES = ["none", "7 4", "2 3", "9 3 2 3"];

export async function startRuns() {
  const table = trainedModels();
  const look = async () => {
    let listing;
    try {
      listing = await get("/api/runs");
    } catch (refusal) {
      tell(byId("runs-error"), refusal.message);
      return;
    }
    tell(byId("runs-error"), null);
    byId("runs-lead").textContent = summary(listing);
    byId("reports").replaceChildren(
      ...listing.reports.map((place) => make("a", { href: address(place), target: "_blank", rel: "noopener", textContent: `Open ${place}` })),
    );
    table(listing.results.filter((result) => result.training));
    const others = listing.results.filter((result) => !result.training);
    const open = new Set([...byId("results").querySelectorAll("details.result[open]")].map(({ dataset }) => dataset.place));
    byId("results").replaceChildren(...others.map((result) => card(result, open.has(result.place))));
    if (listing.results.some((result) => isRunning(result))) again();
  };
  const again = () => setTimeout(() => (document.hidden || byId("runs").hidden ? again() : look()), AGAIN);
  await look();
}

const isRunning = ({ complete, training }) => complete === false && training.age < QUIET;

function summary({ folder, exists, results, left_out: leftOut }) {
  if (!exists) return `There is no folder ${folder} yet; 'mirrormax reproduce' makes one, or start with --runs and another.`;
  if (!results.length) return `No results in ${folder} yet; 'mirrormax reproduce' makes some.`;
  const count = (of) => results.filter(of).length;
  const damaged = count((result) => result.damaged !== null);
  const unfinished = count((result) => result.complete === false);
  const parts = [`${results.length - damaged - unfinished} finished`, unfinished && `${unfinished} under way or interrupted`, damaged && `${damaged} damaged`];
  const more = leftOut ? `; ${leftOut} older ones are not shown` : "";
  return `Results in ${folder}: ${parts.filter(Boolean).join(", ")}${more}.`;
}

/** What shows trained models: runs of one task and data at a time, grouped by method, with a table that sorts and filters. */
function trainedModels() {
  let [rows, columns, kind, sort] = [[], COLUMNS, null, { name: "test_accuracy", down: true }];
  const hidden = new Set(); // places of runs that are not to be drawn
  const kindOf = ({ task, data }) => `${task}, ${data}`;
  const compare = (a, b) => {
    const [x, y] = [a[sort.name], b[sort.name]];
    if (x === null || y === null || x === undefined || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return sort.down ? -order : order;
  };
  const matches = (row) => {
    const text = [row.title, row.place, row.task, row.optimizer, ...COLUMNS.map(({ name }) => row[name])].join(" ").toLowerCase();
    return kindOf(row) === kind && byId("runs-filter").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  };
  const show = () => {
    const kinds = [...new Set(rows.map(kindOf))];
    byId("runs-kinds").replaceChildren(...(kinds.length > 1 ? kinds : []).map((one) => {
      const button = make("button", { type: "button", textContent: `${one} (${rows.filter((row) => kindOf(row) === one).length})` });
      button.setAttribute("aria-pressed", one === kind);
      button.addEventListener("click", () => {
        kind = one;
        show();
        [...byId("runs-kinds").children].find((other) => other.ariaPressed === "true").focus();
      });
      return button;
    }));
    const seen = rows.filter(matches).sort(compare);
    const every = make("input", { type: "checkbox", ariaLabel: "show the curves of all these runs", checked: seen.some(({ place }) => !hidden.has(place)) });
    every.addEventListener("change", () => {
      for (const { place } of seen) hidden[every.checked ? "delete" : "add"](place);
      show();
    });
    const head = make("tr", {}, make("th", { scope: "col" }, every), ...columns.map((column) => headCell(column)), make("th", { scope: "col", textContent: measure(seen[0] ?? rows[0])[1] }));
    byId("runs-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...seen.map(line)));
    overlay(seen.filter(({ place }) => !hidden.has(place)));
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
    const box = make("input", { type: "checkbox", checked: !hidden.has(row.place), ariaLabel: `show the curves of ${row.title}` });
    box.addEventListener("change", () => {
      hidden[box.checked ? "delete" : "add"](row.place);
      show();
    });
    const cells = columns.map(({ name }) => make("td", { textContent: name === "label" ? row.title : cell(row, name) }));
    cells[0].title = `${row.place}, ${row.when}`;
    return make("tr", {}, make("td", {}, make("label", { className: "tick" }, box)), ...cells, make("td", {}, sparkline(row)));
  };
  byId("runs-filter").addEventListener("input", show);
  return (results) => {
    byId("trained").hidden = !results.length;
    if (!results.length) return;
    rows = results.map((result) => ({ ...result.training, place: result.place, when: result.when, complete: result.complete, running: isRunning(result), title: result.training.label || result.name }));
    columns = COLUMNS.filter(({ name, rare }) => !rare || rows.some((row) => typeof row[name] === "number"));
    const most = (a, b) => rows.filter((row) => kindOf(row) === b).length - rows.filter((row) => kindOf(row) === a).length;
    if (!rows.some((row) => kindOf(row) === kind)) kind = [...new Set(rows.map(kindOf))].sort(most)[0];
    show();
  };
}

function cell(row, name) {
  if (name === "p" && !hasP(row)) return "";
  if (name === "epochs" && !row.complete) return `${row.epochs} of ${row.planned ?? "?"}, ${row.running ? "running" : "stopped"}`;
  return typeof row[name] === "number" ? short(row[name], name === "lr" ? 3 : 4) : String(row[name] ?? "–");
}

/** What tells how a run went: the validation accuracy, or the loss of a language model. */
const measure = ({ task, curves }) => (task === "lm" || !curves.validation_accuracy ? ["validation_loss", "validation loss"] : ["validation_accuracy", "validation accuracy"]);

/** It, per epoch: accuracies from a half or less to 1, losses from the least to the largest; one epoch is a dot. */
function sparkline(row) {
  const [name, label] = measure(row);
  const values = (row.curves[name] ?? []).map((value, k) => [k, value]).filter(([, value]) => value !== null);
  const known = values.map(([, value]) => value);
  const [low, high] = name === "validation_accuracy" ? [Math.min(0.45, ...known), 1] : [Math.min(...known), Math.max(...known)];
  const places = values.map(([k, value]) => [(80 * k) / Math.max(values.length - 1, 1), 20 - (20 * (value - low)) / (high - low || 1)]);
  const mark = places.length === 1
    ? draw("circle", { class: "dot-strip", fill: tone(row), cx: 40, cy: places[0][1], r: 4 })
    : draw("polyline", { class: "line-training", stroke: tone(row), points: places.map((place) => place.map((one) => one.toFixed(1)).join(",")).join(" ") });
  return alive(draw("svg", { class: "spark", viewBox: "-2 -2 84 24", role: "img", "aria-label": `${label} per epoch` }, draw("title", {}, `${label} per epoch`), mark));
}

/** The runs by method: how they went and the training loss per epoch, mean and range over seeds; accuracy against sparsity. */
function overlay(rows) {
  byId("overlay").hidden = !rows.length;
  if (!rows.length) return;
  const groups = [...Map.groupBy(rows, ({ group, title }) => group || title)].map(([name, own]) => ({ name, rows: own, colour: tone(own[0]) }));
  // Methods of one colour, such as two learning rates of one p, have dashes of their own.
  for (const group of groups) {
    const alike = groups.filter(({ colour: one }) => one === group.colour);
    group.look = { colour: group.colour, dash: DASHES[alike.indexOf(group) % DASHES.length] };
  }
  const [name, label] = measure(rows[0]);
  const [went, loss, scatter] = byId("overlay-plot").children;
  const over = (curve) => groups.map(({ rows: own, look }) => ({ ...band(own, curve), ...look }));
  byId("overlay-legend").replaceChildren(...groups.map(({ name: title, rows: own, look }) => {
    const line = draw("path", { class: "line-training", stroke: look.colour, "stroke-dasharray": look.dash, d: "M1 6H25" });
    return make("li", {}, alive(draw("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, line)), ` ${title}${own.length > 1 ? `, ${own.length} seeds` : ""}`);
  }));
  chart(went, over(name), { xLabel: "epoch", yLabel: label });
  chart(loss, over("train_loss"), { xLabel: "epoch", yLabel: "training loss" });
  const ended = groups.map(({ rows: own, look }) => ({
    ...look, loose: true, points: own.filter((row) => row.sparsity !== null && row.test_accuracy !== null).map((row) => [row.sparsity, row.test_accuracy]),
  })).filter(({ points }) => points.length);
  scatter.style.display = ended.length ? "" : "none";
  if (ended.length) chart(scatter, ended, { xLabel: "sparsity (Hoyer, 0 dense, 1 one weight)", yLabel: "test accuracy" });
  const several = groups.some(({ rows: own }) => own.length > 1);
  byId("overlay-note").textContent = several ? "Lines are means over the seeds of a method and learning rate, bands reach from the lowest to the highest." : "";
}

/** The mean of runs at each epoch, with the lowest and the highest. */
function band(rows, curve) {
  const spread = { points: [], low: [], high: [] };
  const longest = Math.max(...rows.map(({ epochs }) => epochs));
  for (let k = 0; k < longest; k += 1) {
    const values = rows.map(({ curves }) => curves[curve]?.[k]).filter((value) => value !== null && value !== undefined);
    if (!values.length) continue;
    spread.points.push([k + 1, values.reduce((sum, value) => sum + value, 0) / values.length]);
    spread.low.push([k + 1, Math.min(...values)]);
    spread.high.push([k + 1, Math.max(...values)]);
  }
  return rows.length > 1 ? spread : { points: spread.points };
}

function card(result, open) {
  if (result.damaged !== null) {
    const why = make("p", { className: "error", textContent: `damaged: ${result.damaged}` });
    return make("div", { className: "result damaged" }, make("h2", { textContent: result.name || "this folder" }), why);
  }
  const box = make("details", { className: "result", open });
  box.dataset.place = result.place;
  const time = result.seconds === null ? "" : `, ${short(result.seconds)} s`;
  box.append(
    make("summary", {}, make("h2", { textContent: result.name }), make("span", { className: "soft", textContent: `${result.when}${time}` })),
  );
  if (result.shows) box.append(make("p", { textContent: result.shows }));
  for (const place of result.pictures) {
    box.append(make("figure", {}, make("img", { src: address(place), alt: place, loading: "lazy" })));
  }
  if (result.comparisons.length) box.append(table(result.comparisons.map(compared), ["quantity", "compared with", "ours", "verdict"]));
  if (result.rows.length) box.append(table(result.rows, [...new Set(result.rows.flatMap((row) => Object.keys(row)))]));
  const config = make("details", {}, make("summary", { textContent: "Configuration" }));
  config.append(make("pre", { textContent: JSON.stringify(result.config, null, 2) }));
  box.append(config);
  return box;
}

/** A comparison as the report tells it: of which p or method, and what ours is compared with. */
function compared({ quantity, column, published, source, ...rest }) {
  return { quantity: column ? `${quantity}, ${column}` : quantity, "compared with": source ? `${source}: ${published}` : published, ...rest };
}

function table(rows, columns) {
  const cell = (value) => make("td", { textContent: typeof value === "number" ? short(value, 4) : String(value ?? "") });
  const head = make("tr", {}, ...columns.map((name) => make("th", { textContent: name, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...columns.map((name) => cell(row[name]))));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
