"""The report stands alone, says what it should, and believes nothing that comes from data."""

import re

import pytest
from pages import outline

from mirrormax.experiments import Comparison, Result
from mirrormax.report.reproduction import reproduction_page as page

EVIL = "<script>alert('x')</script> & \"quoted\" ünïcode"


@pytest.fixture
def result(tmp_path):
    (tmp_path / "fig2.svg").write_text('<svg viewBox="0 0 10 5"><script>evil()</script></svg>')
    return Result(
        name="fig2",
        title="Fig 2: the attention SVM",
        short="Fig 2",
        folder=tmp_path,
        config={"experiment": "fig2", "note": EVIL},
        summary={},
        shows=f"First {EVIL}. Second.",
        comparisons=[
            Comparison(f"quantity {EVIL}", f"published {EVIL}", f"ours {EVIL}", "met", f"why {EVIL}"),
            Comparison("other", "1", "2", "not published"),
        ],
        seconds=1.25,
    )


def test_text_from_data_is_shown_and_never_run(result):
    text = page([result], "quick")
    parsed = outline(text)
    assert "script" not in parsed.tags
    shown = "".join(parsed.texts)
    for part in ("quantity", "published", "ours", "why", "First"):
        assert f"{part} {EVIL}" in shown
    assert "<script>" not in text


def test_the_page_fetches_nothing(result):
    parsed = outline(page([result], "quick"))
    assert parsed.urls
    assert all(url.startswith(("#", "data:")) for url in parsed.urls)
    style = "".join(parsed.texts)
    assert "url(" not in style
    assert "@import" not in style


def test_a_section_has_picture_table_command_and_configuration(result):
    parsed = outline(page([result], "paper"))
    shown = "".join(parsed.texts)
    assert parsed.tags.count("img") == 1
    assert "mirrormax reproduce fig2 --profile paper" in shown
    assert '"experiment": "fig2"' in shown
    assert re.search(r"2 comparisons: 1 met; 1 not published\.", shown)


def test_a_difference_is_told_at_the_top(result):
    row = Comparison("the speed of light", "3e8", "4e8", "differs", "")
    other = Result(**{**vars(result), "comparisons": [row]})
    head = page([other], "quick").partition("<main>")[0]
    assert "What differs: Fig 2: the speed of light." in head
    assert "What differs" not in page([result], "quick")


def test_an_explanation_that_rows_share_is_given_once(result):
    rows = [Comparison(f"row {k}", "1", "1", "met", "because of this") for k in range(3)]
    text = page([Result(**{**vars(result), "comparisons": rows})], "quick")
    assert text.count("because of this") == 1
    assert text.count("<sup>1</sup>") == 3


def test_values_of_a_rerun_are_explained_where_there_are_any(result):
    assert "“rerun” marks" not in page([result], "quick")
    row = Comparison("D", "rerun: 0.01", "0.001", "met")
    assert "“rerun” marks" in page([Result(**{**vars(result), "comparisons": [row]})], "quick")


def test_a_verdict_is_one_of_the_known():
    with pytest.raises(ValueError, match="verdict must be one of met"):
        Comparison("a", "b", "c", "splendid")


def test_subscripts_are_set_and_escaped(result):
    row = Comparison("W_mm in C_μ/3 of ‖W‖_p", "x_11 <b>", "a_b", "met")
    text = page([Result(**{**vars(result), "comparisons": [row]})], "quick")
    assert "W<sub>mm</sub> in C<sub>μ/3</sub> of ‖W‖<sub>p</sub>" in text
    assert "x<sub>11</sub> &lt;b&gt;" in text
