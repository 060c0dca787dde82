// Where training of W = K Qᵀ waits at rank one, and for how long. Twin of kkt_point for matrices of 2 × 2.
import { LONGEST, Simulation, TIMES } from "explorer/simulation.js";
import { decompose } from "explorer/singular.js";
import { gradient } from "explorer/training.js";

/** The compared optimizers: joint steps on K and Q in the Schatten norms of p = 2, 4 and ∞. */
export const COMPARED = [
  { name: "gradient descent", rule: "normalised", colour: "var(--s0)", dash: "none" },
  { name: "Schatten-4 steps", rule: "schatten", ruleP: 4, colour: "var(--s1)", dash: "9 3" },
  { name: "Muon", rule: "spectral", colour: "var(--s2)", dash: "2 3" },
];
export const LEFT = 0.1; // a run has left rank one where σ₂ ≥ 0.1 σ₁

const SPARE = 1e-2, // σ₂ below this share of σ₁ is spare; this and the next two are those of kkt.py
  ALIGNED = 0.99,
  PULL = 0.01;
const PIECES = 200; // of a forecast
const FAR = 1e9; // a wait in which the factors grow by more is not forecast

/** One run of every compared optimizer from the same start. */
export const comparison = (problem, loss, { lr }, start) =>
  COMPARED.map(({ rule, ruleP }) => new Simulation(problem, loss, { rule, ruleP, lr, trained: "kq" }, [start]));

/** σ₁ and σ₂ of W. */
export function singularValues(W) {
  const [first, second] = decompose(W);
  return [first, Math.abs(second)];
}

/** W with σ₂ = share · σ₁, and the singular vectors as they are. */
export function withSpare(W, share) {
  const [first, second, ux, uy, vx, vy] = decompose(W),
    spare = (second < 0 ? -share : share) * first;
  return [
    first * ux * vx + spare * uy * vy,
    first * ux * vy - spare * uy * vx,
    first * uy * vx - spare * ux * vy,
    first * uy * vy + spare * ux * vx,
  ];
}

// ---------------------------------------------------------------- theory

/**
 * Where balanced factors of W = σ₁ u vᵀ + σ₂ u⊥ v⊥ᵀ stand under gradient descent, M = −∇L. Beside a stop the spare
 * σ₂/σ₁ grows like ‖(K, Q)‖ to the power 2 (pull − 1), pull = |u⊥ᵀ M v⊥| / uᵀ M v. Balanced K and Q of width 2 keep the
 * sign of det W, so σ₂ grows only if M asks for that sign.
 */
export function standing(data, W) {
  const [first, second, ux, uy, vx, vy] = decompose(W),
    spare = Math.abs(second);
  gradient(data, W);
  const [a, b, c, d] = data.pull.map((x) => -x),
    used = [a * vx + b * vy, c * vx + d * vy], // M v
    other = [b * vx - a * vy, d * vx - c * vy], // M v⊥
    usedLeft = [a * ux + c * uy, b * ux + d * uy], // Mᵀ u
    otherLeft = [c * ux - a * uy, d * ux - b * uy], // Mᵀ u⊥
    inside = ux * used[0] + uy * used[1],
    beyond = ux * other[1] - uy * other[0],
    square = ([x, y]) => x * x + y * y,
    slopeK = Math.sqrt(first * square(used) + spare * square(other)), // ‖M Q‖
    slopeQ = Math.sqrt(first * square(usedLeft) + spare * square(otherLeft)), // ‖Mᵀ K‖
    length = Math.sqrt(2 * (first + spare)),
    alignment = (2 * Math.SQRT2 * (first * inside + second * beyond)) / ((slopeK + slopeQ) * length),
    pull = Math.abs(beyond / inside),
    beside = spare < SPARE * first && alignment >= ALIGNED;
  return {
    alignment,
    pull,
    power: 2 * (pull - 1),
    length,
    first,
    share: spare / first,
    beside,
    stop: beside && pull > 1 + PULL,
    grows: beyond * second > 0,
  };
}

