// The program of weights W (2 × 2), whose rows (x_a − x_t) zᵀ have four entries:  min ‖W‖_p  subject to rows·W ≥ b.
//
// l2 is one nonnegative least-squares problem (Lawson and Hanson's least-distance programming), which also proves
// that there is no W; from there other p take Newton's steps on the dual. Ties are pairs of opposite rows.
import { dot, dualOf, normOf } from "explorer/norms.js";

const DONE = 1e-13;
const NONE = 1e-7; // ‖W‖ of rows of size one beyond 1/NONE counts as none

/** As `separatePlane`, for rows with any number of entries and 1 < p < ∞. */
export function separateSpace(rows, p) {
  const size = Math.max(...rows.map(({ a }) => normOf(a, 2))) || 1;
  const A = [],
    b = [],
    home = [];
  rows.forEach((row, j) => {
    for (const sign of row.tied ? [1, -1] : [1]) {
      A.push(Array.from(row.a, (x) => (sign * x) / size));
      b.push(row.tied ? 0 : row.b);
      home.push(sign * (j + 1));
    }
  });
  const { feasible, w, weights } = leastDistance(A, b);
  const solved = feasible && p !== 2 ? newton(A, b, p, weights) : { w, weights };
  const multipliers = new Float64Array(rows.length);
  solved.weights.forEach((x, k) => (multipliers[Math.abs(home[k]) - 1] += Math.sign(home[k]) * x));
  if (!feasible) return { feasible, multipliers };
  const top = normOf(combine(A, solved.weights), dualOf(p)) || 1;
  // Scaled up until no row is violated, so that the certificate bounds this very weight.
  const least = Math.min(1, ...A.map((a, j) => (b[j] > 0 ? dot(a, solved.w) / b[j] : 1)));
  return {
    feasible,
    w: Array.from(solved.w, (x) => x / size / least),
    fan: null,
    proof: () => multipliers.map((x) => x / top / size),
  };
}

const combine = (A, weights) => {
  const out = new Float64Array(A[0].length);
  weights.forEach((x, k) => x && A[k].forEach((entry, i) => (out[i] += x * entry)));
  return out;
};

/** min ½‖w‖² s.t. A w ≥ b by min ‖Eλ − f‖, λ ≥ 0, with E = [Aᵀ; bᵀ] and f = (0, …, 0, 1). */
function leastDistance(A, b) {
  const columns = A.map((a, j) => [...a, b[j]]),
    last = A[0].length;
  const weights = nonnegative(columns, last);
  const r = combine(columns, weights);
  const short = 1 - r[last];
  if (!(short > NONE * NONE)) return { feasible: false, weights };
  return {
    feasible: true,
    w: Array.from(r.slice(0, last), (x) => x / short),
    weights: weights.map((x) => x / short),
  };
}

/** Lawson and Hanson's active set for min ‖Σ λ_j c_j − f‖, λ ≥ 0, where f is the unit vector `axis`. */
function nonnegative(columns, axis) {
  const m = columns.length,
    active = [];
  let weights = new Float64Array(m);
  for (let round = 0; round < 10 * m + 20; round++) {
    const r = combine(columns, weights);
    r[axis] -= 1;
    let enter = -1,
      most = DONE;
    for (let j = 0; j < m; j++) {
      const gain = -dot(columns[j], r);
      if (!active.includes(j) && gain > most) [enter, most] = [j, gain];
    }
    if (enter < 0) break;
    active.push(enter);
    for (;;) {
      const gram = active.map((j) => active.map((k) => dot(columns[j], columns[k])));
      const target = solveSmall(
        gram,
        active.map((j) => columns[j][axis]),
      );
      if (target.every((x) => x > 0)) {
        weights = new Float64Array(m);
        active.forEach((j, k) => (weights[j] = target[k]));
        break;
      }
      let step = 1;
      active.forEach((j, k) => target[k] <= 0 && (step = Math.min(step, weights[j] / (weights[j] - target[k] || 1))));
      active.forEach((j, k) => (weights[j] += step * (target[k] - weights[j])));
      for (let k = active.length - 1; k >= 0; k--)
        if (weights[active[k]] <= DONE && target[k] <= 0) weights[active.splice(k, 1)[0]] = 0;
      if (!active.length) break;
    }
  }
  return weights;
}

