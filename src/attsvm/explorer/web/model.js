// Everything that follows from a state: the problem, the selection, its program, the ranking, the joint programs.
import { bestTokens, headProgram, maxMargin, relaxedProgram } from "explorer/program.js";
import { ranked, same } from "explorer/selections.js";
import { exponent, isFactored, isKeyQuery, isWeight, problemOf } from "explorer/state.js";
import { LOSSES, RULES } from "explorer/training.js";

export const COLOURS = 6;
export const keyOf = (selected) => selected.map((chosen) => chosen.join("+")).join(",");

/** The p of the norm in which the optimizer steps. */
export const stepExponent = (state) => RULES[state.rule](state.ruleP).p;

/**
 * The norm to which training tends, by the theory of each optimizer: the lp norm of the entries, or of the singular
 * values. For factors p is half that of the steps (law of halves; below 1 there is no norm). null if no limit is known.
 * Twin of limit_norm.
 */
export function limitNorm(state) {
  const { kind, p } = RULES[state.rule](state.ruleP),
    singular = kind === "schatten" || (isKeyQuery(state) && p === 2);
  if (isFactored(state) && (kind === "mirror" || (isWeight(state) && !singular))) return null;
  return { singular, p: isFactored(state) ? p / 2 : p };
}

/** The p of the lp norm of the entries to which training tends; null if no limit is known, or it is of another kind. */
export function limitExponent(state) {
  const limit = limitNorm(state);
  return limit && (!limit.singular || limit.p === 2) ? limit.p : null; // Schatten-2 is l2
}

/** The p of the program, which may follow the optimizer. */
export const programExponent = (state) => able(state, state.follow ? followed(state) : exponent(state.p));

function followed(state) {
  const { kind, p } = RULES[state.rule](state.ruleP);
  return limitExponent(state) ?? (kind === "schatten" ? 2 : p);
}

/** The nearest p for which the programs can be solved: at least 1, for weights W from 1.1 to 8. */
export const able = (state, p) => (isWeight(state) ? Math.min(8, Math.max(1.1, p)) : Math.max(1, p));

/** slots: a Map from selections to colours, so that a selection keeps its colour when a token moves. */
export function derived(state, slots) {
  const problem = problemOf(state),
    loss = LOSSES[state.loss],
    p = programExponent(state);
  const selected = state.choose === "hand" ? state.inputs.map(({ chosen }) => chosen) : bestTokens(problem);
  const solution = maxMargin(problem, selected, p),
    joint = state.joint ? jointPrograms(problem, selected, p) : null;
  if (joint && joint.head.feasible) rescore(problem, joint.head.w);
  const ranking = ranked(problem, p, loss);
  const local = ranking ? ranking.filter((each) => each.local) : [];
  colour(local, slots);
  const chosen = ranking && ranking.find((each) => same(each.selected, selected));
  return { problem, loss, p, selected, solution, ranking, local, chosen, joint };
}

/** The programs of head and prompt when both train: v-SVM and p relax. */
export function jointPrograms(problem, selected, p) {
  const head = headProgram(problem, selected, p);
  return { head, relaxed: head.feasible ? relaxedProgram(problem, selected, p, head) : null };
}

/** If the head trains too, the possible ends are those under the head to which training tends. */
function rescore(problem, v) {
  for (const input of problem.inputs)
    input.scores = input.tokens.map((x) => input.label * (v[0] * x[0] + v[1] * x[1]));
}

function colour(local, slots) {
  const present = new Set(local.map(({ selected }) => keyOf(selected)));
  for (const key of slots.keys()) if (!present.has(key)) slots.delete(key);
  for (const each of local) {
    const key = keyOf(each.selected);
    if (!slots.has(key)) {
      const taken = new Set(slots.values());
      let slot = 0;
      while (taken.has(slot)) slot += 1;
      slots.set(key, slot);
    }
    each.slot = slots.get(key);
  }
}

export const letterOf = (slot) => String.fromCharCode(65 + (slot % 26));
