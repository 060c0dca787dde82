// Road one: tokens × selection → the certified smallest weight, or the tokens in conflict. Twin of max_margin.
//
// A problem is {inputs: [{tokens: [[x, y], …], query: [z] or [z, z'], label, scores}]}; a selection has for each
// input the list of its chosen tokens. The weight has 2·e entries, row by row.
import { dot, dualOf, normOf } from "explorer/norms.js";
import { contradictionPlane } from "explorer/contradiction.js";
import { separatePlane } from "explorer/plane.js";
import { separateSpace } from "explorer/space.js";

const SUPPORT = 1e-6; // a constraint is active where its margin exceeds the required one by less
const TIE = 1e-12; // scores closer than this, relative to the largest, are equal

/** The rows (x_a − x_t) zᵀ of every token but the anchor a, the first selected one; tied where selected too. */
export function rowsOf(problem, selected, required = 1) {
  const rows = [];
  problem.inputs.forEach(({ tokens, query: [z, y] }, input) => {
    const chosen = selected[input],
      anchor = chosen[0],
      [ax, ay] = tokens[anchor];
    const b = Array.isArray(required) ? required[input] : required;
    tokens.forEach(([tx, ty], token) => {
      if (token === anchor) return;
      const dx = ax - tx,
        dy = ay - ty,
        tied = chosen.length > 1 && chosen.includes(token);
      rows.push({
        a: y === undefined ? [dx * z, dy * z] : [dx * z, dx * y, dy * z, dy * y],
        b: tied ? 0 : b,
        tied,
        input,
        token,
        anchor,
      });
    });
  });
  return rows;
}

/** min ‖W‖_p with the selected tokens above the others by the required margin. */
export function maxMargin(problem, selected, p = 2, required = 1) {
  const rows = rowsOf(problem, selected, required);
  const width = 2 * problem.inputs[0].query.length;
  return solved(rows, p, width);
}

/** min ‖v‖_p with label·(v·x) ≥ 1 at the selected tokens: the program of the head. */
export function headProgram(problem, selected, p = 2) {
  const rows = problem.inputs.map(({ tokens, label }, input) => {
    const x = tokens[selected[input][0]];
    return { a: [label * x[0], label * x[1]], b: 1, tied: false, input, token: selected[input][0] };
  });
  return solved(rows, p, 2);
}

/** The program of the prompt when the head trains too: only inputs that support the head ask for a margin. */
export function relaxedProgram(problem, selected, p, head) {
  const supporting = new Set(head.support.map((j) => head.rows[j].input));
  return maxMargin(
    problem,
    selected,
    p,
    problem.inputs.map((_, i) => (supporting.has(i) ? 1 : 0)),
  );
}

function solved(rows, p, width) {
  const found = rows.length
    ? separate(rows, p, width)
    : { feasible: true, w: new Array(width).fill(0), fan: null, multipliers: [] };
  if (!found.feasible) return { feasible: false, rows, p, ...clearest(rows, p, width, found.multipliers) };
  const { w, fan } = found,
    norm = normOf(w, p),
    support = [];
  rows.forEach((row, j) => !row.tied && dot(row.a, w) - row.b <= SUPPORT && support.push(j));
  return {
    feasible: true,
    w,
    fan,
    rows,
    p,
    norm,
    margin: 1 / norm,
    support,
    get multipliers() {
      return found.multipliers;
    },
    get certificate() {
      return certificate(rows, found, p);
    }, // recomputed at every access
  };
}

const separate = (rows, p, width) => (width === 2 ? separatePlane : separateSpace)(rows, p);

function contradiction(rows, width) {
  if (width === 2) return contradictionPlane(rows);
  const found = separateSpace(rows, 2);
  return found.feasible ? null : found.multipliers;
}

