"""The audit as a whole: what it counts, what it samples, what it says and what it refuses."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch
from audited_models import encoder, hugging_face, hugging_face_batch, image_model, text_model, words
from torch import nn

import mirrormax
from mirrormax.auditing import AuditOptions, adapter_for, load_audit, log_odds, watching
from mirrormax.auditing.collect import Row, Sample, queried
from mirrormax.auditing.run import local_optimality

NO_CONTROLS = {"controls": 0, "shuffled": 0, "samples": 4}


def layers_of(model, batch):
    """The layers of a model as a pass over a batch finds them, and what it showed of each."""
    with watching(adapter_for(model)) as watch:
        views = watch.run(batch)
    return watch.layers, views


def test_audit_is_a_plain_function_whatever_was_imported_before():
    import mirrormax.auditing.run

    assert inspect.isfunction(mirrormax.audit)
    assert mirrormax.audit is mirrormax.auditing.audit is mirrormax.auditing.run.audit
    assert mirrormax.audit(text_model(), [words()], **NO_CONTROLS).heads


def test_statistics_are_those_of_the_models_own_maps():
    model, ids = text_model().eval(), words()
    with torch.no_grad():
        _, maps = model(ids, attention=True)
    found = mirrormax.audit(model, [ids[:2], ids[2:]], query="first", **NO_CONTROLS)
    lengths, (layers, _) = (ids != 0).sum(1), layers_of(model, ids)
    for head in found.heads:
        row = maps[head.layer, :, head.head, 0].double()
        entropy = torch.special.entr(row).sum(-1) / lengths.double().log()
        assert head.mass == pytest.approx(float(row.amax(-1).mean()), abs=1e-5)
        assert head.entropy == pytest.approx(float(entropy.mean()), abs=1e-5)
        assert head.decisive == pytest.approx(float((row.amax(-1) > 0.5).double().mean()))
        chosen, there = maps[head.layer, :, head.head].argmax(-1), ids != 0  # kinds are over every token
        assert head.on_first == pytest.approx(float((chosen[:, 1:] == 0)[there[:, 1:]].sum() / there.sum()))
        assert head.on_last == pytest.approx(float((chosen == lengths[:, None] - 1)[there].double().mean()))
        # A lead is a difference of logits, that is of logarithms of attention.
        top = row.topk(2).values.log()
        W = layers[head.layer].weights(head.head)
        assert head.margin_all == pytest.approx(float((top[:, 0] - top[:, 1]).min() / W.norm()), rel=1e-2)


def test_padding_changes_nothing():
    model, ids = text_model(), words()
    wide = nn.functional.pad(ids, (0, 4))
    narrow, padded = (mirrormax.audit(model, [batch], **NO_CONTROLS) for batch in (ids, wide))
    for one, other in zip(narrow.heads, padded.heads, strict=True):
        assert one.mass == pytest.approx(other.mass, abs=1e-6)
        assert one.ratio == pytest.approx(other.ratio, rel=1e-2, abs=1e-6)
    assert narrow.examples[0].tokens == padded.examples[0].tokens


def test_the_same_seed_gives_the_same_answer_however_the_data_are_cut():
    model, ids = text_model(), words(12)[:, :6]
    whole = mirrormax.audit(model, [ids], samples=5)
    parts = mirrormax.audit(model, [ids[:1], ids[1:7], ids[7:]], samples=5)
    assert whole.config["sampled_rows"] == parts.config["sampled_rows"]
    for one, other in zip(whole.heads, parts.heads, strict=True):
        assert one.ratio == pytest.approx(other.ratio, rel=1e-3)
    other_seed = mirrormax.audit(model, [ids], samples=5, seed=1)
    assert other_seed.config["sampled_rows"] != whole.config["sampled_rows"]


def some_texts(count):
    random = torch.Generator().manual_seed(3)
    return torch.randint(1, 20, (count, 7), generator=random)


def test_a_sample_that_is_to_settle_grows_until_it_has_and_is_that_of_its_size():
    model, ids = text_model(), some_texts(100)
    found = mirrormax.audit(model, [ids], controls=1, samples=100, settle=0.9)
    sizes = sorted({point.rows for point in found.growth})
    assert sizes == [16, 32, 64]
    *small, same = (mirrormax.audit(model, [ids], controls=1, samples=size) for size in sizes)
    assert found.heads == same.heads
    assert found.controls == same.controls
    grown = [[(one.ratio, one.divergence) for one in found.growth if one.rows == size] for size in sizes]
    assert grown == [[(head.ratio, head.divergence) for head in one.heads] for one in (*small, same)]
    assert any("have settled to within 0.9" in note for note in found.notes)


def test_a_sample_that_does_not_settle_is_taken_whole_and_it_is_said():
    found = mirrormax.audit(text_model(), [some_texts(40)], query="first", controls=0, samples=40, settle=1e-9)
    assert sorted({point.rows for point in found.growth}) == [16, 32, 40]
    assert any("have not settled" in note for note in found.notes)
    few = mirrormax.audit(text_model(), [some_texts(9)], query="first", controls=0, samples=40, settle=0.5)
    assert any("too few to see" in note for note in few.notes)


@pytest.mark.parametrize(
    ("options", "size"), [({}, (64, 128)), ({"scan": (1.5, 2)}, (24, 12)), ({"p": 3, "samples": 5}, (5, 12))]
)
def test_problems_are_larger_where_p_is_2_alone(options, size):
    sized = AuditOptions(**options).sized()
    assert (sized.samples, sized.rivals) == size


def test_named_heads_are_called_as_results_call_them():
    assert AuditOptions(heads=("03.1", "0.00")).heads == ("3.1", "0.0")


def test_a_sample_is_uniform():
    counts = np.zeros(20)
    for seed in range(2000):
        sample = Sample(5, seed)
        for start in (0, 3, 11):
            end = {0: 3, 3: 11, 11: 20}[start]
            keys, chosen = sample.draw(end - start)
            sample.kept += [Row(float(keys[k]), start + k, 0, None, 0) for k in chosen]
        kept = sample.rows()
        assert len(kept) == 5
        counts[[row.sequence for row in kept]] += 1
    assert abs(counts / 2000 - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize(
    ("query", "positions"),
    [("first", [0, 0]), ("last", [3, 1]), (2, [2]), ("all", [0, 1, 2, 3, 0, 1])],
)
def test_queries_are_tokens_that_are_there(query, positions):
    lengths = torch.tensor([4, 2])
    mask = (torch.arange(4) < lengths[:, None])[:, None].expand(2, 4, 4)
    assert queried(mask, query).nonzero()[:, 1].tolist() == positions


@pytest.mark.parametrize(("query", "rows"), [("first", 6), ("last", 6), ("all", 46), (5, 5), (8, 4)])
def test_every_query_has_its_rows(query, rows):
    found = mirrormax.audit(text_model(), [words()], query=query, **NO_CONTROLS)
    assert {head.rows for head in found.heads} == {rows}


def test_the_notes_hide_nothing():
    found = mirrormax.audit(encoder(), [torch.randn(9, 7, 16)], query="first", samples=4, rivals=3, controls=0, seed=5)
    told = " ".join(found.notes)
    assert "all 9 rows of 9 sequences" in told
    assert "4 of 9 rows, a uniform sample with seed 5" in told
    assert "3 strongest rivals of up to 6, so that ratios are lower bounds" in told
    assert "local optimality not applicable" in told
    every = " ".join(mirrormax.audit(encoder(), [torch.randn(3, 4, 16)], query="first", samples=9, controls=0).notes)
    assert "3 of 3 rows, all of them" in every
    assert "that is all of them" in every


def test_rows_with_one_token_are_counted_and_left_out():
    ids = words()
    ids[2, 1:] = 0
    found = mirrormax.audit(text_model(), [ids], query="first", **NO_CONTROLS)
    assert found.heads[0].rows == 5
    assert "1 rows with a single token were left out" in " ".join(found.notes)


def test_log_odds_are_those_of_the_chosen_class():
    logits = torch.randn(5, 4, dtype=torch.float64)
    share = logits.softmax(-1)
    best = share.amax(-1)
    torch.testing.assert_close(log_odds(logits, None), (best / (1 - best)).log())
    of_two = share[:, 2] / (1 - share[:, 2])
    torch.testing.assert_close(log_odds(logits, torch.full((5,), 2)), of_two.log())
    torch.testing.assert_close(log_odds(logits[:, :1], None), logits[:, 0])


def one_layer(classes=2):
    """No perceptron and no norm after the attention: the log-odds are linear in its output."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.head = nn.Linear(6, 1)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0][:, 0])

    torch.manual_seed(1)
    return Linear().double()


