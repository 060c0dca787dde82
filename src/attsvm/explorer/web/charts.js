// Small charts against the steps: angle to its program, length and attention of the watched run, and the singular values
// of W = K Qᵀ by three optimizers.
import { $, colourOf, fill, html, power, set, shown, svg, text, write } from "explorer/dom.js";
import { jointPrograms, keyOf } from "explorer/model.js";
import { maxMargin } from "explorer/program.js";
import { LONGEST, TIMES, turnBetween } from "explorer/simulation.js";
import { isFactored, isWeight } from "explorer/state.js";
import { attended, logAttention } from "explorer/training.js";
import { COMPARED, firstBeside, forecast, sentencesOf, singularValues, waitingWords } from "explorer/waiting.js";

const WIDE = 300,
  HIGH = 150,
  LEFT = 38,
  RIGHT = 8,
  TOP = 10,
  BOTTOM = 22;
const across = (step) => LEFT + ((WIDE - LEFT - RIGHT) * Math.log10(Math.max(step, 1))) / Math.log10(LONGEST);

export class Charts {
  constructor(roots, app) {
    Object.assign(this, { app, roots, waits: [], attended: [] });
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
    this.attended = selected;
    const target = this.target(selected),
      turn = (w) => (target ? turnBetween(w, target) : NaN);
    const colour = colourOf(isWeight(state) ? 0 : discView.slots[state.run]);
    const lines = (value) => [
      {
        kind: "ours",
        style: `stroke:${colour}`,
        points: series(simulation, state.run, last, value(simulation.data)),
      },
      {
        kind: "usual",
        points: stalled ? series(stalled, 0, Math.min(stalled.known, last), value(stalled.data)) : [],
      },
    ];
    this.away = last > 1 ? turn(simulation.at(state.run, last - 1)) : NaN;
    this.plot(
      0,
      "1 − cosine to its program",
      lines(() => turn),
      logScale(-9, 0, 3),
    );
    text("length-of", isWeight(state) ? "‖W‖" : "‖p‖");
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
    this.drawSpectrum(this.app.compared, last);
  }

  /** Both singular values of W = K Qᵀ by the compared optimizers, the law for gradient descent, and what they say. */
  drawSpectrum(compared, last) {
    $("waiting").hidden = !compared;
    this.waits = compared ? waitingWords(compared, last) : [];
    if (!compared) return;
    const point = firstBeside(compared[0], last),
      law = point ? forecast(point, compared[0].lr).filter(([step]) => step <= LONGEST) : [];
    const curves = [1, 0].flatMap((which) =>
      compared.map((simulation, k) => ({
        kind: which ? "ours" : "thin",
        style: `stroke:${COMPARED[k].colour};stroke-dasharray:${COMPARED[k].dash}`,
        points: series(simulation, 0, Math.min(simulation.known, last), (W) => singularValues(W)[which]),
      })),
    );
    const words = `Steps until the second singular value is a tenth of the first. ${sentencesOf(this.waits)}`;
    this.plot(3, "singular values", [{ kind: "usual", points: law }, ...curves], logScale(-9, 6, 3), words);
    this.list(this.waits);
  }

  list(waits) {
    const rows = $("waits");
    if (!rows.children.length)
      rows.append(
        ...COMPARED.map(({ name, colour, dash }) => {
          const mark = html("span", { class: "line" });
          mark.innerHTML = `<svg viewBox="0 0 24 8" aria-hidden="true"><path class="curve" style="stroke:${colour};stroke-dasharray:${dash}" d="M0,4H24"/></svg>`;
          return html("li", {}, mark, html("span", {}, html("b", {}, name), " ", html("span", { class: "wait" })));
        }),
      );
    rows.querySelectorAll(".wait").forEach((node, k) => write(node, waits[k][1]));
  }

  /** lines: the first is drawn on top. words: for a screen reader, by default the last value of the first line. */
  plot(which, title, lines, scale, words = null) {
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
      word(k ? (k === 5 ? "end" : "middle") : "start", across(10 ** k), HIGH - 6, k ? power(k) : "step 1"),
    );
    const curves = lines.map(({ kind, style = "", points }) => {
      const d = points
        .filter(([, y]) => Number.isFinite(y))
        .map(([x, y]) => `${across(x).toFixed(1)},${Math.min(HIGH - BOTTOM, Math.max(TOP, up(y))).toFixed(1)}`)
        .join("L");
      return ["path", { class: `curve ${kind}`, style, d: d && `M${d}` }];
    });
    const { points } = lines[0],
      end = points.length ? points[points.length - 1][1] : NaN;
    const now = ["path", { class: "now", d: `M${across(time).toFixed(1)},${TOP}V${HIGH - BOTTOM}` }];
    const root = this.roots[which];
    fill(root.plot, [...grid, ...steps, now, ...curves.reverse()]);
    set(root, { "aria-label": words ?? `${title}: ${shown(end)} after ${time} steps` });
    if (words === null) write(root.parentNode.querySelector("output"), shown(end, 2));
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
