// The disc of training: the direction of the weight is an angle, its length a logarithmic radius. The ring around
// the disc is the circle of directions "at infinity", divided into the selections of these directions.
import { paint } from "explorer/canvas.js";
import { boxOf, draggable, fill, power, reachOf, set, shown, svg } from "explorer/dom.js";
import { HALF, RIM, SIZE, raysOf, ringOf } from "explorer/ring.js";
import { recordsUpTo } from "explorer/simulation.js";
import { isWeight, startsOf } from "explorer/state.js";
import { decided } from "explorer/training.js";

const SMALL = 330; // pixels: letters grow in units of a disc that is smaller, so that they can be read
const NEAR = 0.5; // shorter lengths are drawn to scale, longer ones on a logarithmic scale

export class DiscView {
  constructor(root, canvas, app) {
    Object.assign(this, { root, canvas, app, far: 4, grow: 1, handles: [] });
    root.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
    const layer = (name) => root.appendChild(svg("g", { class: name }));
    Object.assign(this, {
      circles: layer("circles"),
      ring: layer("ring"),
      rays: layer("rays"),
      startRing: layer("start-rings"),
      starts: layer("starts"),
    });
    draggable(root, {
      begin: (event) => this.begin(event),
      move: (event) => this.move(event),
      end: () => ((this.held = this.app.dragging = null), app.redraw()),
    });
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener(
      "dblclick",
      (event) => !event.target.closest("[data-start]") && app.addStartAt(this.world(event)),
    );
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    const scale = window.devicePixelRatio || 1,
      width = Math.round(this.canvas.clientWidth * scale);
    if (!width || this.canvas.width === width) return;
    this.canvas.width = this.canvas.height = width;
    this.width = this.canvas.clientWidth;
    this.grow = Math.max(1, SMALL / this.width);
    this.root.style.setProperty("--grow", this.grow.toFixed(2));
    this.app.redraw();
  }

  // -------------------------------------------------------------- places

  radius = (r) => (RIM * Math.log1p(r / NEAR)) / Math.log1p(this.far / NEAR);

  screen(x, y) {
    const r = Math.sqrt(x * x + y * y),
      scale = r > 0 ? this.radius(r) / r : 0;
    return [HALF + x * scale, HALF - y * scale];
  }

  world(event) {
    const box = boxOf(this.root),
      unit = SIZE / Math.min(box.width, box.height);
    const x = (event.clientX - box.left - box.width / 2) * unit,
      y = -(event.clientY - box.top - box.height / 2) * unit,
      drawn = Math.hypot(x, y);
    const r = drawn > 0 ? (NEAR * Math.expm1((Math.min(drawn, RIM) / RIM) * Math.log1p(this.far / NEAR))) / drawn : 0;
    return [x * r, y * r].map((value) => Number(value.toPrecision(4)));
  }

  // -------------------------------------------------------------- hands

  begin(event) {
    const node = event.target.closest("[data-start]");
    if (!node) return false;
    this.held = node.dataset.start;
    node.focus({ preventScroll: true });
    if (this.held !== "ring") this.app.watch(Number(this.held));
    return (this.app.dragging = true);
  }

  move(event) {
    const place = this.world(event),
      { starts } = this.app.state;
    if (this.held === "ring") starts.radius = Math.max(0.01, Number(Math.hypot(...place).toPrecision(3)));
    else if (starts.points) starts.points[Number(this.held)] = place;
    else return;
    this.app.changed("starts");
  }