def test_scores_are_what_attention_on_a_token_would_add_to_the_answer():
    model, x = one_layer(), torch.randn(5, 4, 6, dtype=torch.float64)
    found = mirrormax.audit(model, [x], head=lambda out: out, query="first", samples=5, rivals=9, controls=0)
    weights = model.attention.in_proj_weight[12:].detach()
    _, (view,) = layers_of(model, x)
    for head in found.heads:
        part = slice(3 * head.head, 3 * head.head + 3)
        direct = x @ weights[part].T @ model.attention.out_proj.weight[:, part].T @ model.head.weight[0]
        logits = view.logits()[:, head.head, 0]
        alpha = logits.argmax(-1, keepdim=True)
        best = (direct <= direct.gather(1, alpha)).all(-1).double().mean()
        assert head.best_token == pytest.approx(float(best))
        assert head.locally_optimal is not None


def test_local_optimality_asks_support_tokens_only():
    gamma = [torch.tensor([1.0, 0.0, 5.0]), torch.tensor([1.0, 0.5]), None]
    support = np.array([[False, True, False], [False, True, False], [False, False, False]])
    found = local_optimality(gamma, support)
    assert found == {"locally_optimal": True, "in_order": 1.0, "best_token": 0.5}
    support[0, 2] = True
    found = local_optimality(gamma, support)
    assert found == {"locally_optimal": False, "in_order": pytest.approx(2 / 3), "best_token": 0.5}
    assert local_optimality(gamma, np.zeros_like(support))["in_order"] is None
    assert local_optimality([None, torch.tensor([math.nan, math.nan])], support[:2])["locally_optimal"] is None


