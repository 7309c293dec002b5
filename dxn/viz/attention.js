// The element <dxn-attention>: the attention of a model on one sample, drawn on its inputs. The data is the JSON of
// dxn.viz.page: a script element inside of the element, or its property `data`. With the weights of blocks and heads
// ("maps", "rollout" or "written"), a click on a token shows what this token attends to.

const STYLE = `
:host { display: block; --back: #ffffff; --ink: #1a202c; --soft: #4a5568; --line: #cbd5e0; --mark: #c05621;
  --zero: 247, 251, 255; --full: 8, 48, 107; color: var(--ink); font: 15px/1.45 system-ui, sans-serif; text-align: left; }
@media screen and (prefers-color-scheme: dark) { :host { --back: #12161d; --ink: #e8edf4; --soft: #a3b0c2; --line: #3b4656;
  --mark: #f6ad55; --zero: 24, 31, 42; --full: 144, 205, 255; } }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
h1 { font-size: 1.35rem; margin: 0 0 .35rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.1rem 0 .35rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; color: var(--soft); font-weight: 600; overflow-wrap: anywhere; }
.plain h3 { font-size: .85rem; margin: .6rem 0 .2rem; }
p { margin: .3rem 0; }
.soft { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.row { display: flex; flex-wrap: wrap; gap: .25rem; align-items: center; margin: .25rem 0; }
.row > b { width: 3.2rem; font-weight: 600; }
button { font: inherit; font-size: .85rem; min-width: 2rem; padding: .1rem .45rem; border: 1px solid var(--line);
  border-radius: 4px; background: transparent; color: var(--ink); cursor: pointer; }
button[aria-pressed=true] { background: var(--mark); border-color: var(--mark); color: var(--back); }
button:disabled { opacity: .4; cursor: default; }
main { display: flex; flex-wrap: wrap; gap: .5rem 3rem; align-items: flex-start; }
#inputs { flex: 1 1 28rem; min-width: 0; max-width: 46rem; }
.plain #inputs { flex: 1 1 100%; }
#encoder { flex: 0 1 38rem; min-width: 0; max-width: 100%; }
#probabilities { border-spacing: 0; margin: .3rem 0 .5rem; font-size: .9rem; font-variant-numeric: tabular-nums; }
#probabilities td { padding: .05rem .8rem .05rem 0; }
#probabilities i { display: block; height: .7rem; background: var(--mark); border-radius: 2px; min-width: 1px; }
#probabilities td:last-child { width: 12rem; }
.plot { display: grid; grid-template-columns: auto auto; grid-template-rows: auto auto; width: max-content; max-width: 100%; overflow-x: auto; }
.map { position: relative; border: 1px solid var(--line); cursor: crosshair; }
.map canvas { display: block; width: 100%; height: 100%; image-rendering: pixelated; }
.map i { position: absolute; pointer-events: none; background: var(--line); }
.map .chosen { background: none; border: 2px solid var(--mark); left: -2px; right: -2px; }
.left, .top { position: relative; font-size: 12px; }
.left span, .top span { position: absolute; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.left span { right: 6px; max-width: 9rem; text-align: right; transform: translateY(-50%); }
.top span { bottom: 6px; max-height: 9rem; writing-mode: vertical-rl; transform: translateX(-50%) rotate(180deg); }
.left .on { color: var(--mark); font-weight: 700; outline: none; }
#heads { display: grid; gap: .3rem; width: max-content; max-width: 100%; overflow-x: auto; align-items: center; justify-items: center;
  font-size: .8rem; color: var(--soft); margin: .4rem 0; padding: 2px; }
#heads button { padding: 0; min-width: 0; line-height: 0; border-radius: 0; }
#heads button[aria-pressed=true] { outline: 2px solid var(--mark); }
#heads canvas { width: 100%; height: 100%; image-rendering: pixelated; }
.words figure { margin: 0; font-size: .85rem; cursor: pointer; }
.words figure.on { outline-offset: 2px; }
.words figcaption { max-width: 7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.characters > div { font-size: 1.1rem; line-height: 2; max-height: 22rem; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.plain .characters > div { font-size: 1rem; line-height: 1.7; max-height: 16rem; }
.characters span, .words span { border-radius: 3px; padding: .15rem 0; }
.words span { padding: .1rem .4rem; border: 1px solid var(--line); font-size: .85rem; overflow-wrap: anywhere; }
.selects span, .selects rect { cursor: pointer; }
.shaded { color: #1a202c; }
.on { outline: 2px solid var(--mark); }
.legend { display: flex; align-items: center; gap: .4rem; color: var(--soft); font-size: .8rem; font-variant-numeric: tabular-nums; margin: .2rem 0 .4rem; }
.legend i { width: 8rem; height: .7rem; border: 1px solid var(--line); border-radius: 2px; }
.pictures { display: flex; flex-wrap: wrap; gap: .6rem; }
.copy { display: block; max-width: 100%; }
.chart { display: grid; grid-template-columns: auto 1fr; max-width: 44rem; padding-right: .8rem; }
.overlay { position: relative; max-width: 100%; line-height: 0; isolation: isolate; overflow: hidden; }
/* The picture in grey, from middle grey to white: the color of the attention multiplies it. */
.overlay img { max-width: 100%; display: block; filter: grayscale(1) contrast(.3334) brightness(1.5); }
.overlay canvas, .overlay svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.overlay canvas { mix-blend-mode: multiply; image-rendering: pixelated; }
.overlay rect { fill: transparent; stroke-width: 2; vector-effect: non-scaling-stroke; }
rect.on { stroke: #1a202c; outline: none; }
.y, .x { position: relative; font-size: 11px; line-height: 1; color: var(--soft); font-variant-numeric: tabular-nums; }
.y { width: 3rem; }
.y span { position: absolute; right: 5px; transform: translateY(-50%); white-space: nowrap; }
.x { height: 1.1rem; }
.x span { position: absolute; top: 4px; transform: translateX(-50%); white-space: nowrap; }
audio { display: block; width: 100%; max-width: 26rem; margin: .3rem 0; height: 2.2rem; }
#reads { font-variant-numeric: tabular-nums; min-height: 3em; }
.plain #reads { min-height: 0; }
`;

