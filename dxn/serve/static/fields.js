// The field of one input: a text, a file, or both.
import { make, makeMedia, plain } from "./elements.js";
import { Recorder } from "./recorder.js";

export function makeField(parent, input, changed) {
  const id = `input-${input.name}`;
  const box = make(parent, "div", null, { class: "field" });
  const label = make(box, "label", plain(input.name), { for: id });
  if (input.column !== input.name) make(label, "span", plain(` (column ${input.column})`), { class: "column" });
  let text = null, picker = null, preview = null, file = null;

  if (input.takes_text) {
    const attributes = input.takes_file ? { placeholder: "numbers, such as 1.5 2 3" } : {};
    text = input.is_short
      ? make(box, "input", null, { id, type: "text", dir: "auto", ...attributes })
      : make(box, "textarea", null, { id, dir: "auto", ...attributes });
    text.addEventListener("input", changed);
    if (input.choices.length) suggest();
  }
  if (input.takes_file) makeDrop();

  // A value that the training did not contain is possible, but it says little to the model.
  function suggest() {
    const known = new Set(input.choices.map(choice => choice.toLowerCase()));
    const list = make(box, "datalist", null, { id: `${id}-choices` });
    for (const choice of input.choices) make(list, "option", null, { value: choice });
    text.setAttribute("list", list.id);
    text.setAttribute("aria-describedby", `${id}-hint`);
    const hint = make(box, "p", "", { id: `${id}-hint`, class: "soft", "aria-live": "polite" });
    text.addEventListener("input", () => {
      const isKnown = !text.value || known.has(text.value.trim().toLowerCase());
      hint.textContent = isKnown ? "" : "None of the known values, so it counts as unknown.";
    });
  }

  function makeDrop() {
    const drop = make(box, "div", null, { class: "drop" });
    const row = make(drop, "div", null, { class: "row" });
    picker = make(row, "input", null, { id: text ? `${id}-file` : id, type: "file", accept: input.accept, "aria-label": `file for ${input.name}` });
    picker.addEventListener("change", () => setFile(picker.files[0] ?? null));
    if (input.accept.startsWith("audio/") && navigator.mediaDevices) addRecorder(row);
    make(row, "span", "or drop or paste a file", { class: "soft" });
    preview = make(drop, "div", null, { class: "preview" });
    drop.addEventListener("dragover", () => drop.classList.add("over"));
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", event => {
      drop.classList.remove("over");
      if (event.dataTransfer.files.length) setFile(event.dataTransfer.files[0]);
    });
  }

  function addRecorder(row) {
    const button = make(row, "button", "Record", { type: "button" });
    const recorder = new Recorder();
    button.addEventListener("click", async () => {
      try {
        if (recorder.isRunning) setFile(await recorder.stop());
        else await recorder.start();
        button.textContent = recorder.isRunning ? "Stop recording" : "Record";
      } catch (error) {
        button.textContent = "Record";
        preview.replaceChildren();
        make(preview, "p", `The microphone cannot be used: ${error.message}`, { class: "problem" });
      }
    });
  }

  function setFile(chosen) {
    file = chosen;
    preview.querySelectorAll("[src]").forEach(element => URL.revokeObjectURL(element.src));
    preview.replaceChildren();
    // The name of an example or of a dropped file is shown next to the button, too.
    const chosenFiles = new DataTransfer();
    if (file) chosenFiles.items.add(file);
    picker.files = chosenFiles.files;
    if (file) show();
    changed();
  }

  function show() {
    // Without a type, the kind of the input tells how to show the file.
    const kind = (file.type || input.accept).split("/")[0];
    const element = makeMedia(preview, kind, `${input.name}: ${file.name}`);
    if (element) {
      // A format that the browser does not know can still be one that the model reads.
      element.addEventListener("error", () => element.remove());
      element.src = URL.createObjectURL(file);
    }
    const row = make(preview, "div", null, { class: "row" });
    make(row, "span", `${file.name}, ${file.size.toLocaleString("en")} bytes`, { class: "soft" });
    const remove = make(row, "button", "Remove", { type: "button" });
    remove.addEventListener("click", () => setFile(null));
  }

  return {
    name: input.name,
    value: () => box.hidden ? null : file ?? (text?.value ? text.value : null),
    hide(isHidden) { box.hidden = isHidden; },
    setText(value) { text.value = value; text.dispatchEvent(new Event("input")); },
    setFile,
    accepts: candidate => !box.hidden && input.takes_file && (!input.accept || candidate.type.startsWith(input.accept.replace("*", ""))),
    clear() {
      if (text) this.setText("");
      if (picker) setFile(null);
      changed();
    },
  };
}
