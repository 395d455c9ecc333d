"""What the Attention page is told: probabilities of the model itself, pivots, and leads in logits."""

import base64
import sys

import numpy as np
import pytest
import torch

from mirrormax.app.attention import read
from mirrormax.app.checkpoints import SHIPPED, Checkpoints
from mirrormax.app.folders import run_label
from mirrormax.data import encode, language_tokenizer
from mirrormax.nets import Decoder, DecoderConfig, save_model


def attention(opened, text, query=None, words_only=True, **place):
    return read(opened, text, query, words_only, **place)


def unpacked(told, kind):
    return np.frombuffer(base64.b64decode(told["values"]), kind).reshape(told["shape"])


@pytest.fixture
def checkpoints(models, tmp_path):
    return Checkpoints(models, shipped=tmp_path)


@pytest.fixture
def checkpoint(checkpoints):
    return checkpoints.load("first")


def test_prediction_and_attention_are_the_models(checkpoint):
    text = "a warm , funny film"
    ids = torch.from_numpy(encode(checkpoint.loaded.tokenizer, [text], 16)[0])[None]
    logits, maps = checkpoint.loaded.model(ids, attention=True)
    for layer, head, own in ((1, 0, maps[1, 0, 0]), (0, "mean", maps[0, 0].mean(0))):
        found = attention(checkpoint, text, 0, words_only=False, layer=layer, head=head)
        assert found["row"]["attention"] == pytest.approx(own[0].tolist(), rel=1e-3)
        assert unpacked(found["map"], "<u2") / 65535 == pytest.approx(own.detach().numpy(), abs=2e-5)
    told = [row["probability"] for row in found["prediction"]["choices"]]
    assert told == pytest.approx(torch.softmax(logits[0], -1).tolist(), abs=1e-4)
    assert found["path"] is None
    every = unpacked(found["thumbs"], np.uint8)
    assert found["thumbs"]["exact"]
    assert every / 255 == pytest.approx(maps[:, 0].flatten(0, 1).sqrt().detach().numpy(), abs=0.003)


def test_pivot_and_support_are_the_two_best_by_logits(checkpoint):
    head = attention(checkpoint, "a warm , funny film", 2, words_only=False, layer=0, head=1)["row"]
    logs = np.log(head["attention"])
    order = np.argsort(-logs)
    assert head["pivot"] == order[0]
    assert order[1] in head["support"]
    assert head["lead"] == pytest.approx(logs[order[0]] - logs[order[1]], rel=1e-2)


def test_without_the_marks_the_words_share_all_attention(checkpoint):
    head = attention(checkpoint, "a warm film", 0, words_only=True, layer=0)["row"]
    assert head["attention"][0] == head["attention"][-1] == 0
    assert sum(head["attention"]) == pytest.approx(1, abs=1e-3)
    assert head["pivot"] not in (0, 4)


def test_tokens_stand_as_they_were_typed(checkpoint):
    found = attention(checkpoint, "Unhappy <script> zebra", 0, words_only=True)["tokens"]
    assert [token["text"] for token in found] == ["[CLS]", "Un", "happy", "<", "script", ">", "zebra", "[SEP]"]
    assert [token["joined"] for token in found] == [False, False, True, False, True, True, False, False]
    assert [token["unknown"] for token in found].index(True) == 6


def test_what_does_not_fit_is_told(checkpoint):
    assert not attention(checkpoint, "film " * 14, 0, words_only=True)["cut"]
    found = attention(checkpoint, "film " * 15, 0, words_only=True)
    assert found["cut"]
    assert len(found["tokens"]) == 16


@pytest.mark.parametrize(
    ("text", "query", "sentence"),
    [
        ("  ", 0, "text is empty"),
        ("film " * 5000, 0, "text has 25,000 characters"),
        ("film", 3, "query must be the place of one of the 3 tokens, got 3"),
    ],
)
def test_bad_input_is_refused(checkpoint, text, query, sentence):
    with pytest.raises(ValueError, match=sentence):
        attention(checkpoint, text, query, words_only=True)


@pytest.fixture
def llama(theirs, tmp_path):
    return Checkpoints(theirs, shipped=tmp_path).load("llama")


def test_hugging_face_folders_are_listed_with_what_they_are(theirs, tmp_path):
    found = {entry.name: entry.about for entry in Checkpoints(theirs, shipped=tmp_path).entries()}
    assert found == {
        "bert": "BertModel, layers 3, heads 4, dim 16",
        "llama": "LlamaForCausalLM, layers 3, heads 4, dim 16",
    }


