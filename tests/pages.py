"""What a page holds, read as a browser would."""

from html.parser import HTMLParser


class Outline(HTMLParser):
    """Collects tags, attributes and text, and checks that what opens is closed."""

    VOID = ("meta", "img", "br", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.urls, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.urls += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def outline(text):
    parsed = Outline()
    parsed.feed(text)
    assert parsed.open == []
    return parsed


# In a browser: the texts on a page whose contrast with what is painted below them is less than 4.5 to 1.
CONTRAST = """() => {
  const parse = (colour) => {
    const numbers = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(one).backgroundColor);
      layers.push({ rgb, alpha });
      if (alpha === 1) break;
    }
    const over = (below, { rgb, alpha }) => rgb.map((c, k) => alpha * c + (1 - alpha) * below[k]);
    return layers.reduceRight(over, [255, 255, 255]);
  };
  const bad = [];
  for (const element of document.querySelectorAll("main *, footer, header *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg, option, [hidden], :disabled") || !element.checkVisibility()) continue;
    check(element, light(parse(getComputedStyle(element).color).rgb), light(paper(element)));
  }
  for (const text of document.querySelectorAll("main svg text")) {
    if (!text.textContent.trim() || !text.checkVisibility()) continue;
    text.scrollIntoView({ block: "center", inline: "center" });
    const box = text.getBoundingClientRect();
    const shapes = "svg *:not(text)";
    const at = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const below = at.filter((one) => one.matches(shapes));
    const over = (colour, one) => {
      const style = getComputedStyle(one);
      if (style.fill === "none" || !style.fill.startsWith("rgb")) return colour;
      const { rgb, alpha } = parse(style.fill);
      const share = alpha * Number(style.fillOpacity) * Number(style.opacity);
      return rgb.map((c, k) => share * c + (1 - share) * colour[k]);
    };
    const style = getComputedStyle(text);
    const inked = style.paintOrder.startsWith("stroke") && style.stroke.startsWith("rgb");
    const rim = inked && parseFloat(style.strokeWidth) >= 3;
    const paint = rim ? parse(style.stroke).rgb : below.reduceRight(over, paper(text.closest("svg")));
    check(text, light(parse(getComputedStyle(text).fill).rgb), light(paint));
  }
  function check(element, a, b) {
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""
