// What stands still on the disc: the ring of directions with its selections, and the rays of the chosen programs.
import { colourOf } from "explorer/dom.js";
import { letterOf } from "explorer/model.js";
import { isWeight } from "explorer/state.js";

export const SIZE = 480; // of the picture, in its own units
export const HALF = SIZE / 2;
export const RIM = 196; // radius of the ring

/** The arcs of the selections, the wedges and letters of those that training can end at. */
export function ringOf(state, { ranking, chosen }) {
  if (!ranking || isWeight(state)) return "";
  const arcs = ranking.map(
    (each) =>
      `<path class="arc${each.local ? "" : " grey"}${each === chosen ? " chosen" : ""}" style="stroke:${each.local ? colourOf(each.slot) : "var(--line)"}" d="${arc(RIM + 9, each.from + 0.008, each.to - 0.008)}"/>`,
  );
  const marks = ranking
    .filter(({ local }) => local)
    .map((each) => {
      const angle = Math.atan2(each.solution.w[1], each.solution.w[0]),
        [x, y] = at(RIM + 30, angle);
      const fan = each.solution.fan
        ? `<path class="fan" style="stroke:${colourOf(each.slot)}" d="${between(RIM + 18, each.solution.fan)}"/>`
        : "";
      return `${fan}${wedge(angle, colourOf(each.slot))}<text class="letter" style="fill:${colourOf(each.slot)}" x="${x.toFixed(1)}" y="${(y + 5).toFixed(1)}">${letterOf(each.slot)}</text>`;
    });
  return arcs.join("") + marks.join("");
}

/** The directions of the chosen programs, from the middle to the rim. */
export function raysOf(state, now) {
  const ray = (u, colour, name, extra = "") => {
    if (!(Math.hypot(...u) > 0)) return "";
    const angle = Math.atan2(u[1], u[0]),
      [x, y] = at(RIM, angle),
      [a, b] = at(RIM - 26, angle + 0.1);
    return `<path class="ray ${extra}" style="stroke:${colour}" d="M${HALF},${HALF}L${x.toFixed(1)},${y.toFixed(1)}"/>${name ? `<text class="name" style="fill:${colour}" x="${a.toFixed(1)}" y="${(b + 5).toFixed(1)}">${name}</text>` : ""}`;
  };
  const { solution, joint } = now,
    parts = [];
  if (isWeight(state))
    return solution.feasible
      ? state.inputs
          .map(({ query: z }, i) =>
            ray(
              [solution.w[0] * z[0] + solution.w[1] * z[1], solution.w[2] * z[0] + solution.w[3] * z[1]],
              colourOf(i),
              `W z${"₁₂₃₄₅₆₇₈"[i] || ""}`,
            ),
          )
          .join("")
      : "";
  if (solution.feasible)
    parts.push(ray(solution.w, colourOf(now.chosen ? now.chosen.slot : undefined), joint ? "p-SVM" : ""));
  if (joint && joint.head.feasible) parts.push(ray(joint.head.w, "var(--ink)", "v-SVM", "thin"));
  if (joint && joint.relaxed && joint.relaxed.feasible && joint.relaxed.norm > 0)
    parts.push(ray(joint.relaxed.w, "var(--s2)", "p relax", "thin"));
  return parts.join("");
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
function wedge(angle, colour) {
  const [a, b] = at(RIM + 2, angle),
    [c, e] = at(RIM + 18, angle + 0.045),
    [f, g] = at(RIM + 18, angle - 0.045);
  return `<path class="wedge" style="fill:${colour}" d="M${a.toFixed(1)},${b.toFixed(1)}L${c.toFixed(1)},${e.toFixed(1)}L${f.toFixed(1)},${g.toFixed(1)}Z"/>`;
}
