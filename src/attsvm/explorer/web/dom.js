// Helpers for elements, which are created once and changed only if something differs.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

export function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== false));
  return node;
}

/** Set the attributes that differ from those set last; while dragging these are few. */
export function set(node, attributes) {
  const known = (node.known ??= {});
  for (const name in attributes)
    if (known[name] !== attributes[name]) node.setAttribute(name, (known[name] = attributes[name]));
}

/**
 * Set the shapes of a group, each [tag, attributes, markup inside]. An element whose tag and attributes are unchanged
 * stays, so that the browser parses and lays out only what differs.
 */
export function fill(group, shapes) {
  const nodes = (group.nodes ??= []);
  shapes.forEach(([tag, attributes, inner = ""], k) => {
    const old = nodes[k];
    if (!old || old.localName !== tag || Object.keys(old.known).some((name) => !(name in attributes))) {
      nodes[k] = svg(tag);
      if (old) old.replaceWith(nodes[k]);
      else group.append(nodes[k]);
    }
    set(nodes[k], attributes);
    if ((nodes[k].inner ?? "") !== inner) nodes[k].innerHTML = nodes[k].inner = inner;
  });
  while (nodes.length > shapes.length) nodes.pop().remove();
}

const coarse = matchMedia("(pointer: coarse)");

/** Whether the page is used by finger. */
export const touched = () => coarse.matches;

const FINGER = 20; // pixels: half of what a finger hits

/** The radius of a handle in units of a drawing of `size` units that is `width` pixels wide. */
export const reachOf = (size, width, least) =>
  Math.max(least, touched() && width ? (FINGER * size) / width : 0).toFixed(1);

const boxes = new Map();
for (const event of ["scroll", "resize", "pointerdown"])
  window.addEventListener(event, () => boxes.clear(), { capture: true, passive: true });

/** The place of an element in the window; read once for a drag, because reading may force a layout. */
export function boxOf(node) {
  if (!boxes.has(node)) boxes.set(node, node.getBoundingClientRect());
  return boxes.get(node);
}

/** Set the text of an element if it differs. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
export const text = (id, what) => write($(id), what);

export const escaped = (text) =>
  String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

/** A number as text: 0.25, −3, 1.2e−7, with a true minus sign. */
export function shown(x, digits = 3) {
  if (x === Infinity) return "∞";
  if (!Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e5)
      ? x.toExponential(Math.max(0, digits - 2))
      : String(Number(x.toPrecision(digits)));
  return text.replaceAll("-", "−").replace("e+", "e");
}

const SUPER = { 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹", "-": "⁻" };

/** A power of ten, as text of an axis. */
export const power = (k) => (k === 0 ? "1" : `10${[...String(k)].map((letter) => SUPER[letter]).join("")}`);

export const colourOf = (slot) => (slot === undefined || slot === null ? "var(--other)" : `var(--s${slot % 6})`);

/** Drag by pointer: begin(event) returns whether it takes the pointer; move and end receive the event. */
export function draggable(node, { begin, move, end }) {
  let active = null,
    from = null;
  node.addEventListener("pointerdown", (event) => {
    if (active !== null || event.button > 0 || !begin(event)) return;
    active = event.pointerId;
    from = [event.clientX, event.clientY];
    node.setPointerCapture(active);
    event.preventDefault();
  });
  // A dragging finger must not scroll the page. Only this event can prevent it: browsers ignore `touch-action` on parts
  // of a drawing, and on the whole drawing it would prevent scrolling beside the dragged part, too.
  node.addEventListener("touchstart", (event) => active !== null && event.preventDefault(), { passive: false });
  node.addEventListener("pointermove", (event) => {
    if (event.pointerId === active) move(event, Math.hypot(event.clientX - from[0], event.clientY - from[1]));
  });
  const done = (event) => {
    if (event.pointerId !== active) return;
    active = null;
    end(event);
  };
  node.addEventListener("pointerup", done);
  node.addEventListener("pointercancel", done);
}
