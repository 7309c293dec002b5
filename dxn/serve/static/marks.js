// Objects and masks over their picture, and events over time.
import { draw, make, percent, plain } from "./elements.js";
import { timeline, unitOf } from "./events.js";

// Colors that can be told apart on most pictures (Okabe and Ito), for the labels in turn.
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#ffffff"];
const AREA = 110;  // opacity of the area of an object, from 0 to 255
const PLACES = ["left", "top", "right", "bottom"];

// Objects on their picture, or events over time, and a table. A slider hides those with a low score.
export function showObjects(box, found, value, kind) {
  const isOverTime = kind !== "image", many = isOverTime ? "events" : "objects";
  if (!found.length) return make(box, "p", `no ${many}`, { class: "soft" });
  const labels = [...new Set(found.map(({ label }) => label))];
  const colorOf = label => COLORS[labels.indexOf(label) % COLORS.length];
  const [drawShown, play] = isOverTime ? timeline(box, value, kind, colorOf) : [onPicture(box, found, value, colorOf), null];
  const least = Math.min(...found.map(({ score }) => score)), start = Math.floor(100 * least);
  const [range, output] = slider(box, "minimum score", start, 100, start);
  const rows = objectTable(box, found, colorOf, isOverTime ? unitOf(kind) : "pixels", play);
  const show = () => {
    const shown = found.filter(({ score }) => 100 * score >= Number(range.value));
    found.forEach((each, i) => { rows[i].hidden = !shown.includes(each); });
    output.textContent = `${range.value}%: ${shown.length} of ${found.length} ${many}`;
    drawShown(shown);
  };
  range.addEventListener("input", show);
  show();
}

// Returns a function that draws objects on a picture.
function onPicture(box, found, file, colorOf) {
  if (!(file instanceof Blob)) return () => {};
  const frame = overlay(box, file, `the picture with ${found.length} objects`);
  let shown = [], size = null;  // of the picture, when it is loaded
  const show = objects => {
    shown = objects;
    if (size) drawObjects(frame, size, shown, colorOf);
  };
  frame.firstElementChild.addEventListener("load", ({ target }) => {
    size = [target.naturalWidth, target.naturalHeight];
    show(shown);
  });
  return show;
}

// play: plays an event; null if there is nothing to play.
function objectTable(box, found, colorOf, unit, play) {
  const places = Object.keys(found[0]).filter(key => typeof found[0][key] === "number" && key !== "score");
  const table = make(box, "table", null), head = make(table, "tr", null);
  for (const name of ["label", "score", ...places.map(place => `${place} (${unit})`)]) make(head, "th", name, { scope: "col" });
  return found.map(each => {
    const row = make(table, "tr", null);
    named(row, each.label, colorOf(each.label));
    make(row, "td", percent(each.score));
    for (const place of places) make(row, "td", Number(each[place].toPrecision(4)));
    if (play) make(make(row, "td", null), "button", "Play", { type: "button", class: "copy" }).addEventListener("click", () => play(each));
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

// The picture under its mask, and a table of the classes, each of which can be hidden. If the probabilities of one of two
// classes are known, a slider sets from which one on a pixel belongs to it.
export function showMask(box, { prediction, mask, values, colors, pixel_class, pixel_probabilities }, file) {
  const frame = file instanceof Blob ? overlay(box, file, "the picture") : make(box, "div", null, { class: "boxes" });
  const over = make(frame, "canvas", null, { role: "img", "aria-label": "the mask", class: "mask" });
  const [range, output] = slider(box, "opacity of the mask", 0, 100, 55);
  const fade = () => { over.style.opacity = range.value / 100; output.textContent = `${range.value}%`; };
  range.addEventListener("input", fade);
  fade();
  const threshold = pixel_class ? slider(box, `minimum probability of ${pixel_class}`, 1, 99, 50) : null;
  const table = make(box, "table", null), head = make(table, "tr", null);
  // Black is the usual color of the background, and would darken the picture.
  const hidden = new Set(Object.keys(colors).filter(name => colors[name] === "#000000"));
  for (const name of ["class", "share of the pixels", "shown"]) make(head, "th", name, { scope: "col" });
  // With a threshold, a class that no pixel has can get some.
  const shares = Object.fromEntries((threshold ? Object.keys(colors) : Object.keys(prediction)).map(name => {
    const row = make(table, "tr", null);
    named(row, name, colors[name]);
    const share = make(row, "td", percent(prediction[name] ?? 0));
    const check = make(make(row, "td", null), "input", null, { type: "checkbox", "aria-label": `show ${name}` });
    check.checked = !hidden.has(name);
    check.addEventListener("change", () => { hidden[check.checked ? "delete" : "add"](name); paint(); });
    return [name, share];
  }));
  let paint = () => {};
  const picture = new Image();
  picture.addEventListener("load", () => {
    const pixels = pixelsOf(over, picture);
    const others = Object.keys(colors).filter(name => name !== pixel_class);
    // A level of 128 is the first one of a probability above one half.
    const nameAt = threshold
      ? i => pixels[i] >= 2.56 * threshold[0].value ? pixel_class : others[0]
      : classesOf(pixels, grayBits(mask), values, colors);
    paint = () => {
      const counts = paintMask(over, nameAt, colors, hidden);
      if (!threshold) return;
      threshold[1].textContent = `${threshold[0].value}%`;
      for (const [name, share] of Object.entries(shares)) share.textContent = percent((counts[name] ?? 0) / (over.width * over.height));
    };
    threshold?.[0].addEventListener("input", paint);
    paint();
  });
  picture.src = pixel_probabilities ?? mask;
}

// The pixels of a picture, red, green, blue and opacity, on a canvas of its size.
function pixelsOf(canvas, picture) {
  const context = canvas.getContext("2d", { willReadFrequently: true });
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height).data;
}

// Returns a function from the place of a pixel to the name of its class.
function classesOf(pixels, bits, values, colors) {
  // A canvas has 8 bits: the largest level of gray of the file is 255.
  const keyOf = name => bits ? Math.round(values[name] * 255 / (2 ** bits - 1)) : channels(colors[name]).join();
  const nameOf = new Map(Object.keys(colors).map(name => [keyOf(name), name]));
  return i => nameOf.get(bits ? pixels[i] : pixels.slice(i, i + 3).join());
}

// Draws a mask in the colors of the classes, without those that are hidden, and returns the number of pixels of each.
function paintMask(canvas, nameAt, colors, hidden) {
  const context = canvas.getContext("2d"), drawn = context.createImageData(canvas.width, canvas.height);
  const counts = {}, fill = Object.fromEntries(Object.keys(colors).map(name => [name, [...channels(colors[name]), 255]]));
  for (let i = 0; i < drawn.data.length; i += 4) {
    const name = nameAt(i);
    counts[name] = (counts[name] ?? 0) + 1;
    if (name !== undefined && !hidden.has(name)) drawn.data.set(fill[name], i);
  }
  context.putImageData(drawn, 0, 0);
  return counts;
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