def test_scores_of_the_label_and_of_the_prediction_differ():
    model, ids = text_model(), words()
    wrong = 1 - model.eval()(ids).argmax(-1)
    predicted, labelled = (
        mirrormax.audit(model, [(ids, wrong)], query="first", target=target, **NO_CONTROLS)
        for target in ("prediction", "label")
    )
    for one, other in zip(predicted.heads, labelled.heads, strict=True):
        # With two classes the other class's log-odds are the negative ones, so that the order turns round.
        assert one.in_order == pytest.approx(1 - other.in_order)


def test_rows_the_answer_does_not_depend_on_have_no_scores():
    found = mirrormax.audit(text_model(), [words()], query="last", **NO_CONTROLS)
    assert found.heads[0].locally_optimal is not None
    assert found.heads[-1].locally_optimal is None  # only the first row of the last block reaches the head


@pytest.mark.parametrize("name", ["bert", "roberta", "vit"])
def test_encoders_with_a_head_are_scored_and_others_not(name):
    found = mirrormax.audit(hugging_face(name), [hugging_face_batch(name)], query="first", **NO_CONTROLS)
    assert all((head.locally_optimal is None) == (name == "roberta") for head in found.heads)


def test_controls_have_the_weights_of_the_layer_in_another_order():
    (layer, _), _ = layers_of(encoder(), torch.randn(2, 5, 16))
    again, other = layer.shuffled(0, [1]), layer.shuffled(0, [2])
    assert torch.equal(again, layer.shuffled(0, [1]))
    assert not torch.allclose(again, other)
    assert again.shape == layer.weights(0).shape
    assert torch.linalg.matrix_rank(again) == torch.linalg.matrix_rank(layer.weights(0))
    found = mirrormax.audit(encoder(), [torch.randn(6, 5, 16)], scan=(1.5, 2), samples=3, controls=3)
    assert sorted({(point.layer, point.head) for point in found.controls}) == [
        (k, -h) for k in (0, 1) for h in (3, 2, 1)
    ]
    assert {point.p for point in found.controls} == {1.5, 2.0}


