// Singular values of 2 × 2 matrices [a, b, c, d] in rows, and the steepest directions of Schatten norms.
// Twin of attsvm/training/directions.py.
import { steepest } from "explorer/norms.js";

const EPSILON = 2 ** -52;

/**
 * A = σ₁ u vᵀ + σ₂ u⊥ v⊥ᵀ with σ₁ ≥ |σ₂|, where x⊥ is x turned by 90°, so that σ₂ has the sign of det A. Writes σ₁, σ₂,
 * u and v to `out`. One rotation of the columns makes them orthogonal (Hestenes), which keeps the digits of a small σ₂.
 */
export function decompose(A, out = new Float64Array(6), from = 0) {
  const a = A[from],
    b = A[from + 1],
    c = A[from + 2],
    d = A[from + 3],
    one = a * a + c * c,
    two = b * b + d * d,
    mixed = a * b + c * d,
    zeta = (two - one) / (2 * mixed),
    tangent = mixed === 0 ? 0 : (zeta >= 0 ? 1 : -1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta)),
    cosine = 1 / Math.sqrt(1 + tangent * tangent),
    sine = cosine * tangent,
    x = cosine * a - sine * b, // the two columns after the rotation: (x, y) and (z, w)
    y = cosine * c - sine * d,
    z = sine * a + cosine * b,
    w = sine * c + cosine * d,
    left = Math.hypot(x, y),
    right = Math.hypot(z, w),
    first = left >= right,
    size = first ? left : right;
  out[0] = size;
  out[2] = size > 0 ? (first ? x : z) / size : 1;
  out[3] = size > 0 ? (first ? y : w) / size : 0;
  out[4] = first ? cosine : sine;
  out[5] = first ? -sine : cosine;
  // The other column along u⊥; of the columns in this order v⊥ is the turned v, up to the sign.
  out[1] = first ? w * out[2] - z * out[3] : x * out[3] - y * out[2];
  return out;
}

const PARTS = [new Float64Array(6), new Float64Array(6)];
const VALUES = [new Float64Array(2), new Float64Array(4)]; // of one matrix, and of two
const SCALED = new Float64Array(8);

/** The Δ that maximises ⟨g, Δ⟩, where the singular values of all matrices in Δ are one vector of lp norm at most 1. */
export function schattenSteepest(g, p, out) {
  const count = g.length / 4,
    values = VALUES[count - 1];
  let largest = 0;
  for (let k = 0; k < g.length; k++) largest = Math.max(largest, Math.abs(g[k]));
  for (let k = 0; k < g.length; k++) SCALED[k] = largest > 0 ? g[k] / largest : 0; // squares could underflow
  let most = 0;
  for (let j = 0; j < count; j++) {
    const part = decompose(SCALED, PARTS[j], 4 * j);
    values[2 * j] = part[0];
    values[2 * j + 1] = part[1];
    most = Math.max(most, part[0]);
  }
  // Smaller values are rounding, which a step would enlarge to its own size.
  for (let j = 0; j < values.length; j++) if (Math.abs(values[j]) <= 2 * count * EPSILON * most) values[j] = 0;
  steepest(values, p, values);
  for (let j = 0; j < count; j++) {
    const ux = PARTS[j][2],
      uy = PARTS[j][3],
      vx = PARTS[j][4],
      vy = PARTS[j][5],
      first = values[2 * j],
      second = values[2 * j + 1];
    out[4 * j] = first * ux * vx + second * uy * vy;
    out[4 * j + 1] = first * ux * vy - second * uy * vx;
    out[4 * j + 2] = first * uy * vx - second * ux * vy;
    out[4 * j + 3] = first * uy * vy + second * ux * vx;
  }
  return out;
}
