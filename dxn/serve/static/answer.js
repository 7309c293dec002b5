// The answer of the model: a prediction with its probabilities, a forecast, a vector or a text.
import { make, makeMedia, percent, plain } from "./elements.js";

const MAX_BARS = 10;

// Colors that can be told apart on most pictures (Okabe and Ito), for the labels in turn.
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#ffffff"];
const SVG = "http://www.w3.org/2000/svg";

// values: what the user has entered, by the name of the input.
export function showAnswer(box, result, path, values = {}) {
  box.replaceChildren();
  if (path === "embed") return showVector(box, result);
  const { prediction, probabilities = {}, entities, quantiles, excerpt, objects_in, masks_in, restored_in } = result;
  if (restored_in) {
    showRestored(box, result, values[restored_in]);
  } else if (objects_in) {
    showObjects(box, prediction, values[objects_in]);
  } else if (masks_in) {
    showMask(box, result, values[masks_in]);
  } else if (entities) {
    make(box, "p", entities.length ? "entities:" : "no entities", { class: "soft" });
    const chips = make(box, "div", null, { class: "chips" });
    for (const { text, label } of entities) make(chips, "span", `${text}: ${label}`, { class: "chip", dir: "auto" });
  } else if (typeof prediction === "number") {
    make(box, "p", Number(prediction.toPrecision(6)).toString(), { class: "answer" });
  } else if (excerpt) {
    make(box, "p", prediction, { class: "answer", dir: "auto" });
    const line = make(box, "p", excerpt[0], { class: "answer long", dir: "auto" });
    make(line, "mark", excerpt[1]);
    line.append(excerpt[2]);
  } else if (prediction === "") {
    make(box, "p", "no answer", { class: "soft" });
  } else if (typeof prediction === "string") {
    make(box, "p", prediction, { class: `answer${prediction.length > 60 ? " long" : ""}`, dir: "auto" });
  } else if (Array.isArray(prediction) && prediction.every(item => typeof item === "string")) {
    make(box, "p", prediction.join(", ") || "none", { class: "answer", dir: "auto" });
  }
  bars(box, probabilities);
  if (quantiles) steps(box, quantiles);
  if (result.note) make(box, "p", `Note: ${result.note}.`, { class: "soft" });
  const details = make(box, "details", null);
  make(details, "summary", "the whole answer");
  make(details, "pre", plain(JSON.stringify(result, null, 1)), { tabindex: "0" });
}

