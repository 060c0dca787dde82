// Weights as products of factors: a prompt p = k ⊙ q, twin of DiagonalKeyQuery; a weight W = K Qᵀ, twin of KeyQuery.
// Factors are one vector, first k or K, then q or Q; matrices are in rows.
import { decompose } from "explorer/singular.js";

/** The factors with which training starts at a prompt p or a weight W. */
export const factorsOf = (start) => (start.length === 2 ? ofPrompt(start) : ofWeight(start));

/** k = 1, then q = p. From equal factors no entry of p could change its sign. */
const ofPrompt = (p) => Float64Array.of(1, 1, p[0], p[1]);

/** Balanced factors K = U √Σ and Q = V √Σ of W = U Σ Vᵀ. From W = 0 these would never move: K = 1 and Q = 0. */
function ofWeight(W) {
  const [first, second, ux, uy, vx, vy] = decompose(W),
    s = Math.sqrt(first),
    t = Math.sqrt(Math.abs(second)),
    r = Math.sign(second) * t;
  if (first === 0) return Float64Array.of(1, 0, 0, 1, 0, 0, 0, 0);
  return Float64Array.of(s * ux, -t * uy, s * uy, t * ux, s * vx, -r * vy, s * vy, r * vx);
}

/** p = k ⊙ q, or W = K Qᵀ. */
export function multiply(factors, W) {
  if (W.length === 2) {
    W[0] = factors[0] * factors[2];
    W[1] = factors[1] * factors[3];
    return;
  }
  for (let i = 0; i < 2; i++)
    for (let j = 0; j < 2; j++)
      W[2 * i + j] = factors[2 * i] * factors[4 + 2 * j] + factors[2 * i + 1] * factors[5 + 2 * j];
}

/**
 * The gradient of the factors from the gradient g of their product, as one vector with one norm:
 * ∇k = g ⊙ q and ∇q = g ⊙ k, or ∇K = g Q and ∇Q = gᵀ K.
 */
export function pullback(g, factors, out) {
  const prompt = factors.length === 4;
  for (let i = 0; i < 2; i++) {
    if (prompt) {
      out[i] = g[i] * factors[i + 2];
      out[i + 2] = g[i] * factors[i];
      continue;
    }
    for (let j = 0; j < 2; j++) {
      out[2 * i + j] = g[2 * i] * factors[4 + j] + g[2 * i + 1] * factors[6 + j];
      out[4 + 2 * i + j] = g[i] * factors[j] + g[2 + i] * factors[2 + j];
    }
  }
  return out;
}
