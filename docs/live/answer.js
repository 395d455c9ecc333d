// What the Geometry page draws for one question, computed here instead of by a server: the same fields that
// mirrormax.app.geometry gives. Problems and random starts come with the page, in problems.json.

import { attSvm, constraints, direction, divergence, norm, selectedTokens, simulate, turned } from "./engine.js";

const FRAMES = 50;
const COARSER = 3; // while something is dragged, one frame of so many is made
const ANGLES = 240;
const NEGLIGIBLE = 1e-6;
const SMALLEST_SHARE = 0.01;
const FIRST_RATED = 16; // e^e
const STRIP = [1.05, 1.1, 1.25, 1.5, 1.75, 2, 3, 4, 6];

const dot = (a, b) => a.reduce((total, x, k) => total + x * b[k], 0);
const unit = (w) => {
  const size = Math.hypot(...w) || 1;
  return Array.from(w, (x) => x / size);
};

/** The answer to a question about one of `problems`; an Error with one sentence where it cannot be answered. */
export function answered(problems, question) {
  const problem = moved(named(problems, question), question.moves);
  const [own, ...others] = [question.p, ...question.others].map((p) => track(problems, problem, question, p));
  const plain = own.p === 2 ? own.solution : attSvm(constraints(problem, own.alpha), 2);
  const ranking = plain === null ? own.target : plain.W;
  const d = problem.v.length;
  const plane = d === 2 ? entriesPlane(own.unit, own.p, ranking) : startPlane(own.unit, own.p, own.run.W[1]);
  const last = own.run.W.at(-1);
  return {
    p: own.p,
    lr: question.lr,
    potential: "Lp",
    norm: own.p,
    steps: own.run.steps,
    joint: own.run.joint,
    shape: { n: problem.X.length, T: problem.X[0].length, d },
    alpha: own.alpha,
    trained: selectedTokens(problem, last),
    labels: problem.y,
    tokens: tokens(problem, own, question.held),
    weights: weights(problem, own, plane),
    divergence: {
      own: own.way,
      plain: plain === null || own.p === 2 ? null : own.run.W.map((W) => divergence(plain.W, W, own.p)),
    },
    rate: question.draft === undefined ? rated(own) : null,
    solution: facts(problem, own),
    mass: own.run.W.map((W) => mass(problem, own.run, W)),
    norms: own.run.W.map((W) => norm(W, own.p)),
    heat: heat(own.run.W),
    strip: question.draft === undefined ? strip(problem, own.alpha) : null,
    others: others.map((other) => compared(problem, other, plane)),
    backend: "browser",
  };
}

function named(problems, { problem, seed }) {
  if (problem !== "sphere") return problems[problem];
  if (!(Number.isInteger(seed) && seed >= 0 && seed < problems.sphere.length)) {
    throw new Error(`seed must be a whole number from 0 to ${problems.sphere.length - 1}, got ${seed}; 'mirrormax explore' takes any.`);
  }
  return problems.sphere[seed];
}

function moved(problem, { x, z }) {
  const copy = { ...problem, X: problem.X.map((tokens) => tokens.map((token) => [...token])), z: problem.z.map((query) => [...query]) };
  for (const [i, t, by] of x) by.forEach((value, k) => { copy.X[i][t][k] += value; });
  for (const [i, by] of z) by.forEach((value, k) => { copy.z[i][k] += value; });
  return copy;
}

/** Training by one p, the tokens of its SVM, and the solution, or null if nothing separates them. */
function track(problems, problem, question, p) {
  between("p", p, 1.01, 12);
  between("step size", question.lr, 1e-4, 10);
  const d = problem.v.length;
  const W0 = question.start === "zero" ? new Array(d * d).fill(0) : problems.starts[d];
  const run = simulate(problem, { p, lr: question.lr, steps: question.steps, W0, record: frames(question.steps, question.draft) });
  if (run.steps.length < 2) throw new Error(`training does not move from the ${question.start} start at p = ${p}; change one of these.`);
  const alpha = chosenTokens(problem, run, question.alpha);
  const solution = attSvm(constraints(problem, alpha), p);
  const target = solution === null ? run.W.at(-1) : solution.W;
  return {
    p, run, alpha, solution, target,
    unit: direction(target, p),
    way: solution === null ? null : run.W.map((W) => divergence(target, W, p)),
  };
}