// A table of objects, and the picture with their boxes.
function showObjects(box, found, file) {
  if (!found.length) return make(box, "p", "no objects", { class: "soft" });
  const labels = [...new Set(found.map(({ label }) => label))];
  const colorOf = label => COLORS[labels.indexOf(label) % COLORS.length];
  const places = Object.keys(found[0]).filter(key => key !== "label" && key !== "score");
  if (file instanceof Blob && places.length === 4) {
    const frame = make(box, "div", null, { class: "boxes" });
    const picture = make(frame, "img", null, { alt: `the picture with ${found.length} objects` });
    picture.addEventListener("load", () => {
      const { naturalWidth: width, naturalHeight: height } = picture;
      URL.revokeObjectURL(picture.src);
      const svg = draw(frame, "svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
      // The best one last, so that it is on top.
      for (const { label, left, top, right, bottom } of [...found].reverse())
        draw(svg, "rect", { x: left, y: top, width: right - left, height: bottom - top, stroke: colorOf(label) });
    });
    picture.src = URL.createObjectURL(file);
  }
  const table = make(box, "table", null), head = make(table, "tr", null);
  for (const name of ["label", "score", ...places]) make(head, "th", name, { scope: "col" });
  for (const each of found) {
    const row = make(table, "tr", null), name = make(row, "th", null, { scope: "row", dir: "auto" });
    make(name, "span", null, { class: "swatch", "aria-hidden": "true" }).style.background = colorOf(each.label);
    name.append(plain(each.label));
    make(row, "td", percent(each.score));
    for (const place of places) make(row, "td", Number(each[place].toPrecision(4)));
  }
}

// A table of the classes, and the picture under its mask.
function showMask(box, { prediction, mask, values, colors }, file) {
  const frame = make(box, "div", null, { class: "boxes" });
  if (file instanceof Blob) {
    const picture = make(frame, "img", null, { alt: "the picture" });
    picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
    picture.src = URL.createObjectURL(file);
  }
  const over = make(frame, "img", null, { alt: "the mask", class: "mask", src: mask });
  if (grayBits(mask)) over.addEventListener("load", () => { over.src = colored(over, values, colors); }, { once: true });
  const label = make(box, "label", "mask ", { class: "soft" });
  const range = make(label, "input", null, { type: "range", min: 0, max: 100, value: 55 });
  const fade = () => { over.style.opacity = range.value / 100; };
  range.addEventListener("input", fade);
  fade();
  const table = make(box, "table", null), head = make(table, "tr", null);
  for (const name of ["class", "share of the pixels"]) make(head, "th", name, { scope: "col" });
  for (const [name, share] of Object.entries(prediction)) {
    const row = make(table, "tr", null), cell = make(row, "th", null, { scope: "row", dir: "auto" });
    make(cell, "span", null, { class: "swatch", "aria-hidden": "true" }).style.background = colors[name];
    cell.append(plain(name));
    make(row, "td", percent(share));
  }
}

// Number of bits of the levels of gray of a PNG file, which its 25th byte says; 0 if it has colors.
function grayBits(mask) {
  const start = atob(mask.split(",")[1].slice(0, 36));
  return start.charCodeAt(25) ? 0 : start.charCodeAt(24);
}

// A mask with the color of each class instead of its level of gray.
function colored(picture, values, colors) {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  // A canvas has 8 bits: the largest value of the file is 255.
  const byLevel = {}, scale = 255 / (2 ** grayBits(picture.src) - 1);
  for (const [name, value] of Object.entries(values)) byLevel[Math.round(value * scale)] = colors[name];
  for (let i = 0; i < pixels.data.length; i += 4) {
    const color = byLevel[pixels.data[i]];
    if (color) for (let k = 0; k < 3; k++) pixels.data[i + k] = parseInt(color.slice(1 + 2 * k, 3 + 2 * k), 16);
  }
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

// An input of a codec, and beside it what is decoded from its codes.
function showRestored(box, { prediction, num_codes, restored, type }, file) {
  const codes = prediction.flat().length.toLocaleString("en");
  make(box, "p", `${codes} codes, each one of ${num_codes.toLocaleString("en")}`, { class: "soft" });
  if (!type) return make(box, "pre", JSON.stringify(restored), { tabindex: "0" });
  const files = [["decoded", dataUrl(type, restored)]];
  if (file instanceof Blob) files.unshift(["original", URL.createObjectURL(file)]);
  for (const [name, source] of files) {
    const figure = make(box, "figure", null, { class: "preview" });
    // The browser may not know the format of the original.
    showFile(figure, type, source, name).addEventListener("error", () => figure.remove());
    make(figure, "figcaption", name, { class: "soft" });
  }
}

function draw(parent, name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function bars(box, probabilities) {
  const ranked = Object.entries(probabilities).filter(([, share]) => share !== null).sort((a, b) => b[1] - a[1]);
  if (!ranked.length) return;
  const grid = make(box, "div", null, { class: "bars" });
  for (const [name, share] of ranked.slice(0, MAX_BARS)) {
    make(grid, "span", name, { class: "label", dir: "auto" });
    const track = make(grid, "div", null, { class: "track", "aria-hidden": "true" });
    make(track, "div", null, { class: "fill" }).style.width = `${100 * share}%`;
    make(grid, "span", percent(share), { class: "share" });
  }
  if (ranked.length > MAX_BARS) make(box, "p", `and ${(ranked.length - MAX_BARS).toLocaleString("en")} more`, { class: "soft" });
}

function steps(box, quantiles) {
  const table = make(box, "table", null), head = make(table, "tr", null);
  make(head, "th", "step", { scope: "col" });
  for (const name of Object.keys(quantiles)) make(head, "th", `quantile ${name}`, { scope: "col" });
  const columns = Object.values(quantiles);
  columns[0].forEach((_, i) => {
    const row = make(table, "tr", null);
    make(row, "th", i + 1, { scope: "row" });
    for (const column of columns) make(row, "td", [column[i]].flat().map(value => value === null ? "missing" : Number(value.toPrecision?.(5) ?? value)).join(", "));
  });
}

function showVector(box, vector) {
  make(box, "p", `an embedding of ${vector.length} numbers`, { class: "answer long" });
  make(box, "pre", JSON.stringify(vector), { tabindex: "0" });
}

// Returns a function of the events of a stream, which shows texts and files as they appear.
export function showGenerated(box) {
  box.replaceChildren();
  const lines = [];  // one per value
  return ({ index, delta, partial, generated, type, note }) => {
    const line = lines[index] ??= make(box, "p", "", { class: "answer long preview", dir: "auto" });
    const value = generated ?? partial ?? line.textContent + delta;
    if (type) showFile(line, type, dataUrl(type, value), "the created file");
    else line.textContent = typeof value === "string" ? value : JSON.stringify(value);
    if (note) make(box, "p", `Note: ${note}.`, { class: "soft" });
  };
}

const dataUrl = (type, { base64 }) => `data:${type};base64,${base64}`;

function showFile(parent, type, source, name) {
  parent.classList.toggle("tile", type.startsWith("image/"));  // pictures stand side by side
  const element = parent.firstElementChild ?? makeMedia(parent, type.split("/")[0], name);
  element.src = source;
  return element;
}
