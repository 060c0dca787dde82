// The exact program of the plane:  min ‖w‖_p  subject to  a·w ≥ b  (a·w = 0 where tied), for every p in [1, ∞].
//
// At most two rows determine the solution: the best point of one row, along the dual vector of a, or the corner of
// two rows. Rows are exchanged until none is violated, and ‖w‖ grows with every exchange. A contradiction has at most
// three rows. All formulas are closed forms.
import { FLAT, TOUCH, contradiction, inUnits, nearly } from "explorer/contradiction.js";
import { cross, dot, dualOf, length, normOf, steepest } from "explorer/norms.js";

/**
 * rows: {a: [x, y], b ≥ 0, tied, size: |a|}. Returns {feasible, w, fan, proof} where proof() are multipliers with
 * N*(Σ λa) = 1 and Σ λb = N(w); or {feasible, multipliers}, a Farkas proof: λ ≥ 0 off the ties, Σ λa = 0, Σ λb > 0.
 * fan: the ends between which every w is a solution, where l1 or l∞ has several (w is then the shortest); else null.
 */
export function separatePlane(rows, p) {
  const { unit, scale } = inUnits(rows);
  const against = contradiction(unit);
  if (against) return { feasible: false, multipliers: against };
  if (!unit.some(({ b }) => b > 0))
    return { feasible: true, w: [0, 0], fan: null, proof: () => new Float64Array(rows.length) };
  let w = smallest(unit, p);
  if (!w) return { feasible: false, multipliers: nearly(unit) };
  const fan = flatSide(unit, w, p);
  if (fan) w = shortest(...fan);
  const back = (each) => [each[0] / scale, each[1] / scale];
  const proof = () => dualOfCorner(unit, w, p).map((x) => x / scale);
  return { feasible: true, w: back(w), fan: fan && fan.map(back), proof };
}

// ---------------------------------------------------------------- the smallest w

function smallest(rows, p) {
  const tie = rows.find(({ tied, size }) => tied && size > 0);
  const way = tie ? [-tie.a[1], tie.a[0]] : null;
  const alone = (row) =>
    row.tied || row.b === 0 || row.size === 0 ? null : pointOf(row, way || dualVector(row.a, p));
  // The row that alone needs the longest w, ‖w‖ = b/‖a‖_q.
  let first = null,
    most = 0;
  for (const row of rows) {
    if (row.tied || row.b === 0) continue;
    const need = way ? row.b / Math.abs(dot(way, row.a)) : row.b / normOf(row.a, dualOf(p));
    if (need > most) [first, most] = [row, need];
  }
  let w = alone(first),
    basis = [first];
  for (let round = 0; round < 10 * rows.length + 10; round++) {
    const worst = mostViolated(rows, w);
    if (!worst) return w;
    let best = null,
      next = null;
    const offer = (each, held) => {
      if (!each || (best && !less(each, best, p)) || ![worst, ...basis].every((row) => satisfied(row, each))) return;
      [best, next] = [each, held];
    };
    offer(alone(worst), [worst]);
    if (!way) for (const row of basis) offer(corner(worst, row), [worst, row]);
    if (!best) return null;
    [w, basis] = [best, next];
  }
  return null;
}

/** Compare norms, then Euclidean lengths, so that every program has one solution. */
function less(u, w, p) {
  const one = normOf(u, p),
    other = normOf(w, p);
  return Math.abs(one - other) > 1e-14 * other ? one < other : length(u) < length(w);
}

function pointOf({ a, b }, way) {
  const step = b / dot(way, a);
  return [way[0] * step, way[1] * step];
}

function corner({ a, b, size }, { a: c, b: e, size: other }) {
  const area = cross(a, c);
  if (Math.abs(area) <= FLAT * size * other) return null;
  return [(b * c[1] - e * a[1]) / area, (e * a[0] - b * c[0]) / area];
}

/** The shortest unit vector dual to a; for l1 there is a segment of them at |a₁| = |a₂|. */
function dualVector(a, p) {
  if (p === 1 && Math.abs(Math.abs(a[0]) - Math.abs(a[1])) <= FLAT * Math.abs(a[0]))
    return a.map((x) => Math.sign(x) / 2);
  return steepest(a, p);
}

const room = ({ b, size }, w) => TOUCH * (size * length(w) + b);
const satisfied = (row, w) => row.a[0] * w[0] + row.a[1] * w[1] >= row.b - room(row, w);

function mostViolated(rows, w) {
  const far = length(w);
  let worst = null,
    most = 0;
  for (const row of rows) {
    const { a, b, size } = row,
      over = a[0] * w[0] + a[1] * w[1] - b + TOUCH * (size * far + b);
    if (over < 0 && !row.tied && -over > most * size) [worst, most] = [row, -over / size];
  }
  return worst;
}