  key(event) {
    const node = event.target.closest("[data-start]");
    if (!node) return;
    const { starts } = this.app.state,
      way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key],
      which = node.dataset.start;
    if (way && which === "ring")
      starts.radius = Math.max(0.05, Number((starts.radius * (way[0] + way[1] > 0 ? 1.1 : 1 / 1.1)).toPrecision(3)));
    else if (way && starts.points)
      starts.points[Number(which)] = starts.points[Number(which)].map((x, i) =>
        Number((x + 0.1 * way[i]).toPrecision(6)),
      );
    else if (event.key === "Delete" && starts.points && starts.points.length > 1)
      starts.points.splice(Number(which), 1);
    else return;
    event.preventDefault();
    this.app.changed("starts");
  }

  // -------------------------------------------------------------- picture

  /** Draw the paths on the canvas, then the fixed parts in the SVG above it. */
  draw() {
    const { simulation, state, now } = this.app;
    const last = this.lastRecord();
    if (!this.slots) this.decide();
    if (!this.held) this.far = this.farthest(simulation, last);
    paint(this.canvas, SIZE, this.app.colours, this, last);
    fill(this.circles, this.lengths());
    fill(this.ring, ringOf(state, now));
    fill(this.rays, raysOf(state, now));
    this.drawStarts(state);
    if (!this.app.dragging)
      set(this.root, { "aria-label": `Training after ${state.time} steps. ${this.app.basins || ""}` });
  }

  /** How many records are shown: those computed, up to the time of the slider. */
  lastRecord = () => Math.max(1, Math.min(this.app.simulation.known, recordsUpTo(this.app.state.time)));

  /** The length at the rim: a little more than the longest line. It changes in steps, so that the circles do not move. */
  farthest({ path, width, headPath }, last) {
    const { state } = this.app;
    const stretch = isWeight(state) ? Math.max(...state.inputs.map(({ query }) => Math.hypot(...query))) : 1;
    let most = headPath ? Math.hypot(headPath[2 * last - 2], headPath[2 * last - 1]) : 0;
    for (const each of path)
      for (const k of [0, last - 1])
        most = Math.max(most, stretch * Math.hypot(...each.subarray(k * width, (k + 1) * width)));
    return 1.1 ** Math.ceil(Math.log(Math.max(3, most * 1.15)) / Math.log(1.1));
  }

  /** Every line to draw: its weights (and their query) or points, the name of its colour, width, dash. */
  *paths(last) {
    const { simulation, stalled, state } = this.app,
      many = simulation.runs.length > 12,
      weight = isWeight(state);
    for (const points of state.recorded || [])
      yield { weights: points.flat(), last: points.length, colour: "quiet", width: 5, alpha: 0.35 };
    for (let r = 0; r < simulation.runs.length; r++) {
      const weights = simulation.path[r],
        watched = r === state.run;
      if (weight)
        for (let i = 0; i < state.inputs.length; i++)
          yield {
            weights,
            last,
            query: state.inputs[i].query,
            colour: `s${i % 6}`,
            width: watched ? 2.4 : 1.2,
            alpha: 1,
          };
      else {
        const slot = this.slots[r];
        yield {
          weights,
          last,
          colour: slot === null ? "other" : `s${slot % 6}`,
          width: watched ? 3 : many ? 1.2 : 1.8,
          alpha: watched ? 1 : many ? 0.6 : 0.9,
        };
      }
    }
    if (simulation.headPath)
      yield { weights: simulation.headPath, last, colour: "ink", width: 2, alpha: 1, dash: [2, 4] };
    if (stalled && !weight)
      yield {
        weights: stalled.path[0],
        last: Math.min(last, stalled.known),
        colour: "ink",
        width: 2,
        alpha: 0.9,
        dash: [6, 5],
      };
  }

  /** Call to(x, y) for every point of a line that is visibly different from the previous one. */
  follow({ weights, last, query }, to) {
    const scale = RIM / Math.log1p(this.far / NEAR);
    let seenX = Infinity,
      seenY = Infinity;
    for (let k = 0; k < last; k++) {
      const x = query ? weights[4 * k] * query[0] + weights[4 * k + 1] * query[1] : weights[2 * k];
      const y = query ? weights[4 * k + 2] * query[0] + weights[4 * k + 3] * query[1] : weights[2 * k + 1];
      const r = Math.sqrt(x * x + y * y),
        factor = r > 0 ? (scale * Math.log1p(r / NEAR)) / r : 0;
      const a = HALF + x * factor,
        b = HALF - y * factor;
      if ((a - seenX) ** 2 + (b - seenY) ** 2 < 2 && k < last - 1) continue;
      to(a, b, seenX === Infinity);
      [seenX, seenY] = [a, b];
    }
  }

  /** The current colour of every run; called once a frame, before drawing. */
  decide() {
    const last = this.lastRecord() - 1;
    this.slots = isWeight(this.app.state) ? [] : this.app.simulation.runs.map((_, r) => this.slotAt(r, last));
    return this.slots;
  }

  /** The colour of the selection of a run at a record; null without one, or if training cannot end there. */
  slotAt(run, record) {
    const { simulation, slots } = this.app,
      slot = slots.get(decided(simulation.data, simulation.at(run, record)));
    return slot === undefined ? null : slot;
  }

  lengths() {
    const circle = (r, kind = "") => ["circle", { class: kind, cx: HALF, cy: HALF, r }],
      shapes = [circle(RIM, "rim")];
    for (let k = 0; 10 ** k < this.far; k++) {
      const r = this.radius(10 ** k);
      if (r <= 20 || this.grow > 1.3) continue;
      const name = k < 3 ? `${10 ** k}` : power(k);
      shapes.push(circle(r.toFixed(1)), ["text", { x: HALF + 4, y: (HALF - r + 12).toFixed(1) }, name]);
    }
    return shapes;
  }

  /** The dots at the current weights of the runs. */
  *ends(last) {
    const { simulation, state } = this.app,
      many = simulation.runs.length > 12;
    for (let r = 0; r < this.slots.length; r++) {
      const slot = this.slots[r],
        w = simulation.at(r, last - 1),
        [x, y] = this.screen(w[0], w[1]);
      yield { x, y, r: r === state.run ? 5 : many ? 2 : 3.5, colour: slot === null ? "other" : `s${slot % 6}` };
    }
  }

  drawStarts(state) {
    if (isWeight(state)) return this.handlesFor([]);
    const points = startsOf(state),
      ring = !state.starts.points;
    const circle = () => ({ class: "start-ring", cx: HALF, cy: HALF, r: this.radius(state.starts.radius).toFixed(1) });
    fill(this.startRing, ring ? [["circle", circle()]] : []);
    const handles = ring ? [["ring", [state.starts.radius, 0]]] : points.map((x, k) => [String(k), x]);
    return this.handlesFor(handles);
  }

  handlesFor(handles) {
    while (this.handles.length > handles.length) this.handles.pop().remove();
    handles.forEach(([which, x], k) => {
      if (!this.handles[k]) {
        this.handles[k] = svg(
          "g",
          { tabindex: 0, role: "slider", class: "start handle" },
          svg("circle", { class: "touch", r: 15 }),
          svg("circle", { class: "mark", r: 5 }),
        );
        this.starts.append(this.handles[k]);
      }
      const [a, b] = this.screen(x[0], x[1]),
        words =
          which === "ring"
            ? `Radius of the ring of starts, ${shown(x[0])}`
            : `Start ${k + 1} at ${shown(x[0])}, ${shown(x[1])}`;
      set(this.handles[k].firstChild, { r: reachOf(SIZE, this.width, 15) });
      set(this.handles[k].lastChild, { r: (5 * Math.sqrt(this.grow)).toFixed(1) });
      set(this.handles[k], {
        "data-start": which,
        transform: `translate(${a.toFixed(1)},${b.toFixed(1)})`,
        "aria-label": words,
        "aria-valuenow": shown(x[0]),
        "aria-valuetext": words,
      });
    });
  }
}