def test_a_language_model_is_read_at_its_last_token_and_answers_with_the_next(llama):
    found = attention(llama, "a warm funny film", words_only=False, layer=1, head=2)
    words = [token["text"] for token in found["tokens"]]
    assert words == ["[CLS]", "a", "warm", "funny", "film", "[SEP]"]
    assert (found["causal"], found["query"], found["heads"]) == (True, 5, [4, 4, 4])
    model, tokenizer = llama.loaded.model, llama.loaded.tokenizer
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(torch.tensor([tokenizer("a warm funny film")["input_ids"]]), output_attentions=True)
    model.set_attn_implementation(before)
    whole = unpacked(found["map"], "<u2") / 65535
    assert whole == pytest.approx(own.attentions[1][0, 2].numpy(), abs=3e-5)
    assert not np.triu(whole, 1).any()
    shares = torch.softmax(own.logits[0, -1], -1)
    choices = found["prediction"]["choices"]
    assert [one["name"] for one in choices] == [tokenizer.decode([t]) for t in shares.topk(5).indices]
    assert [one["probability"] for one in choices] == pytest.approx(shares.topk(5).values.tolist(), rel=1e-3)
    without = attention(llama, "a warm funny film", layer=1, head=2)
    assert without["row"]["attention"][0] == 0
    assert attention(llama, "a warm funny film", 0, layer=1)["row"]["pivot"] is None


def test_the_path_ends_in_derivatives_of_the_log_odds_by_each_logit(llama, monkeypatch):
    layer, head, query, step = 1, 3, 3, 1e-2
    found = attention(llama, "a warm funny film", query, words_only=False, layer=layer, head=head)
    path, best = found["path"], found["prediction"]["choices"][0]
    assert path["tokens"] == [0, 1, 2, 3]
    assert path["shares"] == pytest.approx(np.exp(np.array(path["logits"]) - path["log_sum"]), rel=1e-2)
    assert sum(path["effects"]) == pytest.approx(0, abs=1e-3 * max(map(abs, path["effects"])))
    model, tokenizer = llama.loaded.model, llama.loaded.tokenizer
    target = model.model.layers[layer].self_attn
    modelling = sys.modules[type(target).__module__]
    own, change = modelling.eager_attention_forward, {"token": 0, "by": 0.0}

    def shifted(module, q, k, v, mask, **options):
        if module is target:
            mask = mask.expand(1, 4, -1, -1).clone()
            mask[0, head, query, change["token"]] += change["by"]
        return own(module, q, k, v, mask, **options)

    monkeypatch.setattr(modelling, "eager_attention_forward", shifted)
    ids = torch.tensor([tokenizer("a warm funny film")["input_ids"]])
    chosen = next(t for t in range(len(tokenizer)) if tokenizer.decode([t]) == best["name"])

    def log_odds(token, by):
        change.update(token=token, by=by)
        with torch.no_grad():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0, query].double()
        others = torch.arange(len(logits)) != chosen
        return float(logits[chosen] - logits[others].logsumexp(0))

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    measured = [(log_odds(t, step) - log_odds(t, -step)) / (2 * step) for t in path["tokens"]]
    unseen = [log_odds(t, -1e9) - log_odds(t, 0.0) for t in path["tokens"]]
    model.set_attn_implementation(before)
    assert max(map(abs, measured)) > 1e-3
    assert path["effects"] == pytest.approx(measured, abs=0.01 * max(map(abs, measured)))
    monkeypatch.undo()
    for t, real in enumerate(unseen):
        told = attention(llama, "a warm funny film", query, words_only=False, layer=layer, head=head, without=t)[
            "ablated"
        ]
        assert told["real"] == pytest.approx(real, abs=1e-4)
        assert told["predicted"] == pytest.approx(-path["effects"][t] / (1 - path["shares"][t]), rel=1e-2)


def test_what_is_left_out_is_left_out_of_the_path_too(checkpoint):
    found = attention(checkpoint, "a warm film", 0, layer=1, head=1)
    assert found["path"]["tokens"] == [1, 2, 3]
    assert found["path"]["shares"] == pytest.approx(found["row"]["attention"][1:4], rel=1e-3)
    assert 0 < found["path"]["aside"] < 1


def test_a_query_that_no_answer_depends_on_changes_none(checkpoint):
    changed = attention(checkpoint, "a warm film", 2, layer=1, head=1, without=1)["ablated"]
    assert (changed["token"], changed["real"]) == (1, 0.0)
    assert changed["predicted"] in (None, 0.0)


def test_a_pruned_model_is_read_for_a_while_and_is_whole_again(checkpoint):
    dense, again = attention(checkpoint, "a warm film"), {}
    pruned = attention(checkpoint, "a warm film", pruned=0.9)
    assert pruned["prediction"] != dense["prediction"]
    assert pruned["row"]["attention"] != dense["row"]["attention"]
    again = attention(checkpoint, "a warm film")
    assert (again["prediction"], again["row"], again["map"]) == (dense["prediction"], dense["row"], dense["map"])


def test_a_model_without_a_readout_predicts_nothing_and_shows_its_heads(theirs, tmp_path):
    bert = Checkpoints(theirs, shipped=tmp_path).load("bert")
    found = attention(bert, "Unhappy zebra", layer=2)
    assert found["prediction"]["choices"] == []
    assert set(found["path"]["effects"]) == {None}
    assert [token["text"] for token in found["tokens"]] == ["[CLS]", "Un", "happy", "zebra", "[SEP]"]
    assert found["tokens"][2]["joined"]


