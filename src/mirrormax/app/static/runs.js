// The Runs page: reports, and results with their summary and pictures.

import { get } from "./api.js";
import { byId, make, short, tell } from "./dom.js";

const address = (place) => `/runs/${place.split("/").map(encodeURIComponent).join("/")}`;

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
  byId("results").replaceChildren(...found.results.map(card));
}

function summary({ folder, exists, results, left_out: leftOut }) {
  if (!exists) return `There is no folder ${folder} yet; 'mirrormax reproduce' makes one, or start with --runs and another.`;
  if (!results.length) return `No finished results in ${folder} yet; 'mirrormax reproduce' makes some.`;
  const damaged = results.filter((result) => result.damaged !== null).length;
  const broken = damaged ? `, ${damaged} of them damaged` : "";
  const more = leftOut ? `; ${leftOut} older ones are not shown` : "";
  return `${results.length} finished results in ${folder}${broken}, the newest first${more}.`;
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
