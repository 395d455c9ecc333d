"""Folders of models: what is read of them, and what is said of those that cannot be."""

import json

import numpy as np
import pytest
import torch
from audited_models import hugging_face
from readers import piece_tokenizer, reader

from mirrormax.auditing import Data, load_for_audit, make_batches
from mirrormax.nets import save_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film")
TEXTS = ("a good film", "a bad film")


@pytest.fixture
def bert(tmp_path):
    model = hugging_face("bert")
    model.resize_token_embeddings(len(WORDS))
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "bert" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return tmp_path / "bert"


def test_a_hugging_face_folder_without_a_tokenizer_file_is_refused_by_name(bert):
    (bert / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"bert has no tokenizer file \(tokenizer\.json, vocab\.txt, …\)"):
        load_for_audit(bert)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "is not JSON"),
        ('{"model_type": ' + '{"a":' * 100_000, "is not JSON"),
        ("[1, 2]", "holds no JSON object but a list"),
        ('{"model_type": "bert", "architectures": [5]}', r"has architectures \[5\]"),
        ('{"model_type": "bert", "architectures": 5}', "has architectures 5"),
        ('{"model_type": 5, "architectures": ["BertModel"]}', "cannot be read as a BertModel"),
        ('{"model_type": "bert", "num_attention_heads": "many"}', "cannot be read as a model"),
    ],
    ids=["deep list", "deep object", "list", "number of architectures", "architectures", "type", "sizes"],
)
def test_a_config_that_is_no_config_is_one_sentence(bert, text, message):
    (bert / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_for_audit(bert)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ['"0.5"', "[0.5, 0.5]", "null", "[[0.5]]", "NaN"])
def test_the_mean_of_images_must_be_a_number_per_channel(tmp_path, value):
    hugging_face("vit").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(f'{{"image_mean": {value}}}')
    with pytest.raises(ValueError, match="image_mean"):
        load_for_audit(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.25], "image_std": 0.5}')
    assert load_for_audit(tmp_path).image["mean"] == [0.25]


def test_the_share_of_unknown_tokens_is_counted_without_the_special_ones(bert, tmp_path):
    loaded = load_for_audit(bert)
    strange = make_batches(loaded, Data(("a good film", "ein film")), 64, 2)
    assert "20% of the tokens are unknown to the tokenizer, more than 5%" in strange.warnings[0]
    known = make_batches(loaded, Data(TEXTS), 64, 2)
    assert (known.warnings, known.shortened) == ((), ())
    tokenizer = piece_tokenizer(TEXTS)
    save_model(tmp_path / "own", reader(tokenizer), ("no", "yes"), tokenizer)
    own = make_batches(load_for_audit(tmp_path / "own"), Data(("good film", "ñandú film")), 64, 2)
    assert "25% of the tokens are unknown" in own.warnings[0]


def test_texts_that_lost_their_end_are_counted_among_all_of_them(bert):
    batches = make_batches(load_for_audit(bert), Data(("a good film", "a film", "a good good film")), 4, 2)
    (said,) = batches.shortened
    assert said == "2 of 3 texts were longer than --max-length of 4 tokens and lost their end."
    assert batches.take(np.array([1])).shortened == (said,)


def test_a_changed_weight_changes_the_contents_that_a_model_is_known_by(bert):
    from mirrormax._identity import content_digests

    before = content_digests(load_for_audit(bert).files)
    assert {"model.safetensors", "config.json", "vocab.txt"} <= before.keys()
    model = hugging_face("bert")
    model.resize_token_embeddings(len(WORDS))
    with torch.no_grad():
        model.classifier.bias += 1
    model.save_pretrained(bert)
    after = content_digests(load_for_audit(bert).files)
    assert before["model.safetensors"] != after["model.safetensors"]
    assert before["vocab.txt"] == after["vocab.txt"]


def test_a_checkpoint_of_ours_says_how_it_was_trained(tmp_path):
    tokenizer = piece_tokenizer(TEXTS)
    save_model(tmp_path / "own", reader(tokenizer), ("no", "yes"), tokenizer, {"data": "reviews", "seed": 3})
    assert load_for_audit(tmp_path / "own").training == {"data": "reviews", "seed": 3}
    told = json.loads((tmp_path / "own" / "config.json").read_text())
    assert told["training"]["seed"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "tokenizer cannot read the texts"), ("\n".join((*WORDS, "ein")), r"gives token 9, but the model has only 9")],
    ids=["empty", "too many"],
)
def test_a_tokenizer_that_does_not_fit_the_model_is_one_sentence(bert, words, message):
    (bert / "vocab.txt").write_text(words)
    with pytest.raises(ValueError, match=message):
        make_batches(load_for_audit(bert), Data(("a good film", "ein film")), 64, 2)
