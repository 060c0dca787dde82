// The problem of the page: a preset, one of a link or a file, or the user's own.
import { $, html } from "explorer/dom.js";
import { INPUTS, TOKENS, completed, read } from "explorer/fields.js";
import { decoded } from "explorer/state.js";

/** The link in an address, if there is one; an address may also name a place on the page. */
function linked(address) {
  const text = new URL(address).hash.slice(1);
  return $(text) ? "" : text;
}

export class Problems {
  constructor(app) {
    this.app = app;
    $("preset").append(...this.groups());
    $("preset").addEventListener("change", ({ target }) => this.visit(this.preset(target.value) || this.own));
    // Use the address of the event: the page may have written another one since.
    window.addEventListener("hashchange", ({ newURL }) => linked(newURL) !== app.address && this.openLink(newURL));
  }

  /** Load the first problem: that of the link, that of the file, or a preset. */
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

  /** Show a problem that the user requested. This ends a tour, and adds the user's own problem to the list. */
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

  /** Show the problem of an address; returns whether it has one. */
  openLink(address) {
    const link = linked(address);
    return link !== "" && this.open(decoded(link), "link");
  }

  /** Show the problem of a link or a file, and report what cannot be read; returns whether there was a problem. */
  open(part, source) {
    const found = read(part);
    if (found) this.visit(found.state);
    if (!found)
      this.app.say(`This ${source} holds no problem: up to ${INPUTS} inputs of up to ${TOKENS} tokens in the plane.`);
    else if (found.wrong.length)
      this.app.say(`This ${source} says what was not expected for ${found.wrong.join(", ")}: the usual is shown.`);
    return found !== null;
  }

  /** The state of a preset, with changes; undefined for an unknown preset. */
  preset(id, patch = {}) {
    const preset = this.app.presets.find((each) => each.id === id);
    return preset && completed({ ...preset.state, ...patch, preset: id });
  }
}
