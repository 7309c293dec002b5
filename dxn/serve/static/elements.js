// Creation of elements. Texts are always set as text, never as HTML.
export const at = id => document.getElementById(id);

export function make(parent, tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

// Characters that change the direction of the text after them, as JSON would write them.
export function plain(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, mark => "\\u" + mark.charCodeAt(0).toString(16));
}

// One decimal below 10 % and above 99 %. Only exactly 0 and 1 are written as 0% and 100%.
export function percent(share) {
  if (share > 0 && share < .0005) return "<0.1%";
  if (share > .9995 && share < 1) return ">99.9%";
  const isClose = (share > 0 && share < .0995) || (share > .9905 && share < 1);
  return `${(100 * share).toFixed(isClose ? 1 : 0)}%`;
}
