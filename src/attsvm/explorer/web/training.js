// Road two: softmax attention and its gradient relative to the winning token, in log scale, and the step rules.
// Twin of attsvm/training for keys of width 2. Nothing here draws, and a step allocates nothing.
import { factorsOf, multiply, pullback } from "explorer/factors.js";
import { dot, dualOf, normOf, steepest } from "explorer/norms.js";
import { schattenSteepest } from "explorer/singular.js";

const TIE = 1e-12; // scores closer than this, relative to the largest, are equal

const softplus = (f) => Math.max(f, 0) + Math.log1p(Math.exp(-Math.abs(f)));

/** Decreasing losses ℓ of the margin, through log(−ℓ'). */
export const LOSSES = {
  logistic: { value: (f) => softplus(-f), logSlope: (f) => -softplus(f) },
  exponential: { value: (f) => Math.exp(-f), logSlope: (f) => -f },
  correlation: { value: (f) => -f, logSlope: () => 0 },
};

/** The kind of an optimizer, steepest, schatten, gd or mirror, with the p of its norm or its potential. */
export const RULES = {
  normalised: () => ({ kind: "steepest", p: 2 }),
  gd: () => ({ kind: "gd", p: 2 }),
  sign: () => ({ kind: "steepest", p: Infinity }),
  coordinate: () => ({ kind: "steepest", p: 1 }),
  steepest: (p) => ({ kind: "steepest", p }),
  schatten: (p) => ({ kind: "schatten", p }),
  spectral: () => ({ kind: "schatten", p: Infinity }),
  mirror: (p) => ({ kind: "mirror", p }),
};

/** The problem in flat arrays, with the work space of one gradient. */
export function compiled(problem, loss) {
  const { inputs } = problem,
    n = inputs.length,
    e = inputs[0].query.length;
  const first = new Int32Array(n + 1);
  inputs.forEach(({ tokens }, i) => (first[i + 1] = first[i] + tokens.length));
  const m = first[n],
    each = () => new Float64Array(n);
  return {
    n,
    e,
    m,
    first,
    loss,
    X: Float64Array.from(inputs.flatMap(({ tokens }) => tokens.flat())),
    Z: Float64Array.from(inputs.flatMap(({ query }) => query)),
    labels: Float64Array.from(inputs, ({ label }) => label),
    scores: Float64Array.from(inputs.flatMap(asTrained)),
    logits: new Float64Array(m),
    top: each(),
    level: each(),
    slope: each(),
    turnX: each(),
    turnY: each(),
    outX: each(),
    outY: each(),
    pull: new Float64Array(2 * e),
    headPull: new Float64Array(2),
    factorPull: new Float64Array(4 * e),
    kept: new Float64Array(4 * e),
    step: new Float64Array(4 * e),
    headStep: new Float64Array(2),
  };
}

/**
 * The scores of an input for training: tokens with equal keys get the mean of their scores, and scores that differ by
 * rounding get one number. A token with the score of the winner has no gradient: past saturation its rounding error,
 * or a copy of the winner with zero direction, would hide the other tokens.
 */
function asTrained({ tokens, query, scores }) {
  const blind = query.every((z) => z === 0),
    size = Math.max(...scores.map(Math.abs)),
    means = tokens.map((x) => {
      const alike = scores.filter((_, u) => blind || (tokens[u][0] === x[0] && tokens[u][1] === x[1]));
      return alike.every((score) => score === alike[0]) ? alike[0] : alike.reduce((a, b) => a + b) / alike.length;
    });
  means.forEach((mean, t) => (means[t] = means.find((other) => Math.abs(other - mean) <= TIE * size)));
  return means;
}

/** The logits of input i at W, in data.logits; returns the place of the largest. */
function attend(data, W, i) {
  const { e, first, X, Z, logits } = data,
    z = Z[e * i],
    y = e === 2 ? Z[2 * i + 1] : 0,
    u = e === 2 ? W[0] * z + W[1] * y : W[0] * z,
    v = e === 2 ? W[2] * z + W[3] * y : W[1] * z;
  let best = -Infinity,
    at = first[i];
  for (let t = at; t < first[i + 1]; t++) {
    const logit = X[2 * t] * u + X[2 * t + 1] * v;
    logits[t] = logit;
    if (logit > best) {
      best = logit;
      at = t;
    }
  }
  return at;
}

/** Σ e^(logit − largest) over the other tokens of input i, after `attend` found the largest. */
function others(data, i, at) {
  const { first, logits } = data;
  let total = 0;
  for (let t = first[i]; t < first[i + 1]; t++) if (t !== at) total += Math.exp(logits[t] - logits[at]);
  return total;
}

