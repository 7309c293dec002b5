// The page of dxn serve for a model that answers in conversations.
import { curlOfBody } from "./code.js";
import { connect, takeFiles } from "./connect.js";
import { at, make, makeMedia, plain } from "./elements.js";
import { fileOf, thumbnail } from "./examples.js";
import { makeField } from "./fields.js";
import { eventsOf } from "./requests.js";

const PATH = "v1/chat/completions";
const NAMES = { user: "You", assistant: "Model", system: "System" };
const NEAR = 80;  // pixels above the end of the page from which new text is followed
const MAX_LINES = 5;  // turns of an example
let model = null;
let fields = [];  // one per file that the model reads
let messages = [];  // the turns so far, in the form of OpenAI's API
let running = null;  // the AbortController of the current request

function start(answer) {
  model = answer;
  const files = model.inputs.filter(input => input.takes_file);
  fields = files.map(input => ({ kind: input.kind, ...makeField(at("fields"), input, () => {}) }));
  model.examples.forEach(addExample);
  update();
  at("question").focus({ preventScroll: true });
}

const partsOf = content => typeof content === "string" ? [{ type: "text", text: content }] : content;
const textOf = content => partsOf(content).map(part => part.text ?? "").join("");

function addExample(example, index) {
  const button = make(at("example-list"), "button", null, { type: "button", class: "example" });
  const turns = [...example.messages, { role: "assistant", content: example.target }];
  if (turns.length > MAX_LINES) make(button, "span", `${turns.length - MAX_LINES} earlier turns`, { class: "line soft" });
  for (const { role, content } of turns.slice(-MAX_LINES)) {
    const line = make(button, "span", null, { class: "line", dir: "auto" });
    make(line, "b", `${NAMES[role]}: `);
    for (const { type, input, text } of partsOf(content)) {
      const part = make(line, "span", plain(text ?? `[${type}] `));
      if (type === "image") thumbnail(part, index, input).catch(() => {});  // the text says what is there
    }
  }
  button.addEventListener("click", () => open(example, index).catch(error => problem(error.message)));
}

// Asks the last question of an example, after its earlier turns.
async function open(example, index) {
  const turns = await Promise.all(example.messages.map(message => withFiles(message, index)));
  reset();
  at("system").value = turns[0].role === "system" ? turns.shift().content : "";
  at("options").open ||= at("system").value !== "";
  const { content } = turns.pop();
  for (const turn of turns) addTurn(turn.role, turn.content);
  messages = turns;
  at("log").focus({ preventScroll: true });  // the button of the example is hidden
  await ask(content, `Answer in the data: ${example.target}`);
}

