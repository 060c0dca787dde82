// Sentences of the page: the verdict on the selected tokens, and the ends of the starts.
import { $, escaped, shown, text, touched } from "explorer/dom.js";
import { keyOf, letterOf, limitNorm, programExponent, stepExponent } from "explorer/model.js";
import { nameOf } from "explorer/program.js";
import { isFactored, isKeyQuery, isWeight } from "explorer/state.js";
import { sentencesOf } from "explorer/waiting.js";

const ROUNDING = 1e-14; // smaller entries of a direction are shown as zero

/** Write verdict and basins, and return them as sentences. */
export function tell(app) {
  text("advice", captionWords(app));
  text("watched", watchedWords(app));
  const { solution } = app.now,
    words = solution.feasible ? solvedWords(app) : conflictWords(solution);
  write(words);
  const basins = isKeyQuery(app.state) ? sentencesOf(app.charts.waits) : basinWords(app);
  text("basins", isWeight(app.state) ? "" : basins);
  return [`${words.title}. ${words.sentence}`, basins];
}

function solvedWords({ now, state, charts }) {
  const { solution, joint } = now,
    { gap, primal } = solution.certificate,
    point = (w) => `(${w.map((x) => shown(Math.abs(x) < ROUNDING * Math.hypot(...w) ? 0 : x, 4)).join(", ")})`;
  const support = new Set(solution.support.map((j) => nameOf(solution.rows[j].input, solution.rows[j].token)));
  const told = (program) => (!program ? "none" : program.feasible ? point(program.w) : program.reason);
  return {
    kind: "good",
    title: `margin ${shown(solution.margin, 4)}`,
    sentence: standing(now),
    lines: [
      ["certified", `gap ${shown(gap, 2)}, violation ${shown(primal, 2)}`],
      [isWeight(state) ? "W" : "direction", point(solution.w)],
      ["support", [...support].join(" ") || "none"],
      ...(isFactored(state) ? [["law", halves(state)]] : []),
      ["training", trainingWords(now, charts)],
      ...(solution.fan ? [["not unique", "every direction of the thick arc has this margin"]] : []),
      ...(joint
        ? [
            ["v-SVM", told(joint.head)],
            ["p-SVM", told(solution)],
            ["p relax", told(joint.relaxed)],
          ]
        : []),
    ],
  };
}

/** How far the watched run is from the program of its tokens, which may be others than those shown. */
function trainingWords({ selected }, { attended, away }) {
  if (!Number.isFinite(away)) return "–";
  const angle = `${shown(degrees(away), 3)}°`;
  return keyOf(attended) === keyOf(selected)
    ? `${angle} from its program`
    : `attends to ${namesOf(attended)}, ${angle} from their program`;
}

const namesOf = (attended) => attended.map(([t], i) => nameOf(i, t)).join(" ");

// ---------------------------------------------------------------- norms

const RULE_NAMES = {
  normalised: "normalised gradient",
  gd: "gradient descent",
  sign: "sign descent",
  coordinate: "coordinate descent",
  spectral: "Muon",
};
const LONG_NAMES = { mirror: "mirror descent", steepest: "steepest descent", schatten: "steepest descent in Schatten" };
export const normName = (p) => (p === Infinity ? "l∞" : `l${shown(p, 3)}`);
const ruleName = (state) => RULE_NAMES[state.rule] || `${LONG_NAMES[state.rule]}, p = ${shown(state.ruleP, 3)},`;
const factorNames = (state) => (isWeight(state) ? "K and Q" : "k and q");

const SINGULAR = new Map([
  [1, "nuclear"],
  [2, "l2"],
  [Infinity, "spectral"],
]);
const limitName = ({ singular, p }) => (singular ? (SINGULAR.get(p) ?? `Schatten-${shown(p, 3)}`) : normName(p));

/** The prediction of the law of halves for the factors, in a line. */
function halves(state) {
  const limit = limitNorm(state);
  if (limit === null) return `says nothing of ${state.rule === "mirror" ? "mirror descent" : "these steps"}`;
  const steps = limitName({ singular: limit.singular, p: stepExponent(state) });
  return `${steps} steps on ${factorNames(state)} → ${limitName(limit)}${limit.p < 1 ? ", not convex" : ""}`;
}

