// The column of controls, usable by keyboard and screen reader.
import { $, set, shown, text, write } from "explorer/dom.js";
import { INPUTS, coordinate } from "explorer/fields.js";
import { drawInputs, drawRanking } from "explorer/lists.js";
import { able, programExponent } from "explorer/model.js";
import { nameOf } from "explorer/program.js";
import {
  addInput,
  choose,
  exponent,
  isFactored,
  isKeyQuery,
  isWeight,
  removeToken,
  startsOf,
  written,
} from "explorer/state.js";
import { singularValues, withSpare } from "explorer/waiting.js";
import { normName, normWords } from "explorer/words.js";

const slide = (p) => (p === Infinity ? 1 : 1 - 1 / p); // p from 1 to ∞ on a slider from 0 to 1
const unslide = (x) => (x >= 0.995 ? Infinity : x <= 0.005 ? 1 : Number((1 / (1 - x)).toPrecision(3)));

const TRAINED = { p: ["p", "W"], kq: ["p = k ⊙ q", "W = K Qᵀ"] }; // of prompts and of weights

export class Controls {
  constructor(app) {
    this.app = app;
    const on = (id, event, action) => $(id).addEventListener(event, action);
    const train = (change) => (event) => (change(event.target), app.changed("training"));
    on(
      "rule",
      "change",
      train(({ value }) => (app.state.rule = value)),
    );
    on(
      "loss",
      "change",
      train(({ value }) => (app.state.loss = value)),
    );
    on(
      "rate",
      "input",
      train(({ value }) => (app.state.lr = Number((10 ** Number(value)).toPrecision(2)))),
    );
    on(
      "rule-p",
      "input",
      train(({ value }) => (app.state.ruleP = Number(Number(value).toPrecision(3)))),
    );
    on(
      "joint",
      "change",
      train(({ checked }) => (app.state.joint = checked)),
    );
    on(
      "usual",
      "change",
      train(({ checked }) => (app.state.usual = checked)),
    );
    for (const button of document.querySelectorAll("[data-trained]"))
      button.addEventListener("click", () => {
        app.state.trained = button.dataset.trained;
        if (isFactored(app.state)) app.state.joint = false;
        app.changed("training");
      });
    on("spare", "input", ({ target }) => {
      const points = [...startsOf(app.state)];
      points[app.state.run] = withSpare(points[app.state.run], 10 ** Number(target.value));
      app.state.starts = { points };
      app.changed("starts");
    });
    on("norm-p", "input", ({ target }) => this.norm(unslide(Number(target.value))));
    for (const button of document.querySelectorAll("[data-norm]"))
      button.addEventListener("click", () =>
        this.norm(exponent(button.dataset.norm === "inf" ? "inf" : Number(button.dataset.norm))),
      );
    on("follow", "change", ({ target }) => {
      app.state.p = written(programExponent({ ...app.state, follow: true }));
      app.state.follow = target.checked;
      app.changed("norm");
    });
    on("by-scores", "change", ({ target }) => {
      app.state.inputs.forEach((each, i) => (each.chosen = [...app.fresh().selected[i]]));
      app.state.choose = target.checked ? "scores" : "hand";
      app.changed("selection");
    });
    on("by-head", "change", ({ target }) => {
      if (!target.checked)
        app.state.inputs.forEach(
          (each, i) =>
            (each.scores = app.fresh().problem.inputs[i].scores.map((s) => Number((s * each.label).toPrecision(3)))),
        );
      app.state.byHead = target.checked;
      if (!app.state.byHead) app.state.joint = false;
      app.changed("structure");
    });
    on(
      "ring",
      "click",
      () => ((app.state.starts = { ring: 64, radius: 1.5 }), (app.state.run = 0), app.changed("starts")),
    );
    on("some", "click", () => {
      app.state.starts = { points: [isWeight(app.state) ? [0, 0, 0, 0] : [0, 0]] };
      app.state.run = 0;
      app.changed("starts");
    });
    on(
      "papers",
      "click",
      () => ((app.state.starts = structuredClone(app.published)), (app.state.run = 0), app.changed("starts")),
    );
    on("add-start", "click", () =>
      app.addStartAt([1, 1].map((x, i) => x + 0.4 * (i ? 1 : -1) * ((app.state.starts.points || []).length || 1))),
    );
    on("add-input", "click", () => {
      if (app.state.inputs.length >= INPUTS) return;
      const [x, y] = app.tokensView.middle,
        r = app.tokensView.reach / 2;
      addInput(
        app.state,
        [
          [x + r, y],
          [x - r / 2, y + 0.8 * r],
          [x - r / 2, y - 0.8 * r],
        ].map((place) => place.map((value) => Number(value.toPrecision(3)))),
      );
      app.state.focus = app.state.inputs.length - 1;
      app.changed("structure");
    });
    on("add-token", "click", () => app.addTokenAt(app.tokensView.middle));
    on("remove-token", "click", () => {
      removeToken(app.state, app.state.focus, app.token);
      app.token = 0;
      app.changed("structure");
    });
    on(
      "pick-token",
      "click",
      () => (choose(app.state, app.fresh().selected, app.state.focus, app.token, false), app.changed("selection")),
    );
    for (const [id, i] of [
      ["token-x", 0],
      ["token-y", 1],
    ])
      on(id, "change", ({ target }) =>
        this.number(target, (value) => (app.state.inputs[app.state.focus].tokens[app.token][i] = value)),
      );
    on("token-score", "change", ({ target }) =>
      this.number(target, (value) => (app.state.inputs[app.state.focus].scores[app.token] = value)),
    );
  }

