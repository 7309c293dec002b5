// Objects and masks over their picture.
import { draw, make, percent, plain } from "./elements.js";

// Colors that can be told apart on most pictures (Okabe and Ito), for the labels in turn.
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#ffffff"];
const AREA = 110;  // opacity of the area of an object, from 0 to 255
const PLACES = ["left", "top", "right", "bottom"];

// Objects on their picture and in a table. A slider hides those with a low score.
export function showObjects(box, found, file) {
  if (!found.length) return make(box, "p", "no objects", { class: "soft" });
  const labels = [...new Set(found.map(({ label }) => label))];
  const colorOf = label => COLORS[labels.indexOf(label) % COLORS.length];
  const frame = file instanceof Blob && "left" in found[0] ? overlay(box, file, `the picture with ${found.length} objects`) : null;
  const least = Math.min(...found.map(({ score }) => score)), start = Math.floor(100 * least);
  const [range, output] = slider(box, "minimum score", start, 100, start);
  const rows = objectTable(box, found, colorOf);
  let size = null;  // of the picture, when it is loaded
  const show = () => {
    const isShown = ({ score }) => 100 * score >= Number(range.value);
    found.forEach((each, i) => { rows[i].hidden = !isShown(each); });
    output.textContent = `${range.value}%: ${found.filter(isShown).length} of ${found.length} objects`;
    if (size) drawObjects(frame, size, found.filter(isShown), colorOf);
  };
  range.addEventListener("input", show);
  frame?.firstElementChild.addEventListener("load", ({ target }) => {
    size = [target.naturalWidth, target.naturalHeight];
    show();
  });
  show();
}

function objectTable(box, found, colorOf) {
  const places = Object.keys(found[0]).filter(key => typeof found[0][key] === "number" && key !== "score");
  const table = make(box, "table", null), head = make(table, "tr", null);
  for (const name of ["label", "score", ...places]) make(head, "th", name, { scope: "col" });
  return found.map(each => {
    const row = make(table, "tr", null);
    named(row, each.label, colorOf(each.label));
    make(row, "td", percent(each.score));
    for (const place of places) make(row, "td", Number(each[place].toPrecision(4)));
    return row;
  });
}

function drawObjects(frame, [width, height], found, colorOf) {
  frame.querySelectorAll("svg, canvas").forEach(element => element.remove());
  const ranked = [...found].reverse();  // the best one last, so that it is on top
  if (ranked.some(({ segmentation }) => segmentation)) drawAreas(frame, [width, height], ranked, colorOf);
  const svg = draw(frame, "svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  for (const { label, ...place } of ranked) {
    const [left, top, right, bottom] = PLACES.map(name => place[name]);
    draw(svg, "rect", { x: left, y: top, width: right - left, height: bottom - top, stroke: colorOf(label) });
  }
}

function drawAreas(frame, [width, height], found, colorOf) {
  const canvas = make(frame, "canvas", null, { width, height, class: "mask", "aria-hidden": "true" });
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  for (const { label, segmentation } of found) {
    if (segmentation?.size.join() !== [height, width].join()) continue;
    const color = [...channels(colorOf(label)), AREA];
    let position = 0;  // column by column
    runsOf(segmentation.counts).forEach((length, i) => {
      for (const end = position + length; position < end; position++)
        if (i % 2) pixels.data.set(color, 4 * ((position % height) * width + Math.floor(position / height)));
    });
  }
  context.putImageData(pixels, 0, 0);
}

// Run lengths from their compressed text, as in COCO: 5 bits per character, the lowest first. From the fourth one on,
// each is the difference to the one two before.
function runsOf(counts) {
  if (typeof counts !== "string") return counts;
  const runs = [];
  let number = 0, shift = 0;
  for (const letter of counts) {
    const bits = letter.charCodeAt(0) - 48;
    number |= (bits & 31) << shift;
    shift += 5;
    if (bits & 32) continue;
    if (bits & 16) number |= -1 << shift;
    runs.push(number + (runs.length > 2 ? runs.at(-2) : 0));
    number = shift = 0;
  }
  return runs;
}

// The picture under its mask, and a table of the classes, each of which can be hidden.
export function showMask(box, { prediction, mask, values, colors }, file) {
  const frame = file instanceof Blob ? overlay(box, file, "the picture") : make(box, "div", null, { class: "boxes" });
  const over = make(frame, "canvas", null, { role: "img", "aria-label": "the mask", class: "mask" });
  const [range, output] = slider(box, "opacity of the mask", 0, 100, 55);
  const fade = () => { over.style.opacity = range.value / 100; output.textContent = `${range.value}%`; };
  range.addEventListener("input", fade);
  fade();
  const hidden = new Set();
  let paint = () => {};
  const picture = new Image();
  picture.addEventListener("load", () => { paint = painter(over, picture, values, colors); paint(hidden); });
  picture.src = mask;
  const table = make(box, "table", null), head = make(table, "tr", null);
  for (const name of ["class", "share of the pixels", "shown"]) make(head, "th", name, { scope: "col" });
  for (const [name, share] of Object.entries(prediction)) {
    const row = make(table, "tr", null);
    named(row, name, colors[name]);
    make(row, "td", percent(share));
    const check = make(make(row, "td", null), "input", null, { type: "checkbox", checked: "", "aria-label": `show ${name}` });
    check.addEventListener("change", () => { hidden[check.checked ? "delete" : "add"](name); paint(hidden); });
  }
}

// Returns a function that draws a mask in the colors of the classes, without those that are hidden.
function painter(canvas, picture, values, colors) {
  const context = canvas.getContext("2d"), bits = grayBits(picture.src);
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  context.drawImage(picture, 0, 0);
  const file = context.getImageData(0, 0, canvas.width, canvas.height);
  // A canvas has 8 bits: the largest level of gray of the file is 255.
  const keyOf = name => bits ? Math.round(values[name] * 255 / (2 ** bits - 1)) : channels(colors[name]).join();
  const nameOf = new Map(Object.keys(colors).map(name => [keyOf(name), name]));
  return hidden => {
    const pixels = new ImageData(new Uint8ClampedArray(file.data), canvas.width);
    for (let i = 0; i < pixels.data.length; i += 4) {
      const name = nameOf.get(bits ? file.data[i] : file.data.slice(i, i + 3).join());
      if (hidden.has(name)) pixels.data[i + 3] = 0;
      else if (name !== undefined) pixels.data.set(channels(colors[name]), i);
    }
    context.putImageData(pixels, 0, 0);
  };
}

// Number of bits of the levels of gray of a PNG file, which its 25th byte says; 0 if it has colors.
function grayBits(mask) {
  const start = atob(mask.split(",")[1].slice(0, 36));
  return start.charCodeAt(25) ? 0 : start.charCodeAt(24);
}

// Red, green and blue of a color such as #800000.
const channels = color => [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16));

function named(row, name, color) {
  const cell = make(row, "th", null, { scope: "row", dir: "auto" });
  make(cell, "span", null, { class: "swatch", "aria-hidden": "true" }).style.background = color;
  cell.append(plain(name));
}

function slider(box, name, min, max, value) {
  const label = make(box, "label", `${name} `, { class: "slider" });
  const range = make(label, "input", null, { type: "range", min, max, value });
  return [range, make(label, "output", "")];
}

// A frame with a picture, over which something is drawn.
function overlay(box, file, alt) {
  const frame = make(box, "div", null, { class: "boxes" });
  const picture = make(frame, "img", null, { alt });
  picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
  picture.src = URL.createObjectURL(file);
  return frame;
}