function between(name, value, least, below) {
  if (typeof value !== "number" || !(value >= least && value < below)) throw new Error(`${name} must be at least ${least} and below ${below}, got ${value}.`);
}

/** The steps to keep: 50 at equal ratios, or a third of these with the one that is shown. */
function frames(steps, shown) {
  const every = [...new Set(Array.from({ length: FRAMES }, (_, k) => Math.round(steps ** (k / (FRAMES - 1)))))];
  return shown === undefined ? every : [1, shown, ...every.filter((_, k) => (every.length - 1 - k) % COARSER === 0)];
}

function chosenTokens(problem, run, asked) {
  if (asked === "trained") return selectedTokens(problem, run.W.at(-1));
  if (Array.isArray(asked)) return asked;
  const v = run.v.at(-1);
  return problem.X.map((tokens, i) => tokens.reduce((best, token, t) => (problem.y[i] * dot(token, v) > problem.y[i] * dot(tokens[best], v) ? t : best), 0));
}

/** Mean attention on the tokens selected now. */
function mass(problem, run, W) {
  const shares = attention(problem, W);
  return shares.reduce((total, sample) => total + Math.max(...sample), 0) / shares.length;
}

function attention({ X, z }, W) {
  return turned(W, z).map((aim, i) => {
    const logits = X[i].map((token) => dot(token, aim));
    const top = Math.max(...logits);
    const weights = logits.map((logit) => Math.exp(logit - top));
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((weight) => weight / total);
  });
}

/** Tokens, queries and the directions W z_i on each sample's plane. */
function tokens(problem, own, held) {
  const d = problem.v.length;
  const aims = turned(Float64Array.from(own.target), problem.z);
  const turning = own.run.W.map((W) => turned(W, problem.z));
  const planes = problem.X.map((_, i) => (d === 2 ? [[1, 0], [0, 1]] : pair([aims[i], turning[1][i], ...axesOf(d)])));
  if (held !== null && d > 2) planes[held[0]] = [held[1].slice(0, d), held[1].slice(d)];
  const placed = (i, vector) => planes[i].map((axis) => dot(axis, vector));
  return {
    direct: d === 2,
    axes: d === 2 ? null : planes,
    places: problem.X.map((sample, i) => sample.map((token) => placed(i, token))),
    queries: problem.z.map((query, i) => placed(i, query)),
    present: problem.X.map((sample) => sample.map(() => true)),
    aim: aims.map((aim, i) => placed(i, unit(aim))),
    turning: turning.map((frame) => frame.map((aim, i) => placed(i, unit(aim)))),
    attention: own.run.W.map((W) => attention(problem, W)),
  };
}

const axesOf = (size, count = size) => Array.from({ length: count }, (_, i) => Array.from({ length: size }, (_, k) => Number(k === i)));

/** The first two of the candidates that are independent, made orthonormal. */
function pair(candidates) {
  const axes = [];
  for (const candidate of candidates) {
    const rest = Array.from(candidate, (x, k) => x - axes.reduce((total, axis) => total + axis[k] * dot(axis, candidate), 0));
    if (Math.hypot(...rest) > NEGLIGIBLE * Math.hypot(...candidate)) axes.push(unit(rest));
    if (axes.length === 2) break;
  }
  return axes;
}

const circle = Array.from({ length: ANGLES }, (_, k) => [Math.cos((2 * Math.PI * k) / ANGLES), Math.sin((2 * Math.PI * k) / ANGLES)]);

/** Through a direction along the two entries of the largest |ranking|, the others as they are in it. */
function entriesPlane(U, p, ranking) {
  const d = Math.sqrt(U.length);
  const order = [...ranking.keys()].sort((a, b) => Math.abs(ranking[b]) - Math.abs(ranking[a]) || a - b);
  const chosen = order.slice(0, 2).sort((a, b) => a - b);
  const solution = chosen.map((k) => U[k]);
  const radius = norm(solution, p);
  return {
    axes: chosen.map((k) => axesOf(U.length)[k]),
    solution,
    ball: circle.map((point) => point.map((x) => (radius * x) / norm(point, p))),
    entries: chosen.map((k) => [Math.floor(k / d), k % d]),
  };
}

