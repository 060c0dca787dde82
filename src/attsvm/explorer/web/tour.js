// A guided tour of seven steps: each shows a problem and says what to try.
import { $, touched } from "explorer/dom.js";

export const STEPS = [
  {
    at: "tokens",
    preset: "one-input-global",
    title: "Attention picks a token",
    text: "Three tokens, one input. A direction p ranks them by height along it, and softmax attention picks the highest. Drag a token",
    mouse: ", or focus it and press the arrow keys.",
    finger: " with your finger.",
  },
  {
    at: "tokens",
    preset: "one-input-global",
    title: "The safest direction",
    text: "The arrow is the max-margin direction: it keeps the picked token (filled) ahead of all others by the widest slab. The ringed tokens touch the slab; only they matter. Move one that is not ringed: nothing happens.",
  },
  {
    at: "disc",
    preset: "one-input-global",
    play: true,
    title: "Training finds it",
    text: "Sixty-four runs of normalised gradient descent start on a small ring. The angle is the direction of p, the radius its length on a logarithmic scale. All of them bend to the wedge on the ring: the program that you have just seen.",
  },
  {
    at: "ranking",
    preset: "one-input-local",
    play: true,
    title: "More than one end",
    text: "One score is lower now, and a second selection is locally optimal: it beats its own support tokens. The starts divide into two basins, blue and orange. Drag the ring’s handle to see who goes where.",
  },
  {
    at: "settings",
    preset: "several-inputs",
    patch: { rule: "sign" },
    play: true,
    title: "The optimizer has a geometry",
    text: "Sign descent measures length by the largest coordinate, so it tends to the l∞ program, not to the l2 one. Try coordinate descent (l1) and mirror descent, and watch the direction turn.",
  },
  {
    at: "settings",
    preset: "law-of-halves",
    play: true,
    title: "And so has what is trained",
    text: "The prompt is a product of factors here, p = k ⊙ q, and steps are taken on k and q. By the law of halves steps in l4 then tend to the l2 program. Slide the optimizer’s p: the direction turns from the axis (p = 2, l1) to the diagonal. Choose p in place of k ⊙ q, and the same steps end elsewhere.",
  },
  {
    at: "charts",
    preset: "one-input-global",
    patch: { usual: true, time: 100000, starts: { points: [[0, 1]] } },
    play: true,
    title: "Past saturation",
    text: "The usual softmax formula cancels to zero once attention saturates, and its run (dashed) stalls. Taken relative to the winning token, in log scale, the gradient goes on: 1 − cosine keeps falling for 100,000 steps.",
  },
];

export class Tour {
  constructor(app) {
    Object.assign(this, { app, step: -1 });
    $("tour").addEventListener("click", () => this.go(0));
    $("tour-next").addEventListener("click", () => this.go(this.step + 1));
    $("tour-back").addEventListener("click", () => this.go(this.step - 1));
    $("tour-end").addEventListener("click", () => this.end());
    $("tour-card").addEventListener("keydown", (event) => event.key === "Escape" && this.end());
  }

  get running() {
    return !$("tour-card").hidden;
  }

  go(step) {
    if (step >= STEPS.length) return this.end();
    if (!this.running) this.begin();
    this.step = Math.max(0, step);
    const { title, text, mouse = "", finger = "", at, preset, patch, play } = STEPS[this.step];
    this.app.loadPreset(preset, patch, play);
    $("tour-count").textContent = `${this.step + 1} of ${STEPS.length}`;
    $("tour-title").textContent = title;
    $("tour-text").textContent = text + (touched() ? finger : mouse);
    $("tour-back").disabled = this.step === 0;
    $("tour-next").textContent = this.step === STEPS.length - 1 ? "Done" : "Next";
    $("tour-card").hidden = false;
    $("tour-card").dataset.beside = at;
    this.mark(at);
    $("tour-next").focus({ preventScroll: true });
    return undefined;
  }

  /** Start the tour, which shows other problems; the current one is restored at its end. */
  begin() {
    this.app.problems.keep();
    this.found = this.app.state;
  }

  /**
   * On a wide page the card is in a corner. On a narrow page it is at the top of its subject, and covers nothing. On a
   * phone the disc is always in view, too small for a card, which then stands above the tokens.
   */
  mark(at) {
    for (const node of document.querySelectorAll(".toured")) node.classList.remove("toured");
    const node = at && document.querySelector(`[data-tour="${at}"]`),
      narrow = matchMedia("(max-width: 1000px)").matches,
      calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!node) return;
    node.classList.add("toured");
    const phone = matchMedia("(max-width: 640px)").matches,
      place = phone && at === "disc" ? document.querySelector('[data-tour="tokens"]') : node;
    (narrow ? place : document.body).prepend($("tour-card"));
    const how = { block: narrow ? "start" : "nearest", behavior: calm ? "auto" : "smooth" };
    requestAnimationFrame(() => place.scrollIntoView(how)); // after the frame that draws the new problem
  }

  /** Restore the problem from before the tour. */
  end() {
    const { found } = this;
    this.close();
    this.app.load(found, false);
    if (!found.preset) this.app.say("Your own problem is back.");
    $("tour").focus({ preventScroll: true });
  }

  close() {
    this.mark(null);
    $("tour-card").hidden = true;
  }
}
