// The plane of the tokens: drag them; the direction, its slab and its support follow.
import { boxOf, colourOf, draggable, fill, reachOf, set, shown, svg, write } from "explorer/dom.js";
import { nameOf } from "explorer/program.js";
import { SIZE, arrow, arrows, axes, conflicts, hulls, named, shapeOf, slabs, within } from "explorer/scenery.js";
import { choose, removeToken } from "explorer/state.js";
import { counted } from "explorer/words.js";

const CLICK = 4; // a press that moves fewer pixels is a click, not a drag
const EDGE = 46; // units from the right edge: closer labels stand on the left of their token

export class TokensView {
  constructor(root, app) {
    Object.assign(this, { root, app, nodes: new Map(), middle: [0, 0], reach: 1.5 });
    root.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
    const layer = (name) => root.appendChild(svg("g", { class: name }));
    Object.assign(this, {
      grid: layer("grid"),
      slabs: layer("slabs"),
      rays: layer("rays"),
      clash: layer("clash"),
      tokens: layer("tokens"),
    });
    this.head = root.appendChild(
      svg("g", { class: "head handle", tabindex: 0, role: "slider", "data-handle": "head", "aria-label": "Head v" }),
    );
    draggable(root, {
      begin: (event) => this.begin(event),
      move: (event, far) => this.move(event, far),
      end: (event) => this.end(event),
    });
    // Read when it changes: reading in every frame would force a layout.
    new ResizeObserver(() => ((this.width = root.clientWidth), app.redraw())).observe(root);
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("focusin", (event) => this.focused(event));
    root.addEventListener(
      "dblclick",
      (event) => !event.target.closest("[data-token], [data-handle]") && app.addTokenAt(this.world(event)),
    );
  }

  /** Set the window to show every token, the origin and the head. */
  fit(state) {
    const points = [
      ...state.inputs.flatMap(({ tokens }) => tokens),
      [0, 0],
      ...(state.byHead ? [this.tip(state)] : []),
    ];
    const low = [0, 1].map((i) => Math.min(...points.map((x) => x[i]))),
      high = [0, 1].map((i) => Math.max(...points.map((x) => x[i])));
    this.middle = [0, 1].map((i) => (low[i] + high[i]) / 2);
    this.reach = 0.74 * Math.max(high[0] - low[0], high[1] - low[1], 1e-3);
  }

  /** The end of the head's arrow. */
  tip = (state) => state.head;

  screen = ([x, y]) => [
    SIZE / 2 + ((x - this.middle[0]) / this.reach) * (SIZE / 2),
    SIZE / 2 - ((y - this.middle[1]) / this.reach) * (SIZE / 2),
  ];

  world(event) {
    const box = boxOf(this.root),
      unit = (2 * this.reach) / Math.min(box.width, box.height);
    return [
      this.middle[0] + (event.clientX - box.left - box.width / 2) * unit,
      this.middle[1] - (event.clientY - box.top - box.height / 2) * unit,
    ];
  }

  // -------------------------------------------------------------- hands

  /** The handle under a pointer: where the areas of tokens overlap, that of the nearest token. */
  under(event) {
    const node = event.target.closest("[data-token], [data-handle]");
    if (!node || node.dataset.handle) return node;
    const [a, b] = this.screen(this.world(event)),
      far = ({ look }) => Math.hypot(look.a - a, look.b - b);
    return [...this.nodes.values()].reduce((best, each) => (far(each) < far(best) ? each : best), node);
  }

  begin(event) {
    const node = this.under(event);
    if (!node) return false;
    this.held = node.dataset.handle
      ? { head: true }
      : { input: Number(node.dataset.input), token: Number(node.dataset.token) };
    const at = this.world(event),
      x = this.held.head ? this.app.state.head : this.app.state.inputs[this.held.input].tokens[this.held.token];
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
    const { state } = this.app,
      { input, token, head } = this.held,
      x = place.map((value) => Number(value.toPrecision(6)));
    if (head) state.head = x;
    else state.inputs[input].tokens[token] = x;
    this.app.changed("tokens");
  }

  end(event) {
    const clicked = event.type === "pointerup" && !this.moved;
    if (clicked && !this.held.head) this.pick(this.held, event.shiftKey || event.ctrlKey || event.metaKey);
    this.moved = this.app.dragging = false;
    this.app.redraw();
  }

  pick({ input, token }, more) {
    choose(this.app.state, this.app.fresh().selected, input, token, more);
    this.app.changed("selection");
  }

  focused(event) {
    const node = event.target.closest("[data-token]");
    if (node) this.app.look(Number(node.dataset.input), Number(node.dataset.token));
  }

  key(event) {
    const node = event.target.closest("[data-token], [data-handle]");
    if (!node) return;
    this.held = node.dataset.handle
      ? { head: true }
      : { input: Number(node.dataset.input), token: Number(node.dataset.token) };
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
    const { state, now } = this.app,
      { feasible } = now.solution;
    fill(this.grid, axes(this));
    fill(this.slabs, [...hulls(this, state), ...(feasible ? slabs(this, state, now) : [])]);
    fill(this.rays, feasible ? arrows(this, state, now) : []);
    fill(this.clash, feasible ? [] : conflicts(this, state, now));
    this.drawTokens(state, now);
    this.drawHead(state);
    if (!this.app.dragging)
      set(this.root, { "aria-label": `Tokens of ${counted(state.inputs.length, "input")}. ${this.app.verdict || ""}` });
  }

