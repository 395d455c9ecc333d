// Building blocks of the page. Text enters it as text nodes only, so nothing that anybody types is ever markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** An SVG element with attributes and children; `stroke` may be a colour of the style sheet. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "stroke") element.style.stroke = value; // as a style: it outranks that of the class
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Show a sentence in an error line, or hide the line. */
export function tell(line, sentence) {
  line.textContent = sentence ?? "";
  line.hidden = !sentence;
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

export function superscript(whole) {
  return String(whole).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
}
