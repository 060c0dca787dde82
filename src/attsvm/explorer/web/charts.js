// Three small charts of the watched run against the steps: angle to its program, length, attention.
import { escaped, fill, shown, svg } from "explorer/dom.js";
import { keyOf } from "explorer/model.js";
import { maxMargin } from "explorer/program.js";
import { LONGEST, TIMES, recordsUpTo, turnBetween } from "explorer/simulation.js";
import { attended, logAttention } from "explorer/training.js";

const WIDE = 300,
  HIGH = 150,
  LEFT = 38,
  RIGHT = 8,
  TOP = 10,
  BOTTOM = 22;
const across = (step) => LEFT + ((WIDE - LEFT - RIGHT) * Math.log10(Math.max(step, 1))) / Math.log10(LONGEST);
const SUPER = { 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹", "-": "⁻" };
const power = (k) => (k === 0 ? "1" : `10${[...String(k)].map((letter) => SUPER[letter]).join("")}`);

export class Charts {
  constructor(roots, app) {
    Object.assign(this, { app, roots });
    for (const root of roots) {
      root.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
      root.plot = root.appendChild(svg("g"));
    }
  }

  /** The program that a run should tend to: that of the tokens it attends to, or the joint one. */
  target(simulation, last) {
    const { now, state } = this.app,
      at = simulation.at(state.run, last - 1);
    if (now.joint)
      return now.joint.relaxed && now.joint.relaxed.feasible && now.joint.relaxed.norm > 0
        ? now.joint.relaxed.w
        : null;
    const selected = attended(simulation.data, at).map((t) => [t]),
      key = keyOf(selected);
    const known = (now.ranking || []).find((each) => keyOf(each.selected) === key);
    const solution = known ? known.solution : maxMargin(now.problem, selected, now.p);
    return solution.feasible ? solution.w : null;
  }

  draw() {
    const { simulation, stalled, state, now } = this.app;
    const last = Math.min(simulation.known, recordsUpTo(state.time)),
      target = this.target(simulation, Math.max(1, last));
    const ours = (value) => series(simulation, state.run, last, value);
    const usual = (value) => (stalled ? series(stalled, 0, Math.min(stalled.known, last), value) : null);
    const turn = (w) => (target ? turnBetween(w, target) : NaN),
      size = (w) => Math.hypot(...w);
    const mass = (data) => (w) => {
      const log = logAttention(data, w);
      let least = 0;
      for (let i = 0; i < data.n; i++)
        least = Math.min(least, Math.max(...now.selected[i].map((t) => log[data.first[i] + t])));
      return Math.exp(least);
    };
    this.away = target && last > 1 ? turn(simulation.at(state.run, last - 1)) : NaN;
    this.plot(0, "1 − cosine to its program", [ours(turn), usual(turn)], logScale(-9, 0, 3));
    this.plot(1, state.joint ? "length of p" : "length", [ours(size), usual(size)], logScale(-1, 4, 1));
    this.plot(
      2,
      "attention on the chosen tokens",
      [ours(mass(simulation.data)), usual(stalled ? mass(stalled.data) : null)],
      {
        at: (y) => y,
        ticks: [
          [0, "0"],
          [0.5, "½"],
          [1, "1"],
        ],
      },
    );
  }

  plot(which, title, lines, scale) {
    const up = (y) => TOP + (HIGH - TOP - BOTTOM) * (1 - scale.at(y)),
      { time } = this.app.state;
    const grid = scale.ticks.map(
      ([y, name]) =>
        `<path class="tick" d="M${LEFT},${up(y).toFixed(1)}H${WIDE - RIGHT}"/><text class="axis-name" text-anchor="end" x="${LEFT - 5}" y="${(up(y) + 4).toFixed(1)}">${name}</text>`,
    );
    const steps = [1, 10, 100, 1000, 10000, 100000].map(
      (step, k) =>
        `<text class="axis-name" text-anchor="${k ? (k === 5 ? "end" : "middle") : "start"}" x="${across(step).toFixed(1)}" y="${HIGH - 6}">${power(k)}</text>`,
    );
    const drawn = lines.map((points, k) => {
      if (!points) return "";
      const d = points
        .filter(([, y]) => Number.isFinite(y))
        .map(([x, y]) => `${across(x).toFixed(1)},${Math.min(HIGH - BOTTOM, Math.max(TOP, up(y))).toFixed(1)}`)
        .join("L");
      return d ? `<path class="curve ${k ? "usual" : "ours"}" d="M${d}"/>` : "";
    });
    const end = lines[0] && lines[0].length ? lines[0][lines[0].length - 1][1] : NaN;
    const now = `<path class="now" d="M${across(time).toFixed(1)},${TOP}V${HIGH - BOTTOM}"/>`;
    fill(this.roots[which].plot, grid.join("") + steps.join("") + now + drawn.reverse().join(""));
    this.roots[which].setAttribute("aria-label", escaped(`${title}: ${shown(end)} after ${time} steps`));
    const value = this.roots[which].parentNode.querySelector("output");
    if (value) value.textContent = shown(end, 2);
  }
}

function series(simulation, run, last, value) {
  const points = [];
  for (let k = 1; k < last; k++) points.push([TIMES[k], value(simulation.at(run, k))]);
  return points;
}

function logScale(low, high, every) {
  const ticks = [];
  for (let k = low; k <= high; k += every) ticks.push([10 ** k, power(k)]);
  return { at: (y) => (Math.log10(Math.max(y, 1e-300)) - low) / (high - low), ticks };
}
