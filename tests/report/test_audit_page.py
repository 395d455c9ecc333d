"""Pages of audits stand alone and believe nothing that comes from data."""

import numpy as np
import pytest
import torch
from audited_models import encoder, text_model, words
from pages import outline

import mirrormax
from mirrormax._results import ResultFolder
from mirrormax.report import audit_figures, maps
from mirrormax.report.audits import audit_page, number, sentences, write_audit

EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture(scope="module")
def audit():
    return mirrormax.audit(
        text_model(), [words()], scan=(1.5, 2), samples=4, controls=1, names=lambda ids: [EVIL] * len(ids)
    )


def test_hostile_tokens_titles_and_commands_are_shown_and_never_run(audit):
    text = audit_page(audit, f"title {EVIL}", f"command {EVIL}", [])
    parsed = outline(text)
    shown = "".join(parsed.texts)
    assert "script" not in parsed.tags
    assert "<script>" not in text
    assert f"title {EVIL}" in shown
    assert f"command {EVIL}" in shown
    assert shown.count(EVIL) > 10


def test_an_audit_leaves_a_page_tables_and_pictures(audit, tmp_path):
    folder = ResultFolder(tmp_path, "audit")
    with folder.open({}):
        write_audit(folder, audit, "a model")
        folder.finish()
    names = {path.name for path in tmp_path.iterdir()}
    tables = {"audit.json", "heads.csv", "scan.csv", "config.json"}
    assert names == tables | {"mirrormax.json", "audit.html", "heads.png", "heads.svg", "scan.png", "scan.svg"}
    parsed = outline((tmp_path / "audit.html").read_text())
    assert parsed.tags.count("img") == 2
    assert all(url.startswith("data:image/png;base64,") for url in parsed.urls)
    assert parsed.tags.count("tr") == 1 + len(audit.heads)


def test_selected_support_and_query_tokens_are_marked():
    marks = {"selected": [0], "support": [1], "query": [2]}
    parsed = maps.shaded(maps.of_tokens(["a", "b", "c"], [0.7, 0.3, 0.0], marks))
    assert '<span class="shade-6 selected" title="70.0%">a</span>' in parsed
    assert '<span class="shade-3 support" title="30.0%">b</span>' in parsed
    assert '<span class="shade-0 query" title="0.0%">c</span>' in parsed


def test_heat_maps_show_the_numbers_of_every_head(audit):
    fig = audit_figures.heat_maps(audit)
    shown = fig.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, audit.grid("mass"))


def test_figures_take_nan_and_equal_numbers(audit):
    from dataclasses import replace

    heads = [replace(head, ratio=0.0, divergence=float("nan"), hoyer=0.5) for head in audit.heads]
    assert audit_figures.heat_maps(replace(audit, heads=heads)).axes


def test_the_sentences_say_what_the_numbers_say(audit):
    told = " ".join(sentences(audit))
    assert "4 heads in 2 layers" in told
    assert "locally optimal tokens by the model’s own head" in told
    assert "by ratio:" in told
    bare = mirrormax.audit(encoder(), [torch.randn(3, 4, 16)], samples=2, controls=0)
    told = " ".join(sentences(bare))
    assert "locally optimal" not in told
    assert "shuffled" not in told


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (float("nan"), "—"), (3, "3"), (0.12345, "0.123")])
def test_numbers_are_short(value, text):
    assert number(value) == text
