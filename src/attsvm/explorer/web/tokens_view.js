// The plane of the tokens: drag them; the direction, its slab and its support follow.
import { colourOf, draggable, escaped, fill, set, shown, svg } from "explorer/dom.js";
import { nameOf } from "explorer/program.js";
import { hull } from "explorer/selections.js";
import { choose, isWeight, removeToken } from "explorer/state.js";

const SIZE = 480; // of the picture, in its own units
const CLICK = 4; // pixels within which a press is a click, not a drag

/** Outlines of the marks of inputs 1, 2, …: told apart without colour. */
const SHAPES = [
  "M-8,0A8,8 0 1 0 8,0A8,8 0 1 0 -8,0Z", "M-7,-7H7V7H-7Z", "M0,-9.5L8.8,6.5H-8.8Z", "M0,-9.8L9.8,0L0,9.8L-9.8,0Z",
  "M0,9.5L8.8,-6.5H-8.8Z", "M-4.6,-8H4.6L9.2,0L4.6,8H-4.6L-9.2,0Z", "M0,-9.6L2.9,-3.3L9.3,-3L4.2,1.3L5.9,8L0,4.2L-5.9,8L-4.2,1.3L-9.3,-3L-2.9,-3.3Z", "M-3,-9H3V-3H9V3H3V9H-3V3H-9V-3H-3Z",
];
export const shapeOf = (input) => SHAPES[input % SHAPES.length];

export class TokensView {
  constructor(root, app) {
    Object.assign(this, { root, app, nodes: new Map(), middle: [0, 0], reach: 1.5 });
    root.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
    const layer = (name) => root.appendChild(svg("g", { class: name }));
    Object.assign(this, { grid: layer("grid"), slabs: layer("slabs"), rays: layer("rays"), clash: layer("clash"), tokens: layer("tokens") });
    this.head = root.appendChild(svg("g", { class: "head handle", tabindex: 0, role: "slider", "data-handle": "head", "aria-label": "Head v" }));
    draggable(root, { begin: (event) => this.begin(event), move: (event, far) => this.move(event, far), end: (event, far) => this.end(event, far) });
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("focusin", (event) => this.focused(event));
    root.addEventListener("dblclick", (event) => !event.target.closest("[data-token], [data-handle]") && app.addTokenAt(this.world(event)));
  }

  /** Choose the window that shows every token, the origin and the head. */
  fit(state) {
    const points = [...state.inputs.flatMap(({ tokens }) => tokens), [0, 0], ...(state.byHead ? [this.tip(state)] : [])];
    const low = [0, 1].map((i) => Math.min(...points.map((x) => x[i]))), high = [0, 1].map((i) => Math.max(...points.map((x) => x[i])));
    this.middle = [0, 1].map((i) => (low[i] + high[i]) / 2);
    this.reach = 0.68 * Math.max(high[0] - low[0], high[1] - low[1], 1e-3);
  }

  /** Where the head's arrow ends: the head itself, drawn no longer than 1. */
  tip = (state) => state.head;

  screen = ([x, y]) => [SIZE / 2 + ((x - this.middle[0]) / this.reach) * (SIZE / 2), SIZE / 2 - ((y - this.middle[1]) / this.reach) * (SIZE / 2)];

  world(event) {
    const box = this.root.getBoundingClientRect(), unit = (2 * this.reach) / Math.min(box.width, box.height);
    return [this.middle[0] + (event.clientX - box.left - box.width / 2) * unit, this.middle[1] - (event.clientY - box.top - box.height / 2) * unit];
  }

  // -------------------------------------------------------------- hands

  begin(event) {
    const node = event.target.closest("[data-token], [data-handle]");
    if (!node) return false;
    this.held = node.dataset.handle ? { head: true } : { input: Number(node.dataset.input), token: Number(node.dataset.token) };
    const at = this.world(event), x = this.held.head ? this.app.state.head : this.app.state.inputs[this.held.input].tokens[this.held.token];
    this.grip = [x[0] - at[0], x[1] - at[1]];
    if (!this.held.head) this.app.look(this.held.input, this.held.token);
    node.focus({ preventScroll: true });
    return (this.app.dragging = true);
  }

  move(event, far) {
    if (far < CLICK && !this.moved) return;
    this.moved = true;
    const at = this.world(event);
    this.put([at[0] + this.grip[0], at[1] + this.grip[1]]);
  }

  put(place) {
    const { state } = this.app, { input, token, head } = this.held, x = place.map((value) => Number(value.toPrecision(6)));
    if (head) state.head = x;
    else state.inputs[input].tokens[token] = x;
    this.app.changed("tokens");
  }

  end(event) {
    if (!this.moved && !this.held.head) this.pick(this.held, event.shiftKey || event.ctrlKey || event.metaKey);
    this.moved = this.app.dragging = false;
    this.app.redraw();
  }

  pick({ input, token }, more) {
    choose(this.app.state, this.app.now.selected, input, token, more);
    this.app.changed("selection");
  }

