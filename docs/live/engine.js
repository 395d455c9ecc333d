// Simulated training and the ℓp attention SVM for small problems, in the browser: what mm.simulate and mm.att_svm
// compute, for pages without a server. A problem is { X: n × T × d, y: n, z: n × d, v: d }; weights are flat arrays of
// d·d numbers, row by row. The tests compare every function here with the library.

const sum = (values) => values.reduce((total, value) => total + value, 0);
const dot = (a, b) => {
  let total = 0;
  for (let k = 0; k < a.length; k++) total += a[k] * b[k];
  return total;
};
const signedPower = (x, e) => Math.sign(x) * Math.abs(x) ** e;

/** ‖w‖_p, whatever the size of the entries. */
export function norm(w, p) {
  const largest = w.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  if (largest === 0) return 0;
  return largest * w.reduce((total, x) => total + (Math.abs(x) / largest) ** p, 0) ** (1 / p);
}

/** w/‖w‖_p; zero has no direction and stays zero. */
export function direction(w, p) {
  const largest = w.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1;
  const scaled = w.map((x) => x / largest);
  const size = norm(scaled, p) || 1;
  return scaled.map((x) => x / size);
}

/** D_ψ(a/‖a‖, b/‖b‖) with ψ(w) = ‖w‖_p^p/p; null where b has no direction. */
export function divergence(a, b, p) {
  const [from, to] = [direction(a, p), direction(b, p)];
  if (!to.some((x) => x !== 0)) return null;
  let total = 0;
  for (let k = 0; k < from.length; k++) {
    const [x, y] = [from[k], to[k]];
    total += Math.max(0, (Math.abs(x) ** p - Math.abs(y) ** p) / p - signedPower(y, p - 1) * (x - y));
  }
  return total;
}

/** Wz for every query: n × d. */
export const turned = (W, z) => z.map((query) => query.map((_, i) => dot(W.subarray(i * query.length, (i + 1) * query.length), query)));

/** The token of the largest logit of every sample. */
export const selectedTokens = ({ X, z }, W) =>
  turned(W, z).map((aim, i) => X[i].reduce((best, token, t) => (dot(token, aim) > dot(X[i][best], aim) ? t : best), 0));

/** log(−l') of the logistic loss: −log(1 + e^margin). */
const logSlope = (margin) => (margin > 0 ? -margin - Math.log1p(Math.exp(-margin)) : -Math.log1p(Math.exp(margin)));

/**
 * A problem to be evaluated many times, f(X, z) = vᵀXᵀσ(XWz), always relative to the selected token α of each sample:
 * with r_t = (x_t − x_α)ᵀWz and sums over t ≠ α, log s_t = r_t − log(1 + Σ e^{r_t}) and D_t = y vᵀ(x_t − x_α). Nothing
 * cancels or underflows at any ‖W‖; gradients come up to a positive factor, which a normalised step does not need.
 */
class Model {
  constructor({ X, y, z }) {
    [this.n, this.T, this.d] = [X.length, X[0].length, z[0].length];
    this.X = Float64Array.from(X.flat(2));
    this.z = Float64Array.from(z.flat());
    this.y = y;
    this.alpha = new Int32Array(this.n);
    this.aim = new Float64Array(this.d);
    this.logs = new Float64Array(this.n * this.T); // log s_t, −∞ at α
    this.gains = new Float64Array(this.n * this.T); // D_t
    this.slopes = new Float64Array(this.n); // log(−l')
    this.pulls = new Float64Array(this.T);
    this.along = new Float64Array(this.d);
  }

  /** Where the coordinates of a token begin. */
  at(i, t) {
    return (i * this.T + t) * this.d;
  }