/** Recomputed from rows, weight and multipliers: the largest violation, and the relative gap of the two bounds. */
export function certificate(rows, { w, multipliers }, p) {
  let primal = 0,
    least = Infinity,
    lower = 0;
  const sum = new Array(w.length).fill(0);
  rows.forEach(({ a, b, tied }, j) => {
    const margin = dot(a, w),
      weight = tied ? multipliers[j] : Math.max(0, multipliers[j]);
    primal = Math.max(primal, tied ? Math.abs(margin) : b - margin);
    if (!tied && b > 0) least = Math.min(least, margin / b);
    lower += weight * b;
    a.forEach((x, i) => (sum[i] += weight * x));
  });
  const upper = normOf(w, p) / Math.min(1, least),
    top = normOf(sum, dualOf(p));
  const gap = upper === 0 ? 0 : Math.abs(upper - lower / (top || 1)) / upper;
  return { primal: Math.max(0, primal), gap };
}

// ---------------------------------------------------------------- why there is none

/** The contradiction with the fewest inputs: one alone, then two, then all. */
function clearest(rows, p, width, multipliers) {
  const inputs = [...new Set(rows.map(({ input }) => input))];
  const groups = [
    ...inputs.map((i) => [i]),
    ...inputs.flatMap((i) => inputs.filter((k) => k > i).map((k) => [i, k])),
  ];
  for (const group of groups) {
    const part = rows.map((_, j) => j).filter((j) => group.includes(rows[j].input));
    if (!part.length) continue;
    const proof = contradiction(
      part.map((j) => rows[j]),
      width,
    );
    if (!proof) continue;
    multipliers = new Float64Array(rows.length);
    part.forEach((j, k) => (multipliers[j] = proof[k]));
    break;
  }
  const most = Math.max(...multipliers.map(Math.abs)) || 1;
  multipliers = Float64Array.from(multipliers, (x) => (Math.abs(x) < 1e-10 * most ? 0 : x / most));
  const conflict = rows
    .filter((_, j) => multipliers[j] !== 0)
    .map(({ input, token, anchor, tied }) => ({ input, token, anchor, tied }));
  return { multipliers, conflict, reason: words(conflict) };
}

export const nameOf = (input, token) => `${input + 1}${String.fromCharCode(97 + token)}`;
const listed = (names) =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;

function words(conflict) {
  const inputs = [...new Set(conflict.map(({ input }) => input))],
    [{ input, anchor }] = conflict;
  if (anchor === undefined)
    return `No head gives inputs ${listed(inputs.map((i) => i + 1))} their labels: the origin lies between their chosen tokens.`;
  const best = nameOf(input, anchor),
    others = conflict.map((c) => nameOf(c.input, c.token));
  const wishes = conflict
    .filter(({ tied }) => !tied)
    .map((c) => `${nameOf(c.input, c.anchor)} above ${nameOf(c.input, c.token)}`);
  const ties = conflict
    .filter(({ tied }) => tied)
    .map((c) => `${nameOf(c.input, c.anchor)} = ${nameOf(c.input, c.token)}`);
  if (ties.length) return `With the tie ${listed(ties)} no direction puts ${listed(wishes)}.`;
  if (conflict.length === 1)
    return `Tokens ${best} and ${others[0]} are the same point: nothing ranks one above the other.`;
  if (inputs.length > 1)
    return `Inputs ${listed(inputs.map((i) => i + 1))} contradict each other: no direction puts ${listed(wishes)}.`;
  const place = conflict.length === 2 ? "lies between" : "lies inside the triangle of";
  return `Token ${best} ${place} ${listed(others)}: no direction ranks it highest.`;
}

// ---------------------------------------------------------------- which tokens win

/** The tokens with the highest score of each input; several where scores tie. */
export function bestTokens(problem) {
  return problem.inputs.map(({ scores }) => {
    const top = Math.max(...scores),
      size = Math.max(...scores.map(Math.abs));
    return scores.map((_, t) => t).filter((t) => scores[t] >= top - TIE * size);
  });
}

/** Whether every selected token scores above its support tokens, strictly. */
export function locallyOptimal(problem, selected, solution) {
  return problem.inputs.every(({ scores }, input) => {
    const lowest = Math.min(...selected[input].map((t) => scores[t])),
      size = Math.max(...scores.map(Math.abs));
    return solution.support.every((j) => {
      const row = solution.rows[j];
      return row.input !== input || lowest > scores[row.token] + TIE * size;
    });
  });
}
