// Charts of series: lines and bands with axes, in the colors of the page.
import { draw, make, plain } from "./elements.js";

const PLOT = 186, ROW = 22, WIDEST = 640, NARROWEST = 240;  // pixels
const LEFT = 46, RIGHT = 14, BOTTOM = 36, MARGIN = 8;  // for the numbers and labels of the axes
const STEPS = "time steps after the end of the history";

// A forecast: the end of its history, the median, and bands between two quantiles. With several channels, one is chosen.
// truth: the true values, null if they are not known.
export function showForecast(box, { quantiles, history = [], channels = [] }, truth = null) {
  const several = Array.isArray(quantiles["0.5"][0]);
  const of = (values, channel) => several ? values.map(value => value[channel]) : values;
  const choose = several ? make(make(box, "label", "channel ", { class: "soft" }), "select", null) : null;
  const place = make(box, "div", null);
  const show = () => {
    const channel = choose ? choose.selectedIndex : 0, levels = Object.keys(quantiles).sort((a, b) => a - b);
    const past = of(history, channel);
    const bands = levels.slice(0, levels.length >> 1).map((low, i) => {
      const high = levels.at(-1 - i);
      return { name: `${Number((100 * low).toFixed(2))}% to ${Number((100 * high).toFixed(2))}%`, low: of(quantiles[low], channel), high: of(quantiles[high], channel), start: 1 };
    });
    const lines = [{ name: "median", kind: "second", values: of(quantiles["0.5"], channel), start: 1 }];
    if (truth) lines.push({ name: "true values", kind: "true", values: of(truth, channel), start: 1 });
    if (past.length) lines.unshift({ name: "history", kind: "past", values: past, start: 1 - past.length });
    place.replaceChildren();
    chart(place, { lines, bands, xLabel: STEPS, yLabel: choose?.value, alt: "forecast with its history and bands of quantiles", now: 0.5 });
  };
  if (several) {
    quantiles["0.5"][0].forEach((_, i) => make(choose, "option", plain(channels[i] ?? String(i + 1))));
    choose.addEventListener("change", show);
  }
  show();
}

// Series as lines by name, each a list of numbers, or of lists with one number per channel: one chart per channel.
export function showSeries(box, byName) {
  const rows = Object.entries(byName).map(([name, values]) => [name, values.map(value => [value].flat())]);
  rows[0][1][0].forEach((_, channel) => {
    const lines = rows.map(([name, values], i) => ({ name, kind: i ? "second" : "first", values: values.map(value => value[channel]), start: 1 }));
    const yLabel = rows[0][1][0].length > 1 ? `channel ${channel + 1}` : "";
    chart(box, { lines, bands: [], xLabel: "time steps", yLabel, alt: "the values of a series over time" });
  });
}

// The values of a series that is written as JSON, or as numbers between spaces; null for a file or another text.
export function rowsOf(text) {
  if (typeof text !== "string") return null;
  try {
    return [JSON.parse(text)].flat();
  } catch {
    const numbers = text.trim().split(/[\s,;]+/).map(Number);
    return numbers.some(Number.isNaN) ? null : numbers;
  }
}

