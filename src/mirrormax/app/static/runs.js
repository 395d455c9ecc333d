// The Runs page: a table of trained models whose curves can be laid over each other, reports, and results with pictures.

import { get } from "./api.js";
import { byId, draw, make, short, tell } from "./dom.js";

const address = (place) => `/runs/${place.split("/").map(encodeURIComponent).join("/")}`;
const COLUMNS = [
  { name: "label", title: "run" },
  { name: "optimizer", title: "optimizer" },
  { name: "p", title: "p", number: true },
  { name: "lr", title: "lr", number: true },
  { name: "seed", title: "seed", number: true },
  { name: "data", title: "data" },
  { name: "epochs", title: "epochs", number: true },
  { name: "test_accuracy", title: "test accuracy", number: true },
];
const PAIR = ["var(--accent)", "var(--solution)"];

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
  let sort = { name: "test_accuracy", down: true };
  let chosen = rows.slice(0, 2).map(({ place }) => place);
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
    const head = make("tr", {}, make("th", { scope: "col", textContent: "show" }), ...COLUMNS.map((column) => headCell(column)), make("th", { scope: "col", textContent: "validation" }));
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
    const cells = COLUMNS.map(({ name }) => make("td", { textContent: name === "label" ? row.title : cell(row, name) }));
    cells[0].title = `${row.place}, ${row.when}`;
    return make("tr", {}, make("td", {}, box), ...cells, make("td", {}, sparkline(row.curves.validation_accuracy ?? [])));
  };
  byId("runs-filter").addEventListener("input", show);
  show();
}

function cell(row, name) {
  if (name === "p" && row.optimizer !== "md") return "";
  return typeof row[name] === "number" ? short(row[name], 4) : String(row[name] ?? "");
}

const through = (values, width, height, [low, high]) =>
  values.map((value, k) => [k, value]).filter(([, value]) => value !== null)
    .map(([k, value]) => `${((k / Math.max(values.length - 1, 1)) * width).toFixed(1)},${(height - ((value - low) / (high - low || 1)) * height).toFixed(1)}`).join(" ");

function sparkline(values) {
  const svg = draw("svg", { class: "spark", viewBox: "-2 -2 84 24", role: "img", "aria-label": "validation accuracy per epoch" });
  svg.append(draw("polyline", { class: "line-training", points: through(values, 80, 20, [0.45, 1]) }));
  return svg;
}

/** The curves of two runs on one pair of axes: validation accuracy and training loss per epoch. */
function overlay(pair) {
  byId("overlay").hidden = !pair.length;
  byId("overlay-title").replaceChildren(...pair.map(({ title }, k) => {
    const name = make("span", { className: "other-p", textContent: title });
    name.style.borderColor = PAIR[k];
    return name;
  }));
  const svg = byId("overlay-plot");
  svg.replaceChildren();
  [["validation_accuracy", "validation accuracy", 40], ["train_loss", "training loss", 400]].forEach(([name, label, left]) => {
    const values = pair.flatMap(({ curves }) => (curves[name] ?? []).filter((value) => value !== null));
    if (!values.length) return;
    const range = [Math.min(...values), Math.max(...values)];
    const plot = draw("g", { transform: `translate(${left} 20)` });
    plot.append(draw("rect", { class: "frame", width: 300, height: 230 }), draw("text", { x: 0, y: -6 }, label));
    for (const [value, y] of [[range[1], 10], [range[0], 228]]) plot.append(draw("text", { x: -6, y, "text-anchor": "end" }, short(value)));
    plot.append(draw("text", { x: 150, y: 248, "text-anchor": "middle" }, "epoch"), draw("text", { x: 0, y: 248 }, "1"));
    pair.forEach(({ curves, epochs }, k) => {
      plot.append(draw("polyline", { class: "line-training", stroke: PAIR[k], points: through(curves[name] ?? [], 300, 230, range) }));
      if (k === 0) plot.append(draw("text", { x: 300, y: 248, "text-anchor": "end" }, pair.every((one) => one.epochs === epochs) ? String(epochs) : "last"));
    });
    svg.append(plot);
  });
  byId("overlay-note").textContent = pair.length === 2 && pair[0].epochs !== pair[1].epochs ? "The runs have different numbers of epochs; each curve runs from its first to its last." : "";
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
  if (result.comparisons.length) box.append(table(result.comparisons, ["quantity", "published", "ours", "verdict"]));
  if (result.rows.length) box.append(table(result.rows, [...new Set(result.rows.flatMap((row) => Object.keys(row)))]));
  const config = make("details", {}, make("summary", { textContent: "Configuration" }));
  config.append(make("pre", { textContent: JSON.stringify(result.config, null, 2) }));
  box.append(config);
  return box;
}

function table(rows, columns) {
  const cell = (value) => make("td", { textContent: typeof value === "number" ? short(value, 4) : String(value ?? "") });
  const head = make("tr", {}, ...columns.map((name) => make("th", { textContent: name, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...columns.map((name) => cell(row[name]))));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
