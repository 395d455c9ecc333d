// Five steps from a sequence of tokens to an SVM. Each sets the page up and points at one part of it.

import { byId } from "./dom.js";
import { START } from "./view.js";

const STEPS = [
  {
    title: "A sequence of tokens",
    text: "A sequence is a handful of tokens, here two points in the plane, numbered. Beside them is the query z, a diamond. Attention decides which token matters: token x gets the logit xᵀWz, and W is learnt. Drag a token and see what happens.",
    part: "tokens-figure",
    view: { ...START, p: 2 },
    at: 0,
  },
  {
    title: "Attention is a share",
    text: "A softmax turns the logits into shares that add up to 1: the fuller a token is drawn, the larger its share. At the start W is random, and so is the attention. The solid arrow is the direction W z: tokens that lie further along it get more.",
    part: "tokens-figure",
    view: {},
    at: 0,
  },
  {
    title: "Training turns the weights",
    text: "Training wants the right token to win, so with every step it turns the arrow and makes W larger. It never ends: more weight is always a little better. But look at the direction, and at the share of attention on the selected tokens: they settle. Watch it play.",
    part: "mass-figure",
    view: {},
    play: true,
  },
  {
    title: "What p does",
    text: "Many directions select the right tokens. Which one does training choose? The smallest weights that work; p defines “small”. The closed curve holds all weights of size 1: pointed on the axes for p near 1 (few large weights are cheap), round at p = 2, a box for large p (all weights alike). Drag p and watch.",
    part: "weights-figure",
    view: { p: 1.1, others: [3] },
    at: 1,
  },
  {
    title: "The direction converges to the SVM",
    text: "The dashed arrow is computed without training: the smallest weights that put every selected token ahead of its rivals by 1. The curve shows how far training still is from it: it falls, for every p to that p's own solution. “Certified within” proves that no other weights have a larger margin.",
    part: "curve-figure",
    view: { p: 1.75, others: [1.1, 3], steps: 1500 },
    play: true,
  },
];

export function startTour({ change, play, stay }) {
  let place = -1;
  const go = (next) => {
    document.querySelector(".pointed")?.classList.remove("pointed");
    place = next;
    byId("tour").hidden = place < 0 || place >= STEPS.length;
    if (byId("tour").hidden) {
      byId("tour-start").focus();
      return;
    }
    const { title, text, part, view, at } = STEPS[place];
    byId("tour-count").textContent = `Step ${place + 1} of ${STEPS.length}`;
    byId("tour-title").textContent = title;
    byId("tour-text").textContent = text;
    byId("tour-back").disabled = place === 0;
    byId("tour-next").textContent = place === STEPS.length - 1 ? "Done" : "Next";
    const narrow = matchMedia("(max-width: 66rem)").matches; // there the card stands over what it speaks of
    (narrow ? byId(part) : byId("workbench")).before(byId("tour"));
    byId(part).classList.add("pointed");
    byId("tour").scrollIntoView({ block: "start" });
    byId(part).scrollIntoView({ block: "nearest" });
    change({ ...view });
    if (STEPS[place].play) {
      stay(0);
      play();
    } else stay(at);
    byId("tour-next").focus({ preventScroll: true });
  };
  byId("tour-start").addEventListener("click", () => go(0));
  byId("tour-next").addEventListener("click", () => go(place + 1));
  byId("tour-back").addEventListener("click", () => go(place - 1));
  byId("tour-end").addEventListener("click", () => go(-1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("tour").hidden) go(-1);
  });
}
