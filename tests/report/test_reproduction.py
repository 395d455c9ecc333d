"""The report stands alone, says what it should, and believes nothing that comes from data."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest
from pages import outline

from mirrormax.experiments import ERRATA, Claim, Measurement, Result, worst_of
from mirrormax.report import fold
from mirrormax.report import reproduction_page as page
from mirrormax.report.pages import subscripts

EVIL = "<script>alert('x')</script> & \"quoted\" ünïcode"


@pytest.fixture
def result(tmp_path):
    (tmp_path / "fig2.svg").write_text('<svg viewBox="0 0 10 5"><script>evil()</script></svg>')
    return Result(
        name="fig2",
        title="Fig 2: the attention SVM",
        folder=tmp_path,
        config={"experiment": "fig2", "note": EVIL},
        shows=f"First {EVIL}. Second.",
        measurements=[
            Measurement(f"quantity {EVIL}", f"published {EVIL}", f"ours {EVIL}", "met", f"why {EVIL}"),
            Measurement("other", "1", "2", "not published"),
        ],
        claims=[Claim(f"claim {EVIL}", f"measured {EVIL}", "met")],
        seconds=1.25,
    )


def test_text_from_data_is_shown_and_never_run(result):
    text = page([result], "quick")
    parsed = outline(text)
    assert "script" not in parsed.tags
    shown = "".join(parsed.texts)
    for part in ("quantity", "published", "ours", "why", "First", "claim", "measured"):
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
    assert "No number differs." in shown


def test_a_difference_is_told_at_the_top(result):
    row = Measurement("the speed of light", "3e8", "4e8", "differs", "")
    other = Result(**{**vars(result), "measurements": [row]})
    before = page([other], "quick").partition('<section id="errata">')[0]
    assert 'What differs is in <a href="#fig2">Fig 2</a>.' in before
    assert "What differs" not in page([result], "quick")


def test_an_explanation_that_rows_share_is_given_once(result):
    rows = [Measurement(f"row {k}", "1", "1", "met", "because of this") for k in range(3)]
    text = page([Result(**{**vars(result), "measurements": rows})], "quick")
    assert text.count("because of this") == 1
    assert text.count("<sup>1</sup>") == 3


def test_values_of_a_rerun_are_explained_where_there_are_any(result):
    assert "“rerun” is" not in page([result], "quick")
    row = Measurement("D", "0.01", "0.001", "met", source="rerun")
    assert "“rerun” is" in page([Result(**{**vars(result), "measurements": [row]})], "quick")


def test_a_verdict_and_a_source_are_of_the_known():
    with pytest.raises(ValueError, match="verdict must be one of met"):
        Measurement("a", "b", "c", "splendid")
    with pytest.raises(ValueError, match="source must be one of"):
        Measurement("a", "b", "c", "met", source="hearsay")
    with pytest.raises(ValueError, match="verdict must be one of met"):
        Claim("a", "b", "splendid")


def of(result, **changed):
    return Result(**{**vars(result), **changed})


def test_the_page_opens_with_a_tile_for_every_claim_grouped_by_verdict(result):
    claims = [
        Claim("one", "1", "met"),
        Claim("two", "2", "bettered"),
        Claim("three", "3", "erratum"),
        Claim("four", "4", "differs"),
        Claim("five", "5", "undecided"),
        Claim("six", "6", "smaller than published"),
    ]
    text = page([of(result, claims=claims)], "quick")
    tiles = text.partition('<section id="measured">')[0]
    groups = re.findall(r'<h2 class="counted-claims">(.*?)</h2>.*?<ul class="tiles">(.*?)</ul>', tiles, re.DOTALL)
    assert [(heading, group.count("<li")) for heading, group in groups] == [
        ("2 hold", 2),
        ("1 is corrected", 1),
        ("1 is smaller here than published", 1),
        ("1 does not hold here", 1),
        ("1 cannot be decided here", 1),
    ]
    assert 'class="tile smaller-than-published"' in tiles
    table = text.partition('<table class="claims">')[2].partition("</table>")[0]
    assert table.count('<a href="#fig2">') == 6
    assert [table.count(f">{badge}<") for badge in ("holds", "corrected", "does not hold here", "not decided")] == [
        2,
        1,
        1,
        1,
    ]


def test_a_claim_about_trained_models_is_judged_by_the_larger_study_unless_it_is_trained_as_in_the_paper(result):
    claim = Claim("ℓ1.1 is more accurate", "+5 with two seeds", "met", larger="text-2")
    table1 = of(result, name="table1", claims=[claim])
    (result.folder / "table1.svg").write_text('<svg viewBox="0 0 10 5"></svg>')
    quick, small, whole = (page([table1], profile) for profile in ("quick", "small", "paper"))
    studies = json.loads(resources.files("mirrormax.experiments").joinpath("studies.json").read_text("utf-8"))
    row, *others = (row for study in studies for row in study["rows"] if row["key"] == "text-2")
    verdict = worst_of([each["verdict"] for each in (row, *others)])
    assert row["ours"] in quick
    assert row["ours"] in small  # runs that ended, which a short training does not overrule
    assert "this run: holds" in small
    assert "two seeds only" in quick
    assert "two seeds only" not in small
    assert "From docs/results/ended." in quick
    assert "two seeds here: holds" in quick
    section = quick.partition('<section id="table1">')[2]
    assert section.index("Larger study") < section.index("First ")  # before what this run shows
    assert f'class="verdict {verdict.replace(" ", "-")}"' in quick.partition("</table>")[0]
    assert row["ours"] not in whole
    assert ">holds<" in whole.partition("</table>")[0]


def test_a_short_study_does_not_judge_a_training_of_its_own_size(result):
    claim = Claim("fewer large entries", "fewer", "met", larger="large")
    fig8 = of(result, name="fig8", claims=[claim])
    (result.folder / "fig8.svg").write_text('<svg viewBox="0 0 10 5"></svg>')
    assert "two seeds here" in page([fig8], "quick")
    assert "this run" not in page([fig8], "small")


def test_a_claim_with_a_number_lies_on_one_axis_with_the_papers(result):
    marks = [(0.5, -0.5, 1.5, 2.0, "points, 1 block", "paper"), (3.0, 3.0, 3.0, 1.0, "exact", "rerun")]
    text = page([of(result, claims=[Claim("better", "+0.5", "smaller than published", marks=marks)])], "quick")
    forest = text.partition('<section id="forest">')[2].partition("</section>")[0]
    first, second = re.findall(r'<div class="forest-line.*?</div>', forest, re.DOTALL)
    at = {name: float(left) for name, left in re.findall(r'<i class="(\w+)" style="left:([\d.]+)%', first)}
    assert 0 < at["reach"] < at["zero"] < at["ours"] < at["paper"] < 100
    assert "ours 0.5 [−0.5, 1.5], paper 2" in first
    assert "ours 3, rerun 1" in second
    assert 'id="forest"' not in page([result], "quick"), "no number, no line"


def test_figures_are_shown_at_one_scale(result):
    assert "--width: 1.0rem" in page([result], "quick"), "ten points of the widest figure's 893"
    (result.folder / "fig2.svg").write_text('<svg viewBox="0 0 9000 5"></svg>')
    assert "--width: 86.0rem" in page([result], "quick")


def test_thresholds_of_our_own_are_counted_apart_from_agreements_with_the_paper(result):
    rows = [
        Measurement("a", "1", "1", "met"),
        Measurement("b", "1", "1", "met", source="rerun"),
        Measurement("c", "1", "1", "met", source="our threshold"),
        Measurement("d", "1", "1", "differs", source="our threshold, set after measuring"),
    ]
    text = page([of(result, measurements=rows)], "quick")
    counts = text.partition('<table class="counts">')[2].partition("</table>")[0]
    lines = [re.findall(r">([^<>]*)</t[dh]>", row) for row in counts.split("<tr>")[1:]]
    assert lines == [
        ["compared with", "met", "differs"],
        ["the paper", "1", ""],
        ["a rerun of its protocol", "1", ""],
        ["thresholds of our own (1 of 2 set after measuring)", "1", "1"],
    ]
    section = " ".join(
        "".join(outline(text.partition('<section id="fig2">')[2].partition("<details>")[0]).texts).split()
    )
    assert "paper 1 met rerun 1 met our thresholds 1 met1 differs" in section


def test_a_page_that_is_not_complete_says_so(result):
    assert "2 experiments are not finished" in page([result], "quick", missing=2)
    assert "not finished" not in page([result], "quick")


def test_where_a_published_number_stands_is_noted(result):
    row = Measurement("D", "0.01", "0.001", "met", source="authors' notebook", where="a/notebook.ipynb")
    shown = "".join(outline(page([of(result, measurements=[row])], "quick")).texts)
    assert "authors' notebook: 0.01" in shown
    assert "Published in a/notebook.ipynb." in shown


def test_every_erratum_has_its_sentence_in_the_report(result):
    shown = "".join(outline(page([result], "quick")).texts)
    for each in ERRATA:
        assert subscripts(each.sentence).striptags() in " ".join(shown.split())
        assert subscripts(each.more).striptags() in " ".join(shown.split())


def seen(text):
    """What is read without unfolding anything."""
    innermost = re.compile(r"<details(?:(?!<details).)*?</details>", re.DOTALL)
    while innermost.search(text):
        text = innermost.sub("", text)
    return "".join(outline(text).texts)


def test_what_stands_out_is_seen_at_once_and_the_rest_is_folded(result):
    rows = [
        Measurement("as it should", "1", "1", "met", column="p = 2"),
        Measurement("as it should", "1", "1", "bettered", column="p = 3"),
        Measurement("not quite", "1", "1", "met", column="p = 2"),
        Measurement("not quite", "1", "9", "differs", "because of this", column="p = 3"),
        Measurement("misprinted", "1", "2", "erratum"),
        Measurement("too small", "1", "0.1", "smaller than published"),
        Measurement("open", "1", "0", "undecided"),
    ]
    text = page([of(result, measurements=rows, shows="It does. Further words follow.")], "quick")
    glance = " ".join(seen(text).split())
    for name in ("not quite", "misprinted", "too small", "It does."):
        assert name in glance
    for name in ("as it should", "open", "because of this", "Further words", "mirrormax reproduce fig2"):
        assert name in text
        assert name not in glance.partition("Fig 2: the attention SVM")[2]
    assert "paper 2 met1 bettered1 differs1 erratum1 smaller than published1 undecided" in glance
    assert all(
        each.sentence in glance for each in ERRATA if not set("_^") & set(each.sentence) and "e-" not in each.sentence
    )


def test_rows_of_one_quantity_fold_into_columns():
    rows = [
        Measurement("D", "1", "0.1", "met", column="p = 2"),
        Measurement("alone", "—", "7", "not published", column="p = 2"),
        Measurement("D", "1", "0.2", "differs", column="p = 3"),
        Measurement("alone", "—", "8", "not published", column="p = 3"),
        Measurement("single", "1", "1", "met"),
    ]
    matrix, plain, alone = fold(rows)
    assert matrix.columns == alone.columns == ("p = 2", "p = 3")
    assert [(name, [cell.ours for cell in cells]) for name, cells in matrix.rows] == [("D", ["0.1", "0.2"])]
    assert matrix.decides
    assert plain.columns == ()
    assert not alone.decides
    with pytest.raises(ValueError, match="two measurements are called 'D, p = 2'"):
        fold([rows[0], rows[0]])


def test_quantities_that_lack_a_column_share_the_block_of_those_that_have_it():
    rows = [Measurement("off", "—", str(k), "not published", column=f"path {k}") for k in (1, 3)]
    rows += [Measurement("own", "—", str(k), "not published", column=f"path {k}") for k in (1, 2, 3)]
    (block,) = fold(rows)
    assert block.columns == ("path 1", "path 2", "path 3")
    assert [[cell and cell.ours for cell in cells] for _, cells in block.rows] == [["1", None, "3"], ["1", "2", "3"]]


def test_subscripts_are_set_and_escaped(result):
    row = Measurement("W_mm in C_μ/3 of ‖W‖_p", "x_11 <b>", "a_b", "met")
    text = page([Result(**{**vars(result), "measurements": [row]})], "quick")
    assert "W<sub>mm</sub> in C<sub>μ/3</sub> of ‖W‖<sub>p</sub>" in text
    assert "x<sub>11</sub> &lt;b&gt;" in text


def test_the_guide_lists_the_errata_of_the_report():
    guide = " ".join((Path(__file__).parents[2] / "docs" / "paper.md").read_text("utf-8").split())
    for place, each in enumerate(ERRATA, 1):
        assert f"{place}. *{each.where}.* {' '.join(filter(None, (each.sentence, each.more)))}" in guide
