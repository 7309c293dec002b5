// The files of the examples, which the server sends when they are needed.
import { make } from "./elements.js";
import { request } from "./requests.js";

export const pathOf = (index, name) => `examples/${index}/${encodeURIComponent(name)}`;

export const fileOf = (index, name) => request(pathOf(index, name), { binary: true });

// A small picture in place of a text, if the browser knows the format.
export async function thumbnail(text, index, name) {
  const picture = make(text.parentElement, "img", null, { class: "thumbnail", alt: name, hidden: "" });
  picture.addEventListener("load", () => { picture.hidden = false; text.replaceWith(picture); });
  picture.addEventListener("error", () => picture.remove());
  // Without a type, the browser finds out itself how to show it.
  picture.src = URL.createObjectURL(new Blob([await fileOf(index, name)]));
}
