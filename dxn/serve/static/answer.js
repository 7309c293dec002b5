// The answer of the model: a prediction with its probabilities, a forecast, a vector or a text.
import { rowsOf, showForecast, showSeries } from "./chart.js";
import { make, makeMedia, percent, plain } from "./elements.js";
import { showFrames } from "./frames.js";
import { showMask, showObjects } from "./marks.js";

const MAX_BARS = 10;

// values: what the user has entered, by the name of the input. kinds: the modality of each input. target: the name of what is
// predicted. truth: the true values of a forecast, null if they are not known.
export function showAnswer(box, result, path, { values, kinds, target, truth }) {
  box.replaceChildren();
  if (path === "embed") return showVector(box, result);
  const { prediction, probabilities = {}, entities, quantiles, excerpt, objects_in, masks_in, restored_in } = result;
  if (restored_in) {
    showRestored(box, result, values[restored_in]);
  } else if (objects_in) {
    showObjects(box, prediction, values[objects_in], kinds[objects_in]);
  } else if (masks_in) {
    showMask(box, result, values[masks_in]);
  } else if (entities) {
    make(box, "p", entities.length ? "entities:" : "no entities", { class: "soft" });
    const chips = make(box, "div", null, { class: "chips" });
    for (const { text, label } of entities) make(chips, "span", `${text}: ${label}`, { class: "chip", dir: "auto" });
  } else if (typeof prediction === "number") {
    make(box, "p", plain(target), { class: "soft" });
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
  if (quantiles) forecast(box, result, truth);
  if (result.note) make(box, "p", `Note: ${result.note}.`, { class: "soft" });
  const details = make(box, "details", null);
  make(details, "summary", "the whole answer");
  make(details, "pre", plain(JSON.stringify(result, null, 1)), { tabindex: "0" });
}

// An input of a codec, and beside it what is decoded from its codes.
function showRestored(box, { prediction, num_codes, restored, type }, file) {
  const codes = prediction.flat().length.toLocaleString("en");
  make(box, "p", `${codes} codes, each one of ${num_codes.toLocaleString("en")}`, { class: "soft" });
  if (!type) {
    const original = rowsOf(file);
    return showSeries(box, { ...(original ? { original } : {}), decoded: restored });
  }
  const files = [["decoded", type, dataUrl(type, restored)]];
  if (file instanceof Blob) files.unshift(["original", file.type || type, URL.createObjectURL(file)]);
  for (const [name, kind, source] of files) {
    const figure = make(box, "figure", null, { class: "preview" });
    // The browser may not know the format of the original.
    showFile(figure, kind, source, name).addEventListener("error", () => figure.remove());
    make(figure, "figcaption", name, { class: "soft" });
  }
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

// A chart or frames, and for few channels the numbers.
function forecast(box, result, truth) {
  if (Array.isArray(result.prediction[0]?.[0])) return showFrames(box, result, truth);
  showForecast(box, result, truth);
  const details = make(box, "details", null);
  make(details, "summary", "the values of each step");
  steps(details, result.quantiles);
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
    const line = lines[index] ??= make(box, "div", "", { class: "answer long preview", dir: "auto" });
    const value = generated ?? partial ?? line.textContent + delta;
    if (type) showFile(line, type, dataUrl(type, value), "the created file");
    else if (typeof value === "string") line.textContent = value;
    else showSeries(line, { created: value });
    if (generated === "") make(box, "p", "The model has written an empty text.", { class: "soft" });
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
