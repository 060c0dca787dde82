// Road two: softmax attention and its gradient relative to the winning token, in log scale, and the step rules.
// Twin of attsvm/training for keys of width 2. Nothing here draws, and a step allocates nothing.
import { dualOf, normOf, steepest } from "explorer/norms.js";

const softplus = (f) => Math.max(f, 0) + Math.log1p(Math.exp(-Math.abs(f)));

/** Decreasing losses ℓ of the margin, through log(−ℓ'). */
export const LOSSES = {
  logistic: { value: (f) => softplus(-f), logSlope: (f) => -softplus(f) },
  exponential: { value: (f) => Math.exp(-f), logSlope: (f) => -f },
  correlation: { value: (f) => -f, logSlope: () => 0 },
};

/** What an optimizer is: kind steepest with the p of its norm, gd, or mirror with the p of its potential. */
export const RULES = {
  normalised: () => ({ kind: "steepest", p: 2 }),
  gd: () => ({ kind: "gd", p: 2 }),
  sign: () => ({ kind: "steepest", p: Infinity }),
  coordinate: () => ({ kind: "steepest", p: 1 }),
  mirror: (p) => ({ kind: "mirror", p }),
};

/** The problem in flat arrays, with room for one look at it. */
export function compiled(problem, loss) {
  const { inputs } = problem,
    n = inputs.length,
    e = inputs[0].query.length;
  const first = new Int32Array(n + 1);
  inputs.forEach(({ tokens }, i) => (first[i + 1] = first[i] + tokens.length));
  const m = first[n];
  return {
    n,
    e,
    m,
    first,
    loss,
    d: 2 * e,
    X: Float64Array.from(inputs.flatMap(({ tokens }) => tokens.flat())),
    Z: Float64Array.from(inputs.flatMap(({ query }) => query)),
    labels: Float64Array.from(inputs, ({ label }) => label),
    scores: Float64Array.from(inputs.flatMap(({ scores }) => scores)),
    relative: new Float64Array(m),
    losing: new Float64Array(m),
    row: new Float64Array(n),
    mean: new Float64Array(n),
    slope: new Float64Array(n),
    winner: new Int32Array(n),
    pull: new Float64Array(2 * e),
    headPull: new Float64Array(2),
  };
}

/** Attention at W: relative logits, weights of the losing tokens, winners, log Σ e^relative (in row). */
function attend(data, W) {
  const { n, e, first, X, Z, relative, losing, row, winner } = data;
  for (let i = 0; i < n; i++) {
    const from = first[i],
      to = first[i + 1],
      z = Z[e * i],
      y = e === 2 ? Z[2 * i + 1] : 0;
    const u = e === 2 ? W[0] * z + W[1] * y : W[0] * z,
      v = e === 2 ? W[2] * z + W[3] * y : W[1] * z;
    let best = -Infinity,
      at = from;
    for (let t = from; t < to; t++) {
      const logit = X[2 * t] * u + X[2 * t + 1] * v;
      relative[t] = logit;
      if (logit > best) {
        best = logit;
        at = t;
      }
    }
    let total = 0;
    for (let t = from; t < to; t++) {
      const lower = relative[t] - best,
        weight = t === at ? 0 : Math.exp(lower);
      relative[t] = lower;
      losing[t] = weight;
      total += weight;
    }
    const share = 1 / (1 + total);
    for (let t = from; t < to; t++) losing[t] *= share;
    winner[i] = at;
    row[i] = Math.log1p(total);
  }
}

/** Scores γ_t = Y v·x_t of a head that trains along. */
function scoreBy(data, head) {
  for (let i = 0; i < data.n; i++)
    for (let t = data.first[i]; t < data.first[i + 1]; t++)
      data.scores[t] = data.labels[i] * (data.X[2 * t] * head[0] + data.X[2 * t + 1] * head[1]);
}

/**
 * Gradient of the mean loss in W, relative to the winning token a of each input:
 *     1/n Σ_i ℓ'(f_i) Σ_{t≠a} s_t (g_t − ḡ)(x_t − x_a) z_iᵀ,   g_t = γ_t − γ_a,   ḡ = Σ_{t≠a} s_t g_t
 * Leaves the mantissa in data.pull and returns the log scale: the true gradient is mantissa · e^scale.
 */
export function gradient(data, W) {
  const { n, e, first, X, Z, relative, losing, row, mean, slope, winner, scores, pull, loss } = data;
  attend(data, W);
  let token = -Infinity,
    largest = -Infinity;
  for (let i = 0; i < n; i++) {
    const at = winner[i],
      best = scores[at];
    let drop = 0,
      top = -Infinity;
    for (let t = first[i]; t < first[i + 1]; t++) {
      drop += losing[t] * (scores[t] - best);
      if (t !== at && relative[t] > top) top = relative[t];
    }
    mean[i] = drop;
    slope[i] = loss.logSlope(best + drop);
    const level = slope[i] - row[i];
    if (top > token) token = top;
    if (top + level > largest) largest = top + level;
  }
  pull.fill(0);
  if (largest === -Infinity) return 0; // every input has one token
  const deep = token < DEEP;
  for (let i = 0; i < n; i++) {
    const at = winner[i],
      best = scores[at];
    // Where nothing has underflowed the weights are at hand; e^(slope − scale) makes them those of the gradient.
    // Otherwise token part and row part of the scale apart: −5000.1 − 0.7 first would round away four digits.
    const shift = slope[i] - row[i] - (largest - token),
      factor = deep ? 0 : Math.exp(slope[i] - largest);
    let own = 0,
      x = 0,
      y = 0;
    for (let t = first[i]; t < first[i + 1]; t++) {
      if (t === at) continue;
      const weight = deep ? Math.exp(relative[t] - token + shift) : losing[t] * factor;
      const share = (-weight * (scores[t] - best - mean[i])) / n;
      own -= share;
      x += share * X[2 * t];
      y += share * X[2 * t + 1];
    }
    x += own * X[2 * at];
    y += own * X[2 * at + 1];
    for (let k = 0; k < e; k++) {
      pull[k] += x * Z[e * i + k];
      pull[e + k] += y * Z[e * i + k];
    }
  }
  return largest;
}

