/* Elements made of values: texts are set as texts, never parsed. */

const SVG = "http://www.w3.org/2000/svg";

/* An element. Attributes: `on` holds listeners by event, null and false are left out; children are nodes or texts. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.flat().filter(child => child !== null && child !== undefined));
  return made;
}

export const part = id => document.getElementById(id);

/* A figure with its name, and what is under it: texts or nodes. */
export function tile(name, value, ...under) {
  const long = String(value).length > 14 ? " long" : "";
  return element(
    "div",
    { class: "tile" + long },
    element("span", {}, name),
    element("b", {}, value),
    ...under.map(one => (typeof one === "string" ? element("span", {}, one) : one)),
  );
}

export function button(text, press, attributes = {}) {
  return element("button", { type: "button", class: "plain", on: { click: press }, ...attributes }, text);
}

/* Do some work once at a time. The button keeps the focus meanwhile, which one that is disabled would lose. */
export async function alone(press, work) {
  if (press.getAttribute("aria-disabled") === "true") return;
  press.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    press.removeAttribute("aria-disabled");
  }
}

/* A message in place of what was there: `kind` is warning, fault or done. */
export function say(place, kind, text) {
  place.replaceChildren(text === "" ? "" : element("p", { class: kind }, text));
}

/* A select whose options are [value, text]; what was chosen stays chosen where it is still there. */
export function offer(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}
