"""Pages of audits stand alone and believe nothing that comes from data."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from audited_models import encoder, text_model, words
from pages import outline
from rich.console import Console

import mirrormax
from mirrormax._results import ResultFolder
from mirrormax.auditing import Vocabulary
from mirrormax.auditing.result import Effect, Removal, Selected
from mirrormax.commands._shared import table
from mirrormax.report import audit_figures
from mirrormax.report.audit_words import sentences, summary, theory
from mirrormax.report.audits import audit_page, number, write_audit
from mirrormax.report.pages import macro, of_tokens

EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture(scope="module")
def audit():
    return mirrormax.audit(
        text_model(),
        [words()],
        scan=(1.5, 2),
        samples=4,
        controls=1,
        vocabulary=Vocabulary(lambda ids: [EVIL] * len(ids)),
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
    told = []
    with folder.open({}):
        write_audit(folder, audit, "a model", lambda *done: told.append(done))
        folder.finish()
    assert told == [("drawing", k, 3) for k in range(3)]
    names = {path.name for path in tmp_path.iterdir()}
    tables = {"audit.json", "heads.csv", "scan.csv", "config.json", "shuffled.csv", "removal.csv"}
    pictures = {f"{name}.{kind}" for name in ("heads", "scan", "removal") for kind in ("png", "svg")}
    assert names == tables | pictures | {"mirrormax.json", "audit.html"}
    parsed = outline((tmp_path / "audit.html").read_text())
    assert parsed.tags.count("img") == 3
    assert all(url.startswith("data:image/png;base64,") for url in parsed.urls)
    assert parsed.tags.count("tr") == 1 + len(audit.heads) + len(summary(audit)[1])


def test_the_summary_is_eight_short_lines_at_most_and_says_what_was_measured():
    schemes = ("int8", "int4", "int3", "bf16", 0.5)
    found = mirrormax.audit(
        text_model(), [words()], samples=2, controls=0, robustness=schemes, held_out=[words()], removal=True
    )
    sinks = [replace(head, kind="first-token sink", learned=True, importance=0.0123) for head in found.heads]
    lines, rows = summary(replace(found, heads=sinks))
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    console = Console(width=80, file=io.StringIO())
    console.print(table("", rows[0], rows[1:]))
    assert len(console.file.getvalue().splitlines()) == len(rows) + 3  # no cell is broken over two lines
    assert sum("measured" in line for line in lines) == 3
    shown = outline(audit_page(found, "a model", "", [])).texts
    row = found.robustness[0]
    assert f"{row.predicted:.1%} ({row.measured:.1%})" in shown


def test_the_summary_says_shares_near_one_as_they_are():
    found = mirrormax.audit(text_model(), [words()], samples=2, controls=0, robustness=(0.995, "0.975/wanda"))
    rows = [replace(row, predicted=0.998) for row in found.robustness]
    lines, _ = summary(replace(found, robustness=rows))
    told = [line for line in lines if "would change" in line]
    assert [line.split("%")[0] for line in told] == ["Pruning 99.5", "Wanda at 97.5"]
    assert all("would change 100% of selections" in line for line in told)


def test_the_page_names_the_tokens_that_a_head_selects_most():
    named = Vocabulary(lambda ids: [f"token{k}" for k in ids])
    found = mirrormax.audit(text_model(), [words()], samples=2, controls=0, vocabulary=named)
    most = " ".join(token for token, _ in found.favourites[0].tokens[:3])
    assert most in outline(audit_page(found, "a model", "", [])).texts


def test_selected_support_and_query_tokens_are_marked():
    marks = {"selected": [0], "support": [1], "query": [2]}
    parsed = macro("maps.html", "shaded", of_tokens(["a", "b", "c"], [0.7, 0.3, 0.0], marks))
    assert '<span class="shade-8 selected" title="70.0%">a</span>' in parsed
    assert '<span class="shade-5 support" title="30.0%">b</span>' in parsed
    assert '<span class="shade-0 query" title="0.0%">c</span>' in parsed


def test_heat_maps_show_the_numbers_of_every_head(audit):
    fig = audit_figures.heat_maps(audit)
    shown = fig.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, audit.grid("mass"))


def test_figures_take_nan_and_equal_numbers(audit):
    heads = [replace(head, ratio=0.0, divergence=float("nan"), hoyer=0.5) for head in audit.heads]
    assert audit_figures.heat_maps(replace(audit, heads=heads)).axes


def test_the_sentences_say_what_the_numbers_say(audit):
    told = " ".join(sentences(audit))
    assert "4 heads in 2 layers" in told
    assert "locally optimal tokens by the model’s own head" in told
    assert "by ratio:" in " ".join(theory(audit))
    bare = mirrormax.audit(encoder(), [torch.randn(3, 4, 16)], samples=2, controls=0, shuffled=0)
    told = " ".join([*sentences(bare), *theory(bare)])
    assert "locally optimal" not in told
    assert "shuffled" not in told


def test_the_summary_fits_a_terminal_and_names_heads_to_act_on(audit):
    lines, rows = summary(replace(audit, removal=[Removal("taylor", 1, 0.05, 0.04, 0.06, 8)]))
    assert len(lines) <= 8
    assert all(len(line) <= 80 for line in lines)
    most = max(audit.heads, key=lambda head: head.importance)
    assert any(line.startswith(f"Matter most: {most.name}") for line in lines)
    assert any(line.startswith("Could go: the least important head, ") for line in lines)
    costly, _ = summary(replace(audit, removal=[Removal("taylor", 1, 5.0, 4.0, 6.0, 8)]))
    assert not any("Could go" in line for line in costly)
    assert sum(int(row[1]) for row in rows[1:]) == len(audit.heads)


def with_shuffled(audit, kinds, own, ratios, theirs):
    """The audit with 40 heads and 20 shuffled ones of these kinds and ratios."""
    head, control = audit.heads[0], audit.controls[0]
    shares = dict.fromkeys(("on_first", "on_last", "on_self", "on_previous", "on_separator", "on_place"), 0.6) | {
        "on_previous": 0.2
    }
    return replace(
        audit,
        effects=[],
        heads=[
            replace(head, head=k, kind=own[k], ratio=ratios[k], p=control.p, on_previous=0.9, on_first=0.9)
            for k in range(40)
        ],
        shuffled=[Selected(0, -1 - k, kinds[k], **shares, induction=None) for k in range(20)],
        controls=[replace(control, head=-1 - k, ratio=theirs[k]) for k in range(20)],
    )


def told_of(audit):
    return " ".join([*sentences(audit), *theory(audit)])


def test_what_stands_out_beside_shuffled_heads_is_said_and_that_nothing_does(audit):
    random = np.random.default_rng(0)
    alike, wider = random.uniform(0.01, 0.1, 60), random.uniform(0.2, 0.3, 60)
    sinks = ["first-token sink"] * 60
    nothing = told_of(with_shuffled(audit, sinks, sinks, alike[:40], alike[40:]))
    assert "single heads cannot be judged" in nothing
    assert "whether the margins stand out cannot be told" in nothing
    own = ["previous token"] * 3 + ["first-token sink"] * 37
    some = told_of(with_shuffled(audit, sinks, own, wider[:40], alike[40:]))
    assert "in 100% of all pairs" in some
    assert "as a whole the margins stand out" in some
    decided = with_shuffled(audit, sinks, own, wider[:40], alike[40:])
    heads = [replace(head, learned=head.kind == "previous token") for head in decided.heads]
    decided = replace(decided, heads=heads)
    headings, *rows = summary(decided)[1]
    learned = {row[0]: (row[1], row[headings.index("learned")]) for row in rows}
    assert learned == {"first-token sink": ("37", "0"), "previous token": ("3", "3")}
    assert "cannot be judged" not in " ".join(sentences(decided))


def test_heads_that_matter_are_told_apart_from_sinks(audit):
    heads = [replace(audit.heads[0], layer=k % 4, head=k, ratio=k + 1.0, kind=None) for k in range(40)]
    sinks = [replace(one, head=40 + k, kind="first-token sink") for k, one in enumerate(heads)]
    rising = [Effect(one.layer, one.head, "off", one.ratio, one.ratio, one.ratio, 4) for one in heads]
    falling = [Effect(one.layer, one.head, "off", -one.ratio, -one.ratio, -one.ratio, 4) for one in sinks]
    told = [one for one in theory(replace(audit, heads=[*heads, *sinks], effects=[*rising, *falling])) if "rank" in one]
    assert len(told) == 3
    assert told[1].startswith("Over heads that are no first-token sinks (40)")
    assert told[1].endswith("heads with larger margins matter more, also within a layer.")
    assert told[2].endswith("heads with larger margins matter less, also within a layer.")
    assert told[0].endswith("whether a larger margin means a more important head cannot be told.")


def test_depth_alone_is_not_taken_for_importance(audit):
    random = np.random.default_rng(1)
    heads = [
        replace(audit.heads[0], layer=k // 8, head=k % 8, ratio=k // 8 + random.uniform(), kind=None) for k in range(64)
    ]
    deep = [
        Effect(one.layer, one.head, "off", value, value, value, 4)
        for one in heads
        for value in [one.layer + random.uniform()]
    ]
    told = [one for one in theory(replace(audit, heads=heads, effects=deep)) if "rank" in one]
    assert told[0].endswith("heads with larger margins matter more, though perhaps by depth alone.")


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (float("nan"), "—"), (3, "3"), (0.12345, "0.123")])
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_two_models_are_drawn_on_one_scale_with_a_difference_that_does_not_exaggerate(audit):
    other = replace(audit, heads=[replace(head, mass=head.mass / 2, hoyer=0.9 * head.hoyer) for head in audit.heads])
    fig = audit_figures.side_by_side(audit, other, ["one", "two"])
    rows = [ax.images[0].get_clim() for ax in fig.axes if ax.images and ax.get_title()]
    for first, second, difference in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert first == second
        assert difference[1] == -difference[0] >= 0.1 * first[1] * 0.999