const DEEP = -300; // largest relative logit of a losing token below which weights are taken from their logarithms

/** Gradient of the mean loss in the head, 1/n Σ ℓ'(f_i) Y_i r_i, after `gradient`; in data.headPull, log scale returned. */
function headGradient(data) {
  const { n, first, X, losing, slope, winner, labels, headPull } = data;
  const largest = Math.max(...slope);
  headPull.fill(0);
  for (let i = 0; i < n; i++) {
    let rest = 0,
      x = 0,
      y = 0;
    for (let t = first[i]; t < first[i + 1]; t++) {
      rest += losing[t];
      x += losing[t] * X[2 * t];
      y += losing[t] * X[2 * t + 1];
    }
    const weight = (-Math.exp(slope[i] - largest) * labels[i]) / n;
    headPull[0] += weight * (x + (1 - rest) * X[2 * winner[i]]);
    headPull[1] += weight * (y + (1 - rest) * X[2 * winner[i] + 1]);
  }
  return largest;
}

/** The gradient by the usual softmax formula, which cancels to zero once attention saturates. */
export function usualGradient(data, W) {
  const { n, e, first, X, Z, losing, winner, scores, pull, loss } = data;
  attend(data, W);
  pull.fill(0);
  for (let i = 0; i < n; i++) {
    let total = 0,
      out = 0;
    for (let t = first[i]; t < first[i + 1]; t++) if (t !== winner[i]) total += losing[t];
    losing[winner[i]] = 1 - total;
    for (let t = first[i]; t < first[i + 1]; t++) out += losing[t] * scores[t];
    const outer = -Math.exp(loss.logSlope(out)) / n;
    for (let t = first[i]; t < first[i + 1]; t++) {
      const share = outer * losing[t] * (scores[t] - out);
      for (let k = 0; k < e; k++) {
        pull[k] += share * X[2 * t] * Z[e * i + k];
        pull[e + k] += share * X[2 * t + 1] * Z[e * i + k];
      }
    }
  }
  return 0;
}

const MACHINE = 2.2e-16; // what published code adds to the lengths it divides by

/** One step of a rule on W in place; `dual` is mirror descent's memory; `added` goes to the gradient's length. */
function update(rule, lr, W, dual, g, logScale, added, room) {
  const { kind, p } = rule,
    size = added || kind === "mirror" ? normOf(g, dualOf(p)) : 1;
  if (kind === "gd") {
    const rate = lr * Math.exp(logScale);
    for (let k = 0; k < W.length; k++) W[k] -= rate * g[k];
  } else if (kind === "steepest") {
    steepest(g, p, room);
    const rate = added ? (lr * size) / (size + added) : lr;
    for (let k = 0; k < W.length; k++) W[k] -= rate * room[k];
  } else {
    const rate = lr / (size + added || 1);
    for (let k = 0; k < W.length; k++) {
      dual[k] -= rate * g[k];
      W[k] += signedPower(dual[k], 1 / (p - 1)) - W[k];
    }
  }
}

const signedPower = (x, power) => (power === 1 ? x : Math.sign(x) * Math.abs(x) ** power);

/** A run in progress: W and, where the head trains too, v. */
export function newRun(start, rule, head = null) {
  const memory = (x) => Float64Array.from(x, (w) => (rule.kind === "mirror" ? signedPower(w, rule.p - 1) : 0));
  return {
    W: Float64Array.from(start),
    dual: memory(start),
    v: head && Float64Array.from(head),
    headDual: head && memory(head),
    steps: 0,
    room: new Float64Array(start.length),
    kept: new Float64Array(start.length),
    headRoom: new Float64Array(2),
  };
}

/** `count` steps of a run. usual: with the formula that stalls. A step to a weight that is no number is dropped. */
export function advance(data, run, rule, lr, count, usual = false) {
  const { W, kept, v } = run,
    joint = v !== null && !usual;
  for (let k = 0; k < count; k++) {
    if (joint) scoreBy(data, v);
    const scale = usual ? usualGradient(data, W) : gradient(data, W);
    kept.set(W);
    update(rule, lr, W, run.dual, data.pull, scale, usual ? MACHINE : 0, run.room);
    if (joint) update(rule, lr, v, run.headDual, data.headPull, headGradient(data), 0, run.headRoom);
    if (!W.every(Number.isFinite)) W.set(kept);
  }
  run.steps += count;
}

/** log attention of every token at W, exact past saturation. */
export function logAttention(data, W) {
  attend(data, W);
  const out = Float64Array.from(data.relative);
  for (let i = 0; i < data.n; i++) for (let t = data.first[i]; t < data.first[i + 1]; t++) out[t] -= data.row[i];
  return out;
}

/** The token of each input with the largest logit at W. */
export function attended(data, W) {
  attend(data, W);
  return Array.from(data.winner, (t, i) => t - data.first[i]);
}

/** Those tokens as a selection's key, where each has most of its input's attention; otherwise null. */
export function decided(data, W) {
  attend(data, W);
  let key = "";
  for (let i = 0; i < data.n; i++) {
    if (data.row[i] > Math.LN2) return null;
    key += `${i ? "," : ""}${data.winner[i] - data.first[i]}`;
  }
  return key;
}
