// Frames of cells as small pictures, all in the same colors.
import { make } from "./elements.js";

const MAX_FRAMES = 6;
// The color map viridis at 0, 1/4, ..., 1, and the color of a missing cell.
const COLORS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], MISSING = [160, 160, 160];

// The last frames of the history, the medians of the next ones, and the true ones if they are known.
export function showFrames(box, { prediction, history = [] }, truth = null) {
  const rows = { history: history.slice(-MAX_FRAMES), forecast: prediction.slice(0, MAX_FRAMES), "true values": (truth ?? []).slice(0, MAX_FRAMES) };
  const cells = Object.values(rows).flat(3).filter(value => value !== null);
  const low = cells.reduce((a, b) => Math.min(a, b), Infinity), high = cells.reduce((a, b) => Math.max(a, b), -Infinity);
  for (const [name, frames] of Object.entries(rows)) {
    if (!frames.length) continue;
    const steps = name === "history" ? `the last ${frames.length}` : `the next ${frames.length}`;
    make(box, "p", `${name}, ${steps} time steps`, { class: "soft" });
    const row = make(box, "div", null, { class: "frames" });
    frames.forEach((frame, i) => drawFrame(row, frame, low, high, `${name} ${i + 1}`));
  }
  const scale = make(box, "p", null, { class: "soft legend" });
  scale.append(String(Number(low.toPrecision(4))));
  make(scale, "i", null, { class: "scale", "aria-hidden": "true" });
  scale.append(String(Number(high.toPrecision(4))));
}

function drawFrame(row, frame, low, high, name) {
  const height = frame.length, width = frame[0].length;
  const canvas = make(row, "canvas", null, { width, height, role: "img", "aria-label": name });
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  frame.flat().forEach((value, i) => {
    const color = value === null ? MISSING : colorAt((value - low) / (high - low || 1));
    pixels.data.set([...color, 255], 4 * i);
  });
  context.putImageData(pixels, 0, 0);
}

function colorAt(share) {
  const position = share * (COLORS.length - 1), i = Math.min(Math.floor(position), COLORS.length - 2);
  return COLORS[i].map((start, k) => start + (position - i) * (COLORS[i + 1][k] - start));
}
