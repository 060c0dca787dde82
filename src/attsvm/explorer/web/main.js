// The page: one state, its model, and a frame loop that draws what has changed.
import { Charts } from "explorer/charts.js";
import { Controls } from "explorer/controls.js";
import { DiscView } from "explorer/disc_view.js";
import { $, set, text } from "explorer/dom.js";
import { STARTS, TOKENS } from "explorer/fields.js";
import * as files from "explorer/files.js";
import { derived } from "explorer/model.js";
import { Problems } from "explorer/problems.js";
import { LONGEST, Simulation } from "explorer/simulation.js";
import { addToken, encoded, isKeyQuery, isWeight, startsOf } from "explorer/state.js";
import { TokensView } from "explorer/tokens_view.js";
import { Tour } from "explorer/tour.js";
import { comparison } from "explorer/waiting.js";
import { tell } from "explorer/words.js";

const BUDGET = { least: 1, dragging: 4, resting: 11 }; // milliseconds of training in a frame
const LATE = 20; // a frame is late after so many milliseconds; at sixty frames a second one comes every 16.7
const SELDOM = 6; // frames between two updates of numbers and charts while the user drags
const PACE = 1.3; // decades of steps shown in a second
const TOP = Math.log10(LONGEST);

class App {
  constructor(presets) {
    Object.assign(this, {
      presets,
      slots: new Map(),
      token: 0,
      playing: false,
      frames: 0,
      budget: BUDGET.dragging,
      stale: { program: true, training: true },
      counts: new Map(),
    });
    this.tokensView = new TokensView($("tokens"), this);
    this.discView = new DiscView($("disc"), $("paths"), this);
    this.charts = new Charts(["chart-turn", "chart-size", "chart-mass", "chart-spectrum"].map($), this);
    this.controls = new Controls(this);
    this.problems = new Problems(this);
    this.tour = new Tour(this);
    files.connect(this);
    this.connect();
  }