  evaluate(W, v) {
    const { n, T, d, X, z, aim, logs, gains } = this;
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < d; k++) {
        aim[k] = 0;
        for (let j = 0; j < d; j++) aim[k] += W[k * d + j] * z[i * d + j];
      }
      let [chosen, top] = [0, -Infinity];
      for (let t = 0; t < T; t++) {
        let logit = 0;
        for (let k = 0; k < d; k++) logit += X[this.at(i, t) + k] * aim[k];
        if (logit > top) [chosen, top] = [t, logit];
      }
      this.alpha[i] = chosen;
      const own = this.at(i, chosen);
      let rest = 0;
      let value = 0;
      for (let k = 0; k < d; k++) value += v[k] * X[own + k];
      for (let t = 0; t < T; t++) {
        let [r, gain] = [0, 0];
        for (let k = 0; k < d; k++) {
          const offset = X[this.at(i, t) + k] - X[own + k];
          r += offset * aim[k];
          gain += offset * v[k];
        }
        logs[i * T + t] = t === chosen ? -Infinity : r;
        gains[i * T + t] = this.y[i] * gain;
        if (t !== chosen) rest += Math.exp(r);
      }
      const log = Math.log1p(rest);
      let margin = this.y[i] * value;
      for (let t = 0; t < T; t++) {
        logs[i * T + t] -= log;
        margin += Math.exp(logs[i * T + t]) * gains[i * T + t];
      }
      this.slopes[i] = logSlope(margin);
    }
  }

  /** −∇_W L up to a factor, in G; false where it is zero. */
  weightPull(G) {
    const { n, T, d, X, z, logs, gains, slopes, pulls, along } = this;
    let scale = -Infinity;
    for (let k = 0; k < n * T; k++) if (gains[k] !== 0) scale = Math.max(scale, logs[k] + slopes[Math.floor(k / T)]);
    G.fill(0);
    if (scale === -Infinity) return false;
    for (let i = 0; i < n; i++) {
      let mean = 0;
      for (let t = 0; t < T; t++) {
        const k = i * T + t;
        pulls[t] = gains[k] === 0 ? 0 : Math.exp(logs[k] + slopes[i] - scale) * gains[k];
        mean += pulls[t];
      }
      along.fill(0);
      const own = this.at(i, this.alpha[i]);
      for (let t = 0; t < T; t++) {
        const weight = pulls[t] - Math.exp(logs[i * T + t]) * mean;
        for (let k = 0; k < d; k++) along[k] += weight * (X[this.at(i, t) + k] - X[own + k]);
      }
      for (let k = 0; k < d; k++) for (let j = 0; j < d; j++) G[k * d + j] += along[k] * z[i * d + j];
    }
    return true;
  }

  /** −∇_v L up to a factor, in g. */
  readoutPull(g) {
    const { n, T, d, X, logs, slopes } = this;
    const scale = Math.max(...slopes);
    g.fill(0);
    for (let i = 0; i < n; i++) {
      const weight = this.y[i] * Math.exp(slopes[i] - scale);
      const own = this.at(i, this.alpha[i]);
      for (let k = 0; k < d; k++) {
        let attended = X[own + k];
        for (let t = 0; t < T; t++) attended += Math.exp(logs[i * T + t]) * (X[this.at(i, t) + k] - X[own + k]);
        g[k] += weight * attended;
      }
    }
  }
}

/** u ← u + η g/‖g‖_q and w = ∇ψ*(u), in place. */
function step(u, w, g, lr, p) {
  const size = norm(g, p / (p - 1));
  if (size === 0) return;
  for (let k = 0; k < u.length; k++) {
    u[k] += (lr * g[k]) / size;
    w[k] = signedPower(u[k], 1 / (p - 1));
  }
}

/**
 * Normalised ℓp mirror descent from W0 on the logistic loss: u ← u − η g/‖g‖_q, w = ∇ψ*(u). A readout that is zero is
 * trained too. `record` lists the steps to keep; what comes back is { steps, W, v, joint } with the start in front.
 */
export function simulate(problem, { p, lr, steps, W0, record }) {
  const model = new Model(problem);
  const joint = !problem.v.some((x) => x !== 0);
  const [W, v] = [Float64Array.from(W0), Float64Array.from(problem.v)];
  const [u, uv] = [W, v].map((w) => w.map((x) => signedPower(x, p - 1)));
  const [G, g] = [new Float64Array(W.length), new Float64Array(v.length)];
  const kept = new Set([...record, steps]);
  const run = { steps: [0], W: [W.slice()], v: [v.slice()], joint };
  for (let k = 1; k <= steps; k++) {
    model.evaluate(W, v);
    const moves = model.weightPull(G);
    if (!moves && !joint) break;
    step(u, W, G, lr, p);
    if (joint) {
      model.readoutPull(g);
      step(uv, v, g, lr, p);
    }
    if (!W.every(Number.isFinite)) break;
    if (kept.has(k)) {
      run.steps.push(k);
      run.W.push(W.slice());
      run.v.push(v.slice());
    }
  }
  return run;
}

/** The rows x_iα − x_it with their queries, and which token of which sample each is of. */
export function constraints({ X, z }, alpha) {
  const rows = [];
  X.forEach((tokens, i) => tokens.forEach((token, t) => {
    if (t !== alpha[i]) rows.push({ x: tokens[alpha[i]].map((value, k) => value - token[k]), z: z[i], sample: i, token: t });
  }));
  return rows;
}

