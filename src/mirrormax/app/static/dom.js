// Building blocks of the page. Text enters it as text nodes only, so nothing that anybody types is ever markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** An SVG element as plain data; `render` makes it one. `stroke` and `fill` may be colours of the style sheet. */
export const draw = (tag, attributes = {}, ...children) => ({ tag, attributes, children });

const drawn = new WeakMap(); // what each live element was made from
const NOTHING = { attributes: {}, children: [] };

/**
 * Make the children of a live element what is described, and touch nothing that is so already: while p is dragged most
 * of a picture stays, and what a browser need not lay out and paint anew it does quickly.
 */
export function render(parent, children) {
  const old = parent.childNodes;
  children.forEach((child, k) => {
    const live = old[k];
    if (live && fits(live, child)) update(live, child);
    else if (live) live.replaceWith(alive(child));
    else parent.append(alive(child));
  });
  while (old.length > children.length) parent.lastChild.remove();
}

/** The element that is described, anew. */
export function alive(child) {
  if (typeof child === "string") return document.createTextNode(child);
  const element = document.createElementNS(SVG, child.tag);
  update(element, child);
  return element;
}

const fits = (live, child) => (typeof child === "string" ? live.nodeType === Node.TEXT_NODE : live.nodeName === child.tag && drawn.has(live));

function update(live, child) {
  if (typeof child === "string") {
    if (live.data !== child) live.data = child;
    return;
  }
  const before = drawn.get(live) ?? NOTHING;
  if (before === child) return;
  for (const name of Object.keys(before.attributes)) if (!(name in child.attributes)) set(live, name, null);
  for (const [name, value] of Object.entries(child.attributes)) if (before.attributes[name] !== value) set(live, name, value);
  drawn.set(live, child);
  render(live, child.children);
}

function set(live, name, value) {
  if (name === "stroke" || name === "fill") live.style[name] = value ?? ""; // as a style: it outranks that of the class
  else if (value === null) live.removeAttribute(name);
  else live.setAttribute(name, value);
}

/** Put a text into an element, if it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keep a control within reach of the pictures: in the bar below them where these are out of sight of the form. */
export function withinReach(block, bar) {
  const narrow = matchMedia("(max-width: 66rem)");
  const after = block.nextElementSibling;
  const place = () => (narrow.matches ? bar.append(block) : after.before(block));
  narrow.addEventListener("change", place);
  place();
}

/** Show a sentence in an error line, or hide the line. */
export function tell(line, sentence) {
  say(line, sentence ?? "");
  if (line.hidden !== !sentence) line.hidden = !sentence;
}

/** A number with a few digits, as people write it. */
export function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits)));
  const [mantissa, exponent] = value.toExponential(digits - 2).split("e");
  return `${mantissa}·10${superscript(Number(exponent))}`;
}

export const subscript = (whole) => String(whole).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

export function superscript(whole) {
  return String(whole).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
}
