// Export on request: a link, a picture, the problem as JSON.
import { $, svg } from "explorer/dom.js";
import { arraysOf } from "explorer/state.js";

const SIZE = 480,
  GAP = 24;
const STYLES = [
  ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap"],
  ["stroke-linejoin", "paint-order", "font-family", "font-size", "font-weight", "text-anchor"],
].flat();

/** An element as it looks on the page. Programs that open SVG files know no variables and few styles: attributes say all. */
function plain(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.cloneNode();
  const looks = getComputedStyle(node);
  if (looks.display === "none") return "";
  const copy = node.cloneNode();
  for (const { name } of [...copy.attributes])
    if (/^(class|style|tabindex|role|aria-.*|data-.*)$/.test(name)) copy.removeAttribute(name);
  if (node.matches("path, circle, rect, line, polygon, text, tspan"))
    for (const style of STYLES) copy.setAttribute(style, looks.getPropertyValue(style));
  copy.append(...[...node.childNodes].map(plain));
  return copy;
}

/** Both planes as one SVG file. */
export function drawing(app) {
  const wide = 2 * SIZE + GAP,
    record = app.discView.lastRecord(),
    colourNamed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const file = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: wide, height: SIZE, viewBox: `0 0 ${wide} ${SIZE}` });
  const plane = (x, ...nodes) => {
    const clipped = svg("svg", { x, width: SIZE, height: SIZE, viewBox: `0 0 ${SIZE} ${SIZE}` });
    clipped.append(...nodes);
    return clipped;
  };
  const lines = [...app.discView.paths(record)]
    .filter(({ last }) => last > 1)
    .map((path) => {
      const points = [];
      app.discView.follow(path, (x, y) => points.push(`${x.toFixed(1)},${y.toFixed(1)}`));
      return svg("path", {
        ...{ fill: "none", stroke: colourNamed(path.colour), "stroke-width": path.width, "stroke-opacity": path.alpha },
        ...{ "stroke-dasharray": (path.dash || ["none"]).join(" "), d: `M${points.join("L")}` },
      });
    });
  const dots = [...app.discView.ends(record)].map(({ x, y, r, colour }) =>
    svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r, fill: colourNamed(colour) }),
  );
  file.append(
    svg("rect", { width: wide, height: SIZE, fill: colourNamed("paper") }),
    plane(0, ...[...$("tokens").childNodes].map(plain)),
    plane(SIZE + GAP, ...lines, ...dots, ...[...$("disc").childNodes].map(plain)),
  );
  return new XMLSerializer().serializeToString(file);
}

/** The SVG file as a PNG picture. */
export async function pixels(app) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing(app))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * (2 * SIZE + GAP), 2 * SIZE];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export const json = (app) => JSON.stringify(arraysOf(app.state, app.now.selected));

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function connect(app) {
  const on = (id, action) => $(id).addEventListener("click", action);
  on("save-png", async () => save(await pixels(app), "attsvm-explorer.png"));
  on("save-svg", () => save(new Blob([drawing(app)], { type: "image/svg+xml" }), "attsvm-explorer.svg"));
  on("save-json", () => save(new Blob([json(app)], { type: "application/json" }), "attsvm-explorer.json"));
  on("share", async () => {
    app.writeAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      app.say("The link is on the clipboard. It holds the whole problem.");
    } catch {
      app.say("The link is in the address bar. It holds the whole problem.");
    }
  });
  on("open", () => $("file").click());
  $("file").addEventListener("change", async ({ target }) => {
    const found = await target.files[0]
      .text()
      .then(JSON.parse)
      .catch(() => null);
    app.problems.open((found && found.explorer) || found, "file");
    target.value = "";
  });
}