const GAP = 1e-9;
const ITERATIONS = 200;

/**
 * min ½‖W‖_p² subject to x_mᵀWz_m ≥ 1 for all rows m, by a primal-dual interior point: with A the matrix of rows
 * vec(x_m z_mᵀ) and multipliers λ ≥ 0,
 *
 *     ∇½‖W‖_p² = Aᵀλ,   s = AW − 1 ≥ 0,   λ_m s_m = μ → 0.
 *
 * Newton's steps are taken in λ for p ≤ 2 and in W for p > 2: there the map from one to the other is smooth. For any λ
 * no margin exceeds ‖Aᵀλ‖_q/Σλ, so the gap that is returned, relative to this bound, is a proof. Null where no weights
 * separate the rows: then that bound falls to zero.
 */
export function attSvm(rows, p) {
  const q = p / (p - 1);
  const A = rows.map(({ x, z }) => Float64Array.from(x.flatMap((a) => z.map((b) => a * b))));
  const unit = Math.max(...A.map((row) => norm(row, q)));
  if (!(unit > 0)) return null;
  for (const row of A) for (let k = 0; k < row.length; k++) row[k] /= unit;
  const newton = p > 2 ? primalStep : dualStep;
  let state = opening(A, p);
  let best = null;
  for (let k = 0; k < ITERATIONS && state !== null; k++) {
    const bound = norm(combined(A, state.lambda), q) / sum(state.lambda);
    const margin = Math.min(...applied(A, state.W)) / norm(state.W, p);
    const gap = Math.max(0, 1 - margin / bound);
    if (margin > 0 && (best === null || gap < best.gap)) best = { ...state, gap, margin };
    if (best?.gap <= GAP) break;
    if (bound < 1e-12) return null;
    state = newton(A, state, p);
  }
  if (best === null || best.gap > 1e-4) return null;
  const least = Math.min(...applied(A, best.W));
  const most = Math.max(...best.lambda);
  return {
    W: best.W.map((x) => x / (least * unit)),
    margin: best.margin * unit,
    gap: best.gap,
    support: rows.filter((_, j) => best.lambda[j] > 1e-5 * most),
  };
}

const applied = (A, W) => Float64Array.from(A, (row) => dot(row, W));

function combined(A, lambda) {
  const u = new Float64Array(A[0].length);
  A.forEach((row, j) => {
    for (let k = 0; k < u.length; k++) u[k] += lambda[j] * row[k];
  });
  return u;
}

/** The gradient of ½‖w‖_e², ‖w‖ sign(w)(|w|/‖w‖)^{e−1}, and its second derivative: diag(`diagonal`) + (2−e) a aᵀ. */
function halfSquare(w, e) {
  const size = norm(w, e) || 1;
  const a = w.map((x) => signedPower(x / size, e - 1));
  return { gradient: a.map((x) => size * x), a, diagonal: w.map((x) => (e - 1) * Math.abs(x / size) ** (e - 2)) };
}

/** Equal multipliers of the best size, the weights that they give, and slacks away from zero. */
function opening(A, p) {
  const q = p / (p - 1);
  const even = new Float64Array(A.length).fill(1 / A.length);
  const lambda = even.map((x) => x / Math.max(norm(combined(A, even), q) ** 2, 1e-12));
  const W = halfSquare(combined(A, lambda), q).gradient;
  return { W, lambda, s: applied(A, W).map((lead) => Math.max(lead - 1, 0.1)) };
}

const residual = (...parts) => Math.sqrt(sum(parts.map((part) => dot(part, part))));
const slackness = ({ lambda, s }, target) => lambda.map((x, j) => x * s[j] - target);
const excess = (A, { W, s }) => applied(A, W).map((lead, j) => lead - 1 - s[j]);

/** The longest step up to 1 that leaves λ and s positive. */
function longest({ lambda, s }, dl, ds) {
  let step = 1;
  for (let j = 0; j < s.length; j++) {
    if (dl[j] < 0) step = Math.min(step, (-0.95 * lambda[j]) / dl[j]);
    if (ds[j] < 0) step = Math.min(step, (-0.95 * s[j]) / ds[j]);
  }
  return step;
}

/** The first of ever shorter steps with which the residual falls, or null. */
function searched(from, measure, move) {
  const before = measure(from);
  for (let step = move.longest, tries = 0; tries < 30; tries++, step /= 2) {
    const there = move.to(step);
    if (measure(there) <= (1 - 1e-3 * step) * before) return there;
  }
  return null;
}

