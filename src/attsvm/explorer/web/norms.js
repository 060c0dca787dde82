// The entrywise lp norms of short vectors: value, dual exponent, steepest direction. Twin of attsvm/norms.

export const dualOf = (p) => (p === 1 ? Infinity : p === Infinity ? 1 : p / (p - 1));

/** ‖w‖_p, without overflow or underflow. */
export function normOf(w, p) {
  let largest = 0;
  for (let i = 0; i < w.length; i++) largest = Math.max(largest, Math.abs(w[i]));
  if (largest === 0 || p === Infinity) return largest;
  let total = 0;
  for (let i = 0; i < w.length; i++) {
    const size = Math.abs(w[i]) / largest;
    total += p === 1 ? size : p === 2 ? size * size : size ** p;
  }
  return largest * (p === 1 ? total : p === 2 ? Math.sqrt(total) : total ** (1 / p));
}

/** The Δ with ‖Δ‖_p ≤ 1 that maximises ⟨g, Δ⟩ = ‖g‖_q; zero where g is zero. */
export function steepest(g, p, out = new Float64Array(g.length)) {
  if (p === Infinity) {
    for (let i = 0; i < g.length; i++) out[i] = Math.sign(g[i]);
    return out;
  }
  if (p === 1) {
    let first = 0;
    for (let i = 1; i < g.length; i++) if (Math.abs(g[i]) > Math.abs(g[first])) first = i;
    for (let i = 0; i < g.length; i++) out[i] = i === first ? Math.sign(g[i]) : 0;
    return out;
  }
  const q = dualOf(p),
    size = normOf(g, q) || 1;
  for (let i = 0; i < g.length; i++) {
    // (size/norm)^(q−1), not a quotient of powers: it stays in [0, 1].
    const ratio = Math.abs(g[i]) / size;
    out[i] = Math.sign(g[i]) * (q === 2 ? ratio : ratio ** (q - 1));
  }
  return out;
}

/** The Euclidean length; squares must not overflow or underflow. */
export function length(w) {
  let total = 0;
  for (let i = 0; i < w.length; i++) total += w[i] * w[i];
  return Math.sqrt(total);
}

export const cross = (a, b) => a[0] * b[1] - a[1] * b[0];
export const dot = (a, b) => {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
};
