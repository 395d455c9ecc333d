// One scale for attention everywhere, that of the reports: the shade is the root of the share, so that a few percent are
// seen too, from paper at 0 to the strongest shade at 100 %.

const MARKS = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1];

let ramp = null; // colours of the style sheet, of which reading is slow
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  ramp = null;
});

/** The colour of a root of a share, three bytes. */
function colourAt(root) {
  ramp ??= getComputedStyle(document.documentElement).getPropertyValue("--ramp").split(",").map((shade) => shade.trim().split(" ").map(Number));
  const place = Math.min(1, Math.max(0, root)) * (ramp.length - 1);
  const below = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[below].map((value, c) => value + (place - below) * (ramp[below + 1][c] - value));
}

/** Shade an element that holds text by a share of attention; the text takes the ink that is read on it. */
export function shade(element, share) {
  const rgb = colourAt(Math.sqrt(Math.max(0, share)));
  const light = 0.2126 * (rgb[0] / 255) ** 2.2 + 0.7152 * (rgb[1] / 255) ** 2.2 + 0.0722 * (rgb[2] / 255) ** 2.2;
  element.style.backgroundColor = `rgb(${rgb.map(Math.round).join(" ")})`;
  element.style.color = light > 0.18 ? "#1b1f24" : "#ffffff";
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The scale itself. */
export function steps(make) {
  return MARKS.map((share) => {
    const step = make("span", { textContent: `${100 * share} %` });
    shade(step, share);
    return step;
  });
}

/** Bytes or pairs of bytes that came as base64. */
export function unpacked({ values }, bytes = 1) {
  const text = atob(values);
  const stored = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  if (bytes === 1) return stored;
  const view = new DataView(stored.buffer);
  return Uint16Array.from({ length: stored.length / 2 }, (_, k) => view.getUint16(2 * k, true));
}

/** Paint roots of shares, row by row, with the colours of the page as it is now. */
export function paint(canvas, roots) {
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  roots.forEach((root, k) => picture.data.set([...colourAt(root), 255], 4 * k));
  context.putImageData(picture, 0, 0);
}
