// Road one: tokens × selection → the certified smallest weight, or the tokens in conflict. Twin of max_margin.
//
// A problem is {inputs: [{tokens: [[x, y], …], query: [z] or [z, z'], label, scores}]}; a selection has for each
// input the list of its chosen tokens. The weight has 2·e entries, row by row.
import { dot, dualOf, length, normOf } from "explorer/norms.js";
import { contradictionPlane } from "explorer/contradiction.js";
import { separatePlane } from "explorer/plane.js";
import { separateSpace } from "explorer/space.js";

const SUPPORT = 1e-6; // a constraint is active if its margin exceeds the required one by less
const TIE = 1e-12; // scores closer than this, relative to the largest, are equal

/** The rows (x_a − x_t) zᵀ of every token but a, the first selected one; rows of selected tokens are tied. */
export const rowsOf = (problem, selected, required = 1) =>
  [].concat(
    ...problem.inputs.map((each, i) =>
      rowsOfInput(each, i, selected[i], Array.isArray(required) ? required[i] : required),
    ),
  );

export function rowsOfInput({ tokens, query: [z, y] }, input, chosen, required) {
  const anchor = chosen[0],
    [ax, ay] = tokens[anchor],
    rows = [];
  for (let token = 0; token < tokens.length; token++) {
    if (token === anchor) continue;
    const dx = ax - tokens[token][0],
      dy = ay - tokens[token][1],
      tied = chosen.length > 1 && chosen.includes(token),
      a = y === undefined ? [dx * z, dy * z] : [dx * z, dx * y, dy * z, dy * y];
    rows.push({ a, b: tied ? 0 : required, tied, size: length(a), input, token, anchor });
  }
  return rows;
}

/** min ‖W‖_p with the selected tokens above the others by the required margin. */
export function maxMargin(problem, selected, p = 2, required = 1) {
  return solved(rowsOf(problem, selected, required), p, 2 * problem.inputs[0].query.length);
}

/** min ‖v‖_p with label·(v·x) ≥ 1 at the selected tokens: the program of the head. */
export function headProgram(problem, selected, p = 2) {
  const rows = problem.inputs.map(({ tokens, label }, input) => {
    const token = selected[input][0],
      a = tokens[token].map((x) => label * x);
    return { a, b: 1, tied: false, size: length(a), input, token };
  });
  return solved(rows, p, 2);
}

/** The program of the prompt if the head trains too: only inputs that support the head have a margin. */
export function relaxedProgram(problem, selected, p, head) {
  const supporting = new Set(head.support.map((j) => head.rows[j].input));
  return maxMargin(
    problem,
    selected,
    p,
    problem.inputs.map((_, i) => (supporting.has(i) ? 1 : 0)),
  );
}

/** A weight with its rows and support; the multipliers that prove its optimality are computed on demand. */
class Solution {
  constructor(rows, p, { w, fan, proof }) {
    const norm = normOf(w, p);
    Object.assign(this, { feasible: true, rows, p, w, fan, proof, norm, margin: 1 / norm, support: [] });
    for (let j = 0; j < rows.length; j++)
      if (!rows[j].tied && dot(rows[j].a, w) - rows[j].b <= SUPPORT) this.support.push(j);
  }

  get multipliers() {
    return this.proof();
  }

  /** Recomputed at every access. */
  get certificate() {
    return certificate(this.rows, this.w, this.proof(), this.p);
  }
}

/** The smallest weight that satisfies rows of `width` entries, or the reason why there is none. */
export function solved(rows, p, width) {
  const found = rows.length
    ? separate(rows, p, width)
    : { feasible: true, w: new Array(width).fill(0), fan: null, proof: () => [] };
  if (found.feasible) return new Solution(rows, p, found);
  return { feasible: false, rows, p, ...clearest(rows, p, width, found.multipliers) };
}

const separate = (rows, p, width) => (width === 2 ? separatePlane : separateSpace)(rows, p);

function contradiction(rows, width) {
  if (width === 2) return contradictionPlane(rows);
  const found = separateSpace(rows, 2);
  return found.feasible ? null : found.multipliers;
}

/** Recomputed from rows, weight and multipliers: the largest violation, and the relative gap of the two bounds. */
export function certificate(rows, w, multipliers, p) {
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

// ---------------------------------------------------------------- contradictions

/** A contradiction with the fewest inputs: of one input, of two, else of all. */
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

// ---------------------------------------------------------------- selections by score

/** The tokens with the highest score of each input; several where scores tie. */
export function bestTokens(problem) {
  return problem.inputs.map(({ scores }) => {
    const top = Math.max(...scores),
      size = Math.max(...scores.map(Math.abs));
    return scores.map((_, t) => t).filter((t) => scores[t] >= top - TIE * size);
  });
}

/** Whether every selected token scores above its support tokens, strictly. */
export function locallyOptimal(problem, selected, { support, rows }) {
  return support.every((j) => {
    const { input, token } = rows[j],
      { scores } = problem.inputs[input];
    let size = 0;
    for (const score of scores) size = Math.max(size, Math.abs(score));
    return selected[input].every((t) => scores[t] > scores[token] + TIE * size);
  });
}
