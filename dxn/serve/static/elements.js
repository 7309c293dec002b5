// Creation of elements. Texts are always set as text, never as HTML.
export const at = id => document.getElementById(id);

export function make(parent, tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

export const percent = share => `${(100 * share).toFixed(share < .0995 ? 1 : 0)}%`;
