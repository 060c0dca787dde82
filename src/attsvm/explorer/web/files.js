// Export on request: a link, a picture, the problem as JSON.
import { $ } from "explorer/dom.js";
import { arraysOf } from "explorer/state.js";

const SIZE = 480,
  GAP = 24;
const VARIABLES = ["paper", "ink", "quiet", "line", "other", "bad", "s0", "s1", "s2", "s3", "s4", "s5"];

/** Both planes as one SVG file with its colours and styles. */
export function drawing(app) {
  const root = getComputedStyle(document.documentElement),
    colours = VARIABLES.map((name) => `--${name}:${root.getPropertyValue(`--${name}`).trim()}`).join(";");
  const inner = (node) => node.innerHTML.replaceAll(/ (tabindex|role|aria-[a-z]+)="[^"]*"/g, "");
  const line = (path) => {
    const points = [];
    app.discView.follow(path, (x, y) => points.push(`${x.toFixed(1)},${y.toFixed(1)}`));
    return `<path fill="none" stroke="var(--${path.colour})" stroke-width="${path.width}" stroke-opacity="${path.alpha}" stroke-dasharray="${(path.dash || []).join(" ")}" d="M${points.join("L")}"/>`;
  };
  const paths = [...app.discView.paths(app.discView.lastRecord())]
    .filter(({ last }) => last > 1)
    .map(line)
    .join("");
  const dots = [...app.discView.ends(app.discView.lastRecord())]
    .map(
      ({ x, y, r, colour }) => `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${r}" fill="var(--${colour})"/>`,
    )
    .join("");
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${2 * SIZE + GAP}" height="${SIZE}" viewBox="0 0 ${2 * SIZE + GAP} ${SIZE}" style="${colours};background:var(--paper)" font-family="system-ui, sans-serif">` +
    `<style>${$("drawing").textContent}</style><svg class="plane" width="${SIZE}" height="${SIZE}" viewBox="0 0 ${SIZE} ${SIZE}">${inner($("tokens"))}</svg>` +
    `<svg class="plane" x="${SIZE + GAP}" width="${SIZE}" height="${SIZE}" viewBox="0 0 ${SIZE} ${SIZE}">${paths}${dots}${inner($("disc"))}</svg></svg>`
  );
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