const LAYOUT = `<h1 id="heading"></h1><p class="soft" id="about"></p><table id="probabilities"></table><div id="notes" class="soft"></div>
<main><section id="inputs"><h2 id="what" aria-live="polite"></h2><p id="reads"></p><div id="extra" class="row words"></div>
<div id="answer"><h3>words of the answer</h3><div id="answerWords" class="row words"></div><div class="row" id="readerBlocks"><b>block</b></div>
<div class="row" id="readerHeads"><b>head</b></div><p class="soft" id="reader"></p><div id="wordPictures"></div>
<h3>alignment: a row shows what a word of the answer attends to</h3><div class="plot" id="alignment"></div>
<p class="legend"><span>0</span><i class="mapScale"></i><span id="largestAligned"></span></p></div><div id="shown"></div>
<p class="soft" id="help">Click a word, a part of a picture or a row of the map to see what this token attends to; click it again or press
Escape for the whole answer; n and p: next and previous token.</p></section>
<section id="encoder"><h2>Attention between the tokens, head by head</h2><div id="heads"></div>
<p class="soft" id="keys">Each small map is a head; all have the same colors, the square root of the weight. Click one to enlarge it. Arrow keys: up and down
through blocks, left and right through heads; r: rollout.</p><div class="row"><button id="rollout">rollout of all blocks</button></div><h3 id="title"></h3>
<div class="plot" id="plot"></div><p class="legend"><span>0</span><i class="mapScale"></i><span id="largest"></span></p>
<p class="soft">A row shows what its token attends to. The rollout multiplies the maps of all blocks, so it shows which tokens of
the input a token is made of.</p></section></main>`;

const SVG = "http://www.w3.org/2000/svg";
const MAX_LABELS = 40;  // tokens of the matrix that have a label each; with more, only the inputs have labels
const MAX_LISTED = 200;  // tokens in a list; thousands of elements would make the page slow
const MAX_PLAIN = 40;  // tokens in a list without weights of blocks
const COPY = 110;  // pixels of the longer side of the copy of a picture for a word of the answer
const MAX_COPIES = 60;  // words of the answer that have a copy each
const TALL = 180, LOW = 120, LABEL = 11;  // pixels of a chart with and without weights of blocks, and of a label beside it
const SMALL = 128;  // pixels; a smaller picture is enlarged without smoothing

// One decimal below 10 % and above 99 %. Only exactly 0 and 1 are written as 0% and 100%, as in dxn.core.display.
export function percent(share) {
  if (share > 0 && share < .0005) return "<0.1%";
  if (share > .9995 && share < 1) return ">99.9%";
  const isClose = (share > 0 && share < .0995) || (share > .9905 && share < 1);
  return `${(100 * share).toFixed(isClose ? 1 : 0)}%`;
}

