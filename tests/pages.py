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
