// The lists of the column: the inputs, and the selections that training can end at.
import { $, colourOf, html, shown, text } from "explorer/dom.js";
import { letterOf } from "explorer/model.js";
import { nameOf } from "explorer/program.js";
import { shapeOf } from "explorer/scenery.js";
import { isWeight, removeInput } from "explorer/state.js";

const button = (onclick, attributes, ...children) =>
  html("button", { type: "button", ...attributes, onclick }, ...children);

/** The inputs, with controls to flip the label, add a token, and remove the input. */
export function drawInputs(controls, state, now) {
  const key = JSON.stringify([
    state.inputs.map(({ tokens, label }) => [tokens.length, label]),
    state.focus,
    now.selected,
  ]);
  if (controls.inputsKey === key) return;
  controls.inputsKey = key;
  const { app } = controls;
  $("inputs").replaceChildren(
    ...state.inputs.map(({ label }, i) => {
      const mark = html("span", { class: "shape" });
      mark.innerHTML = `<svg viewBox="-11 -11 22 22" aria-hidden="true"><path d="${shapeOf(i)}"/></svg>`;
      const looked = i === state.focus;
      return html(
        "li",
        { class: looked ? "on" : "" },
        button(
          () => app.look(i, 0),
          { class: "plain", "aria-label": `Look at input ${i + 1}`, "aria-pressed": looked },
          mark,
          `input ${i + 1}`,
        ),
        html("span", { class: "picked" }, now.selected[i].map((t) => nameOf(i, t)).join(" = ")),
        button(
          () => ((state.inputs[i].label = -label), app.changed("tokens")),
          {
            class: "label-flip",
            "aria-label": `Label of input ${i + 1}, ${label > 0 ? "plus" : "minus"} one: flip`,
          },
          label > 0 ? "+1" : "−1",
        ),
        button(
          () => ((state.focus = i), app.addTokenAt(app.tokensView.middle)),
          { class: "plain", "aria-label": `Add a token to input ${i + 1}` },
          "+",
        ),
        button(
          () => (removeInput(state, i), (app.token = 0), app.changed("structure")),
          { class: "plain", disabled: state.inputs.length === 1, "aria-label": `Remove input ${i + 1}` },
          "×",
        ),
      );
    }),
  );
}

/** The locally optimal selections, best loss first. */
export function drawRanking(controls, state, now) {
  const counts = controls.app.counts || new Map(),
    list = now.local.slice(0, 6);
  const key = JSON.stringify([
    list.map((each) => [
      each.slot,
      each.selected,
      shown(each.solution.margin),
      shown(each.loss),
      counts.get(each.slot),
      each === now.chosen,
    ]),
    now.ranking && now.ranking.length,
  ]);
  if (controls.rankingKey === key) return;
  controls.rankingKey = key;
  const { app } = controls;
  $("ranking").replaceChildren(
    ...list.map((each) =>
      html(
        "li",
        {},
        button(
          () => take(app, each),
          {
            class: each === now.chosen ? "rank chosen" : "rank",
            style: `--own:${colourOf(each.slot)}`,
            "aria-pressed": each === now.chosen,
          },
          html("b", {}, letterOf(each.slot)),
          html("span", { class: "picked" }, each.selected.map((chosen, i) => nameOf(i, chosen[0])).join(" ")),
          html("span", {}, html("i", {}, "margin"), shown(each.solution.margin, 4)),
          html("span", {}, html("i", {}, "loss"), shown(each.loss)),
          html("span", {}, html("i", {}, "starts"), isWeight(state) ? "" : `${counts.get(each.slot) || 0}`),
        ),
      ),
    ),
  );
  const more = now.local.length - list.length;
  text(
    "ranking-note",
    now.ranking === null
      ? "Too many selections to try one by one."
      : !list.length
        ? "No selection is locally optimal here."
        : `${now.local.length} of ${now.ranking.length} separable selections are locally optimal${more > 0 ? `; the first ${list.length} are listed` : ""}.`,
  );
  app.rankingShown = list.length;
}

function take(app, each) {
  app.state.inputs.forEach((input, i) => (input.chosen = [...each.selected[i]]));
  app.state.choose = "hand";
  app.changed("selection");
}