export function make(parent, tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

// A style by properties: a policy without inline styles refuses the attribute.
const styled = (element, style) => { Object.assign(element.style, style); return element; };

class Attention extends HTMLElement {
  #data = null;

  set data(value) {
    this.#data = value;
    if (this.isConnected) this.#show();
  }

  connectedCallback() {
    const script = this.querySelector('script[type="application/json"]');
    if (script) this.#data = JSON.parse(script.textContent);
    if (this.#data) this.#show();
  }

  #show() {
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    root.adoptedStyleSheets = [sheet];
    // The layout has no text from data, and parsing it runs nothing.
    root.replaceChildren(...new DOMParser().parseFromString(LAYOUT, "text/html").body.children);
    draw(root, this.#data);
  }
}
customElements.define("dxn-attention", Attention);

function draw(root, data) {
  const at = id => root.getElementById(id);
  const { tokens, colors, depth = 0, heads = 0, heading = {} } = data;
  const n = tokens.length;
  // Tokens are numbered: 0 to n - 1 are the tokens of the inputs, n + i is the i-th token of the answer.
  const answerNames = data.written?.names ?? [];
  const selects = Boolean(data.rollout || data.written);
  // With several inputs, the name of a token contains its input.
  const inputNames = new Set(tokens.map(({ input }) => input));
  const fullName = ({ name, input }) => inputNames.size > 1 && !name.startsWith(input) ? `${input}: ${name}` : name;
  const nameOf = token => token < n ? fullName(tokens[token]) : answerNames[token - n];
  const kindOf = Object.fromEntries(data.inputs.map(({ name, kind }) => [name, kind]));
  const wholeShares = Float32Array.from(data.shares);  // of all tokens in the answer
  for (const box of root.children) box.classList.add(selects ? "selects" : "plain");

  // The weights

  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

  // Decode weights: one byte per weight, relative to the largest weight of its row.
  function unpacked({ steps, largest }) {
    const scale = new Float32Array(bytes(largest).buffer);
    return Float32Array.from(bytes(steps), (step, i) => step / 255 * scale[Math.floor(i / n)]);
  }

  // Decoding is slow, so the results are cached.
  const cache = new Map();
  function cached(key, compute) {
    if (!cache.has(key)) cache.set(key, compute());
    return cache.get(key);
  }

  // The mean of the maps of a block or of all, and of a head or of all.
  function meanOf(maps, blocks, heads, block, head) {
    const selected = (choice, count) => choice < count ? [choice] : Array.from({ length: count }, (_, i) => i);
    const chosen = selected(block, blocks).flatMap(i => selected(head, heads).map(k => unpacked(maps[i * heads + k])));
    const mean = new Float32Array(chosen[0].length);
    for (const map of chosen) map.forEach((weight, i) => { mean[i] += weight / chosen.length; });
    return mean;
  }

  // The weights (n, n) of the selected block and head, row by row. Without heads, the maps are means over them.
  const weights = () => view.rollout ? cached("rollout", () => unpacked(data.rollout))
    : cached(`${view.block} ${view.head}`, () => meanOf(data.maps, depth, heads || 1, view.block, view.head));

  const decoder = { depth: data.written?.depth ?? 0, heads: data.written?.heads ?? 0 };
  // The cross-attention weights of the answer for the selected block and head of the decoder, row by row.
  const answerWeights = () => cached(`answer ${view.readerBlock} ${view.readerHead}`,
    () => meanOf(data.written.maps, decoder.depth, decoder.heads, view.readerBlock, view.readerHead));

  // The weights of a token on the tokens of the inputs. null: its attention is not in the data.
  function rowOf(token) {
    if (token >= n) return answerWeights().subarray((token - n) * n, (token - n + 1) * n);
    return data.rollout ? weights().subarray(token * n, token * n + n) : null;
  }

  // The selection. A head index that equals the number of heads selects their mean, and readerBlock === decoder.depth
  // selects the mean of all blocks. `pinned` is the clicked token, `pointed` is the token under the mouse.
  const view = {
    readerBlock: decoder.depth, readerHead: decoder.heads,
    block: Math.max(depth - 1, 0), head: heads, rollout: true, pinned: null, pointed: null,
  };
  const chosen = () => view.pointed ?? view.pinned;

  // Colors

  const stops = colors.map(color => [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16)));
  // The color of a share, 0 to 1 of the scale. Black text is readable on all of them.
  function heat(share) {
    const position = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(position), stops.length - 2);
    return `rgb(${stops[i].map((from, k) => Math.round(from + (position - i) * (stops[i + 1][k] - from))).join(", ")})`;
  }
  const heatBar = `linear-gradient(to right, ${colors.join(", ")})`;
  const rgb = name => getComputedStyle(root.host).getPropertyValue(name).split(",").map(Number);

  // Pointing at the element shows its token, clicking it pins the token. `token` may be a function of the mouse event.
  function follow(element, token) {
    if (!selects) return;
    const tokenOf = event => typeof token === "function" ? token(event) : token;
    element.addEventListener("mouseenter", event => { view.pointed = tokenOf(event); mark(); });
    element.addEventListener("mouseleave", () => { view.pointed = null; mark(); });
    element.addEventListener("click", event => { view.pinned = view.pinned === tokenOf(event) ? null : tokenOf(event); mark(); });
  }

  // The heading
  at("heading").textContent = heading.answer ? `answer: ${heading.answer}` : "What the model attends to";
  at("heading").hidden = !data.heading;
  at("about").textContent = [heading.sample, heading.model && `model: ${heading.model}`].filter(Boolean).join("; ");
  for (const [name, share] of heading.probabilities ?? []) {
    const line = make(at("probabilities"), "tr", null);
    make(line, "td", name, { dir: "auto" });
    styled(make(line, "td", percent(share)), { textAlign: "right" });
    styled(make(make(line, "td", null), "i", null), { width: `${(100 * share).toFixed(1)}%` });
  }
  for (const note of [heading.note, data.note && `Note: ${data.note}.`, ...data.notes ?? []].filter(Boolean)) make(at("notes"), "p", note);
  for (const id of ["what", "help"]) at(id).hidden = !selects;

  // The buttons of the decoder: one for each block or head, and a last one for all of them.
  function buttons(row, count, all, change) {
    return Array.from({ length: count + 1 }, (_, i) => {
      const button = make(at(row), "button", i === count ? all : i + 1);
      button.addEventListener("click", () => choose(change(i)));
      return button;
    });
  }
  const readerBlockButtons = buttons("readerBlocks", decoder.depth, "mean of all", i =>
    i === decoder.depth ? { readerBlock: i, readerHead: decoder.heads } : { readerBlock: i });
  const readerHeadButtons = buttons("readerHeads", decoder.heads, "mean", i => ({ readerHead: i }));
  at("readerBlocks").hidden = decoder.depth < 2 && decoder.heads < 2;
  at("readerHeads").hidden = decoder.heads < 2;
  for (const id of ["heads", "keys", "rollout"]) at(id).hidden = !depth;
  at("rollout").addEventListener("click", () => choose({ rollout: !view.rollout }));
  at("encoder").hidden = !data.rollout;
  at("answer").hidden = !answerNames.length;

  function choose(change) {
    Object.assign(view, change);
    redraw();
  }

  function keep(token) {
    Object.assign(view, { pinned: token, pointed: null });
    mark();
  }

  if (selects) document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const all = n + answerNames.length;
    const go = {
      ArrowUp: () => depth && choose({ block: (view.block + depth - 1) % depth, rollout: false }),
      ArrowDown: () => depth && choose({ block: (view.block + 1) % depth, rollout: false }),
      ArrowLeft: () => depth && choose({ head: (view.head + heads) % (heads + 1), rollout: false }),
      ArrowRight: () => depth && choose({ head: (view.head + 1) % (heads + 1), rollout: false }),
      r: () => depth && choose({ rollout: !view.rollout }),
      n: () => keep(((view.pinned ?? -1) + 1) % all),
      p: () => keep(((view.pinned ?? 0) + all - 1) % all),
      Escape: () => keep(null),
    }[event.key];
    if (!go) return;
    event.preventDefault();
    go();
  });

  // The maps of weights

  const spans = [];
  tokens.forEach(({ input }, i) => {
    const last = spans[spans.length - 1];
    if (last && last.input === input) last.stop = i + 1;
    else spans.push({ input, start: i, stop: i + 1 });
  });
  const room = Math.min(440, Math.max(240, document.documentElement.clientWidth - 200));
  const side = n <= MAX_LABELS ? Math.min(28, Math.max(14, Math.floor(room / n))) * n : room;
  // The labels of the tokens of the inputs, and their places in tokens. Many tokens have the names of their inputs.
  const inputLabels = n <= MAX_LABELS ? tokens.map(({ name }, i) => ({ name, place: i + .5, token: i }))
    : spans.map(({ input, start, stop }) => ({ name: input, place: (start + stop) / 2 }));

  // Fill the pixels of a map with weights; `curve` changes weights relative to the largest one.
  function paint(canvas, values, largest, curve = share => share) {
    const zero = rgb("--zero"), full = rgb("--full"), pixels = new ImageData(canvas.width, canvas.height);
    values.forEach((weight, i) => {
      const share = largest ? curve(weight / largest) : 0;
      for (let k = 0; k < 3; k++) pixels.data[4 * i + k] = zero[k] + share * (full[k] - zero[k]);
      pixels.data[4 * i + 3] = 255;
    });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  const largestOf = values => values.reduce((a, b) => Math.max(a, b), 0);

  // Make a map in `plot` with a row for each of `count` tokens from `first` on, and a column for each token of the inputs.
  // `values` returns the weights that it shows. The result paints them, and marks the row of a token (null: none).
  function makeMap(plot, first, count, height, rowLabels, values) {
    make(plot, "div", null);
    const [top, left, map] = ["top", "left", "map"].map(name => make(plot, "div", null, { class: name }));
    const canvas = make(map, "canvas", null), band = make(map, "i", null, { class: "chosen", hidden: "" });
    const row = height / count;
    const longest = labels => `${Math.min(Math.max(...labels.map(({ name }) => name.length)) * 8 + 14, 150)}px`;
    canvas.width = n;
    canvas.height = count;
    styled(map, { width: `${side + 2}px`, height: `${height + 2}px` });
    styled(top, { width: `${side + 2}px`, height: longest(inputLabels) });
    styled(left, { width: longest(rowLabels) });
    for (const { name, place } of inputLabels) styled(make(top, "span", name, { dir: "auto" }), { left: `${place * side / n + 1}px` });
    for (const { start } of spans.slice(1)) {
      styled(make(map, "i", null), { top: 0, bottom: 0, width: "1px", left: `${start * side / n}px` });
      if (!first) styled(make(map, "i", null), { left: 0, right: 0, height: "1px", top: `${start * row}px` });
    }
    for (const { name, place, token } of rowLabels) {
      const label = styled(make(left, "span", name, { dir: "auto" }), { top: `${place * row + 1}px` });
      if (token === undefined) continue;
      follow(label, token);
      marked.push([label, [token]]);
    }
    const indexAt = (offset, size, all) => Math.min(all - 1, Math.max(0, Math.floor(offset / size * all)));
    const tokenAt = event => first + indexAt(event.offsetY, canvas.clientHeight, count);
    follow(canvas, tokenAt);
    canvas.addEventListener("mousemove", event => {
      const token = tokenAt(event), column = indexAt(event.offsetX, canvas.clientWidth, n);
      canvas.title = `${nameOf(token)} attends to ${tokens[column].name}: ${percent(values()[(token - first) * n + column])}`;
      if (view.pointed !== token) { view.pointed = token; mark(); }
    });
    return {
      paint: () => paint(canvas, values(), largestOf(values())),
      mark: token => {
        band.hidden = token === null || token < first || token >= first + count;
        if (!band.hidden) Object.assign(band.style, { top: `${(token - first) * row - 2}px`, height: `${row + 4}px` });
      },
    };
  }

  const marked = [];  // pairs of an element and the tokens that it shows
  const maps = [];
  if (data.rollout) maps.push(makeMap(at("plot"), 0, n, side, inputLabels, weights));
  if (answerNames.length) {
    const labels = answerNames.map((name, i) => ({ name, place: i + .5, token: n + i }));
    maps.push(makeMap(at("alignment"), n, labels.length, 18 * labels.length, labels, answerWeights));
  }

  // A small map for each block and head, and for the mean over the heads of a block.
  const smallMaps = [];
  const size = Math.max(32, Math.min(72, Math.floor(room / (heads + 1))));
  at("heads").style.gridTemplateColumns = `repeat(${heads + 2}, auto)`;
  for (const name of depth ? ["", ...Array.from({ length: heads }, (_, head) => `head ${head + 1}`), "mean"] : []) make(at("heads"), "span", name);
  for (let block = 0; block < depth; block++) {
    make(at("heads"), "span", `block ${block + 1}`);
    for (let head = 0; head <= heads; head++) {
      const name = `block ${block + 1}, ${head === heads ? "mean of the heads" : `head ${head + 1}`}`;
      const button = make(at("heads"), "button", null, { "aria-label": name });
      const canvas = styled(make(button, "canvas", null), { width: `${size}px`, height: `${size}px` });
      canvas.width = canvas.height = n;
      button.addEventListener("click", () => choose({ block, head, rollout: false }));
      smallMaps.push({ block, head, name, button, canvas });
    }
  }

  function paintSmallMaps() {
    const all = smallMaps.map(({ block, head }) => meanOf(data.maps, depth, heads || 1, block, head));
    // At least three times the weight of uniform attention, which has a light color then.
    const largest = Math.max(3 / n, ...all.map(largestOf));
    smallMaps.forEach(({ canvas }, i) => paint(canvas, all[i], largest, Math.sqrt));
  }

  function redraw() {
    drawReaders();
    for (const map of maps) map.paint();
    for (const scale of root.querySelectorAll(".mapScale"))
      scale.style.background = `linear-gradient(to right, rgb(${rgb("--zero").join(", ")}), rgb(${rgb("--full").join(", ")}))`;
    const isChosen = ({ block, head }) => !view.rollout && block === view.block && head === view.head;
    for (const map of smallMaps) map.button.setAttribute("aria-pressed", isChosen(map));
    at("rollout").setAttribute("aria-pressed", view.rollout);
    at("title").textContent = smallMaps.find(isChosen)?.name ?? "rollout of all blocks";
    if (data.rollout) at("largest").textContent = percent(largestOf(weights()));
    mark();
  }

  function drawReaders() {
    const { readerBlock, readerHead } = view, all = readerBlock === decoder.depth;
    readerBlockButtons.forEach((button, i) => button.setAttribute("aria-pressed", i === readerBlock));
    readerHeadButtons.forEach((button, i) => {
      button.setAttribute("aria-pressed", i === readerHead);
      button.disabled = all && i < decoder.heads;
    });
    const head = readerHead === decoder.heads ? "the mean of its heads" : `head ${readerHead + 1}`;
    at("reader").textContent = "Cross-attention of the answer: "
      + (all ? "the mean of all blocks and heads of the decoder." : `block ${readerBlock + 1} of the decoder, ${head}.`);
    if (answerNames.length) at("largestAligned").textContent = percent(largestOf(answerWeights()));
    for (const show of wordPictures) show();
  }

  // The inputs

  // Functions that shade an element. `mark` calls them with the weights of the current token, relative to the largest
  // one on each input.
  const shaders = [];
  const answerParts = answerNames.map((name, i) => {
    const part = make(at("answerWords"), "span", name, { dir: "auto" });
    follow(part, n + i);
    marked.push([part, [n + i]]);
    return part;
  });
  const withPlaces = new Set(tokens.filter(({ coords }) => coords).map(({ input }) => input));
  // Tokens that are shown as a list, because they have no coordinates or their kind of input has no picture.
  const extras = tokens.flatMap(({ coords, input }, i) => !coords || (kindOf[input] ?? "list") === "list" ? [i] : []);
  // Without weights of blocks, the list tells the shares, largest first.
  if (!selects) extras.sort((a, b) => data.shares[b] - data.shares[a]);
  for (const i of extras.slice(0, selects ? MAX_LISTED : MAX_PLAIN))
    shade(make(at("extra"), "span", selects ? tokens[i].name : `${tokens[i].name}: ${percent(data.shares[i])}`, { dir: "auto" }), [i]);
  if (!selects && extras.length > MAX_PLAIN) make(at("extra"), "span", `and ${extras.length - MAX_PLAIN} more`);

  function shade(element, covered) {
    follow(element, covered[0]);
    marked.push([element, covered]);
    element.classList.add("shaded");
    if (!selects) element.title = percent(Math.max(...covered.map(i => data.shares[i])));
    shaders.push(shares => { element.style.background = heat(Math.max(...covered.map(i => shares[i]))); });
  }

  // The scale of the colors of each input, below its name.
  const legends = [];

  function section({ name, modality, kind, unit }) {
    const box = make(at("shown"), "div", null, { class: kind });
    const title = make(box, "h3", null), legend = make(box, "p", null, { class: "legend" });
    make(legend, "span", "0");
    styled(make(legend, "i", null), { background: heatBar });
    const most = make(legend, "span", null);
    legends.push({ name, show: (total, end, other) => {
      title.textContent = `${name === modality ? name : `${name} (${modality})`}: ${percent(total)} of the attention`;
      most.textContent = `${percent(end)}${other > end ? " or more" : ""} per ${unit}`;
    } });
    return box;
  }

  function overlay(parent, { source, name }, width, height, style) {
    const box = make(parent, "div", null, { class: "overlay" });
    styled(make(box, "img", null, { src: source, alt: `${name}, colored by attention` }), style);
    // The colors are on a canvas. The boxes above it are invisible, and outlined for the selected token.
    const canvas = make(box, "canvas", null), svg = document.createElementNS(SVG, "svg");
    canvas.width = 640;
    canvas.height = Math.max(Math.round(640 * Math.min(height / width, 2)), 320);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    box.append(svg);
    const all = placed(name), starts = edge => all.map(([, place]) => place[edge]);
    const wideOf = cut(starts(1)), tallOf = cut(starts(0));
    for (const [i, [top, left, bottom, right]] of all) {
      const rect = document.createElementNS(SVG, "rect");
      const place = { x: left, y: top, width: Math.max(wideOf(left, right), 0), height: Math.max(tallOf(top, bottom), 0) };
      for (const [key, value] of Object.entries(place)) rect.setAttribute(key, value);
      if (!selects) rect.append(document.createElementNS(SVG, "title")), rect.firstChild.textContent = percent(data.shares[i]);
      svg.append(rect);
      follow(rect, i);
      marked.push([rect, [i]]);
    }
    shaders.push(shares => colorBoxes(canvas, all, shares, width, height));
  }

  // Fill the boxes of tokens with the colors of their shares.
  function colorBoxes(canvas, boxes, shares, width, height) {
    const pen = canvas.getContext("2d"), across = canvas.width / width, down = canvas.height / height;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    // Where boxes overlap, the one with the largest share is on top.
    for (const [i, [top, left, bottom, right]] of [...boxes].sort(([a], [b]) => shares[a] - shares[b])) {
      const x = Math.round(left * across), y = Math.round(top * down);
      pen.fillStyle = heat(shares[i]);
      pen.fillRect(x, y, Math.max(Math.round(right * across) - x, 1), Math.max(Math.round(bottom * down) - y, 1));
    }
  }

  // Functions that color the copies of a picture for the words of the answer.
  const wordPictures = [];

  // Show a copy of a picture for each word of the answer, with what this word attends to.
  function makeWordPictures({ name, source, width, height, unit }) {
    const boxes = placed(name), scale = COPY / Math.max(width, height);
    const style = { width: `${Math.round(width * scale)}px`, height: `${Math.round(height * scale)}px`, imageRendering: width < SMALL ? "pixelated" : "auto" };
    make(at("wordPictures"), "h3", `what each word of the answer attends to in ${name}`);
    const legend = make(at("wordPictures"), "p", null, { class: "legend" }), row = make(at("wordPictures"), "div", null, { class: "pictures words" });
    make(legend, "span", "0");
    styled(make(legend, "i", null), { background: heatBar });
    const most = make(legend, "span", null);
    const copies = answerNames.slice(0, MAX_COPIES).map((word, i) => {
      const figure = make(row, "figure", null), box = make(figure, "div", null, { class: "overlay" });
      styled(make(box, "img", null, { src: source, alt: `${name}, colored by the attention of ${word}` }), style);
      const canvas = make(box, "canvas", null);
      [canvas.width, canvas.height] = [2 * Math.round(width * scale), 2 * Math.round(height * scale)];
      make(figure, "figcaption", word, { dir: "auto" });
      follow(figure, n + i);
      marked.push([figure, [n + i]]);
      return canvas;
    });
    wordPictures.push(() => {
      const rows = copies.map((_, i) => rowOf(n + i)), shares = rows.flatMap(row => boxes.map(([i]) => row[i]));
      // All copies have the same scale. It reaches at least twice the mean, as that of an input.
      const largest = Math.max(largestOf(shares), 2 * shares.reduce((a, b) => a + b, 0) / shares.length) || 1;
      copies.forEach((canvas, i) => colorBoxes(canvas, boxes, rows[i].map(weight => weight / largest), width, height));
      most.textContent = `${percent(largest)} per ${unit}`;
    });
  }

  // A picture with axes: labels of the vertical one on the left, of the horizontal one below.
  function chart(parent, { width, height, x_ticks, y_ticks, x_label, y_label }) {
    const box = make(parent, "div", null, { class: "chart" });
    const left = make(box, "div", null, { class: "y" }), middle = make(box, "div", null);
    make(box, "div", null);
    const below = make(box, "div", null, { class: "x" });
    // Labels that would cover each other are left out.
    let lowest = Infinity;
    for (const [y, label] of [...y_ticks].sort(([a], [b]) => b - a)) {
      const share = y / height;
      if (lowest - share < LABEL / (selects ? TALL : LOW)) continue;
      lowest = share;
      styled(make(left, "span", label), { top: `${100 * share}%` });
    }
    for (const [x, label] of x_ticks) styled(make(below, "span", label), { left: `${100 * x / width}%` });
    make(parent, "p", `horizontal: ${x_label}${y_label ? `; vertical: ${y_label}` : ""}`, { class: "soft" });
    return middle;
  }

  function placed(name) {
    return tokens.flatMap((token, i) => token.input === name && token.coords ? [[i, token.coords]] : []);
  }

  // The boxes of overlapping patches end at the start of the next one.
  function cut(values) {
    const sorted = [...new Set(values)].sort((a, b) => a - b);
    const next = new Map(sorted.map((value, i) => [value, sorted[i + 1] ?? Infinity]));
    return (start, stop) => Math.min(stop, next.get(start)) - start;
  }

  // One function per kind of input (see `Drawer.page`) that shows the input and places its tokens on it.
  const show = {
    characters(input) {
      const text = make(section(input), "div", null, { dir: "auto" });
      const letters = Array.from(input.text);  // coordinates count code points, not UTF-16 units
      const over = letters.map(() => []);
      for (const [i, [start, stop]] of placed(input.name))
        for (let k = start; k < stop && k < letters.length; k++) over[k].push(i);
      for (let start = 0, stop; start < letters.length; start = stop) {
        for (stop = start + 1; stop < letters.length && String(over[stop]) === String(over[start]);) stop++;
        const part = letters.slice(start, stop).join("");
        if (over[start].length) shade(make(text, "span", part), over[start]);
        else text.append(part);
      }
    },
    boxes(input) {
      const { width, height, name, source, sound, x_ticks = [] } = input, box = section(input);
      if (sound) make(box, "audio", null, { controls: "", src: sound, "aria-label": name });
      if (x_ticks.length) {
        overlay(chart(box, input), input, width, height, { width: "44rem", height: `${selects ? TALL : LOW}px`, imageRendering: "pixelated" });
      } else {
        const most = selects ? 340 : 240, wide = Math.round(Math.min(most, most * width / height));
        const style = { width: `${wide}px`, aspectRatio: `${width} / ${height}`, imageRendering: width < SMALL ? "pixelated" : "auto" };
        const pictures = make(box, "div", null, { class: "pictures" });
        overlay(pictures, input, width, height, style);
        if (selects) styled(make(pictures, "img", null, { src: source, alt: `${name} without attention`, class: "copy" }), style);
        if (answerNames.length) makeWordPictures(input);
      }
    },
    list(input) { section(input); },  // its tokens are in `extras`
  };
  // The cells of a wide table are in one list, so they have one title.
  const listed = data.inputs.filter(({ kind }) => kind === "list");
  for (const input of data.inputs) if (input.kind !== "list" || selects || listed.length === 1) show[input.kind](input);

  // Show the whole answer, or the selected token: what it attends to, and which words of the answer attend to it.
  function mark() {
    const token = chosen(), whole = token === null, reads = whole ? wholeShares : rowOf(token), any = reads !== null;
    const row = reads ?? new Float32Array(n);
    const totals = {}, scaled = {}, others = {};
    tokens.forEach(({ input, coords }, i) => {
      totals[input] = (totals[input] ?? 0) + row[i];
      // Special tokens such as [CLS] often have most of the attention, and would leave the words without color.
      const group = coords || !withPlaces.has(input) ? scaled : others;
      (group[input] ??= []).push(row[i]);
    });
    // The shares have four digits, so that the sum of all of them is not exactly 1.
    for (const name in totals) if (Math.abs(totals[name] - 1) < .0005) totals[name] = 1;
    // Each input has its own scale. It reaches at least twice the mean: if all weights are equal, no token looks important.
    const endOf = values => Math.max(largestOf(values), 2 * values.reduce((a, b) => a + b, 0) / values.length);
    const ends = Object.fromEntries(Object.entries(scaled).map(([name, values]) => [name, endOf(values)]));
    // The columns of a table have one token each, so that they are compared with each other.
    const most = Math.max(...listed.map(({ name }) => largestOf(scaled[name] ?? [])));
    for (const { name } of listed.length > 1 ? listed : []) if (name in ends) ends[name] = most;
    const shares = Float32Array.from(row, (weight, i) => ends[tokens[i].input] ? weight / ends[tokens[i].input] : 0);
    for (const shade of shaders) shade(shares);
    for (const { name, show } of legends) show(totals[name] ?? 0, ends[name] ?? 0, largestOf(others[name] ?? []));
    for (const [element, all] of marked) element.classList.toggle("on", !whole && all.includes(token));
    const readers = answerNames.map((_, i) => !whole && token < n ? answerWeights()[i * n + token] : 0);
    const strongest = Math.max(...readers, 0);
    answerParts.forEach((part, i) => {
      part.style.background = strongest ? heat(readers[i] / strongest) : "";
      part.classList.toggle("shaded", strongest > 0);
    });
    for (const map of maps) map.mark(any ? token : null);
    const noun = heading.reader ?? (heading.answer ? "the answer" : "the model");
    at("what").textContent = whole ? `What ${noun} attends to` : `What “${nameOf(token)}” attends to`;
    const text = at("reads");
    text.replaceChildren();
    if (any) {
      if (inputNames.size > 1) text.append(`${Object.entries(totals).map(([name, total]) => `${name} ${percent(total)}`).slice(0, 12).join(", ")}. `);
      text.append("Most: ");
      list(row, nameOf, 5);
      text.append(whole ? " (share of all attention, rollout of all blocks)." : ".");
    }
    if (strongest) {
      text.append(" Words of the answer that attend to it: ");
      list(readers, i => answerNames[i], 3);
    }
  }

  // List the `most` largest values.
  function list(values, name, most) {
    Array.from(values.keys()).sort((a, b) => values[b] - values[a]).slice(0, most).forEach((i, k) => {
      if (k) at("reads").append(", ");
      // A comma as a token is not one of the list.
      make(at("reads"), "bdi", /[\p{L}\p{N}]/u.test(name(i)) ? name(i) : `“${name(i)}”`);
      at("reads").append(` (${percent(values[i])})`);
    });
  }

  function recolor() {
    paintSmallMaps();
    redraw();
  }

  if (selects) matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  recolor();
}
