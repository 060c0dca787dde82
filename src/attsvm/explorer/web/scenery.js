// The shapes behind the tokens: axes, hulls, slabs, the direction, and orders that contradict each other.
import { colourOf } from "explorer/dom.js";
import { hull } from "explorer/selections.js";
import { isWeight } from "explorer/state.js";

export const SIZE = 480; // of the picture, in its own units

/** Outlines of the marks of inputs 1, 2, … around the origin, different without colour. */
const SHAPES = [
  "m-8,0a8,8 0 1 0 16,0a8,8 0 1 0 -16,0z",
  "m-7,-7h14v14h-14z",
  "m0,-9.5l8.8,16h-17.6z",
  "m0,-9.8l9.8,9.8l-9.8,9.8l-9.8,-9.8z",
  "m0,9.5l8.8,-16h-17.6z",
  "m-4.6,-8h9.2l4.6,8l-4.6,8h-9.2l-4.6,-8z",
  "m0,-9.6l2.9,6.3l6.4,0.3l-5.1,4.3l1.7,6.7l-5.9,-3.8l-5.9,3.8l1.7,-6.7l-5.1,-4.3l6.4,-0.3z",
  "m-3,-9h6v6h6v6h-6v6h-6v-6h-6v-6h6z",
];
export const shapeOf = (input) => SHAPES[input % SHAPES.length];

const at = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;

/** The grid and its axes. view: `screen`, which places a point, and `reach`, half of the window. */
export function axes(view) {
  const [x, y] = view.screen([0, 0]),
    step = 10 ** Math.floor(Math.log10(view.reach));
  let lines = "";
  for (let k = -20; k <= 20; k++) {
    const [a, b] = view.screen([k * step, k * step]);
    if (a > 0 && a < SIZE) lines += `M${a.toFixed(1)},0V${SIZE}`;
    if (b > 0 && b < SIZE) lines += `M0,${b.toFixed(1)}H${SIZE}`;
  }
  return [
    ["path", { d: lines }],
    ["path", { class: "axis", d: `M${x},0V${SIZE}M0,${y}H${SIZE}` }],
  ];
}

/** The convex hull of every input. */
export const hulls = (view, state) =>
  state.inputs.map(({ tokens }, i) => {
    const corners = hull(tokens).map((x) => at(view.screen(x)));
    return ["path", { class: i === state.focus ? "hull on" : "hull", d: `M${corners.join("L")}Z` }];
  });

/** The direction of input i: the prompt, or W z_i. */
function direction(state, { solution: { w } }, input) {
  const { query } = state.inputs[input];
  return isWeight(state)
    ? [w[0] * query[0] + w[1] * query[1], w[2] * query[0] + w[3] * query[1]]
    : [w[0] * query[0], w[1] * query[0]];
}

/** Between the two lines of an input lie its margin and no other token. */
export function slabs(view, state, now) {
  const colour = colourOf(now.chosen ? now.chosen.slot : undefined);
  return state.inputs.flatMap((input, i) => {
    const u = direction(state, now, i),
      size = u[0] ** 2 + u[1] ** 2,
      best = input.tokens[now.selected[i][0]];
    if (!(size > 0)) return [];
    // just outside of the window
    const far = 3 * view.reach + Math.hypot(best[0] - view.middle[0], best[1] - view.middle[1]),
      along = [-u[1] / Math.sqrt(size), u[0] / Math.sqrt(size)];
    const line = (back) =>
      [far, -far].map((t) =>
        at(
          view.screen([best[0] - (back * u[0]) / size + t * along[0], best[1] - (back * u[1]) / size + t * along[1]]),
        ),
      );
    const [a, b] = line(0),
      [c, e] = line(1),
      on = i === state.focus || state.inputs.length === 1;
    const band = ["path", { class: "slab", style: `fill:${colour}`, d: `M${a}L${b}L${e}L${c}Z` }];
    const edge = { class: on ? "edge on" : "edge", style: `stroke:${colour}`, d: `M${a}L${b}M${c}L${e}` };
    return on ? [band, ["path", edge]] : [["path", edge]];
  });
}

/** The direction of the program from the origin, or of every input from its selected token. */
export function arrows(view, state, now) {
  const colour = colourOf(now.chosen ? now.chosen.slot : undefined),
    weight = isWeight(state),
    reach = SIZE * (weight ? 0.11 : 0.22);
  const from = weight ? state.inputs.map(({ tokens }, i) => tokens[now.selected[i][0]]) : [[0, 0]];
  return from.flatMap((origin, i) => {
    const u = direction(state, now, i),
      size = Math.hypot(...u);
    if (!(size > 0)) return [];
    const [x, y] = view.screen(origin),
      way = [u[0] / size, -u[1] / size],
      tip = [x + way[0] * reach, y + way[1] * reach];
    const name = weight ? `W z${"₁₂₃₄₅₆₇₈"[i] || ""}` : "p<tspan class='up' dy='-5'>mm</tspan>";
    return [
      ...arrow([x, y], tip, `stroke:${colour};fill:${colour}`, 3.5),
      named(name, tip[0] + way[0] * 16, tip[1] + way[1] * 16 + 5, colour),
    ];
  });
}

/** A word at a place, moved into the picture where its edge would cut it. */
export const named = (name, x, y, colour, kind = "name") => {
  const half = 5 + 4.5 * name.replaceAll(/<[^>]*>/g, "").length;
  return [
    "text",
    {
      class: kind,
      style: colour ? `fill:${colour}` : "",
      x: within(x, half, SIZE - half).toFixed(1),
      y: within(y, 17, SIZE - 8).toFixed(1),
    },
    name,
  ];
};

export const within = (x, low, high) => Math.min(high, Math.max(low, x));

/** The orders that contradict each other. */
export const conflicts = (view, state, { solution: { conflict } }) =>
  conflict
    .filter(({ anchor }) => anchor !== undefined)
    .map(({ input, token, anchor }) => {
      const [a, b] = [anchor, token].map((t) => at(view.screen(state.inputs[input].tokens[t])));
      return ["path", { class: "clash-line", d: `M${a}L${b}` }];
    });

/** A line with a head; `style` colours both. */
export function arrow(from, to, style, width) {
  const size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1,
    way = [(to[0] - from[0]) / size, (to[1] - from[1]) / size],
    big = 3.2 * width;
  const back = [to[0] - way[0] * big, to[1] - way[1] * big],
    side = [-way[1] * big * 0.45, way[0] * big * 0.45],
    wings = [1, -1].map((s) => at([back[0] + s * side[0], back[1] + s * side[1]]));
  return [
    ["path", { class: "shaft", style: `${style};stroke-width:${width}`, d: `M${at(from)}L${at(back)}` }],
    ["path", { class: "point", style: `${style};stroke:none`, d: `M${at(to)}L${wings.join("L")}Z` }],
  ];
}