/** The program to which training tends, and the program shown. */
export function normWords(state) {
  const limit = limitNorm(state),
    shownNorm = normName(programExponent(state)),
    who = isFactored(state) ? `${ruleName(state)} on ${factorNames(state)}` : ruleName(state);
  if (limit === null) return `No limit is known of ${who}. Shown is the ${shownNorm} program.`;
  const name = limitName(limit);
  if (limit.p < 1)
    return `For ${who} the law of halves names ${name}: below 1 that is not convex, and there is no program. Shown is the ${shownNorm} one.`;
  const law = isFactored(state) ? " by the law of halves" : "";
  if (limit.singular && limit.p !== 2)
    return `Training by ${who} tends to the ${name} program${law}, which this page does not solve. Shown is the ${shownNorm} one.`;
  return name === shownNorm
    ? `${capital(who)} tends to the ${shownNorm} program${law}.`
    : `Training by ${who} tends to the ${name} program${law}, not to this one.`;
}

const capital = (words) => words[0].toUpperCase() + words.slice(1);

// ---------------------------------------------------------------- verdicts

/** The angle whose cosine is 1 − turn. */
const degrees = (turn) => (2 * Math.asin(Math.sqrt(Math.min(1, turn / 2))) * 180) / Math.PI;

function standing({ chosen, local, ranking }) {
  if (ranking === null) return "Too many selections to say where else training can end.";
  if (!chosen) return "The tokens that share a selection are tied: they get equal attention.";
  if (!chosen.local) return "Separable, but a support token scores as high: training does not end here.";
  return chosen === local[0]
    ? "Training can end here, and no other end is better."
    : "A locally optimal end: only some starts come here.";
}

function conflictWords({ reason, multipliers }) {
  const weights = Array.from(multipliers)
    .filter((x) => x !== 0)
    .map((x) => shown(x, 2));
  return {
    kind: "bad",
    title: "no direction",
    sentence: reason,
    lines: [["proof", `these orders, weighted ${weights.join(", ")}, add up to zero`]],
  };
}

// ---------------------------------------------------------------- the problem, and the run of the charts

/** The caption of the page: that of a preset, or what a problem of the user's own has. */
function captionWords({ state, now, presets }) {
  const preset = presets.find(({ id }) => id === state.preset);
  if (preset) return preset.advice;
  const tokens = state.inputs.reduce((sum, each) => sum + each.tokens.length, 0),
    problem = `Your own problem: ${counted(state.inputs.length, "input")} of ${counted(tokens, "token")}.`,
    tap = touched() ? "tap" : "click";
  return `${problem} ${endWords(now)} Drag tokens, ${tap} one to choose it, and watch where training goes.`;
}

function endWords({ ranking, local }) {
  if (ranking === null) return "It has too many selections to say where training can end.";
  if (local.length === 0) return "No selection is locally optimal.";
  if (local.length === 1) return "One selection is locally optimal: training can end only there.";
  return `${capital(NUMBERS[local.length] ?? `${local.length}`)} selections are locally optimal, and the starts divide between them.`;
}

const NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** The run of the charts. */
function watchedWords({ state, simulation, discView, charts }) {
  const { length } = simulation.runs,
    slot = discView.slots ? discView.slots[state.run] : null,
    which = length > 1 ? `run ${state.run + 1} of ${length}, the thick line of the disc` : "the only run",
    end = isWeight(state) ? "" : slot === null || slot === undefined ? ", undecided so far" : `, at ${letterOf(slot)}`;
  return `The charts show ${which}${end}. Its tokens: ${namesOf(charts.attended)}.`;
}

function basinWords({ counts, simulation, state }) {
  if (isWeight(state)) return "";
  const ends = [...counts]
    .filter(([slot]) => slot !== null)
    .sort((a, b) => b[1] - a[1])
    .map(([slot, count]) => `${count} to ${letterOf(slot)}`);
  const rest = counts.get(null) ? [`${counts.get(null)} undecided`] : [],
    { length } = simulation.runs;
  return `Of ${length} start${length > 1 ? "s" : ""}: ${[...ends, ...rest].join(", ")}.`;
}

function write({ kind, title, sentence, lines }) {
  const rows = lines.map(([name, value]) => `<div><dt>${escaped(name)}</dt><dd>${escaped(value)}</dd></div>`);
  const markup = `<p class="number">${escaped(title)}</p><p class="sentence">${escaped(sentence)}</p><dl>${rows.join("")}</dl>`;
  const node = $("verdict");
  node.className = `card verdict ${kind}`;
  if (node.written !== markup) node.innerHTML = node.written = markup;
}
