// One scale for attention everywhere: the shade is the root of the share, so that a few percent are seen too.

const MARKS = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1];

/** A background for text, which keeps its colour on every shade. */
export const shade = (share) => `rgb(var(--shade-rgb) / ${Math.sqrt(Math.max(0, share)).toFixed(3)})`;
export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The scale itself. */
export function steps(make) {
  return MARKS.map((share) => {
    const step = make("span", { textContent: `${100 * share} %` });
    step.style.backgroundColor = shade(share);
    return step;
  });
}

/** Bytes or pairs of bytes that came as base64. */
export function unpacked({ values }, bytes = 1) {
  const text = atob(values);
  const found = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  if (bytes === 1) return found;
  const view = new DataView(found.buffer);
  return Uint16Array.from({ length: found.length / 2 }, (_, k) => view.getUint16(2 * k, true));
}

/** Paint roots of shares, row by row, with the colours of the page as it is now. */
export function paint(canvas, roots) {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
  const [paper, full] = [read("--paper-rgb"), read("--shade-rgb")];
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, canvas.height);
  roots.forEach((root, k) => {
    for (let c = 0; c < 3; c += 1) picture.data[4 * k + c] = paper[c] + root * (full[c] - paper[c]);
    picture.data[4 * k + 3] = 255;
  });
  context.putImageData(picture, 0, 0);
}
