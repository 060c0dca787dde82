// What stands behind the tokens: axes, hulls, slabs, the direction, the orders in conflict; as markup of a drawing.
import { colourOf } from "explorer/dom.js";
import { hull } from "explorer/selections.js";
import { isWeight } from "explorer/state.js";

export const SIZE = 480; // of the picture, in its own units

/** Outlines of the marks of inputs 1, 2, …: told apart without colour. */
const SHAPES = [
  "M-8,0A8,8 0 1 0 8,0A8,8 0 1 0 -8,0Z",
  "M-7,-7H7V7H-7Z",
  "M0,-9.5L8.8,6.5H-8.8Z",
  "M0,-9.8L9.8,0L0,9.8L-9.8,0Z",
  "M0,9.5L8.8,-6.5H-8.8Z",
  "M-4.6,-8H4.6L9.2,0L4.6,8H-4.6L-9.2,0Z",
  "M0,-9.6L2.9,-3.3L9.3,-3L4.2,1.3L5.9,8L0,4.2L-5.9,8L-4.2,1.3L-9.3,-3L-2.9,-3.3Z",
  "M-3,-9H3V-3H9V3H3V9H-3V3H-9V-3H-3Z",
];
export const shapeOf = (input) => SHAPES[input % SHAPES.length];

/** The grid and its axes. view: `screen`, which places a point, and `reach`, half of the window. */
export function axes(view) {
  const [x, y] = view.screen([0, 0]),
    step = 10 ** Math.floor(Math.log10(view.reach)),
    marks = [];
  for (let k = -20; k <= 20; k++) {
    const [a, b] = view.screen([k * step, k * step]);
    if (a > 0 && a < SIZE) marks.push(`<path d="M${a.toFixed(1)},0V${SIZE}"/>`);
    if (b > 0 && b < SIZE) marks.push(`<path d="M0,${b.toFixed(1)}H${SIZE}"/>`);
  }
  return `${marks.join("")}<path class="axis" d="M${x},0V${SIZE}M0,${y}H${SIZE}"/>`;
}

/** The convex hull of every input. */
export function hulls(view, state) {
  return state.inputs
    .map(({ tokens }, i) => {
      const d = hull(tokens)
        .map((x) =>
          view
            .screen(x)
            .map((v) => v.toFixed(1))
            .join(","),
        )
        .join("L");
      return `<path class="hull${i === state.focus ? " on" : ""}" d="M${d}Z"/>`;
    })
    .join("");
}

/** The direction in which input i looks: the prompt itself, or W z_i. */
function direction(state, { solution: { w } }, input) {
  const { query } = state.inputs[input];
  return isWeight(state)
    ? [w[0] * query[0] + w[1] * query[1], w[2] * query[0] + w[3] * query[1]]
    : [w[0] * query[0], w[1] * query[0]];
}

/** Between the two lines of an input lie its margin and no other token. */
export function slabs(view, state, now) {
  const colour = colourOf(now.chosen ? now.chosen.slot : undefined);
  return state.inputs
    .map((input, i) => {
      const u = direction(state, now, i),
        size = u[0] ** 2 + u[1] ** 2,
        best = input.tokens[now.selected[i][0]];
      if (!(size > 0)) return "";
      // Just beyond the window: a long dashed line is drawn dash by dash.
      const far = 3 * view.reach + Math.hypot(best[0] - view.middle[0], best[1] - view.middle[1]),
        along = [-u[1] / Math.sqrt(size), u[0] / Math.sqrt(size)];
      const line = (back) =>
        [far, -far].map((t) =>
          view.screen([best[0] - (back * u[0]) / size + t * along[0], best[1] - (back * u[1]) / size + t * along[1]]),
        );
      const [a, b] = line(0),
        [c, e] = line(1),
        at = (x) => x.map((v) => v.toFixed(1)).join(",");
      const on = i === state.focus || state.inputs.length === 1;
      return (
        (on ? `<path class="slab" style="fill:${colour}" d="M${at(a)}L${at(b)}L${at(e)}L${at(c)}Z"/>` : "") +
        `<path class="edge${on ? " on" : ""}" style="stroke:${colour}" d="M${at(a)}L${at(b)}M${at(c)}L${at(e)}"/>`
      );
    })
    .join("");
}

/** The direction of the program, from the origin, or of every input from its chosen token. */
export function arrows(view, state, now) {
  const colour = colourOf(now.chosen ? now.chosen.slot : undefined),
    long = SIZE * 0.22;
  const from = isWeight(state) ? state.inputs.map(({ tokens }, i) => tokens[now.selected[i][0]]) : [[0, 0]];
  return from
    .map((origin, i) => {
      const u = direction(state, now, i),
        size = Math.hypot(...u);
      if (!(size > 0)) return "";
      const [x, y] = view.screen(origin),
        way = [u[0] / size, -u[1] / size];
      const reach = isWeight(state) ? long / 2 : long,
        tip = [x + way[0] * reach, y + way[1] * reach];
      return `${arrow([x, y], tip, `stroke:${colour};fill:${colour}`, 3.5)}<text class="name" style="fill:${colour}" x="${(tip[0] + way[0] * 16).toFixed(1)}" y="${(tip[1] + way[1] * 16 + 5).toFixed(1)}">${isWeight(state) ? `W z${"₁₂₃₄₅₆₇₈"[i] || ""}` : "p<tspan class='up' dy='-5'>mm</tspan>"}</text>`;
    })
    .join("");
}

/** The orders that contradict each other. */
export function conflicts(view, state, { solution: { conflict } }) {
  return conflict
    .filter(({ anchor }) => anchor !== undefined)
    .map(({ input, token, anchor }) => {
      const [a, b] = [anchor, token].map((t) =>
        view
          .screen(state.inputs[input].tokens[t])
          .map((v) => v.toFixed(1))
          .join(","),
      );
      return `<path class="clash-line" d="M${a}L${b}"/>`;
    })
    .join("");
}

/** A line with a head; `style` colours both. */
export function arrow(from, to, style, width) {
  const size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1,
    way = [(to[0] - from[0]) / size, (to[1] - from[1]) / size],
    big = 3.2 * width;
  const back = [to[0] - way[0] * big, to[1] - way[1] * big],
    side = [-way[1] * big * 0.45, way[0] * big * 0.45];
  const at = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;
  return `<path class="shaft" style="${style};stroke-width:${width}" d="M${at(...from)}L${at(...back)}"/><path class="point" style="${style};stroke:none" d="M${at(...to)}L${at(back[0] + side[0], back[1] + side[1])}L${at(back[0] - side[0], back[1] - side[1])}Z"/>`;
}
