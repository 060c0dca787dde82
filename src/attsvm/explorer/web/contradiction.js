// Whether rows a·w ≥ b of the plane (a·w = 0 if tied) contradict each other, with a Farkas proof of at most three rows.
import { cross, dot, length } from "explorer/norms.js";

export const TOUCH = 1e-12; // rounding in a·w, relative to |a||w|
export const FLAT = 1e-15; // sine of an angle that counts as none

/** A Farkas proof that the rows contradict each other, or null. */
export const contradictionPlane = (rows) => contradiction(inUnits(rows).unit);

/** The rows; divided by one power of two if squares would overflow or underflow. */
export function inUnits(rows) {
  let largest = 0;
  for (const { a } of rows) largest = Math.max(largest, Math.abs(a[0]), Math.abs(a[1]));
  if (largest === 0 || (largest > 1e-100 && largest < 1e100)) return { unit: rows, scale: 1 };
  const scale = 2 ** Math.round(Math.log2(largest));
  const unit = rows.map(({ a, b, tied }) => {
    const divided = [a[0] / scale, a[1] / scale];
    return { a: divided, b, tied, size: length(divided) };
  });
  return { unit, scale };
}

const sine = (r, s) => cross(r.a, s.a) / (r.size * s.size);

/** Multipliers λ ≥ 0 (off the ties) with Σ λa = 0 and Σ λb > 0, or null. rows: of `inUnits`. */
export function contradiction(rows) {
  const able = [],
    ties = [];
  for (let j = 0; j < rows.length; j++) {
    const { size, b, tied } = rows[j];
    if (size > 0) able.push(j);
    else if (b > 0 && !tied) return balance(rows, [j]);
    if (size > 0 && tied) ties.push(j);
  }
  return ties.length ? onLine(rows, able, ties) : allAround(rows, able);
}

/** With ties w lies on a line or is 0: all rows must allow the same half of the line. */
function onLine(rows, able, ties) {
  const [tie] = ties,
    asks = able.filter((j) => !rows[j].tied);
  const asking = asks.find((j) => rows[j].b > 0);
  if (asking === undefined) return null;
  const second = ties.find((j) => Math.abs(sine(rows[tie], rows[j])) > TOUCH);
  if (second !== undefined) return balance(rows, [asking, tie, second]);
  const side = (j) => (Math.abs(sine(rows[tie], rows[j])) <= TOUCH ? 0 : Math.sign(cross(rows[tie].a, rows[j].a)));
  const level = asks.find((j) => rows[j].b > 0 && side(j) === 0);
  if (level !== undefined) return balance(rows, [level, tie]);
  const against = asks.find((j) => side(j) === -side(asking));
  return against === undefined ? null : balance(rows, [asking, against, tie]);
}

/** Without ties: rows contradict each other if no half-plane contains all of them. */
function allAround(rows, able) {
  const start = able.find((j) => rows[j].b > 0);
  if (start === undefined) return null;
  // Find the rows farthest to the left and to the right of one row; of parallel rows, one with a margin.
  let last = -1,
    next = -1;
  const beyond = (far, k, side) => {
    if (far < 0) return true;
    const turn = side * sine(rows[far], rows[k]);
    return turn > FLAT || (turn >= -FLAT && rows[far].b === 0 && rows[k].b > 0);
  };
  for (const k of able) {
    const turn = sine(rows[start], rows[k]);
    if (turn > FLAT) last = beyond(last, k, 1) ? k : last;
    else if (turn < -FLAT) next = beyond(next, k, -1) ? k : next;
    else if (dot(rows[start].a, rows[k].a) < 0) return balance(rows, [start, k]);
  }
  if (last < 0 || next < 0) return null;
  const gap = sine(rows[last], rows[next]);
  if (gap > FLAT) return balance(rows, [start, last, next]);
  const opposite = gap >= -FLAT && (rows[last].b > 0 || rows[next].b > 0);
  return opposite ? balance(rows, rows[last].b > 0 ? [last, next] : [next, last]) : null;
}

/** Multipliers with Σ λa = 0 over one zero row, two parallel rows or three rows; the first is positive. */
function balance(rows, chosen) {
  const multipliers = new Float64Array(rows.length),
    [a, c, e] = chosen.map((j) => rows[j].a);
  const weights =
    chosen.length === 1
      ? [1]
      : chosen.length === 2
        ? [1, -dot(a, c) / dot(c, c)]
        : [cross(c, e), cross(e, a), cross(a, c)];
  const most = Math.max(...weights.map(Math.abs)) * (weights[0] < 0 ? -1 : 1);
  chosen.forEach((j, k) => (multipliers[j] = weights[k] / most));
  return multipliers;
}

/** The most nearly opposite pair of rows proves the contradiction where their corner is not finite. */
export function nearly(rows) {
  let pair = [0, 1],
    least = Infinity;
  rows.forEach((r, j) =>
    rows.forEach((s, k) => {
      if (r.b > 0 && r.size * s.size > 0 && dot(r.a, s.a) < 0 && Math.abs(sine(r, s)) < least)
        [least, pair] = [Math.abs(sine(r, s)), [j, k]];
    }),
  );
  return balance(rows, pair);
}
