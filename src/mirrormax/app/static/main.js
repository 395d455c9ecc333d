// Tabs: one page at a time, named in the address, reachable by arrow keys.

import { startAttention } from "./attention.js";
import { startGeometry } from "./geometry.js";
import { startRuns } from "./runs.js";

const PAGES = { geometry: startGeometry, attention: startAttention, runs: startRuns };
const tabs = [...document.querySelectorAll("[role=tab]")];
const started = new Set();

function show(name) {
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (!started.has(name)) {
    started.add(name);
    PAGES[name]();
  }
}

/** The address names a page, and after a question mark what is on it. */
const named = () => {
  const name = location.hash.slice(1).split("?")[0];
  return name in PAGES ? name : "geometry";
};

let chosen = null; // the tab by which the page was changed: a browser takes the focus from it when the address changes
for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => {
    chosen = tab;
    location.hash = tab.getAttribute("aria-controls");
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.click();
  });
}
// The address names a page and not a place on it: do not scroll there.
addEventListener("hashchange", () => {
  show(named());
  scrollTo(0, 0);
  chosen?.focus({ preventScroll: true });
  chosen = null;
});
show(named());
addEventListener("load", () => requestAnimationFrame(() => scrollTo(0, 0)));
