// The start of a page: the description of the model, and the API key if the server needs one.
import { at, plain } from "./elements.js";
import { request } from "./requests.js";

// show: shows the page of a model.
export function connect(show) {
  at("key-form").addEventListener("submit", event => {
    event.preventDefault();
    sessionStorage.setItem("key", at("key").value.trim());
    load(show);
  });
  load(show);
}

async function load(show) {
  let model;
  try {
    model = await request("model");
  } catch (error) {
    return fail(error);
  }
  at("key-form").hidden = true;
  at("name").textContent = plain(model.name || "dxn");
  at("about").textContent = plain(model.about);
  document.title = `${model.name || "model"} · dxn`;
  at("main").hidden = false;
  show(model);
}

function fail(error) {
  if (error.status === 401) {
    at("key-problem").textContent = sessionStorage.getItem("key") ? error.message : "";
    at("key-form").hidden = false;
    at("about").textContent = "";
    at("key").focus();
  } else {
    at("about").textContent = error.message;
  }
}

// Pasted files go to the field that takes them.
export function takeFiles(fieldOf) {
  document.addEventListener("paste", event => {
    const file = event.clipboardData?.files[0];
    const field = file && fieldOf(file);
    if (field) { event.preventDefault(); field.setFile(file); }
  });
  // A file that misses its field would otherwise replace the page.
  for (const kind of ["dragover", "drop"]) document.addEventListener(kind, event => event.preventDefault());
}