def test_kinds_of_heads_come_with_shares_and_chances(llama, checkpoint):
    assert "induction" in llama.kinds["layers"][0][0]["shares"]
    assert "induction" not in checkpoint.kinds["layers"][0][0]["shares"]
    assert [len(layer) for layer in llama.kinds["layers"]] == [4, 4, 4]
    head = llama.kinds["layers"][0][0]
    assert 0 < head["chances"]["on_first"] <= 1
    assert all(0 <= share <= 1 for share in head["shares"].values())


def test_long_texts_have_small_maps_of_their_largest_cells(llama):
    found = attention(llama, "a warm " * 15, words_only=False, layer=0, head=1)
    assert found["map"]["shape"] == [32, 32]
    assert not found["thumbs"]["exact"]
    whole = unpacked(found["map"], "<u2") / 65535
    small = (unpacked(found["thumbs"], np.uint8)[1] / 255) ** 2
    assert small.shape == (24, 24)
    assert small.max() == pytest.approx(whole.max(), abs=0.01)
    assert small[0, 0] == pytest.approx(whole[0, 0], abs=0.01)


def test_checkpoints_go_by_their_folder_and_say_how_they_were_trained(checkpoints):
    names = {entry.name: entry.label for entry in checkpoints.entries()}
    assert set(names) == {"first", "run"}
    assert names["run"] == "ℓ2.1"
    with pytest.raises(ValueError, match=r"there is no checkpoint '\.\./first'"):
        checkpoints.load("../first")


def test_what_is_no_text_model_is_left_out(models, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "config.json").write_text('{"kind": "vision"}')
    (tmp_path / "images" / "model.safetensors").write_text("")
    (tmp_path / "link").symlink_to(models / "first")
    assert Checkpoints(tmp_path, shipped=tmp_path / "none").entries() == []


def test_a_checkpoint_that_was_written_again_is_read_again(checkpoints, models):
    before = checkpoints.load("first")
    assert checkpoints.load("first") is before
    path = models / "first" / "model.safetensors"
    path.write_bytes(path.read_bytes())
    assert checkpoints.load("first") is not before


def test_three_trained_checkpoints_come_with_the_package():
    shipped = Checkpoints(None)
    names = [entry.name for entry in shipped.entries()]
    assert names == ["adamw", "l1.1", "l2"]
    size = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert size < 600_000
    for name in names:
        checkpoint = shipped.load(name)
        review = "a warm , funny and moving film with a wonderful cast"
        ids = torch.tensor([checkpoint.loaded.tokenizer.encode(review).ids])
        assert checkpoint.loaded.model(ids).argmax().item() == 1


def test_the_shipped_models_are_named_by_their_training_and_differ_in_what_is_shown():
    shipped = Checkpoints(None)
    labels = {entry.name: entry.label for entry in shipped.entries()}
    assert labels == {"adamw": "AdamW, lr 0.001, seed 0", "l1.1": "ℓ1.1, lr 0.18, seed 0", "l2": "ℓ2, lr 0.3, seed 0"}
    near_one, plain = (
        attention(shipped.load(name), "it is boring and far too long", 0, words_only=True) for name in ("l1.1", "l2")
    )
    for role in ("query", "key", "value"):
        assert near_one["sparsity"][role]["hoyer"] > plain["sparsity"][role]["hoyer"]
    assert near_one["sparsity"]["value"]["top_mass"] > 3 * plain["sparsity"]["value"]["top_mass"]
    assert near_one["row"]["tokens"] < plain["row"]["tokens"]


@pytest.mark.parametrize(
    ("training", "label"),
    [
        ({"optimizer": "md", "p": 1.1, "lr": 0.18, "seed": 0}, "ℓ1.1, lr 0.18, seed 0"),
        ({"optimizer": "adamw", "p": 1.1, "lr": 0.001, "seed": 3}, "AdamW, lr 0.001, seed 3"),
        ({"optimizer": "md", "p": 1.5, "potential": "SquaredLp", "lr": None}, "ℓ1.5 squared"),
        ({"optimizer": "md", "p": 1.1, "attention_only": True, "seed": 1}, "ℓ1.1 on attention, seed 1"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_run_is_named_by_what_it_is(training, label):
    assert run_label(training) == label


def test_a_language_model_of_ours_is_read_like_any_other(tmp_path):
    pytest.importorskip("transformers")
    tokenizer = language_tokenizer("byte", ["a warm and funny film"])
    torch.manual_seed(0)
    sizes = {"context": 48, "dim": 16, "hidden": 32, "blocks": 1, "heads": 2}
    save_model(tmp_path / "lm", Decoder(DecoderConfig(tokenizer.get_vocab_size(), **sizes)), (), tokenizer, {"p": 1.5})
    checkpoints = Checkpoints(tmp_path, shipped=tmp_path / "none")
    assert [(entry.name, entry.label, entry.about) for entry in checkpoints.entries()] == [
        ("lm", "ℓ1.5", "layers 1, heads 2, dim 16")
    ]
    found = attention(checkpoints.load("lm"), "a film")
    assert [token["text"] for token in found["tokens"]] == ["a", "␣", "f", "i", "l", "m"]
    assert found["query"] == 5
    assert len(found["prediction"]["choices"]) == 5
