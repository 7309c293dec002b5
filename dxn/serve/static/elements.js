// Elements of the page. Texts are always set as text, never as HTML.
export { make, percent } from "./attention.js";

export const at = id => document.getElementById(id);

// Characters that change the direction of the text after them, as JSON would write them.
export function plain(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, mark => "\\u" + mark.charCodeAt(0).toString(16));
}