  focused(event) {
    const node = event.target.closest("[data-token]");
    if (node) this.app.look(Number(node.dataset.input), Number(node.dataset.token));
  }

  key(event) {
    const node = event.target.closest("[data-token], [data-handle]");
    if (!node) return;
    this.held = node.dataset.handle ? { head: true } : { input: Number(node.dataset.input), token: Number(node.dataset.token) };
    const step = (event.shiftKey ? 0.1 : 0.02) * this.reach;
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (way) {
      const x = this.held.head ? this.app.state.head : this.app.state.inputs[this.held.input].tokens[this.held.token];
      this.put([x[0] + way[0] * step, x[1] + way[1] * step]);
    } else if (this.held.head) return;
    else if (event.key === "Enter" || event.key === " ") this.pick(this.held, event.shiftKey);
    else if (event.key === "Delete" || event.key === "Backspace") {
      removeToken(this.app.state, this.held.input, this.held.token);
      this.app.changed("structure");
    } else return;
    event.preventDefault();
  }

  // -------------------------------------------------------------- picture

  draw() {
    const { state, now } = this.app;
    fill(this.grid, this.axes());
    fill(this.slabs, this.hulls(state) + (now.solution.feasible ? this.slabsOf(state, now) : ""));
    fill(this.rays, now.solution.feasible ? this.arrows(state, now) : "");
    fill(this.clash, now.solution.feasible ? "" : this.conflict(state, now));
    this.drawTokens(state, now);
    this.drawHead(state);
    if (!this.app.dragging) set(this.root, { "aria-label": `Tokens of ${state.inputs.length} inputs. ${this.app.verdict || ""}` });
  }

  axes() {
    const [x, y] = this.screen([0, 0]), step = 10 ** Math.floor(Math.log10(this.reach)), marks = [];
    for (let k = -20; k <= 20; k++) {
      const [a, b] = this.screen([k * step, k * step]);
      if (a > 0 && a < SIZE) marks.push(`<path d="M${a.toFixed(1)},0V${SIZE}"/>`);
      if (b > 0 && b < SIZE) marks.push(`<path d="M0,${b.toFixed(1)}H${SIZE}"/>`);
    }
    return `${marks.join("")}<path class="axis" d="M${x},0V${SIZE}M0,${y}H${SIZE}"/>`;
  }

  hulls(state) {
    return state.inputs.map(({ tokens }, i) => {
      const d = hull(tokens).map((x) => this.screen(x).map((v) => v.toFixed(1)).join(",")).join("L");
      return `<path class="hull${i === state.focus ? " on" : ""}" d="M${d}Z"/>`;
    }).join("");
  }

  /** The direction in which input i looks: the prompt itself, or W z_i. */
  direction(state, { solution: { w } }, input) {
    const { query } = state.inputs[input];
    return isWeight(state) ? [w[0] * query[0] + w[1] * query[1], w[2] * query[0] + w[3] * query[1]] : [w[0] * query[0], w[1] * query[0]];
  }

  slabsOf(state, now) {
    const colour = colourOf(now.chosen ? now.chosen.slot : undefined);
    return state.inputs.map((input, i) => {
      const u = this.direction(state, now, i), size = u[0] ** 2 + u[1] ** 2, far = 40 * this.reach;
      if (!(size > 0)) return "";
      const best = input.tokens[now.selected[i][0]], along = [-u[1] / Math.sqrt(size), u[0] / Math.sqrt(size)];
      const line = (back) => [far, -far].map((t) => this.screen([best[0] - (back * u[0]) / size + t * along[0], best[1] - (back * u[1]) / size + t * along[1]]));
      const [a, b] = line(0), [c, e] = line(1), at = (x) => x.map((v) => v.toFixed(1)).join(",");
      const on = i === state.focus || state.inputs.length === 1;
      return (on ? `<path class="slab" style="fill:${colour}" d="M${at(a)}L${at(b)}L${at(e)}L${at(c)}Z"/>` : "") +
        `<path class="edge${on ? " on" : ""}" style="stroke:${colour}" d="M${at(a)}L${at(b)}M${at(c)}L${at(e)}"/>`;
    }).join("");
  }

  arrows(state, now) {
    const colour = colourOf(now.chosen ? now.chosen.slot : undefined), long = SIZE * 0.27;
    const from = isWeight(state) ? state.inputs.map(({ tokens }, i) => tokens[now.selected[i][0]]) : [[0, 0]];
    return from.map((origin, i) => {
      const u = this.direction(state, now, i), size = Math.hypot(...u);
      if (!(size > 0)) return "";
      const [x, y] = this.screen(origin), way = [u[0] / size, -u[1] / size];
      const reach = isWeight(state) ? long / 2 : long, tip = [x + way[0] * reach, y + way[1] * reach];
      return `${arrow([x, y], tip, `stroke:${colour};fill:${colour}`, 3.5)}<text class="name" style="fill:${colour}" x="${(tip[0] + way[0] * 16).toFixed(1)}" y="${(tip[1] + way[1] * 16 + 5).toFixed(1)}">${isWeight(state) ? `W z${"₁₂₃₄₅₆₇₈"[i] || ""}` : "p<tspan class='up' dy='-5'>mm</tspan>"}</text>`;
    }).join("");
  }

