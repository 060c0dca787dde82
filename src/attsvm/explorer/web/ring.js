// The fixed parts of the disc: the ring of directions with its selections, and the rays of the programs shown.
import { colourOf } from "explorer/dom.js";
import { letterOf } from "explorer/model.js";
import { named } from "explorer/scenery.js";
import { isWeight } from "explorer/state.js";

export const SIZE = 480; // of the picture, in its own units
export const HALF = SIZE / 2;
export const RIM = 196; // radius of the ring

/** The arcs of the selections, the wedges and letters of those that training can end at. */
export function ringOf(state, { ranking, chosen }) {
  if (!ranking || isWeight(state)) return [];
  const path = (kind, style, d) => ["path", { class: kind, style, d }];
  const arcs = ranking.map((each) => {
    const kind = `arc${each.local ? "" : " grey"}${each === chosen ? " chosen" : ""}`;
    const stroke = each.local ? colourOf(each.slot) : "var(--line)";
    return path(kind, `stroke:${stroke}`, arc(RIM + 9, each.from + 0.008, each.to - 0.008));
  });
  const marks = ranking
    .filter(({ local }) => local)
    .flatMap(({ slot, solution: { w, fan } }) => {
      const angle = Math.atan2(w[1], w[0]),
        [x, y] = at(RIM + 30, angle),
        colour = colourOf(slot);
      return [
        ...(fan ? [path("fan", `stroke:${colour}`, between(RIM + 18, fan))] : []),
        path("wedge", `fill:${colour}`, wedge(angle)),
        named(letterOf(slot), x, y + 5, colour, "letter"),
      ];
    });
  return [...arcs, ...marks];
}

/** The directions of the programs shown, from the centre to the rim. */
export function raysOf(state, now) {
  const ray = (u, colour, name, kind = "ray") => {
    if (!(Math.hypot(...u) > 0)) return [];
    const angle = Math.atan2(u[1], u[0]),
      [x, y] = at(RIM, angle),
      [a, b] = at(RIM - 26, angle + 0.1);
    const line = { class: kind, style: `stroke:${colour}`, d: `M${HALF},${HALF}L${x.toFixed(1)},${y.toFixed(1)}` };
    return [["path", line], ...(name ? [named(name, a, b + 5, colour)] : [])];
  };
  const { solution, joint } = now,
    { w } = solution,
    rays = [];
  if (isWeight(state))
    return state.inputs.flatMap(({ query: z }, i) =>
      solution.feasible
        ? ray([w[0] * z[0] + w[1] * z[1], w[2] * z[0] + w[3] * z[1]], colourOf(i), `W z${"₁₂₃₄₅₆₇₈"[i] || ""}`)
        : [],
    );
  if (solution.feasible)
    rays.push(...ray(w, colourOf(now.chosen ? now.chosen.slot : undefined), joint ? "p-SVM" : ""));
  if (joint && joint.head.feasible) rays.push(...ray(joint.head.w, "var(--ink)", "v-SVM", "ray thin"));
  if (joint && joint.relaxed && joint.relaxed.feasible && joint.relaxed.norm > 0)
    rays.push(...ray(joint.relaxed.w, "var(--s2)", "p relax", "ray thin"));
  return rays;
}

// ---------------------------------------------------------------- shapes

const at = (r, angle) => [HALF + r * Math.cos(angle), HALF - r * Math.sin(angle)];

function arc(r, from, to) {
  if (to - from >= 2 * Math.PI - 0.05)
    return `M${HALF - r},${HALF}A${r},${r} 0 1 0 ${HALF + r},${HALF}A${r},${r} 0 1 0 ${HALF - r},${HALF}`;
  if (to <= from) return "";
  const [a, b] = at(r, from),
    [c, e] = at(r, to);
  return `M${a.toFixed(2)},${b.toFixed(2)}A${r},${r} 0 ${to - from > Math.PI ? 1 : 0} 0 ${c.toFixed(2)},${e.toFixed(2)}`;
}

function between(r, [u, w]) {
  const one = Math.atan2(u[1], u[0]),
    turn = Math.atan2(u[0] * w[1] - u[1] * w[0], u[0] * w[0] + u[1] * w[1]);
  return turn > 0 ? arc(r, one, one + turn) : arc(r, one + turn, one);
}

/** The mark of a direction on the ring. */
function wedge(angle) {
  const corners = [at(RIM + 2, angle), at(RIM + 18, angle + 0.045), at(RIM + 18, angle - 0.045)];
  return `M${corners.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}Z`;
}
