// Which problem is shown: a preset, one of a link or a file, or the visitor's own.
import { $, html } from "explorer/dom.js";
import { INPUTS, TOKENS, completed, read } from "explorer/fields.js";
import { decoded } from "explorer/state.js";

/** The link that an address holds, if it does: it may also name a place on this page. */
function linked(address) {
  const text = new URL(address).hash.slice(1);
  return $(text) ? "" : text;
}

export class Problems {
  constructor(app) {
    this.app = app;
    $("preset").append(...this.groups());
    $("preset").addEventListener("change", ({ target }) => this.visit(this.preset(target.value) || this.own));
    // The event's address: by now the page may have written another one.
    window.addEventListener("hashchange", ({ newURL }) => linked(newURL) !== app.address && this.openLink(newURL));
  }

  /** What the page begins with: its link, what it was written with, or a preset. */
  first(start) {
    if (this.openLink(location.href)) return;
    if (start.inputs && this.open(start, "page")) return;
    this.app.loadPreset(start.preset || this.app.presets[0].id);
  }

  groups() {
    const papers = [...new Set(this.app.presets.map(({ paper }) => paper))];
    return [
      html("option", { value: "", id: "own", disabled: true }, "a problem of your own"),
      ...papers.map((paper) =>
        html(
          "optgroup",
          { label: paper },
          ...this.app.presets
            .filter((each) => each.paper === paper)
            .map(({ id, title }) => html("option", { value: id }, title)),
        ),
      ),
    ];
  }

  /** What a visitor asked for. It ends a tour, and a problem of their own stays in the list of problems. */
  visit(state) {
    if (!this.app.tour.running) this.keep();
    this.app.tour.close();
    this.app.load(state);
  }

  keep() {
    if (!this.app.state || this.app.state.preset) return;
    this.own = this.app.state;
    $("own").disabled = false;
  }

  /** Whether an address holds a problem, which is shown then. */
  openLink(address) {
    const link = linked(address);
    return link !== "" && this.open(decoded(link), "link");
  }

  /** What somebody wrote in a link or a file, with a sentence where it cannot be read; whether there was a problem. */
  open(part, source) {
    const found = read(part);
    if (found) this.visit(found.state);
    if (!found)
      this.app.say(`This ${source} holds no problem: up to ${INPUTS} inputs of up to ${TOKENS} tokens in the plane.`);
    else if (found.wrong.length)
      this.app.say(`This ${source} says what was not expected for ${found.wrong.join(", ")}: the usual is shown.`);
    return found !== null;
  }

  /** The state of a preset, with changes; none where there is no such preset. */
  preset(id, patch = {}) {
    const preset = this.app.presets.find((each) => each.id === id);
    return preset && completed({ ...preset.state, ...patch, preset: id });
  }
}