  drawTokens(state, { problem, selected, solution, chosen }) {
    const { feasible, support, conflict, rows } = solution,
      reach = reachOf(SIZE, this.width, 18),
      marked = new Set(); // the support, or the tokens in conflict
    if (feasible) for (const j of support) marked.add(`${rows[j].input}.${rows[j].token}`);
    else for (const { input, token, anchor } of conflict) marked.add(`${input}.${token}`).add(`${input}.${anchor}`);
    const colour = colourOf(chosen ? chosen.slot : undefined),
      many = problem.inputs.reduce((sum, { tokens }) => sum + tokens.length, 0) > 12,
      seen = new Set();
    problem.inputs.forEach(({ tokens, scores }, input) =>
      tokens.forEach((x, token) => {
        const key = `${input}.${token}`,
          node = this.nodes.get(key) || this.make(key, input, token);
        seen.add(key);
        const picked = selected[input].includes(token),
          [a, b] = this.screen(x);
        this.drawToken(node, {
          ...{ input, token, a, b, x: x[0], y: x[1], score: scores[token], picked },
          ...{ supports: feasible && marked.has(key), clashes: !feasible && marked.has(key), colour },
          ...{ filled: picked && feasible, reach, on: input === state.focus, silent: many && input !== state.focus && !picked },
        });
      }),
    );
    for (const [key, node] of this.nodes)
      if (!seen.has(key)) {
        node.remove();
        this.nodes.delete(key);
      }
  }

  /** Update one token if something about it changed. */
  drawToken(node, look) {
    const before = node.look;
    if (before && Object.keys(look).every((name) => look[name] === before[name])) return;
    node.look = look;
    const { input, token, a, b, x, y, score, picked, supports, clashes, colour, filled, on, silent, reach } = look;
    const words = [
      `Token ${nameOf(input, token)}`,
      `at ${shown(x)}, ${shown(y)}`,
      `score ${shown(score)}`,
      picked ? "selected" : "",
      supports ? "support" : "",
      clashes ? "in conflict" : "",
    ];
    set(node, {
      "aria-label": words.filter(Boolean).join(", "),
      "aria-pressed": picked,
      class: `token handle${picked ? " chosen" : ""}${supports ? " support" : ""}${clashes ? " clashing" : ""}${on ? " on" : ""}`,
      style: `--own:${filled ? colour : "var(--paper)"};--ring:${colour}`,
    });
    // Place each part by itself: browsers paint groups with a transform one by one.
    const [touch, ring, mark, label, number] = node.children,
      [left, top] = [a.toFixed(2), b.toFixed(2)];
    for (const circle of [touch, ring]) set(circle, { cx: left, cy: top });
    set(touch, { r: reach });
    set(mark, { d: `M${left},${top}${shapeOf(input)}` });
    const inside = a < SIZE - EDGE,
      beside = { x: (inside ? a + 12 : a - 12).toFixed(2), "text-anchor": inside ? "start" : "end" };
    set(label, { ...beside, y: within(b - 6, 14, SIZE - 18).toFixed(2) });
    set(number, { ...beside, y: within(b + 9, 29, SIZE - 3).toFixed(2) });
    write(label, silent ? "" : nameOf(input, token));
    write(number, silent ? "" : shown(score, 2));
  }

  make(key, input, token) {
    const node = svg(
      "g",
      { tabindex: 0, role: "button", "data-token": token, "data-input": input },
      svg("circle", { class: "touch", r: 18 }),
      svg("circle", { class: "ring", r: 13 }),
      svg("path", { class: "mark" }),
      svg("text", { class: "label" }),
      svg("text", { class: "score" }),
    );
    this.tokens.append(node);
    this.nodes.set(key, node);
    return node;
  }

  drawHead(state) {
    this.head.style.display = state.byHead ? "" : "none";
    if (!state.byHead) return;
    const from = this.screen([0, 0]),
      to = this.screen(state.head),
      size = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
    const beyond = [to[0] + ((to[0] - from[0]) / size) * 15, to[1] + ((to[1] - from[1]) / size) * 15 + 5];
    fill(this.head, [
      [
        "circle",
        {
          class: "touch",
          cx: to[0].toFixed(1),
          cy: to[1].toFixed(1),
          r: reachOf(SIZE, this.width, 18),
        },
      ],
      ...arrow(from, to, "", 2.2),
      named("v", beyond[0], beyond[1]),
    ]);
    set(this.head, {
      "aria-label": `Head v at ${shown(state.head[0])}, ${shown(state.head[1])}; arrow keys move it`,
      "aria-valuetext": `${shown(state.head[0])}, ${shown(state.head[1])}`,
      "aria-valuenow": shown(Math.atan2(state.head[1], state.head[0])),
    });
  }
}