  conflict(state, { solution: { conflict } }) {
    return conflict.filter(({ anchor }) => anchor !== undefined).map(({ input, token, anchor }) => {
      const [a, b] = [anchor, token].map((t) => this.screen(state.inputs[input].tokens[t]).map((v) => v.toFixed(1)).join(","));
      return `<path class="clash-line" d="M${a}L${b}"/>`;
    }).join("");
  }

  drawTokens(state, now) {
    const support = new Set(now.solution.feasible ? now.solution.support.map((j) => `${now.solution.rows[j].input}.${now.solution.rows[j].token}`) : []);
    const clash = new Set(now.solution.feasible ? [] : now.solution.conflict.flatMap(({ input, token, anchor }) => [`${input}.${token}`, `${input}.${anchor}`]));
    const colour = colourOf(now.chosen ? now.chosen.slot : undefined), count = now.problem.inputs.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const seen = new Set();
    now.problem.inputs.forEach(({ tokens, scores }, input) => tokens.forEach((x, token) => {
      const key = `${input}.${token}`, node = this.nodes.get(key) || this.make(key, input, token);
      seen.add(key);
      const chosen = now.selected[input].includes(token), supports = support.has(key), [a, b] = this.screen(x);
      const words = [`Token ${nameOf(input, token)}`, `at ${shown(x[0])}, ${shown(x[1])}`, `score ${shown(scores[token])}`, chosen ? "selected" : "", supports ? "support" : "", clash.has(key) ? "in conflict" : ""];
      set(node, { transform: `translate(${a.toFixed(2)},${b.toFixed(2)})`, "aria-label": words.filter(Boolean).join(", "), "aria-pressed": chosen, class: `token handle${chosen ? " chosen" : ""}${supports ? " support" : ""}${clash.has(key) ? " clashing" : ""}${input === state.focus ? " on" : ""}`, style: `--own:${chosen && now.solution.feasible ? colour : "var(--paper)"};--ring:${colour}` });
      const silent = count > 12 && input !== state.focus && !chosen;
      const label = silent ? "" : nameOf(input, token), score = silent ? "" : shown(scores[token], 2);
      if (node.label.textContent !== label) node.label.textContent = label;
      if (node.score.textContent !== score) node.score.textContent = score;
    }));
    for (const [key, node] of this.nodes)
      if (!seen.has(key)) {
        node.remove();
        this.nodes.delete(key);
      }
  }

  make(key, input, token) {
    const label = svg("text", { class: "label", x: 12, y: -6 }), score = svg("text", { class: "score", x: 12, y: 9 });
    const node = svg("g", { tabindex: 0, role: "button", "data-token": token, "data-input": input }, svg("circle", { class: "touch", r: 18 }), svg("circle", { class: "ring", r: 13 }), svg("path", { class: "mark", d: shapeOf(input) }), label, score);
    Object.assign(node, { label, score });
    this.tokens.append(node);
    this.nodes.set(key, node);
    return node;
  }

  drawHead(state) {
    this.head.style.display = state.byHead ? "" : "none";
    if (!state.byHead) return;
    const from = this.screen([0, 0]), to = this.screen(state.head), size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
    const beyond = [to[0] + ((to[0] - from[0]) / size) * 15, to[1] + ((to[1] - from[1]) / size) * 15 + 5];
    fill(this.head, `<circle class="touch" cx="${to[0].toFixed(1)}" cy="${to[1].toFixed(1)}" r="18"/>${arrow(from, to, "", 2.2)}<text class="name" x="${beyond[0].toFixed(1)}" y="${beyond[1].toFixed(1)}">v</text>`);
    set(this.head, { "aria-label": `Head v at ${shown(state.head[0])}, ${shown(state.head[1])}; arrow keys move it`, "aria-valuetext": escaped(`${shown(state.head[0])}, ${shown(state.head[1])}`), "aria-valuenow": shown(Math.atan2(state.head[1], state.head[0])) });
  }
}

/** A line with a head; `style` colours both. */
export function arrow(from, to, style, width) {
  const size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1, way = [(to[0] - from[0]) / size, (to[1] - from[1]) / size], big = 3.2 * width;
  const back = [to[0] - way[0] * big, to[1] - way[1] * big], side = [-way[1] * big * 0.45, way[0] * big * 0.45];
  const at = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;
  return `<path class="shaft" style="${style};stroke-width:${width}" d="M${at(...from)}L${at(...back)}"/><path class="point" style="${style};stroke:none" d="M${at(...to)}L${at(back[0] + side[0], back[1] + side[1])}L${at(back[0] - side[0], back[1] - side[1])}Z"/>`;
}
