// All selections of one token per input by some direction, and those at which training can end.
//
// In the plane a direction selects the extreme token of every input. The selection changes only at directions orthogonal
// to an edge of an input's convex hull, so that the circle has at most Σ T_i arcs with one selection each.
import { locallyOptimal, rowsOfInput, solved } from "explorer/program.js";

const NARROW = 1e-12;
const TURN = 2 * Math.PI;
const MOST = 400; // selections of weights W that are tried one by one

/** [{selected, from, to}]: the arcs of directions, counter-clockwise, from < to; prompts (e = 1) only. */
export function arcs(problem) {
  const cuts = [];
  for (const { tokens, query } of problem.inputs) {
    const corners = hull(tokens);
    if (corners.length > 1 && query[0] !== 0)
      corners.forEach((x, k) => {
        const y = corners[(k + 1) % corners.length],
          flip = query[0] < 0 ? Math.PI : 0;
        cuts.push(turned(Math.atan2(x[0] - y[0], y[1] - x[1]) + flip));
      });
  }
  if (!cuts.length)
    return problem.inputs.every(({ tokens }) => tokens.length === 1)
      ? [{ selected: problem.inputs.map(() => [0]), from: 0, to: TURN }]
      : [];
  cuts.sort((a, b) => a - b);
  const found = [];
  cuts.forEach((from, k) => {
    const to = k + 1 < cuts.length ? cuts[k + 1] : cuts[0] + TURN;
    if (to - from <= NARROW) return;
    const selected = extremes(problem, (from + to) / 2);
    if (!selected) return;
    const before = found[found.length - 1];
    if (before && same(before.selected, selected)) before.to = to;
    else found.push({ selected, from, to });
  });
  if (found.length > 1 && same(found[0].selected, found[found.length - 1].selected))
    found[0].from = found.pop().from - TURN;
  return found;
}

export const same = (one, other) =>
  one.every((chosen, i) => chosen.length === other[i].length && chosen.every((t, k) => t === other[i][k]));

/** The convex hull of points, counter-clockwise, without the points inside its edges. */
export function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (list) => {
    const chain = [];
    for (const p of list) {
      while (chain.length > 1) {
        const a = chain[chain.length - 2],
          b = chain[chain.length - 1];
        if ((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) > 0) break;
        chain.pop();
      }
      chain.push(p);
    }
    chain.pop();
    return chain;
  };
  const first = sorted[0],
    last = sorted[sorted.length - 1];
  if (first[0] === last[0] && first[1] === last[1]) return [first];
  return [...half(sorted), ...half(sorted.reverse())];
}

const turned = (angle) => ((angle % TURN) + TURN) % TURN;

function extremes(problem, angle) {
  const x = Math.cos(angle),
    y = Math.sin(angle),
    selected = [];
  for (const { tokens, query } of problem.inputs) {
    let best = -Infinity,
      winner = -1,
      tie = false;
    for (let t = 0; t < tokens.length; t++) {
      const height = (tokens[t][0] * x + tokens[t][1] * y) * query[0];
      if (height > best) {
        best = height;
        winner = t;
        tie = false;
      } else if (height === best) tie = true;
    }
    if (tie) return null;
    selected.push([winner]);
  }
  return selected;
}

/**
 * Every separable selection with its solution, whether it is locally optimal, and its limit of the loss; locally optimal
 * selections first, in the order of this loss. null if a weight W has too many selections.
 */
export function ranked(problem, p, loss) {
  const cells = problem.inputs[0].query.length === 1 ? arcs(problem) : products(problem);
  if (!cells) return null;
  // Selections share rows: the rows of a token are computed once.
  const rows = problem.inputs.map(() => []),
    rowsFor = ([t], i) => (rows[i][t] ??= rowsOfInput(problem.inputs[i], i, [t], 1)),
    found = [];
  for (const { selected, from, to } of cells) {
    const solution = solved([].concat(...selected.map(rowsFor)), p, 2 * problem.inputs[0].query.length);
    if (!solution.feasible) continue;
    const local = locallyOptimal(problem, selected, solution);
    let total = 0;
    for (let i = 0; i < selected.length; i++) total += loss.value(problem.inputs[i].scores[selected[i][0]]);
    found.push({ selected, from, to, solution, local, loss: total / selected.length, slot: null });
  }
  return found.sort((x, y) => y.local - x.local || x.loss - y.loss);
}

function products(problem) {
  if (problem.inputs.reduce((count, { tokens }) => count * tokens.length, 1) > MOST) return null;
  return problem.inputs
    .reduce((all, { tokens }) => all.flatMap((chosen) => tokens.map((_, t) => [...chosen, [t]])), [[]])
    .map((selected) => ({ selected }));
}