// ---------------------------------------------------------------- several solutions

/** The ends of the segment of solutions on a flat side of the l1 or l∞ ball through w; null if it is a point. */
function flatSide(rows, w, p) {
  if (p !== 1 && p !== Infinity) return null;
  const size = normOf(w, p),
    [x, y] = w.map(Math.sign),
    far = [-1, 1];
  const sides =
    p === 1
      ? (x && y
          ? [[x, y]]
          : x
            ? [
                [x, 1],
                [x, -1],
              ]
            : [
                [1, y],
                [-1, y],
              ]
        ).map(([s, t]) => [
          [s * size, 0],
          [0, t * size],
        ])
      : [0, 1]
          .filter((i) => Math.abs(w[i]) >= size * (1 - FLAT))
          .map((i) => far.map((s) => (i ? [s * size, w[1]] : [w[0], s * size])));
  for (const ends of sides) {
    const part = clipped(rows, ends);
    if (part && length([part[0][0] - part[1][0], part[0][1] - part[1][1]]) > 1e-9 * size) return part;
  }
  return null;
}

function clipped(rows, [from, to]) {
  let low = 0,
    high = 1;
  const way = [to[0] - from[0], to[1] - from[1]],
    at = (t) => [from[0] + t * way[0], from[1] + t * way[1]];
  for (const row of rows) {
    const here = dot(row.a, from) - row.b,
      slope = dot(row.a, way);
    if (row.size === 0) continue;
    if (Math.abs(slope) <= TOUCH * row.size * length(way)) {
      if (here < -1e3 * room(row, from) || (row.tied && here > 1e3 * room(row, from))) return null;
    } else if (row.tied) return null;
    else if (slope > 0) low = Math.max(low, -here / slope);
    else high = Math.min(high, -here / slope);
  }
  return high > low ? [at(low), at(high)] : null;
}

function shortest(from, to) {
  const way = [to[0] - from[0], to[1] - from[1]];
  const t = Math.min(1, Math.max(0, -dot(from, way) / dot(way, way)));
  return [from[0] + t * way[0], from[1] + t * way[1]];
}

// ---------------------------------------------------------------- certificates

/**
 * Multipliers of the rows that w touches. The best lower bound on ‖w‖ is one over the least ‖x‖_q, where x runs
 * over the segment between two rows at b = 1 (or the line from one along a tie, the ray along a row with b = 0).
 */
function dualOfCorner(rows, w, p) {
  const q = dualOf(p),
    multipliers = new Float64Array(rows.length);
  const touching = rows
    .map((_, j) => j)
    .filter((j) => rows[j].size > 0 && Math.abs(dot(rows[j].a, w) - rows[j].b) <= 1e3 * room(rows[j], w));
  let least = Infinity;
  const offer = (x, weights) => {
    const bound = normOf(x, q);
    if (!(bound < least)) return;
    least = bound;
    multipliers.fill(0);
    for (const [j, weight] of weights) multipliers[j] = weight / bound;
  };
  for (const j of touching) {
    const { a, b, tied } = rows[j];
    if (tied || b === 0) continue;
    const from = [a[0] / b, a[1] / b];
    offer(from, [[j, 1 / b]]);
    for (const k of touching) {
      if (k === j) continue;
      const { a: c, b: e, tied: free } = rows[k],
        toward = e === 0;
      const way = toward ? c : [c[0] / e - from[0], c[1] / e - from[1]];
      for (const stop of stops(from, way, w, p)) {
        const t = free ? stop : Math.min(Math.max(stop, 0), toward ? Infinity : 1);
        offer(
          [from[0] + t * way[0], from[1] + t * way[1]],
          toward
            ? [
                [j, 1 / b],
                [k, t],
              ]
            : [
                [j, (1 - t) / b],
                [k, t / e],
              ],
        );
      }
    }
  }
  return multipliers;
}

/** Where ‖from + t·way‖_q may be least: along the dual vector of w, or at a corner of a polyhedral norm. */
function stops(from, way, w, p) {
  if (p > 1 && p < Infinity) {
    const g = steepest(w, dualOf(p));
    return [-cross(from, g) / cross(way, g)].filter(Number.isFinite);
  }
  const corners = [-from[0] / way[0], -from[1] / way[1]];
  if (p === 1) corners.push((from[1] - from[0]) / (way[0] - way[1]), -(from[0] + from[1]) / (way[0] + way[1]));
  return corners.filter(Number.isFinite);
}
