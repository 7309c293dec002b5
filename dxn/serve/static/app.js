// The page of dxn serve. It has no build step, and uses only files of this server.
import { showAnswer, showGenerated } from "./answer.js";
import { connect, takeFiles } from "./connect.js";
import { curlOf, pythonOf } from "./code.js";
import { at, make, plain } from "./elements.js";
import { fileOf, pathOf, thumbnail } from "./examples.js";
import { makeField } from "./fields.js";
import { eventsOf, request } from "./requests.js";

const OPTIONS = [
  ["temperature", "1", "0 to 5", "0.1"], ["top_p", "", "all", "0.05"], ["top_k", "", "all", "1"], ["seed", "0", "", "1"],
];
const LENGTH = [["max_new", "", "default", "1"]];
const CREATION = [["guidance", "", "default", "0.5"], ["count", "1", "", "1"]];
let model = null;
let options = [];  // the options of the model, as above
let fields = [];
let running = null;  // the AbortController of the current request
let truth = null;  // the true values of the chosen example, if it is a forecast, until an input changes

function start(answer) {
  model = answer;
  fields = model.inputs.map(input => makeField(at("fields"), input, () => { truth = null; update(); }));
  if (model.generates) addOptions();
  at("attend").parentElement.hidden = !attends();
  at("encoder").hidden = !attends() || !model.encoders.length;
  for (const name of model.encoders) make(at("encoder"), "option", plain(`inside the encoder of ${name}`), { value: name });
  model.examples.forEach(addExample);
  at("examples").hidden = !model.examples.length;
  update();
}

// The attention of these models does not belong to one answer.
const attends = () => !model.takes_prompt && !model.creates.length;
const created = () => at("create").value;  // "" for other models

function addOptions() {
  at("options").hidden = false;
  options = [...OPTIONS, ...(model.creates.length ? CREATION : LENGTH)];
  at("create-field").hidden = !model.creates.length;
  for (const name of model.creates) make(at("create"), "option", plain(name), { value: name });
  at("create").value = model.creates.at(-1) ?? "";
  at("create").addEventListener("change", update);
  for (const [name, value, placeholder, step] of options) {
    const label = make(at("option-fields"), "label", `${name} `);
    // A translation or caption is best when it is the most probable text, and not a random one.
    const start = name === "temperature" && attends() ? "0" : value;
    const input = make(label, "input", null, { id: `option-${name}`, type: "number", step, value: start, placeholder, min: "0" });
    input.addEventListener("input", update);
  }
}

function addExample(example, index) {
  const texts = Object.values(example.texts).map(text => text.replace(/^\[+|\]+$/g, ""));  // a series is a list
  // Files alone have no text that tells them apart.
  const number = texts.length ? "" : ` ${index + 1}`;
  const parts = [...texts, ...example.files.map(name => name + number)].join(", ");
  const target = example.target ? ` → ${example.target}` : "";
  const button = make(at("example-list"), "button", null, { type: "button", class: "example" });
  const picture = model.inputs.find(({ name, kind }) => kind === "image" && example.files.includes(name));
  if (picture) thumbnail(make(button, "span", ""), index, picture.name).catch(() => {});
  make(button, "span", plain(shortened(parts, 40)), { dir: "auto", class: "parts" });
  if (target) make(button, "span", plain(target), { class: "target" });
  button.addEventListener("click", async () => {
    for (const field of fields) field.clear();
    try {
      for (const field of fields) {
        // A language model continues the text of an example.
        const name = model.takes_prompt ? Object.keys(example.texts)[0] : field.name;
        if (name in example.texts) field.setText(example.texts[name]);
        else if (example.files.includes(name)) field.setFile(await exampleFile(index, name));
      }
      truth = example.true ?? null;
      await run();
    } catch (error) {
      problem(error);
    }
  });
}

async function exampleFile(index, name) {
  // Without a type, the browser finds out itself how to show it.
  const file = new File([await fileOf(index, name)], `example-${index + 1}-${name}`);
  file.source = new URL(pathOf(index, name), location.href).href;
  return file;
}

// The current request: its path, values by input, and options.
function current() {
  const values = Object.fromEntries(fields.flatMap(field => {
    const value = field.value();
    return value === null ? [] : [[field.name, value]];
  }));
  const chosen = created() ? { create: created() } : {};
  for (const [name] of options) {
    const text = at(`option-${name}`).value;
    if (text !== "") chosen[name] = Number(text);
  }
  const path = model.generates ? "generate" : model.predicts ? "predict" : "embed";
  return { path, values, options: chosen };
}

function update() {
  if (!model) return;
  for (const field of fields) field.hide(field.name === created());
  const { path, values, options } = current();
  const needsKey = sessionStorage.getItem("key") !== null;
  const url = new URL(path, location.href).href;
  const isEmpty = !Object.keys(values).length;
  at("snippets").hidden = isEmpty;
  at("no-snippets").hidden = !isEmpty;
  at("curl").textContent = curlOf(url, values, options, needsKey);
  at("python").textContent = pythonOf(url, values, options, needsKey);
}

async function run() {
  running?.abort();
  const own = running = new AbortController();
  const { path, values, options } = current();
  at("problem").hidden = true;
  at("attention").replaceChildren();
  if (!Object.keys(values).length && !model.takes_prompt) {
    busy(false); // the request before it has been stopped
    problem({ message: "Enter an input first." });
    return;
  }
  if (model.takes_prompt && !("prompt" in values)) values.prompt = "";
  busy(true);
  // On a phone, the answer is below the inputs.
  if (matchMedia("(max-width: 52rem)").matches) at("answer-title").scrollIntoView({ behavior: "smooth" });
  try {
    if (path === "generate") await generate(values, options, own.signal);
    else {
      // For a slider that moves the mask.
      const options = path === "predict" && model.pixel_class ? { pixel_probabilities: true } : {};
      const { results } = await request(path, { values, options, signal: own.signal });
      const kinds = Object.fromEntries(model.inputs.map(({ name, kind }) => [name, kind]));
      showAnswer(at("answer"), results[0], path, { values, kinds, target: String(model.target), truth });
    }
    if (attends() && at("attend").checked && own === running) await attend(values, own.signal);
  } catch (error) {
    if (error.name !== "AbortError") problem(error);
  } finally {
    if (own === running) busy(false);
  }
}

async function generate(values, options, signal) {
  const show = showGenerated(at("answer"));
  for await (const event of eventsOf("generate", { values, options: { ...options, stream: true }, signal }))
    show(event);
}

async function attend(values, signal) {
  const box = at("attention");
  try {
    const encoder = at("encoder").value;
    const { results } = await request("attend", { values, options: encoder ? { encoder } : {}, signal });
    box.replaceChildren();
    make(box, "h3", "What the model attends to");
    make(box, "dxn-attention", null).data = results[0];
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // An answer without attention is no failure: a recurrent model has none.
    box.replaceChildren();
    make(box, "p", error.message, { class: "soft" });
  }
}

function busy(isBusy) {
  at("run").disabled = isBusy;
  at("stop").hidden = !isBusy;
  at("answer").setAttribute("aria-busy", isBusy);
}

function problem(error) {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
  at("answer").replaceChildren();
}

function shortened(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

at("form").addEventListener("submit", event => { event.preventDefault(); run(); });
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  running?.abort();
  for (const field of fields) field.clear();
  at("answer").replaceChildren();
  at("attention").replaceChildren();
  at("problem").hidden = true;
});
// Ctrl+Enter runs the model from a text with several lines.
at("form").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
});
takeFiles(file => fields.find(each => each.accepts(file)));
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(at(button.dataset.copies).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
connect(start);