  connect() {
    $("play").addEventListener("click", () => this.play(!this.playing));
    $("time").addEventListener("input", ({ target }) => {
      this.playing = false;
      this.state.time = Math.round(10 ** (Number(target.value) * TOP));
      this.announce();
      this.redraw();
    });
    $("fit").addEventListener("click", () => (this.tokensView.fit(this.state), this.redraw()));
    $("enlarge").addEventListener("click", () => this.enlarge(!document.body.classList.contains("large")));
    $("theme").addEventListener("click", () =>
      this.theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
    );
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.theme());
    this.theme();
  }

  /** On a phone the disc is small and stays in view, or large. */
  enlarge(on) {
    document.body.classList.toggle("large", on);
    $("enlarge").setAttribute("aria-pressed", on);
    $("enlarge").textContent = on ? "Smaller" : "Enlarge";
  }

  /** Apply the colour scheme of the system or of the user; the canvas needs the computed colours. */
  theme(name = null) {
    const dark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = dark ? "Light" : "Dark";
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(
      ["paper", "ink", "quiet", "other", "s0", "s1", "s2", "s3", "s4", "s5"].map((each) => [
        each,
        style.getPropertyValue(`--${each}`).trim(),
      ]),
    );
    this.redraw();
  }

  // -------------------------------------------------------------- loading

  loadPreset(id, patch = {}, play = true) {
    this.load(this.problems.preset(id, patch), play);
  }

  load(state, play = true) {
    const preset = this.presets.find((each) => each.id === state.preset);
    if (!preset) state.preset = null;
    Object.assign(this, { state, token: 0 });
    this.slots.clear();
    this.tokensView.fit(state);
    $("preset").value = preset ? preset.id : "";
    this.published = preset ? preset.published : null;
    this.changed("structure", preset);
    this.play(play && !matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  // -------------------------------------------------------------- changes

  /** Handle a change of a token, the selection, a start, the training or the norm. */
  changed(what, kept = false) {
    if (what !== "starts") this.stale.program = true;
    if (what !== "selection" && what !== "norm") this.stale.training = true;
    if (!kept && this.state.preset && (what === "tokens" || what === "structure")) {
      this.state.preset = null;
      $("preset").value = "";
    }
    if (what === "structure") {
      this.state.focus = Math.min(this.state.focus, this.state.inputs.length - 1);
      this.token = Math.min(this.token, this.state.inputs[this.state.focus].tokens.length - 1);
    }
    this.state.run = Math.min(this.state.run, startsOf(this.state).length - 1);
    this.announce();
    this.redraw();
  }

  /** Write the address soon, and tell a screen reader what the page shows as soon as the page rests. */
  announce() {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.settled(), 500);
  }

  settled() {
    if (!this.tour.running) this.writeAddress(); // the address does not store a tour
    if (this.waiting || this.playing || this.dragging) return this.announce();
    [this.verdict, this.basins] = tell(this);
    text("spoken", `${this.verdict} ${this.basins}`);
    return undefined;
  }

  writeAddress() {
    this.address = encoded(this.state);
    try {
      history.replaceState(null, "", `#${this.address}`);
    } catch {
      // A page in a notebook has no address.
    }
  }

  look(input, token) {
    if (this.state.focus === input && this.token === token) return;
    this.state.focus = input;
    this.token = token;
    this.redraw();
  }

  watch(run) {
    this.state.run = run;
    this.stale.training ||= this.state.usual || isKeyQuery(this.state);
    this.redraw();
  }

  addTokenAt(place) {
    if (this.state.inputs[this.state.focus].tokens.length >= TOKENS) return;
    this.token = addToken(
      this.state,
      this.state.focus,
      place.map((x) => Number(x.toPrecision(3))),
    );
    this.changed("structure");
  }

  addStartAt(place) {
    if (isWeight(this.state)) return;
    const points = this.state.starts.points || [];
    if (points.length >= STARTS) return;
    this.state.starts = { points: [...points, place] };
    this.state.run = points.length;
    this.changed("starts");
  }

  play(on) {
    this.playing = on;
    if (on) {
      this.clock = this.state.time >= LONGEST || !this.started ? 0 : Math.log10(this.state.time);
      this.goal = this.started ? LONGEST : this.state.time;
      if (this.goal <= this.state.time) this.clock = 0;
      this.started = true;
      this.before = null;
    }
    $("play").setAttribute("aria-pressed", on);
    $("play").setAttribute("aria-label", on ? "Pause" : "Play");
    $("play").textContent = on ? "❚❚" : "▶";
    this.announce();
    this.redraw();
  }

  // -------------------------------------------------------------- frames

  redraw() {
    if (!this.waiting && this.state) this.waiting = requestAnimationFrame((time) => this.frame(time));
  }

  frame(time) {
    this.waiting = null;
    this.frames += 1;
    this.fresh();
    const moved = this.stale.training;
    if (moved) this.restart();
    this.stale.training = false;
    if (this.playing) this.tick(time);
    const budget = this.dragging && moved ? this.spare(time) : BUDGET.resting;
    this.simulation.advance(this.state.time, budget);
    const beside = [this.stalled, ...(this.compared || [])].filter(Boolean);
    for (const each of beside) each.advance(this.state.time, budget / 2 / beside.length);
    const growing = [this.simulation, ...beside].some((each) => each.steps < this.state.time);
    this.draw(!this.dragging || !(growing || this.playing));
    if (growing || this.playing) this.redraw();
  }

  /** Adapt the time for training to the frames while the user drags: less after a late frame, then slowly more. */
  spare(time) {
    const change = time - this.drawn > LATE ? 0.7 : 1.02;
    this.drawn = time;
    this.budget = Math.min(BUDGET.dragging, Math.max(BUDGET.least, this.budget * change));
    return this.budget;
  }

  /** Update the model of the current state, also between two frames. */
  fresh() {
    if (this.stale.program) this.now = derived(this.state, this.slots);
    this.stale.program = false;
    return this.now;
  }

  restart() {
    const starts = startsOf(this.state),
      { problem, loss } = this.now,
      head = this.state.joint ? this.state.head : null;
    this.simulation = new Simulation(problem, loss, this.state, starts, { head, room: this.simulation });
    this.stalled =
      this.state.usual && !this.state.joint
        ? new Simulation(problem, loss, this.state, [starts[this.state.run]], { usual: true })
        : null;
    this.compared = isKeyQuery(this.state) ? comparison(problem, loss, this.state, starts[this.state.run]) : null;
  }

  /** Advance the time on a logarithmic scale, up to the trained steps. */
  tick(time) {
    const passed = this.before === null ? 0 : Math.min(0.1, (time - this.before) / 1000);
    this.before = time;
    if (this.simulation.steps >= 0.9 * Math.min(this.state.time, this.goal) || passed === 0)
      this.clock = Math.min(Math.log10(this.goal), this.clock + passed * PACE);
    this.state.time = Math.round(10 ** this.clock);
    if (this.state.time >= this.goal) this.play(false);
  }

  /** Draw the planes in every frame. While the user drags, update numbers and charts in turns: every frame is too often. */
  draw(whole) {
    const turn = (k) => whole || this.frames % SELDOM === k * 2;
    this.count();
    this.tokensView.draw();
    this.discView.draw();
    if (turn(0)) this.charts.draw();
    if (turn(1)) [this.verdict, this.basins] = tell(this);
    if (turn(2)) this.controls.draw();
    const { time } = this.state;
    if (document.activeElement !== $("time") || this.playing) $("time").value = Math.log10(Math.max(1, time)) / TOP;
    if (this.told === time) return;
    this.told = time;
    set($("time"), { "aria-valuetext": `step ${time}` });
    text("step", `step ${time.toLocaleString("en")}`);
  }

  /** The number of starts that attend to each selection at the current time. */
  count() {
    this.counts = new Map();
    for (const slot of this.discView.decide()) this.counts.set(slot, (this.counts.get(slot) || 0) + 1);
  }

  say(words) {
    text("said", words);
    clearTimeout(this.saying);
    this.saying = setTimeout(() => text("said", ""), 6000);
  }
}

const { presets, start } = JSON.parse($("data").textContent);
export const app = new App(presets);
app.problems.first(start);
window.explorer = app; // for tests and the console
