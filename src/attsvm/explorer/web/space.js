// The program of weights W (2 × 2), whose rows (x_a − x_t) zᵀ have four entries:  min ‖W‖_p  subject to rows·W ≥ b.
//
// For l2 it is one nonnegative least-squares problem (Lawson and Hanson's least-distance programming), which also proves
// infeasibility. For other p, Newton's method starts at its solution. Ties are pairs of opposite rows.
import { dot, dualOf, normOf } from "explorer/norms.js";

const DONE = 1e-13;
const ROUNDS = 60; // largest number of Newton steps of a program
const TINY = 1e-15; // shorter steps do not change w
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
  let solved = leastDistance(A, b);
  const { feasible } = solved;
  for (let k = 0; k < 2 && feasible; k++) {
    const again = leastDistance(A, b, normOf(solved.w, 2) || 1); // more exact with the known length
    if (again.feasible) solved = again;
  }
  if (feasible && p !== 2) solved = newton(A, b, p, solved);
  const multipliers = new Float64Array(rows.length);
  solved.weights.forEach((x, k) => (multipliers[Math.abs(home[k]) - 1] += Math.sign(home[k]) * x));
  if (!feasible) return { feasible, multipliers };
  const top = normOf(combine(A, solved.weights), dualOf(p)) || 1;
  // Scale w until no row is violated, so that the certificate is that of the returned weight.
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

/**
 * min ½‖w‖² s.t. A w ≥ b by min ‖Eλ − f‖, λ ≥ 0, with E = [Aᵀ; bᵀ] and f = (0, …, 0, 1). The solution is most exact
 * if `size`, the unit of w, is about its length.
 */
function leastDistance(A, b, size = 1) {
  const columns = A.map((a, j) => [...a, b[j] / size]),
    last = A[0].length;
  const weights = nonnegative(columns, last);
  const r = combine(columns, weights);
  const short = (1 - r[last]) / size;
  if (!(short * size > NONE * NONE)) return { feasible: false, weights };
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

const within = (x) => Math.min(1e12, Math.max(1e-4, x)); // beyond these limits an entry is practically fixed or free

/**
 * min ‖w‖_p^p/p s.t. A w ≥ b by Newton's steps from a w that satisfies the rows: each step is the l2 program of the
 * quadratic model at w, so that all points between the two satisfy the rows.
 */
function newton(A, b, p, { w, weights }) {
  for (let round = 0; round < ROUNDS; round++) {
    const far = normOf(w, Infinity),
      curve = w.map((x) => (p - 1) * within((Math.abs(x) / far) ** (p - 2))), // per far^(p−2)
      goal = w.map((x, i) => x - (Math.sign(x) * far * (Math.abs(x) / far) ** (p - 1)) / curve[i]),
      root = curve.map(Math.sqrt);
    // In z = root·(w' − goal) the quadratic is |z|²: the row a becomes a/root, its bound b − a·goal.
    const next = leastDistance(
      A.map((a) => a.map((x, i) => x / root[i])),
      A.map((a, j) => b[j] - dot(a, goal)),
      normOf(
        w.map((x, i) => root[i] * (x - goal[i])),
        2,
      ),
    );
    if (!next.feasible) break;
    const way = next.w.map((z, i) => goal[i] + z / root[i] - w[i]);
    weights = next.weights;
    const step = longest(w, way, p);
    w = w.map((x, i) => x + step * way[i]);
    if (!(step * normOf(way, Infinity) > TINY * far)) break;
  }
  return { w, weights };
}

/** The largest t ≤ 1 up to which ‖w + t·way‖_p decreases. */
function longest(w, way, p) {
  const slope = (t) =>
    w.reduce((sum, x, i) => sum + Math.sign(x + t * way[i]) * Math.abs(x + t * way[i]) ** (p - 1) * way[i], 0);
  let low = 0,
    high = 1;
  if (slope(high) <= 0) return high;
  for (let round = 0; round < 50; round++) {
    const middle = (low + high) / 2;
    if (slope(middle) < 0) low = middle;
    else high = middle;
  }
  return low;
}

/** Solve M x = y for a small symmetric M, with a ridge against dependent rows and iterative refinement. */
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
