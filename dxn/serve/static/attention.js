// The share of each token in the answer, drawn on the inputs. See dxn.viz.drawers.Drawer.page.
import { make, percent } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const MAX_CHIPS = 40;
const SMALL = 100;  // pixels; a smaller picture is enlarged
const STRONGEST = .6;  // opacity of the token with the largest share

export function showAttention(box, { tokens, shares, inputs, note }) {
  box.replaceChildren();
  make(box, "h3", "What the model attends to");
  make(box, "p", "The stronger the color, the larger the share of a token in the answer (attention rollout).", { class: "soft" });
  if (note) make(box, "p", `Note: ${note}.`, { class: "soft" });
  // The columns of a table have one token each, so that they are compared with each other.
  const listed = new Set(inputs.filter(({ kind }) => kind === "list").map(({ name }) => name));
  const largestListed = Math.max(...tokens.map(({ input }, i) => listed.has(input) ? shares[i] : 0));
  for (const input of inputs) {
    const own = tokens.flatMap((token, i) => token.input === input.name ? [{ ...token, share: shares[i] }] : []);
    const total = own.reduce((sum, { share }) => sum + share, 0);
    const largest = Math.max(listed.has(input.name) ? largestListed : 0, ...own.map(({ share }) => share), 1e-9);
    for (const token of own) token.strength = token.share / largest;
    // The shares have four digits, so that their sum is not exactly 1.
    make(box, "h3", `${input.name}: ${percent(Math.round(1000 * total) / 1000)}`);
    const placed = own.filter(({ coords }) => coords?.length);
    const show = input.kind === "characters" ? characters : input.kind === "boxes" ? boxes : null;
    if (show && placed.length) show(box, input, placed);
    else chips(box, own);
  }
}

function characters(box, { text }, tokens) {
  const line = make(box, "div", null, { class: "words", dir: "auto" });
  const letters = Array.from(text);  // coordinates count code points
  const strengths = new Float32Array(letters.length);
  const owner = new Int32Array(letters.length).fill(-1);
  tokens.forEach(({ coords: [start, stop], strength }, i) => {
    for (let k = start; k < Math.min(stop, letters.length); k++) {
      strengths[k] = Math.max(strengths[k], strength);
      owner[k] = i;
    }
  });
  for (let start = 0, stop; start < letters.length; start = stop) {
    for (stop = start + 1; stop < letters.length && owner[stop] === owner[start]; stop++);
    const span = make(line, "span", letters.slice(start, stop).join(""));
    if (owner[start] < 0) continue;
    span.title = percent(tokens[owner[start]].share);
    span.style.background = `rgb(var(--heat) / ${STRONGEST * strengths[start]})`;
  }
}

function boxes(box, { source, sound, width, height, name, x_label }, tokens) {
  const overlay = make(box, "div", null, { class: `overlay${x_label ? " broad" : width < SMALL ? " small" : ""}` });
  make(overlay, "img", null, { src: source, alt: `${name}, colored by attention` });
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  overlay.append(svg);
  for (const { coords: [top, left, bottom, right], share, strength } of tokens) {
    const rect = document.createElementNS(SVG, "rect");
    const values = { x: left, y: top, width: Math.max(right - left, 0), height: Math.max(bottom - top, 0), "fill-opacity": STRONGEST * strength };
    for (const [key, value] of Object.entries(values)) rect.setAttribute(key, value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = percent(share);
    rect.append(title);
    svg.append(rect);
  }
  if (x_label) make(box, "p", `horizontal: ${x_label}`, { class: "soft" });
  if (sound) make(box, "audio", null, { controls: "", src: sound, "aria-label": name });
}

function chips(box, tokens) {
  const list = make(box, "div", null, { class: "chips" });
  for (const { name, share, strength } of [...tokens].sort((a, b) => b.share - a.share).slice(0, MAX_CHIPS)) {
    const chip = make(list, "span", `${name}: ${percent(share)}`, { class: "chip", dir: "auto" });
    chip.style.background = `rgb(var(--heat) / ${STRONGEST * strength})`;
  }
}