/** min ‖Aᵀλ‖_q^q/q − bᵀλ, λ ≥ 0, by Newton's steps on the positive λ; w is the gradient of the first term. */
function newton(A, b, p, start) {
  const q = dualOf(p),
    weights = Float64Array.from(start);
  const value = (x) => normOf(combine(A, x), q) ** q / q - x.reduce((sum, xj, j) => sum + xj * b[j], 0);
  const weightOf = (x) => Array.from(combine(A, x), (u) => Math.sign(u) * Math.abs(u) ** (q - 1));
  // The best multiple of the start, so that the first steps are of the right size.
  const gain = weights.reduce((sum, x, j) => sum + x * b[j], 0),
    at = normOf(combine(A, weights), q);
  weights.forEach((x, j) => (weights[j] = (x * gain ** (1 / (q - 1))) / at ** (q / (q - 1))));
  let w = weightOf(weights);
  for (let round = 0; round < 500; round++) {
    const done = DONE * (1 + normOf(w, 2));
    const slack = A.map((a, j) => dot(a, w) - b[j]),
      free = slack.map((_, j) => j).filter((j) => weights[j] > 0);
    if (free.every((j) => Math.abs(slack[j]) <= done)) {
      const worst = slack.indexOf(Math.min(...slack));
      if (slack[worst] >= -done) break;
      free.push(worst);
    }
    const curve = Array.from(combine(A, weights), (u) => (q - 1) * Math.max(Math.abs(u), 1e-12) ** (q - 2));
    const hessian = free.map((j) => free.map((k) => A[j].reduce((sum, x, i) => sum + x * curve[i] * A[k][i], 0)));
    const move = solveSmall(
        hessian,
        free.map((j) => -slack[j]),
      ),
      here = value(weights);
    for (let step = 1; step > 1e-14; step /= 2) {
      const next = Float64Array.from(weights);
      free.forEach((j, k) => (next[j] = Math.max(0, weights[j] + step * move[k])));
      if (!(value(next) <= here + 1e-16 * Math.abs(here))) continue;
      weights.set(next);
      break;
    }
    w = weightOf(weights);
  }
  return { w, weights };
}

/** M x = y for a small symmetric M: a little on the diagonal against dependent rows, and what it costs refined away. */
function solveSmall(M, y) {
  const x = eliminate(M, y);
  for (let round = 0; round < 3; round++) {
    const rest = eliminate(
      M,
      y.map((target, i) => target - dot(M[i], x)),
    );
    rest.forEach((change, i) => (x[i] += change));
  }
  return x;
}

function eliminate(M, y) {
  const n = y.length,
    most = Math.max(...M.map((row, i) => row[i])) || 1;
  const rows = M.map((row, i) => [...row.map((x, k) => x + (i === k ? 1e-14 * most : 0)), y[i]]);
  for (let i = 0; i < n; i++) {
    let pivot = i;
    for (let k = i + 1; k < n; k++) if (Math.abs(rows[k][i]) > Math.abs(rows[pivot][i])) pivot = k;
    [rows[i], rows[pivot]] = [rows[pivot], rows[i]];
    for (let k = i + 1; k < n; k++) {
      const factor = rows[k][i] / rows[i][i];
      for (let c = i; c <= n; c++) rows[k][c] -= factor * rows[i][c];
    }
  }
  const x = new Array(n).fill(0);
  for (let i = n - 1; i >= 0; i--) {
    let sum = rows[i][n];
    for (let k = i + 1; k < n; k++) sum -= rows[i][k] * x[k];
    x[i] = sum / rows[i][i];
  }
  return x;
}