const beginsAtZero = (descent) => singularValues(descent.at(0, 0))[0] === 0; // with factors that are not balanced

/** Where gradient descent stands at its first record beside rank one; null without one. */
export function firstBeside(descent, last) {
  if (beginsAtZero(descent)) return null;
  for (let k = 0; k < Math.min(last, descent.known); k++) {
    const point = standing(descent.data, descent.at(0, k));
    if (point.beside) return { ...point, step: TIMES[k] };
  }
  return null;
}

/**
 * The points [step, σ₂] until σ₂ is a tenth of σ₁, by gradient descent beside a stop with constant M. A step of length
 * lr changes k₁, the root of σ₁, by the share 1/√(1 + pull² σ₂/σ₁) of what it would alone. Empty if σ₂ does not grow.
 */
export function forecast({ step, length, first, share, pull, stop, grows }, lr) {
  const far = (LEFT / share) ** (0.5 / (pull - 1)); // how often k₁ at the start
  if (!stop || !grows || !(far < FAR)) return [];
  const slower = (k) => Math.sqrt(1 + pull ** 2 * share * k ** (2 * (pull - 1))),
    points = [];
  let time = step,
    k = 1;
  for (let piece = 1; piece <= PIECES; piece++) {
    const next = far ** (piece / PIECES);
    time += (length / lr) * (next - k) * slower(Math.sqrt(k * next));
    points.push([time, first * share * next ** (2 * pull)]);
    k = next;
  }
  return points;
}

/** The step with σ₂ = 0.1 σ₁, between records by the power law through both; null if there is none. */
export function leftAt(simulation, last) {
  let before = 0;
  for (let k = 0; k < Math.min(last, simulation.known); k++) {
    const [first, second] = singularValues(simulation.at(0, k)),
      share = first > 0 ? second / first : 0;
    if (share >= LEFT) {
      const way = k && before > 0 ? Math.log(LEFT / before) / Math.log(share / before) : 1;
      return k < 2 ? TIMES[k] : Math.round(TIMES[k - 1] * (TIMES[k] / TIMES[k - 1]) ** way);
    }
    before = share;
  }
  return null;
}

// ---------------------------------------------------------------- words

const steps = (count) => `${Math.round(count).toLocaleString("en")} step${Math.round(count) === 1 ? "" : "s"}`;

/** How long each compared run waits, and what is predicted of gradient descent: [name, words] of each. */
export function waitingWords(simulations, last) {
  return simulations.map((simulation, k) => {
    const left = leftAt(simulation, last),
      sofar = TIMES[Math.min(last, simulation.known) - 1],
      reached = left === null ? `not within ${steps(sofar)}` : steps(left);
    return [COMPARED[k].name, k ? `${reached}.` : `${reached}. ${prediction(simulation, last)}`];
  });
}

/** The words as text to be read out. */
export const sentencesOf = (waits) => waits.map(([name, words]) => `${name}: ${words}`).join(" ");

function prediction(descent, last) {
  const point = firstBeside(descent, last);
  if (beginsAtZero(descent)) return "Of a start at W = 0, with K = 1 and Q = 0, nothing is predicted.";
  if (!point) return "It does not come near rank one.";
  if (!point.stop) return "Beside rank one nothing pulls harder at σ₂ than at σ₁: it stays.";
  if (point.share === 0) return "It stays at rank one: σ₂ = 0 stays zero.";
  if (!point.grows) return "It stays at rank one: K and Q keep the sign of det W, and σ₂ would have to change it.";
  const law = `σ₂/σ₁ grows like ‖(K, Q)‖ to the power ${point.power.toFixed(2)}`,
    points = forecast(point, descent.lr);
  if (!points.length) return `It waits at rank one: ${law}, which takes longer than can be told.`;
  const leaves = points[points.length - 1][0];
  return `It waits at rank one: ${law}, which predicts ${steps(leaves)}${leaves > LONGEST ? ", more than this page takes" : ""}.`;
}
