// Small helpers that make elements. Text is always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const make = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

export const draw = (tag, properties = {}, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export const byId = (id) => document.getElementById(id);

export function language(tag) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(tag) ?? tag;
  } catch {
    return tag;
  }
}

// Copies a text, and says on the button whether the browser allowed it.
export async function copy(text, button) {
  const copied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  button.textContent = copied ? "Copied" : "Not copied: the browser does not allow it";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