/** Scores γ_t = Y v·x_t of a head that trains. */
function scoreBy(data, head) {
  for (let i = 0; i < data.n; i++)
    for (let t = data.first[i]; t < data.first[i + 1]; t++)
      data.scores[t] = data.labels[i] * (data.X[2 * t] * head[0] + data.X[2 * t + 1] * head[1]);
}

/**
 * Gradient of the mean loss in W, relative to the winning token a of each input:
 *     1/n Σ_i ℓ'(f_i) Σ_{t≠a} s_t (g_t − ḡ)(x_t − x_a) z_iᵀ,   g_t = γ_t − γ_a,   ḡ = Σ_{t≠a} s_t g_t
 * Writes the mantissa to data.pull and returns the log scale: the gradient is mantissa · e^scale.
 */
export function gradient(data, W) {
  const { n, e, Z, top, level, turnX, turnY, pull } = data;
  let token = -Infinity,
    largest = -Infinity;
  for (let i = 0; i < n; i++) {
    turnOf(data, W, i);
    if (top[i] > token) token = top[i];
    if (top[i] + level[i] > largest) largest = top[i] + level[i];
  }
  pull.fill(0);
  if (largest === -Infinity) return 0; // the gradient is zero
  for (let i = 0; i < n; i++) {
    if (top[i] === -Infinity) continue;
    // Keep the token part and the row part of the scale separate: the sum −5000.1 − 0.7 would lose four digits.
    const factor = -Math.exp(top[i] - token + (level[i] - (largest - token))) / n,
      x = factor * turnX[i],
      y = factor * turnY[i];
    for (let k = 0; k < e; k++) {
      pull[k] += x * Z[e * i + k];
      pull[e + k] += y * Z[e * i + k];
    }
  }
  return largest;
}

/**
 * The part of input i, Σ_{t≠a} s_t (g_t − ḡ)(x_t − x_a) = turn · e^(top + row), and log(−ℓ'(f)) + row = level.
 * top is the largest relative logit of a token whose score differs from the winner's. The attention of such tokens is
 * computed relative to it, so that it does not underflow. −∞ without such a token.
 */
function turnOf(data, W, i) {
  const { first, X, logits, scores, loss } = data,
    at = attend(data, W, i),
    score = scores[at],
    ax = X[2 * at],
    ay = X[2 * at + 1];
  let top = -Infinity;
  for (let t = first[i]; t < first[i + 1]; t++)
    if (scores[t] !== score && logits[t] - logits[at] > top) top = logits[t] - logits[at];
  const high = Math.exp(top);
  let total = 0,
    x = 0,
    y = 0,
    drop = 0,
    dropX = 0,
    dropY = 0;
  for (let t = first[i]; t < first[i + 1]; t++) {
    if (t === at) continue;
    const pulls = scores[t] !== score,
      weight = Math.exp(logits[t] - logits[at] - (pulls ? top : 0)),
      odds = pulls ? weight * high : weight,
      lost = pulls ? weight * (scores[t] - score) : 0,
      dx = X[2 * t] - ax,
      dy = X[2 * t + 1] - ay;
    total += odds;
    x += odds * dx;
    y += odds * dy;
    drop += lost;
    dropX += lost * dx;
    dropY += lost * dy;
  }
  const share = 1 / (1 + total),
    mean = share * drop,
    slope = loss.logSlope(score + high * mean);
  data.top[i] = top;
  data.slope[i] = slope;
  data.level[i] = slope - Math.log1p(total);
  data.turnX[i] = dropX - mean * x;
  data.turnY[i] = dropY - mean * y;
  data.outX[i] = ax + share * x;
  data.outY[i] = ay + share * y;
}

/** Gradient of the mean loss in the head, 1/n Σ ℓ'(f_i) Y_i r_i, after `gradient`; in data.headPull, log scale returned. */
function headGradient(data) {
  const { n, slope, labels, headPull, outX, outY } = data;
  let largest = -Infinity;
  for (let i = 0; i < n; i++) {
    if (outX[i] === 0 && outY[i] === 0) slope[i] = -Infinity; // its gradient is zero, and must not hide the others
    if (slope[i] > largest) largest = slope[i];
  }
  headPull.fill(0);
  if (largest === -Infinity) return 0;
  for (let i = 0; i < n; i++) {
    const weight = (-Math.exp(slope[i] - largest) * labels[i]) / n;
    headPull[0] += weight * outX[i];
    headPull[1] += weight * outY[i];
  }
  return largest;
}

