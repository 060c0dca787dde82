// Draw the runs on a canvas: the lines and dots that the disc lists, in few strokes.

/** Draw on a canvas of size × size units. view: an object with `paths`, `follow` and `ends`, as the disc. */
export function paint(canvas, size, colours, view, last) {
  const context = canvas.getContext("2d", { alpha: false }), // opaque: the browser need not blend it
    scale = canvas.width / size;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.globalAlpha = 1;
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, size, size);
  context.lineJoin = context.lineCap = "round";
  strokes(context, scale, colours, view, last);
  context.globalAlpha = 1;
  for (const { x, y, r, colour } of view.ends(last)) {
    context.fillStyle = colours[colour];
    context.beginPath();
    context.arc(x, y, r, 0, 7);
    context.fill();
  }
}

/** Consecutive lines of one style are one stroke: sixty-four runs need two or three. */
function strokes(context, scale, colours, view, last) {
  let look = null;
  for (const path of view.paths(last)) {
    const next = `${path.colour} ${path.width} ${path.alpha} ${path.dash || ""}`;
    if (path.last < 2) continue;
    if (next !== look) {
      if (look !== null) context.stroke();
      look = next;
      take(context, scale, colours, path);
      context.beginPath();
    }
    view.follow(path, (x, y, first) => (first ? context.moveTo(x, y) : context.lineTo(x, y)));
  }
  if (look !== null) context.stroke();
}

/** The pen of a line. Lines of one pixel are drawn faster, piece by piece; they are opaque to hide the joints. */
function take(context, scale, colours, { colour, width, alpha, dash = [] }) {
  const hair = width * scale < 1.1,
    ink = colours[colour];
  context.strokeStyle = hair ? `color-mix(in srgb, ${ink} ${100 * alpha}%, ${colours.paper})` : ink;
  context.globalAlpha = hair ? 1 : alpha;
  context.lineWidth = hair ? 0.999 / scale : width;
  context.setLineDash(dash);
}