/** Towards λs = σμ, in λ: W = ∇½‖Aᵀλ‖_q² follows. */
function dualStep(A, state, p) {
  const { lambda, s, W } = state;
  const q = p / (p - 1);
  const { a, diagonal } = halfSquare(combined(A, lambda), q);
  const along = applied(A, a);
  const H = A.map((row) => {
    const scaled = row.map((x, k) => x * diagonal[k]);
    return applied(A, scaled);
  });
  H.forEach((row, i) => row.forEach((_, j) => {
    row[j] += (2 - q) * along[i] * along[j];
  }));
  const leads = applied(A, W);
  const mu = dot(lambda, s) / s.length;
  for (const target of [0.1 * mu, 0.5 * mu, 0.9 * mu]) {
    const K = H.map((row, i) => {
      const copy = row.slice();
      copy[i] += s[i] / lambda[i];
      return copy;
    });
    const dl = solved(K, leads.map((lead, j) => target / lambda[j] - (lead - 1)));
    if (dl === null) continue;
    const ds = Float64Array.from(H, (row, j) => dot(row, dl) + leads[j] - 1 - s[j]);
    const to = (step) => {
      const l = lambda.map((x, j) => x + step * dl[j]);
      return { lambda: l, s: s.map((x, j) => x + step * ds[j]), W: halfSquare(combined(A, l), q).gradient };
    };
    const next = searched(state, (there) => residual(excess(A, there), slackness(there, target)), { longest: longest(state, dl, ds), to });
    if (next) return next;
  }
  return null;
}

/** Towards λs = σμ, in W and λ. */
function primalStep(A, state, p) {
  const { lambda, s, W } = state;
  const { gradient, a, diagonal } = halfSquare(W, p);
  const force = combined(A, lambda);
  const over = excess(A, state);
  const mu = dot(lambda, s) / s.length;
  const weights = lambda.map((x, j) => x / s[j]);
  const size = W.length;
  const P = Array.from({ length: size }, (_, i) => {
    const row = new Float64Array(size);
    row[i] = diagonal[i];
    for (let k = 0; k <= i; k++) row[k] += (2 - p) * a[i] * a[k];
    return row;
  });
  A.forEach((row, j) => {
    for (let i = 0; i < size; i++) {
      const factor = weights[j] * row[i];
      if (factor !== 0) for (let k = 0; k <= i; k++) P[i][k] += factor * row[k];
    }
  });
  for (const target of [0.1 * mu, 0.5 * mu, 0.9 * mu]) {
    const push = combined(A, lambda.map((x, j) => target / s[j] - x - weights[j] * over[j]));
    const dW = solved(P.map((row) => row.slice()), push.map((x, k) => x - gradient[k] + force[k]));
    if (dW === null) continue;
    const ds = applied(A, dW).map((x, j) => x + over[j]);
    const dl = lambda.map((x, j) => target / s[j] - x - weights[j] * ds[j]);
    const to = (step) => ({
      W: W.map((x, k) => x + step * dW[k]),
      lambda: lambda.map((x, j) => x + step * dl[j]),
      s: s.map((x, j) => x + step * ds[j]),
    });
    const measure = (there) => {
      const pull = combined(A, there.lambda);
      return residual(halfSquare(there.W, p).gradient.map((x, k) => x - pull[k]), excess(A, there), slackness(there, target));
    };
    const next = searched(state, measure, { longest: longest(state, dl, ds), to });
    if (next) return next;
  }
  return null;
}

/** K⁻¹ b for a symmetric positive definite K, given by its lower half, by Cholesky in place; null where it is not. */
function solved(K, b) {
  const m = b.length;
  const tiny = 1e-15 * Math.max(...K.map((row, i) => row[i]));
  for (let i = 0; i < m; i++) {
    for (let j = 0; j <= i; j++) {
      let value = K[i][j];
      for (let k = 0; k < j; k++) value -= K[i][k] * K[j][k];
      if (i === j) {
        if (value + tiny <= 0) return null;
        K[i][i] = Math.sqrt(value + tiny);
      } else K[i][j] = value / K[j][j];
    }
  }
  const x = Float64Array.from(b);
  for (let i = 0; i < m; i++) {
    for (let k = 0; k < i; k++) x[i] -= K[i][k] * x[k];
    x[i] /= K[i][i];
  }
  for (let i = m - 1; i >= 0; i--) {
    for (let k = i + 1; k < m; k++) x[i] -= K[k][i] * x[k];
    x[i] /= K[i][i];
  }
  return x;
}
