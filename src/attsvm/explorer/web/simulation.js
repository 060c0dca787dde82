// Many runs that advance in every frame, with their weights at the recorded steps.
import { RULES, advance, compiled, newRun } from "explorer/training.js";

export const LONGEST = 100_000;

/** The recorded steps: every one at first, then by 5 %. */
export const TIMES = (() => {
  const times = Array.from({ length: 49 }, (_, k) => k);
  while (times[times.length - 1] < LONGEST) times.push(Math.min(LONGEST, Math.ceil(times[times.length - 1] * 1.05)));
  return Int32Array.from(times);
})();

/** How many records lie at or before a step. */
export function recordsUpTo(step) {
  let low = 0,
    high = TIMES.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (TIMES[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Simulation {
  /** starts: weights. head: v(0) if the head trains. usual: use the formula that stalls. room: an old Simulation to reuse. */
  constructor(problem, loss, { rule, ruleP, lr, trained }, starts, { head = null, usual = false, room = null } = {}) {
    this.data = compiled(problem, loss);
    this.rule = RULES[rule](ruleP);
    Object.assign(this, { lr, usual, steps: 0, known: 1, width: starts[0].length });
    this.runs = starts.map((start) => newRun(start, this.rule, head, trained === "kq"));
    const kept = room && room.width === this.width ? room.path : [];
    this.path = starts.map((start, r) => {
      const path = kept[r] || new Float64Array(TIMES.length * this.width);
      path.set(start);
      return path;
    });
    this.headPath = head && new Float64Array(TIMES.length * 2);
    if (head) this.headPath.set(head);
  }

  /** Train towards a step for so many milliseconds; returns whether a run advanced. */
  advance(target, milliseconds) {
    const end = performance.now() + milliseconds,
      goal = Math.min(target, LONGEST);
    const chunk = Math.max(1, Math.floor(2000 / (this.runs.length * this.data.m)));
    let moved = false;
    while (this.steps < goal) {
      const count = Math.min(chunk, TIMES[this.known] - this.steps);
      for (const run of this.runs) advance(this.data, run, this.rule, this.lr, count, this.usual);
      this.steps += count;
      moved = true;
      if (this.steps === TIMES[this.known]) {
        this.runs.forEach((run, r) => this.path[r].set(run.W, this.known * this.width));
        if (this.headPath) this.headPath.set(this.runs[0].v, this.known * 2);
        this.known += 1;
      }
      if (performance.now() > end) break;
    }
    return moved;
  }

  /** The weight of a run at a record. */
  at(run, record) {
    return this.path[run].subarray(record * this.width, (record + 1) * this.width);
  }
}

/** 1 − cosine of two vectors, without cancellation. */
export function turnBetween(u, w) {
  const one = Math.hypot(...u),
    other = Math.hypot(...w);
  if (!(one > 0) || !(other > 0)) return NaN;
  let sum = 0;
  for (let i = 0; i < u.length; i++) sum += (u[i] / one - w[i] / other) ** 2;
  return sum / 2;
}