async function withFiles({ role, content }, index) {
  if (typeof content === "string") return { role, content };
  const parts = content.map(async ({ type, input, text }) => {
    if (!input) return { type, text };
    return { type, url: await dataUrl(await fileOf(index, input)) };
  });
  return { role, content: await Promise.all(parts) };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

// Adds a turn to the page, and returns its element and that of its text.
function addTurn(role, content) {
  const turn = make(at("log"), "article", null, { class: `turn ${role}` });
  make(turn, "h3", NAMES[role]);
  for (const { type, url } of partsOf(content).filter(part => part.url)) {
    const box = make(turn, "div", null, { class: "preview" });
    const element = makeMedia(box, type, type);
    if (element) element.src = url;
    else box.textContent = `[${type}]`;
  }
  const text = make(turn, "div", textOf(content), { class: "text", dir: "auto" });
  if (role === "assistant" && content) addCopy(turn, text);
  follow(true);
  return { turn, text };
}

function addCopy(turn, text) {
  if (!navigator.clipboard) return;  // browsers have it only for this machine and with TLS
  const button = make(turn, "button", "Copy", { type: "button", class: "copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

async function send() {
  const text = at("question").value;
  const files = fields.map(field => ({ type: field.kind, file: field.value() })).filter(({ file }) => file);
  if (running || (!text.trim() && !files.length)) return;
  running = new AbortController();  // so that a second Enter sends nothing while a file is read
  let parts;
  try {
    parts = await Promise.all(files.map(async ({ type, file }) => ({ type, url: await dataUrl(file) })));
  } catch (error) {  // it was removed or changed
    running = null;
    return problem(`The file cannot be read: ${error.message}`);
  }
  at("question").value = "";
  await ask(parts.length ? [...parts, { type: "text", text }] : text);
}

// note: what is shown below the answer. Returns whether there is one.
async function ask(content, note = "") {
  const own = running = new AbortController();
  problem("");
  document.querySelector(".again")?.remove();  // only the last question can be answered again
  const question = addTurn("user", content);
  const answer = addTurn("assistant", "");
  messages.push({ role: "user", content });
  update();
  answer.turn.setAttribute("aria-busy", "true");
  const body = bodyOfRequest();
  at("curl").textContent = curlOfBody(new URL(PATH, location.href).href, body, sessionStorage.getItem("key") !== null);
  let written = "", message = "The model has written an empty answer.";
  try {
    for await (const { choices: [choice] } of eventsOf(PATH, { content: { ...body, stream: true }, signal: own.signal })) {
      const isNear = nearEnd();
      written += choice.delta.content ?? "";
      answer.text.textContent = written;
      if (choice.finish_reason === "length") make(answer.turn, "p", "The answer has reached the maximum number of tokens.", { class: "soft" });
      follow(isNear);
    }
    if (written.trim()) message = "";
  } catch (error) {
    message = error.name === "AbortError" ? "" : error.message;
    if (written && !message) make(answer.turn, "p", "Stopped.", { class: "soft" });
  }
  if (own !== running) return true;  // another conversation has begun
  running = null;
  answer.turn.setAttribute("aria-busy", "false");
  if (written.trim()) {
    messages.push({ role: "assistant", content: written });
    if (note) make(answer.turn, "p", note, { class: "soft", dir: "auto" });
    addCopy(answer.turn, answer.text);
    addAgain(question.turn, answer.turn, note);
  } else {
    // A question without an answer goes back to its field. Templates refuse an empty answer.
    messages.pop();
    question.turn.remove();
    answer.turn.remove();
    at("question").value ||= textOf(content);
  }
  problem(message);
  update();
  return Boolean(written.trim());
}

function addAgain(question, answer, note) {
  const button = make(answer, "button", "Write again", { type: "button", class: "again copy" });
  button.addEventListener("click", async () => {
    if (running) return;
    const old = messages.splice(-2);
    for (const turn of [question, answer]) turn.hidden = true;
    const draft = at("question").value;
    if (await ask(old[0].content, note)) {
      for (const turn of [question, answer]) turn.remove();
      return;
    }
    // Without another answer, the old one stays.
    messages.push(...old);
    for (const turn of [question, answer]) turn.hidden = false;
    answer.append(button);
    at("question").value = draft;
    update();
  });
}

function bodyOfRequest() {
  const system = at("system").value.trim();
  const lead = system ? [{ role: "system", content: system }] : [];
  const inputs = [...document.querySelectorAll("#options input")].filter(input => input.value !== "");
  const options = Object.fromEntries(inputs.map(input => [input.name, Number(input.value)]));
  return { messages: [...lead, ...messages], ...options };
}

function update() {
  const types = messages.flatMap(({ content }) => partsOf(content).map(part => part.type));
  // A conversation can have one file of each type.
  for (const field of fields) field.hide(types.includes(field.kind));
  at("examples").hidden = messages.length > 0 || !model.examples.length;
  at("send").disabled = running !== null;
  at("stop").hidden = running === null;
  at("code").hidden = !at("curl").textContent;
}

function reset() {
  running?.abort();
  running = null;
  messages = [];
  at("log").replaceChildren();
  for (const field of fields) field.clear();
  problem("");
  update();
}

function problem(message) {
  at("problem").textContent = message;
  at("problem").hidden = !message;
}

const nearEnd = () => scrollY + innerHeight > document.documentElement.scrollHeight - NEAR;

// Somebody who has scrolled up reads an earlier turn.
function follow(isNear) {
  if (isNear) scrollTo(0, document.documentElement.scrollHeight);
}

at("form").addEventListener("submit", event => { event.preventDefault(); send(); });
at("question").addEventListener("keydown", event => {
  // While a word is composed, as in Japanese, Enter chooses its letters.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
at("stop").addEventListener("click", () => { running?.abort(); at("question").focus(); });
at("new").addEventListener("click", () => { reset(); at("question").focus(); });
takeFiles(file => fields.find(each => each.accepts(file)));
connect(start);