// A chart of lines, bands between two lines, and bars below them: parts of the horizontal axis from a start to a stop.
// step: distance of two values. length: end of the horizontal axis, if it is not that of the lines.
export function chart(box, { lines = [], bands = [], bars = [], xLabel, yLabel = "value", alt, now = null, step = 1, length = null }) {
  const rows = stacked(bars), plot = lines.length + bands.length ? PLOT : 0;
  const bottom = MARGIN + plot, end = bottom + rows.length * ROW, height = end + BOTTOM;
  const width = Math.max(Math.min(box.clientWidth || WIDEST, WIDEST), NARROWEST);
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": alt });
  const all = [...lines.map(({ values }) => values), ...bands.flatMap(({ low, high }) => [low, high])].flat().filter(value => value !== null);
  const [low, high] = limits(all);
  const series = [...lines, ...bands.map(({ low, start }) => ({ values: low, start }))];
  const first = length === null ? Math.min(...series.map(({ start }) => start)) : 0;
  const last = length ?? Math.max(...series.map(({ start, values }) => start + values.length - 1));
  const x = place => LEFT + (width - LEFT - RIGHT) * (place - first) / (last - first || 1);
  const y = value => MARGIN + plot * (high - value) / (high - low);
  for (const value of plot ? ticks(low, high, 5) : []) {
    draw(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" });
    write(svg, short(value), { x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "central" });
  }
  for (const place of ticks(first, last, width < 400 ? 5 : 7).filter(place => Number.isInteger(place / step) || step < 1))
    write(svg, place, { x: x(place), y: end + 16, "text-anchor": "middle" });
  write(svg, xLabel, { x: LEFT + (width - LEFT - RIGHT) / 2, y: height - 4, "text-anchor": "middle" });
  if (plot) write(svg, yLabel, { transform: `translate(10 ${MARGIN + plot / 2}) rotate(-90)`, "text-anchor": "middle" });
  const point = (start, i, value) => `${x(start + i * step).toFixed(1)},${y(value).toFixed(1)}`;
  for (const { low, high, start } of bands) {
    const whole = low.map((value, i) => [value, high[i], i]).filter(([a, b]) => a !== null && b !== null);
    const edges = [...whole.map(([a, , i]) => point(start, i, a)), ...whole.reverse().map(([, b, i]) => point(start, i, b))];
    draw(svg, "polygon", { points: edges.join(" "), class: "band" });
  }
  if (now !== null && first < now) draw(svg, "line", { x1: x(now), x2: x(now), y1: MARGIN, y2: bottom, class: "now" });
  for (const { values, start, kind } of lines) {
    // A missing value ends a line, and the next one starts another.
    const parts = values.map((value, i) => value === null ? "" : `${i && values[i - 1] !== null ? "L" : "M"}${point(start, i, value)}`);
    draw(svg, "path", { d: parts.join(""), class: kind });
  }
  rows.forEach((row, i) => row.forEach(bar => drawBar(svg, bar, x(bar.start), x(Math.min(bar.stop, last)), bottom + i * ROW, plot)));
  legend(box, lines, bands);
  return x;
}

// Bars in rows, so that none covers another one.
function stacked(bars) {
  const rows = [];
  for (const bar of [...bars].sort((a, b) => a.start - b.start)) {
    const row = rows.find(row => row.at(-1).stop <= bar.start);
    row ? row.push(bar) : rows.push([bar]);
  }
  return rows;
}

// Whether a color such as #0072b2 needs white letters.
const isDark = color => [0.3, 0.59, 0.11].reduce((sum, share, i) => sum + share * parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16), 0) < 100;

// A bar with its name if there is room, and its color behind the lines.
function drawBar(svg, { name, title, color, click }, left, right, top, plot) {
  const group = draw(svg, "g", { class: click ? "bar click" : "bar" }), width = Math.max(right - left, 2);
  draw(group, "title", {}).textContent = title;
  if (plot) draw(group, "rect", { x: left, y: MARGIN, width, height: plot, fill: color, class: "behind" });
  draw(group, "rect", { x: left, y: top + 2, width, height: ROW - 3, rx: 3, fill: color });
  if (width > 7 * name.length + 6) write(group, name, { x: left + 4, y: top + ROW / 2 + 1, "dominant-baseline": "central", class: isDark(color) ? "light" : "dark" });
  if (click) group.addEventListener("click", click);
}

function legend(box, lines, bands) {
  if (!lines.some(({ name }) => name)) return;
  const list = make(box, "p", null, { class: "soft legend" });
  for (const { name, kind } of [...lines, ...bands.map(({ name }, i) => ({ name, kind: i ? "band inner" : "band" }))]) {
    const item = make(list, "span", null);
    make(item, "i", null, { class: kind, "aria-hidden": "true" });
    item.append(name);
  }
}

function write(svg, text, attributes) {
  draw(svg, "text", attributes).textContent = text;
}

function limits(values) {
  // Not Math.min(...values), which a long series would overflow.
  const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const margin = 0.05 * (high - low) || Math.abs(high) * 0.1 || 1;  // a constant series has an axis, too
  return values.length ? [low - margin, high + margin] : [0, 1];
}

// Round numbers between two limits, about as many as asked for.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const short = value => Math.abs(value) >= 1e4
  ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 })
  : String(Number(value.toPrecision(4)));