/** The gradient by the usual softmax formula, which cancels to zero once attention saturates. */
export function usualGradient(data, W) {
  const { n, e, first, X, Z, logits, scores, pull, loss } = data;
  pull.fill(0);
  for (let i = 0; i < n; i++) {
    const at = attend(data, W, i),
      best = logits[at],
      share = 1 / (1 + others(data, i, at));
    const from = first[i],
      to = first[i + 1];
    let total = 0,
      out = 0;
    for (let t = from; t < to; t++) {
      logits[t] = t === at ? 0 : Math.exp(logits[t] - best) * share;
      total += logits[t];
    }
    logits[at] = 1 - total;
    for (let t = from; t < to; t++) out += logits[t] * scores[t];
    const outer = -Math.exp(loss.logSlope(out)) / n;
    for (let t = from; t < to; t++) {
      const weight = outer * logits[t] * (scores[t] - out);
      for (let k = 0; k < e; k++) {
        pull[k] += weight * X[2 * t] * Z[e * i + k];
        pull[e + k] += weight * X[2 * t + 1] * Z[e * i + k];
      }
    }
  }
  return 0;
}

const MACHINE = 2.2e-16; // published code adds it to lengths before it divides by them

/** One step of a rule on W or its factors, in place. dual: state of mirror descent. added: to the gradient's length. */
function update(rule, lr, W, dual, g, logScale, added, room) {
  const { kind, p } = rule;
  if (kind === "gd") {
    const rate = lr * Math.exp(logScale);
    for (let k = 0; k < W.length; k++) W[k] -= rate * g[k];
  } else if (kind === "steepest" || kind === "schatten") {
    if (kind === "schatten" && g.length > 2) schattenSteepest(g, p, room);
    else steepest(g, kind === "schatten" ? 2 : p, room); // a head has one singular value, its length
    const size = dot(g, room),
      rate = added ? (lr * size) / (size + added) : lr;
    for (let k = 0; k < W.length; k++) W[k] -= rate * room[k];
  } else {
    const rate = lr / (normOf(g, dualOf(p)) + added || 1);
    for (let k = 0; k < W.length; k++) {
      dual[k] -= rate * g[k];
      W[k] += signedPower(dual[k], 1 / (p - 1)) - W[k];
    }
  }
}

const signedPower = (x, power) => (power === 1 ? x : Math.sign(x) * Math.abs(x) ** power);

// ---------------------------------------------------------------- runs

/** A run: W, the trained parameters (W or its factors) and, if the head trains, v. */
export function newRun(start, rule, head = null, factored = false) {
  const memory = (x) => rule.kind === "mirror" && Float64Array.from(x, (w) => signedPower(w, rule.p - 1));
  const W = Float64Array.from(start),
    trained = factored ? factorsOf(start) : W;
  return {
    W,
    trained,
    dual: memory(trained),
    v: head && Float64Array.from(head),
    headDual: head && memory(head),
    steps: 0,
  };
}

/** `count` steps of a run. usual: use the formula that stalls. A step to a weight that is not finite is dropped. */
export function advance(data, run, rule, lr, count, usual = false) {
  const { W, trained, v } = run,
    { kept, pull, headPull } = data,
    factored = trained !== W,
    joint = v !== null && !usual;
  for (let k = 0; k < count; k++) {
    if (joint) scoreBy(data, v);
    const scale = usual ? usualGradient(data, W) : gradient(data, W),
      along = factored ? pullback(pull, trained, data.factorPull) : pull;
    for (let j = 0; j < trained.length; j++) kept[j] = trained[j];
    update(rule, lr, trained, run.dual, along, scale, usual ? MACHINE : 0, data.step);
    if (factored) multiply(trained, W);
    if (joint) update(rule, lr, v, run.headDual, headPull, headGradient(data), 0, data.headStep);
    if (!finite(trained) || !finite(W)) {
      for (let j = 0; j < trained.length; j++) trained[j] = kept[j];
      if (factored) multiply(trained, W);
    }
  }
  run.steps += count;
}

function finite(W) {
  for (let j = 0; j < W.length; j++) if (!Number.isFinite(W[j])) return false;
  return true;
}

/** log attention of every token at W, exact past saturation. */
export function logAttention(data, W) {
  const out = new Float64Array(data.m);
  for (let i = 0; i < data.n; i++) {
    const at = attend(data, W, i),
      row = Math.log1p(others(data, i, at));
    for (let t = data.first[i]; t < data.first[i + 1]; t++) out[t] = data.logits[t] - data.logits[at] - row;
  }
  return out;
}

/** The token of each input with the largest logit at W. */
export const attended = (data, W) => Array.from({ length: data.n }, (_, i) => attend(data, W, i) - data.first[i]);

/** The key of the selection of these tokens, if each has most of its input's attention; otherwise null. */
export function decided(data, W) {
  let key = "";
  for (let i = 0; i < data.n; i++) {
    const at = attend(data, W, i);
    if (others(data, i, at) > 1) return null;
    key += `${i ? "," : ""}${at - data.first[i]}`;
  }
  return key;
}
