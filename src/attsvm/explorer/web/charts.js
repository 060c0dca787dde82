// Three small charts of the watched run against the steps: angle to its program, length, attention.
import { colourOf, fill, power, set, shown, svg, write } from "explorer/dom.js";
import { jointPrograms, keyOf } from "explorer/model.js";
import { maxMargin } from "explorer/program.js";
import { LONGEST, TIMES, turnBetween } from "explorer/simulation.js";
import { isFactored, isWeight } from "explorer/state.js";
import { attended, logAttention } from "explorer/training.js";

const WIDE = 300,
  HIGH = 150,
  LEFT = 38,
  RIGHT = 8,
  TOP = 10,
  BOTTOM = 22;
const across = (step) => LEFT + ((WIDE - LEFT - RIGHT) * Math.log10(Math.max(step, 1))) / Math.log10(LONGEST);

export class Charts {
  constructor(roots, app) {
    Object.assign(this, { app, roots });
    for (const root of roots) {
      root.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
      root.plot = root.appendChild(svg("g"));
    }
  }

  /** The program to which a run should tend: that of its attended tokens, relaxed if the head trains too. */
  target(selected) {
    const { now } = this.app;
    const solution = now.joint ? jointPrograms(now.problem, selected, now.p).relaxed : this.solution(selected);
    return solution && solution.feasible && solution.norm > 0 ? solution.w : null;
  }

  solution(selected) {
    const { ranking, problem, p } = this.app.now,
      key = keyOf(selected);
    const known = (ranking || []).find((each) => keyOf(each.selected) === key);
    return known ? known.solution : maxMargin(problem, selected, p);
  }

  draw() {
    const { simulation, stalled, state, discView } = this.app,
      last = discView.lastRecord();
    const selected = attended(simulation.data, simulation.at(state.run, last - 1)).map((t) => [t]);
    const target = this.target(selected),
      turn = (w) => (target ? turnBetween(w, target) : NaN);
    const lines = (value) => [
      series(simulation, state.run, last, value(simulation.data)),
      stalled && series(stalled, 0, Math.min(stalled.known, last), value(stalled.data)),
    ];
    this.away = last > 1 ? turn(simulation.at(state.run, last - 1)) : NaN;
    this.colour = colourOf(isWeight(state) ? 0 : discView.slots[state.run]);
    this.plot(
      0,
      "1 − cosine to its program",
      lines(() => turn),
      logScale(-9, 0, 3),
    );
    this.plot(
      1,
      "length",
      lines(() => (w) => Math.hypot(...w)),
      isFactored(state) ? logScale(-1, 9, 2) : logScale(-1, 4, 1), // a product grows like a square
    );
    this.plot(
      2,
      "attention on its tokens",
      lines((data) => (w) => leastAttention(data, w, selected)),
      SHARES,
    );
  }

  plot(which, title, lines, scale) {
    const up = (y) => TOP + (HIGH - TOP - BOTTOM) * (1 - scale.at(y)),
      { time } = this.app.state;
    const word = (anchor, x, y, name) => [
      "text",
      { class: "axis-name", "text-anchor": anchor, x: x.toFixed(1), y: y.toFixed(1) },
      name,
    ];
    const grid = scale.ticks.flatMap(([y, name]) => [
      ["path", { class: "tick", d: `M${LEFT},${up(y).toFixed(1)}H${WIDE - RIGHT}` }],
      word("end", LEFT - 5, up(y) + 4, name),
    ]);
    const steps = [0, 1, 2, 3, 4, 5].map((k) =>
      word(k ? (k === 5 ? "end" : "middle") : "start", across(10 ** k), HIGH - 6, power(k)),
    );
    const curves = lines.map((points, k) => {
      const d = (points || [])
        .filter(([, y]) => Number.isFinite(y))
        .map(([x, y]) => `${across(x).toFixed(1)},${Math.min(HIGH - BOTTOM, Math.max(TOP, up(y))).toFixed(1)}`)
        .join("L");
      return [
        "path",
        { class: k ? "curve usual" : "curve ours", style: k ? "" : `stroke:${this.colour}`, d: d && `M${d}` },
      ];
    });
    const end = lines[0] && lines[0].length ? lines[0][lines[0].length - 1][1] : NaN;
    const now = ["path", { class: "now", d: `M${across(time).toFixed(1)},${TOP}V${HIGH - BOTTOM}` }];
    const root = this.roots[which];
    fill(root.plot, [...grid, ...steps, now, ...curves.reverse()]);
    set(root, { "aria-label": `${title}: ${shown(end)} after ${time} steps` });
    write(root.parentNode.querySelector("output"), shown(end, 2));
  }
}

/** The smallest attention on the selected token over the inputs. */
function leastAttention(data, W, selected) {
  const log = logAttention(data, W);
  return Math.exp(Math.min(...selected.map(([t], i) => log[data.first[i] + t])));
}

const SHARES = {
  at: (y) => y,
  ticks: [
    [0, "0"],
    [0.5, "½"],
    [1, "1"],
  ],
};

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
