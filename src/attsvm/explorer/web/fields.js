// The fields of a state, each with its rule and its default. Links and files are not trusted: a field that breaks its
// rule gets its default, and its name is reported.
import { LONGEST } from "explorer/simulation.js";
import { startsOf } from "explorer/state.js";
import { LOSSES, RULES } from "explorer/training.js";

export const INPUTS = 8, // the most that the page shows; as in attsvm/explorer/state.py
  TOKENS = 12,
  LARGE = 1e9; // largest coordinate: products of several are finite
export const STARTS = 512; // with more starts a frame would take seconds
const FORMAT = 1;

// ---------------------------------------------------------------- rules

const number = (low, high) => (x) => Number.isFinite(x) && low <= x && x <= high;
const whole = (low, high) => (x) => Number.isInteger(x) && low <= x && x <= high;
const oneOf =
  (...words) =>
  (x) =>
    words.includes(x);
const flag = oneOf(true, false);
const list = (rule, most, least = 1) => (x) =>
  Array.isArray(x) && least <= x.length && x.length <= most && x.every(rule);

export const coordinate = number(-LARGE, LARGE);
const vector = (length) => list(coordinate, length, length);
const rising = (x) => x.every((t, k) => k === 0 || x[k - 1] < t);

const cloud = list(vector(2), TOKENS);

const widthOf = (inputs) => 2 * inputs[0].query.length;

/** The rules for parameters of a width; norms of singular values are for matrices. */
const ruleNames = (width) => Object.keys(RULES).filter((name) => width === 4 || RULES[name](2).kind !== "schatten");

/** Points of the weight's width or, in the plane, a ring: the number of points and the radius. */
function startsRule(x, { inputs }) {
  const width = widthOf(inputs);
  if (x.points) return list(vector(width), STARTS)(x.points);
  return width === 2 && whole(1, STARTS)(x.ring) && number(1e-6, LARGE)(x.radius);
}
const usualStarts = ({ inputs }) =>
  widthOf(inputs) === 2 ? { ring: 64, radius: 1.5 } : { points: [new Array(widthOf(inputs)).fill(0)] };

// ---------------------------------------------------------------- fields: [rule, default], functions of earlier fields

/** The fields of one input; e is the width of its query. */
const inputFields = (e) => ({
  tokens: [cloud],
  label: [oneOf(1, -1), () => 1],
  query: [vector(e), () => [1, 0].slice(0, e)],
  chosen: [(x, { tokens }) => list(whole(0, tokens.length - 1), tokens.length)(x) && rising(x), () => [0]],
  scores: [(x, { tokens }) => vector(tokens.length)(x), ({ tokens }) => tokens.map(() => 0)],
});

const FIELDS = {
  preset: [(x) => typeof x === "string", () => null],
  head: [vector(2), () => [1, 0]],
  byHead: [flag, () => true],
  choose: [oneOf("scores", "hand"), () => "scores"],
  p: [(x) => x === "inf" || number(1, 1000)(x), () => 2],
  follow: [flag, () => true],
  loss: [oneOf(...Object.keys(LOSSES)), () => "logistic"],
  rule: [(x, { inputs }) => ruleNames(widthOf(inputs)).includes(x), () => "normalised"],
  ruleP: [number(1.01, 100), () => 3],
  lr: [number(1e-9, 1e6), () => 0.1],
  trained: [oneOf("p", "kq"), () => "p"],
  joint: [(x, { byHead, trained }) => flag(x) && ((byHead && trained === "p") || !x), () => false],
  usual: [flag, () => false],
  time: [whole(1, LONGEST), () => 2000],
  starts: [startsRule, usualStarts],
  focus: [(x, { inputs }) => whole(0, inputs.length - 1)(x), () => 0],
  run: [(x, { starts }) => whole(0, startsOf({ starts }).length - 1)(x), () => 0],
  recorded: [(x, { inputs }) => widthOf(inputs) === 2 && list(list(vector(2), 1000), 64)(x), () => null],
};

// ---------------------------------------------------------------- reading a state

/** The state from some of its fields, and the names of invalid fields; null if there is no problem in it. */
export function read(part) {
  if (!part || !list((each) => each && cloud(each.tokens), INPUTS)(part.inputs)) return null;
  const wrong = new Set(),
    fields = inputFields(vector(2)(part.inputs[0].query) ? 2 : 1);
  const known = { format: FORMAT, inputs: part.inputs.map((each) => filled(each, fields, {}, wrong)) };
  return { state: filled(part, FIELDS, known, wrong), wrong: [...wrong] };
}

/** The complete state of a preset. */
export const completed = (part) => read(part).state;

/** `known` with every field, given or by default; the names of invalid fields are added to `wrong`. */
function filled(part, fields, known, wrong) {
  for (const [name, [rule, standard]] of Object.entries(fields)) {
    const given = Object.hasOwn(part, name) ? part[name] : null,
      good = given !== null && given !== undefined && rule(given, known);
    if (!good && given !== null && given !== undefined) wrong.add(name);
    known[name] = good ? structuredClone(given) : standard(known);
  }
  return known;
}
