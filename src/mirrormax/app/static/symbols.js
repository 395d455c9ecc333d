// What every symbol means: shown when it is pointed at, and in a list that the keyboard reaches in one stop.

export const SYMBOLS = {
  f: "The output of the attention layer for one sequence, a number. Its sign is the predicted label.",
  X: "A sequence: T tokens, each a vector of d numbers, as the rows of X.",
  z: "The query: the vector that asks. Attention compares it, through W, with every token.",
  v: "The readout: the vector that turns the attended token into a number.",
  W: "The attention weights, a d × d matrix: what is trained. Token x gets the logit xᵀWz.",
  sigma: "Softmax: turns the logits of the tokens into shares of attention that add up to 1.",
  svm: "Support vector machine: the smallest weights that give the selected token of every sequence a lead of at least 1 over all others; in other words, the direction with the largest margin.",
  lp: "The ℓp norm, ‖W‖ₚ = (Σ|Wᵢⱼ|ᵖ)^(1/p). Near p = 1 its unit ball has corners on the axes; at p = 2 it is round; for large p it is a box.",
  p: "Which mirror descent trains the weights. p = 2 is gradient descent; p near 1 prefers few large weights; large p weights of like size.",
  eta: "The step size: every step has this length in the dual norm.",
  n: "How many sequences (samples) there are.",
  T: "How many tokens a sequence has.",
  d: "How many numbers a token is.",
  psi: "The potential: a convex function of the weights. Mirror descent steps in its gradient ∇ψ(W) instead of in W.",
  alpha: "The token of each sequence that is to be selected.",
  Wk: "The weights after k steps of training.",
  Wmm: "The max-margin weights: the solution of the attention SVM in the ℓp norm.",
  margin: "The lead (x_α − x_t)ᵀWz of the selected token over its nearest rival, at ‖W‖ₚ = 1.",
  support: "A token that is as near to being selected as the margin allows: only these hold the solution in place.",
  D: "The Bregman divergence between the directions of W(k) and of the solution: 0 if they are the same.",
  gap: "The solver's proof: an upper and a lower bound of the best margin, this far apart (relative). No weights can do better by more.",
  mass: "How much of its attention the layer pays to the tokens it selects.",
  entries: "How many entries of the solution are at least 1 % of its largest.",
  local: "Whether the selected tokens score higher than all support tokens: the theorems speak of these.",
  norm: "How large the weights are. They grow for ever; only their direction settles.",
  rate: "Theorem 4's upper bound on how slowly the divergence may fall, times the smallest constant that keeps it above this run.",
};

/** Give every element with data-sym its definition, for the pointer and for screen readers. */
export function define(root = document) {
  for (const element of root.querySelectorAll("[data-sym]")) {
    const text = SYMBOLS[element.dataset.sym];
    if (element.dataset.def === text) continue;
    element.dataset.def = text;
    element.setAttribute("aria-description", text);
    element.addEventListener("mouseenter", () => show(element, text));
    element.addEventListener("mouseleave", hide);
  }
}

/** All definitions, each under the first of its symbols on the page. */
export function listSymbols(list) {
  for (const [name, text] of Object.entries(SYMBOLS)) {
    const symbol = document.querySelector(`[data-sym="${name}"]`);
    if (!symbol) continue;
    const term = document.createElement("dt");
    term.innerHTML = symbol.innerHTML; // our own markup, with its subscripts
    list.append(term, Object.assign(document.createElement("dd"), { textContent: text }));
  }
}

const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
tip.setAttribute("role", "tooltip");
document.body.append(tip);
document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());

function show(element, text) {
  tip.textContent = text;
  tip.hidden = false;
  const place = element.getBoundingClientRect();
  const width = Math.min(320, innerWidth - 24);
  tip.style.width = `${width}px`;
  tip.style.left = `${Math.max(12, Math.min(place.left, innerWidth - width - 12))}px`;
  const below = place.bottom + 8;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : place.top - tip.offsetHeight - 8}px`;
}

function hide() {
  tip.hidden = true;
}
