// The runs as pixels: the lines and dots that the disc lists, in few strokes.

/** Everything on a canvas of size × size units. view: `paths`, `follow` and `ends` of the disc. */
export function paint(canvas, size, colours, view, last) {
  const context = canvas.getContext("2d", { alpha: false }), // opaque: nothing below it is blended
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

/** Neighbours that look alike are one stroke: of sixty-four runs two or three. */
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

/** The pen of a line. One of a pixel is drawn by a fast road, piece by piece: opaque, or the joints would show. */
function take(context, scale, colours, { colour, width, alpha, dash = [] }) {
  const hair = width * scale < 1.1,
    ink = colours[colour];
  context.strokeStyle = hair ? `color-mix(in srgb, ${ink} ${100 * alpha}%, ${colours.paper})` : ink;
  context.globalAlpha = hair ? 1 : alpha;
  context.lineWidth = hair ? 0.999 / scale : width;
  context.setLineDash(dash);
}