/** Through the origin, a direction and the first weights: where training ends and began. */
function startPlane(U, p, first) {
  const axes = pair([U, first, ...axesOf(U.length, 3)]);
  const ball = circle.map(([a, b]) => {
    const size = norm(axes[0].map((x, k) => a * x + b * axes[1][k]), p);
    return [a / size, b / size];
  });
  return { axes, solution: axes.map((axis) => dot(axis, U)), ball, entries: null };
}

const placedOn = (plane, W) => plane.axes.map((axis) => dot(axis, W));

/** The unit ball, the region of the largest margin, and the path of training, on a plane through the solution. */
function weights(problem, own, plane) {
  const path = own.run.W.map((W) => placedOn(plane, direction(W, own.p)));
  if (own.solution === null) return { entries: plane.entries, ball: plane.ball, solution: null, half_planes: [], path };
  const rows = constraints(problem, own.alpha).map(({ x, z }) => x.flatMap((a) => z.map((b) => a * b)));
  const margins = rows.map((row) => dot(row, own.unit));
  const least = Math.min(...margins);
  return {
    entries: plane.entries,
    ball: plane.ball,
    solution: plane.solution,
    half_planes: rows.map((row, m) => [...plane.axes.map((axis) => dot(axis, row)), margins[m] - least]),
    path,
  };
}

/** The path of another p on the same plane, its way to its own solution, and its weights. */
function compared(problem, other, plane) {
  return {
    p: other.p,
    steps: other.run.steps,
    alpha: other.alpha,
    path: other.run.W.map((W) => placedOn(plane, direction(W, other.p))),
    ball: plane.entries === null ? null : entriesPlane(other.unit, other.p, plane.axes[0].map((x, k) => Math.abs(x) + Math.abs(plane.axes[1][k]))).ball,
    solution: other.solution === null ? null : placedOn(plane, other.unit),
    divergence: other.way,
    mass: other.run.W.map((W) => mass(problem, other.run, W)),
    large: large(other.target),
    heat: heat(other.run.W),
  };
}

/** Theorem 4's rate at the frames, times the smallest constant that keeps it above this run; null before e^e. */
function rated({ p, run, way }) {
  if (way === null) return null;
  const known = (k) => (p >= 2 ? Math.log(Math.log(k)) ** (p > 2 ? 1 : 2) / Math.log(k) : Math.log(Math.log(k)) / Math.log(k) ** (p - 1));
  const ratios = run.steps.flatMap((k, j) => (k >= FIRST_RATED && way[j] > 0 ? [way[j] / known(k)] : []));
  if (!ratios.length) return null;
  return run.steps.map((k) => (k >= FIRST_RATED ? Math.max(...ratios) * known(k) : null));
}

/** Margin, certificate, support tokens, and whether every support token scores below the selected one (Definition 3). */
function facts(problem, { solution, alpha, run }) {
  if (solution === null) return null;
  const support = problem.X.map((sample) => sample.map(() => false));
  for (const { sample, token } of solution.support) support[sample][token] = true;
  const v = run.v.at(-1);
  const score = (i, t) => problem.y[i] * dot(problem.X[i][t], v);
  return {
    margin: solution.margin,
    gap: solution.gap,
    violation: 0,
    support,
    locally_optimal: solution.support.every(({ sample, token }) => score(sample, token) < score(sample, alpha[sample])),
    large_entries: large(solution.W),
    all_entries: solution.W.length,
  };
}

let last = { key: null, strip: null }; // while p is dragged the tokens mostly stay

/** The solutions for these tokens over p: their weights and how many of them are large; null without a solution. */
function strip(problem, alpha) {
  const key = JSON.stringify([problem.X, problem.z, alpha]);
  if (last.key === key) return last.strip;
  const rows = constraints(problem, alpha);
  const solutions = STRIP.map((p) => attSvm(rows, p));
  const film = solutions.includes(null) ? null : { p: STRIP, heat: heat(solutions.map(({ W }) => W)), large: solutions.map(({ W }) => large(W)) };
  last = { key, strip: film };
  return film;
}

function large(W) {
  const most = Math.max(...W.map(Math.abs));
  return W.filter((x) => Math.abs(x) >= SMALLEST_SHARE * most).length;
}

/** Frames divided by their largest |entry|, as bytes from −127 to 127 in base64. */
function heat(frames) {
  const bytes = frames.flatMap((W) => {
    const most = Math.max(...W.map(Math.abs)) || 1;
    return Array.from(W, (x) => Math.round((127 * x) / most) & 255);
  });
  return btoa(String.fromCharCode(...bytes));
}