  number(field, put) {
    if (field.value !== "" && coordinate(Number(field.value))) put(Number(field.value));
    this.app.changed("tokens");
  }

  norm(p) {
    this.app.state.p = written(able(this.app.state, p));
    this.app.state.follow = false;
    this.app.changed("norm");
  }

  draw() {
    const { state, now } = this.app,
      p = programExponent(state),
      weight = isWeight(state);
    value("rule", state.rule);
    value("loss", state.loss);
    value("rate", Math.log10(state.lr));
    text("rate-value", shown(state.lr, 2));
    for (const button of document.querySelectorAll("[data-trained]")) {
      button.setAttribute("aria-pressed", button.dataset.trained === state.trained);
      write(button, TRAINED[button.dataset.trained][weight ? 1 : 0]);
    }
    for (const name of ["schatten", "spectral"]) $("rule").querySelector(`[value=${name}]`).disabled = !weight;
    $("rule-p-row").hidden = !["steepest", "schatten", "mirror"].includes(state.rule);
    value("rule-p", state.ruleP);
    text("rule-p-value", shown(state.ruleP));
    value("norm-p", slide(p));
    text("norm-value", normName(p));
    for (const button of document.querySelectorAll("[data-norm]")) {
      button.setAttribute(
        "aria-pressed",
        exponent(button.dataset.norm === "inf" ? "inf" : Number(button.dataset.norm)) === p,
      );
      button.disabled = weight && button.dataset.norm !== "2";
    }
    text("norm-note", normWords(state));
    for (const [id, flag] of [
      ["follow", state.follow],
      ["joint", state.joint],
      ["usual", state.usual],
      ["by-scores", state.choose === "scores"],
      ["by-head", state.byHead],
    ])
      $(id).checked = flag;
    $("joint").disabled = !state.byHead || isFactored(state);
    $("ring").disabled = $("add-start").disabled = weight;
    $("ring").setAttribute("aria-pressed", !state.starts.points);
    $("some").setAttribute("aria-pressed", !!state.starts.points);
    $("papers").hidden = !this.app.published || weight;
    if (isKeyQuery(state)) this.drawSpare(startsOf(state)[state.run]);
    drawInputs(this, state, now);
    this.drawToken(state, now);
    drawRanking(this, state, now);
  }

  /** The slider of σ₂/σ₁ at the start. */
  drawSpare(W) {
    const [first, second] = singularValues(W),
      share = first > 0 ? second / first : 0;
    value("spare", share > 0 ? Math.log10(share) : -9);
    text("spare-value", shown(share, 2));
    set($("spare"), { "aria-valuetext": shown(share, 2) });
    $("spare").disabled = first === 0;
  }

  drawToken(state, now) {
    const { token } = this.app,
      each = state.inputs[state.focus];
    text("token-name", `Token ${nameOf(state.focus, token)}`);
    value("token-x", each.tokens[token][0]);
    value("token-y", each.tokens[token][1]);
    value(
      "token-score",
      state.byHead ? shown(now.problem.inputs[state.focus].scores[token]).replace("−", "-") : each.scores[token],
    );
    $("token-score").disabled = state.byHead;
  }
}

function value(id, number) {
  const node = $(id);
  if (document.activeElement === node && node.type === "number") return;
  if (node.value !== String(number)) node.value = number;
}
