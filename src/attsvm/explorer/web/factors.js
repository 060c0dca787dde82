// A prompt as a product of factors, p = k ⊙ q. Twin of DiagonalKeyQuery.

/** The factors k = 1, then q = p, of a prompt p. From equal factors no entry of p could change its sign. */
export const factorsOf = (p) => Float64Array.of(1, 1, p[0], p[1]);

/** p = k ⊙ q. */
export function multiply(kq, p) {
  p[0] = kq[0] * kq[2];
  p[1] = kq[1] * kq[3];
}

/** The gradient of the factors from the gradient g of p: ∇k = g ⊙ q and ∇q = g ⊙ k, as one vector with one norm. */
export function pullback(g, kq, out) {
  for (let i = 0; i < 2; i++) {
    out[i] = g[i] * kq[i + 2];
    out[i + 2] = g[i] * kq[i];
  }
  return out;
}
