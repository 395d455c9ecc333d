// What is on the screen, as plain data, and the same in the address: #geometry?p=1.1&problem=sphere…

const PAUSE = 400; // browsers complain when the address changes with every move of a finger

export const START = {
  problem: "example1", file: null, seed: 0, n: 6, T: 8, d: 10,
  p: 1.75, lr: 0.1, steps: 300, start: "random", rule: "mirror", potential: "Lp", beta: 1,
  others: [], alpha: "trained", moves: { x: [], z: [] }, held: null, sample: 0, frame: null,
};
/** What is shown to somebody whose address names no view: what p does to the weights. */
export const OPENING = { ...START, problem: "sphere", start: "zero", p: 1.1, others: [2, 3] };
const LEFT_OUT = ["file", "held"];

/** The view that the address names; whatever it does not name, or names wrongly, is as in START. */
export function fromAddress() {
  if (!location.hash.includes("?")) return { ...OPENING };
  const view = { ...START };
  for (const [name, text] of new URLSearchParams(location.hash.split("?")[1] ?? "")) {
    if (!(name in START) || LEFT_OUT.includes(name)) continue;
    try {
      const value = typeof START[name] === "string" && !text.startsWith("[") ? text : JSON.parse(text);
      if (fits(name, value)) view[name] = value;
    } catch {
      // A letter that got lost on the way: the rest of the address still counts.
    }
  }
  return view;
}

function fits(name, value) {
  if (name === "frame") return Number.isInteger(value) && value >= 0;
  if (name === "alpha") return typeof value === "string" || Array.isArray(value);
  if (name === "moves") return Array.isArray(value?.x) && Array.isArray(value?.z);
  if (name === "others") return Array.isArray(value) && value.every((p) => typeof p === "number");
  return typeof value === typeof START[name];
}

let timer = 0;
/** Put the view into the address when nothing has moved for a moment. */
export function toAddress(view) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(view)) {
      if (LEFT_OUT.includes(name) || JSON.stringify(value) === JSON.stringify(START[name])) continue;
      words.set(name, typeof value === "string" ? value : JSON.stringify(value));
    }
    if (location.hash === "" || location.hash.startsWith("#geometry")) history.replaceState(null, "", `#geometry?${words}`);
  }, PAUSE);
}
