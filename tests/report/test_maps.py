"""Maps show the text unchanged, shade by attention, underline what decides, and let no data become markup."""

import itertools
import re
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np

from mirrormax.auditing import Reading
from mirrormax.data import Pivot
from mirrormax.report.pages import attention_maps, attention_page, macro, of_tokens

STYLE = files("mirrormax.report").joinpath("templates/maps.css").read_text("utf-8")
REVIEW = Pivot("7", "A fine <b>film</b> & more", 1, "plain", ((2, 6),))
OFFSETS = ((0, 0), (0, 1), (2, 4), (4, 6), (7, 10), (10, 14), (14, 18), (19, 20), (21, 25), (0, 0))
ATTENTION = np.array([0.1, 0.0, 0.3, 0.15, 0.05, 0.1, 0.1, 0.05, 0.05, 0.1])


def reading(attention=ATTENTION, offsets=OFFSETS, prediction=1):
    return Reading(np.asarray(attention), offsets, np.array([end == 0 for _, end in offsets]), prediction)


def spans(html):
    return re.findall(r'<span class="([^"]*)" title="[^"]*">([^<]*)</span>', html)


def text_of(html):
    (inside,) = re.findall(r'<p class="map-text">(.*?)</p>', html, re.S)
    return unescape(re.sub(r"<[^>]*>", "", inside))


class Nesting(HTMLParser):
    """Collects the tags, and refuses those that do not close what was opened last."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_text_is_shown_as_it_is():
    assert text_of(attention_maps([REVIEW], {"one": [reading()]})) == REVIEW.text


def test_a_shade_is_the_root_of_the_share_of_the_texts_attention():
    shown = spans(attention_maps([REVIEW], {"one": [reading()]}))
    levels = [int(re.search(r"shade-(\d)", classes).group(1)) for classes, _ in shown]
    assert levels == [0, 6, 4, 2, 3, 3, 2, 2]  # 9 √(attention / 0.8)


def test_the_pieces_of_decisive_words_and_nothing_else_are_underlined():
    shown = spans(attention_maps([REVIEW], {"one": [reading()]}))
    assert [piece for classes, piece in shown if "pivot" in classes] == ["fi", "ne"]


def test_the_numbers_below_a_map_are_the_pivots_mass_and_what_leaves_the_text():
    html = attention_maps([REVIEW], {"one": [reading()]})
    assert "underlined: 56\xa0% of the text’s attention; [CLS], [SEP]: 20\xa0% of all" in html  # 0.45/0.8, 0.2/1


def test_two_models_stand_side_by_side_with_their_verdicts():
    html = attention_maps([REVIEW], {"first": [reading()], "second": [reading(prediction=0)]})
    assert html.index("first <span>✓ right") < html.index("second <span>✗ wrong")
    assert html.count("<section") == 1


def test_the_model_with_more_attention_on_the_decisive_words_is_said_to_select_better():
    away = np.roll(ATTENTION, 3)
    html = attention_maps([REVIEW], {"first": [reading()], "second": [reading(away)]})
    assert html.index("first <span>✓ right, more on the decisive words") < html.index("second <span>✓ right<")
    assert "more on the decisive words" not in attention_maps([REVIEW], {"first": [reading()], "second": [reading()]})


def test_nothing_from_data_becomes_markup():
    review = Pivot('<i id="x">', REVIEW.text, 0, "<u>", REVIEW.spans)
    page = attention_page([review], {"<script>alert(1)</script>": [reading()]})
    parser = Nesting()
    parser.feed(page)
    assert parser.open == []
    assert not parser.seen & {"script", "b", "i", "u"}
    assert "default-src 'none'" in page


def test_the_page_needs_nothing_from_elsewhere():
    page = attention_page([REVIEW], {"one": [reading()]})
    assert not re.search(r"https?:|url\(|@import|src=|href=", page)


def test_every_shade_has_a_rule():
    used = {f".shade-{level} " for level in range(10)}
    assert all(rule in STYLE for rule in used)


def _luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_every_shade_is_darker_than_the_one_before_and_its_text_readable():
    rules = re.findall(r"\.shade-\d \{ background: (#\w{6});( color: #fff;)? \}", STYLE)
    backgrounds = [_luminance(colour) for colour, _ in rules]
    assert len(rules) == 10
    assert all(a > b for a, b in itertools.pairwise(backgrounds))
    for background, (_, white) in zip(backgrounds, rules, strict=True):
        text = 1.0 if white else _luminance("#1b1f24")
        light, dark = max(text, background), min(text, background)
        assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG AA


def test_tokens_that_share_a_character_do_not_repeat_it():
    review = Pivot("1", "so 🎬 fine", 1, "plain", ((5, 9),))
    offsets = ((0, 0), (0, 2), (3, 4), (3, 4), (5, 9), (0, 0))
    html = attention_maps([review], {"one": [reading(np.full(6, 1 / 6), offsets)]})
    assert text_of(html) == review.text


def test_attention_that_is_all_on_special_tokens_leaves_the_text_white():
    html = attention_maps([REVIEW], {"one": [reading(np.eye(10)[0])]})
    assert {classes.split()[0] for classes, _ in spans(html)} == {"shade-0"}


def test_a_row_of_tokens_is_shaded_as_it_is_and_marked():
    html = macro(
        "maps.html", "shaded", of_tokens(["<a>", "b", "c"], [0.0, 0.5, 1.0], {"selected": [2], "support": [0, 1]})
    )
    assert spans(html) == [("shade-0 support", "&lt;a&gt;"), ("shade-6 support", "b"), ("shade-9 selected", "c")]
    assert re.sub(r"<[^>]*>", "", html) == "&lt;a&gt; b c"
