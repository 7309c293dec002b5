// Elements of the page. Texts are always set as text, never as HTML.
import { make, percent } from "./attention.js";
export { make, percent };

const SMALL = 100;  // pixels; a smaller picture is enlarged, so that its pixels are visible

export const at = id => document.getElementById(id);

// The content of a file of a kind (image, audio or video); null for another kind.
export function makeMedia(parent, kind, name) {
  const tag = { image: "img", audio: "audio", video: "video" }[kind];
  if (!tag) return null;
  const element = make(parent, tag, null, tag === "img" ? { alt: name } : { controls: "", "aria-label": name });
  element.addEventListener("load", () => element.classList.toggle("small", element.naturalWidth < SMALL));
  element.addEventListener("loadedmetadata", () => element.classList.toggle("small", element.videoWidth < SMALL));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

// A part of a drawing.
export function draw(parent, name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

// Characters that change the direction of the text after them, as JSON would write them.
export function plain(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, mark => "\\u" + mark.charCodeAt(0).toString(16));
}