def test_an_audit_comes_back_from_its_files(tmp_path):
    found = mirrormax.audit(image_model(), [torch.randn(5, 1, 12, 12)], scan=(1.5, 2), samples=3)
    paths = found.save(tmp_path / "new" / "folder")
    names = ["audit.json", "config.json", "heads.csv", "removal.csv", "scan.csv", "shuffled.csv"]
    assert sorted(path.name for path in paths) == names
    again = load_audit(tmp_path / "new" / "folder")
    assert again.heads == found.heads
    assert again.scan == found.scan
    assert again.controls == found.controls
    assert again.examples == found.examples
    lines = (tmp_path / "new" / "folder" / "heads.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found.heads)
    assert lines[0].split(",") == [field.name for field in dataclasses.fields(found.heads[0])]


def test_saving_leaves_files_of_others_and_other_audits_alone(tmp_path):
    first, second = (mirrormax.audit(text_model(seed), [words()], samples=2 + seed, controls=0) for seed in (0, 1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("mine")
    with pytest.raises(ValueError, match=r"holds files that are not of a"):
        first.save(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.json"]
    first.save(tmp_path / "out")
    with pytest.raises(ValueError, match="differs in"):
        second.save(tmp_path / "out")
    assert load_audit(tmp_path / "out").heads == first.heads
    second.save(tmp_path / "out", force=True)
    assert load_audit(tmp_path / "out").heads == second.heads


@pytest.mark.parametrize(
    "text", ["{}", "[]", "not json", "[" * 100_000, '{"format": "mirrormax-audit-4"}', '{"format": "other"}']
)
def test_a_file_that_is_no_audit_is_refused(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not the audit\.json of an audit"):
        load_audit(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p": 1}, ValueError, "p must be a finite number greater than 1"),
        ({"p": 10001}, ValueError, "p must be at most 10000, got 10001"),
        ({"scan": (2, 10001)}, ValueError, "scan must be at most 10000, got 10001"),
        ({"p": "two"}, TypeError, "p must be a number"),
        ({"scan": 2}, TypeError, "scan must be a sequence"),
        ({"scan": (2, 0.5)}, ValueError, "scan must be a finite number greater than 1"),
        ({"query": "middle"}, ValueError, "query must be a position"),
        ({"query": -1}, ValueError, "query must be a position"),
        ({"query": 1.5}, TypeError, "query must be a position"),
        ({"query": 99}, ValueError, "no sequence has a token at query=99"),
        ({"settle": 0}, ValueError, "settle must be a finite number greater than 0"),
        ({"settle": "soon"}, TypeError, "settle must be a number"),
        ({"samples": 0}, ValueError, "samples must be at least 1"),
        ({"rivals": 2.5}, TypeError, "rivals must be an integer"),
        ({"quantile": 1}, ValueError, "quantile must be"),
        ({"C": 0}, ValueError, "C must be"),
        ({"target": "label"}, ValueError, "needs labels in every batch"),
        ({"target": "truth"}, ValueError, "target must be one of prediction, label"),
        ({"form": "plain"}, ValueError, "form must be one of"),
        ({"heads": ("0.0",), "intervention_texts": 0}, ValueError, "intervention_texts must be at least 1"),
        ({"heads": ("7.0",)}, ValueError, "heads must be between 0.0 and 1.1"),
        ({"sample": 3}, TypeError, "sample is no option of an audit"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        mirrormax.audit(text_model(), [words()], **options)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "batches is empty"),
        ([{"tokens": words()}], ValueError, "it needs one of ids, input_ids"),
        (["a text"], TypeError, "a batch must be a tensor"),
    ],
    ids=["none", "keys", "text"],
)
def test_bad_batches_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        mirrormax.audit(text_model(), batches)


def test_a_dead_head_is_told_and_does_not_stop_the_others(tmp_path):
    from mirrormax.report.audit_words import theory
    from mirrormax.report.audits import audit_page

    model = text_model()
    with torch.no_grad():
        model.blocks[0].attention.query.weight[:8] = 0
    found = mirrormax.audit(model, [words()], query="first", scan=(1.5, 2), samples=3, controls=1)
    dead, *alive = found.heads
    assert dead.problem == "none"
    assert dead.best_p_ratio is None
    assert dead.mass == pytest.approx(np.mean([1 / 9] * 4 + [1 / 6, 1 / 4]))
    assert all(0 <= head.ratio <= 1 for head in alive)
    assert "1 of 4 heads have nothing to measure" in " ".join(theory(found))
    assert "nothing to measure" in audit_page(found, "dead", "", [])
    found.save(tmp_path)
    assert math.isnan(load_audit(tmp_path).heads[0].ratio)


def test_weights_that_are_not_finite_are_refused():
    model = text_model()
    with torch.no_grad():
        model.tokens.weight[5] = torch.nan
    ids = words()
    ids[0, 1] = 5
    with pytest.raises(ValueError, match="not finite"):
        mirrormax.audit(model, [ids])
