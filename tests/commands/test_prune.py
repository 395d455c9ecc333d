"""``mirrormax prune`` from the command line, on checkpoints of ours and of Hugging Face."""

import json

import pytest
import torch
from audited_models import hugging_face

from mirrormax import auditing, commands
from mirrormax import prune as prune_model
from mirrormax.auditing import load_for_audit
from mirrormax.data import bert_tokenizer, language_tokenizer, token_stream
from mirrormax.nets import Decoder, DecoderConfig, TransformerClassifier, TransformerConfig, load_model, save_model
from mirrormax.optim import param_groups
from mirrormax.pruning import load_sparse

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very")
ROWS = [
    "a good film,positive",
    "a bad film,negative",
    "a very very good film,positive",
    "bad,negative",
    "good,positive",
]


@pytest.fixture
def folder(drawn_folder, dots):
    """A checkpoint and its texts, for results without pictures."""
    return drawn_folder


@pytest.fixture
def drawn_folder(tmp_path, monkeypatch):
    """The same with pictures."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = TransformerConfig(vocab_size=len(WORDS), dim=16, hidden=32, blocks=2, heads=2, max_length=64)
    save_model(tmp_path / "ours", TransformerClassifier(sizes), ("negative", "positive"), bert_tokenizer(WORDS))
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(ROWS) + "\n")
    return tmp_path


def prune(*arguments):
    return commands.main(["prune", *arguments, "--data", "texts.csv", "--label-column", "label"])


def test_the_checkpoint_is_pruned_where_it_says_and_nowhere_else(folder, capsys):
    assert prune("ours", "--share", "0.8", "--shares", "0,0.5") == 0
    out = capsys.readouterr().out
    assert "accuracy, by magnitude" in out
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert [point["share"] for point in told["quality"]] == [0.0, 0.5]
    assert told["share"] == pytest.approx(0.8, abs=5e-3)
    before, after = load_model(folder / "ours").model, load_sparse(folder / "pruned" / "model.sparse.safetensors")
    matrices = {id(param) for param in param_groups(before, scope="matrices")[0]["params"]}
    zeros = sizes = 0
    for name, param in before.named_parameters():
        gone = after[name] == 0
        if id(param) in matrices:
            zeros, sizes = zeros + int(gone.sum()), sizes + param.numel()
            assert torch.equal(after[name][~gone], param.detach()[~gone])
        else:
            assert torch.equal(after[name], param.detach())
    assert zeros / sizes == pytest.approx(told["share"])


def test_what_it_says_of_the_bytes_is_so(drawn_folder):
    assert prune("ours", "--share", "0.8", "--shares", "", "--quiet") == 0
    pruned = drawn_folder / "pruned"
    told = json.loads((pruned / "pruning.json").read_text())
    assert told["bytes"]["sparse"] == (pruned / "model.sparse.safetensors").stat().st_size
    assert "weights pruned" in (pruned / "pruning.svg").read_text("utf-8")


def test_the_accuracy_is_that_of_the_loaded_checkpoint(folder):
    assert prune("ours", "--share", "0.9", "--shares", "", "--quiet") == 0
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    model = load_model(folder / "ours").model
    model.load_state_dict(load_sparse(folder / "pruned" / "model.sparse.safetensors"))
    loaded = load_for_audit(folder / "ours")
    right = []
    model.eval()
    for row in ROWS:
        text, label = row.split(",")
        ids = torch.tensor([loaded.tokenizer.encode(text).ids])
        with torch.no_grad():
            right.append(loaded.classes[int(model(ids).argmax())] == label)
    assert told["pruned"]["mean"] == pytest.approx(sum(right) / len(right))


def test_the_same_again_is_already_there_and_another_is_refused(folder, capsys):
    assert prune("ours", "--share", "0.5", "--shares", "0") == 0
    first = capsys.readouterr().out
    assert prune("ours", "--share", "0.5", "--shares", "0") == 0
    assert capsys.readouterr().out == first.replace("(written)", "(already there)")
    assert prune("ours", "--share", "0.6", "--shares", "0") == 2
    assert "share" in capsys.readouterr().err
    assert prune("ours", "--share", "0.6", "--shares", "0", "--force", "--quiet") == 0


def test_by_margin_is_measured_beside_magnitude_on_rows_that_scored_nothing(folder, capsys, monkeypatch):
    (folder / "texts.csv").write_text("text,label\n" + "\n".join(ROWS * 4) + "\n")
    seen = {}

    def watched(loaded, batches, *others, **options):
        seen["measured"], seen["scored"] = list(batches.inputs), list(others[3].inputs)
        return auditing_measure(loaded, batches, *others, **options)

    auditing_measure = auditing.measure_pruning
    monkeypatch.setattr(auditing, "measure_pruning", watched)
    assert prune("ours", "--share", "0.8", "--shares", "0,0.5", "--by", "margin", "--calibration", "6") == 0
    out = capsys.readouterr().out
    assert "scored on 6 rows, and quality is measured on the other 14" in " ".join(out.split())
    assert "by margin" in out
    assert "by magnitude" in out
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["by"] == "margin"
    assert [point["share"] for point in told["by_magnitude"]] == [0.0, 0.5]
    assert told["by_magnitude"][0] == told["quality"][0]
    assert (len(seen["scored"]), len(seen["measured"])) == (6, 14)
    loaded = load_for_audit(folder / "ours")
    rows = [{"ids": torch.nn.utils.rnn.pad_sequence([torch.as_tensor(r) for r in seen["scored"]], True)}]
    prune_model(loaded.model, 0.8, by="margin", batches=rows).finish()
    after = load_sparse(folder / "pruned" / "model.sparse.safetensors")
    assert all(torch.equal(value, after[name]) for name, value in loaded.model.state_dict().items())
    assert prune("ours", "--share", "0.8", "--shares", "0,0.5", "--by", "margin", "--calibration", "6") == 0
    assert capsys.readouterr().out == out.replace("(written)", "(already there)")


@pytest.mark.parametrize("structured", ["row", "head"])
def test_whole_rows_and_heads(folder, structured):
    assert prune("ours", "--share", "0.5", "--shares", "", "--structured", structured, "--quiet") == 0
    after = load_sparse(folder / "pruned" / "model.sparse.safetensors")
    name = next(name for name in after if after[name].ndim == 2 and (after[name] == 0).all(1).any())
    assert (after[name] != 0).any()


@pytest.mark.parametrize("by", ["wanda", "sparsegpt", "taylor"])
def test_every_score_of_the_library(folder, by, capsys):
    (folder / "texts.csv").write_text("text,label\n" + "\n".join(ROWS * 4) + "\n")
    assert prune("ours", "--share", "0.5", "--shares", "0.3", "--by", by, "--calibration", "8") == 0
    assert f"50% pruned by {by}" in " ".join(capsys.readouterr().out.split())
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["share"] == pytest.approx(0.5, abs=0.01)
    assert told["rows"] == 12
    assert [point["share"] for point in told["by_magnitude"]] == [0.0, 0.3]


def test_intervals_hold_the_quality_and_chance_is_the_commonest_label(folder):
    (folder / "texts.csv").write_text("text,label\n" + "\n".join(ROWS * 4) + "\n")
    assert prune("ours", "--share", "0.8", "--shares", "0.5", "--quiet") == 0
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["chance"] == pytest.approx(0.6)
    for point in told["quality"]:
        assert point["low"] <= point["quality"] <= point["high"]
        assert 0 < point["high"] - point["low"] < 1 or point["quality"] in (0, 1)
    dense = told["quality"][0]["quality"]
    assert told["change"]["mean"] == pytest.approx(told["pruned"]["mean"] - dense)


def test_the_label_column_is_that_of_the_training(tmp_path, monkeypatch, dots):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = TransformerConfig(vocab_size=len(WORDS), dim=8, hidden=8, blocks=1, heads=1, max_length=64)
    for folder, columns in (("plain", {}), ("named", {"text_column": "words", "label_column": "verdict"})):
        model = TransformerClassifier(sizes)
        save_model(tmp_path / folder, model, ("negative", "positive"), bert_tokenizer(WORDS), columns)
    (tmp_path / "plain.csv").write_text("text,label\n" + "\n".join(ROWS) + "\n")
    (tmp_path / "named.csv").write_text("words,verdict\n" + "\n".join(ROWS) + "\n")
    for name in ("plain", "named"):
        arguments = [name, "--share", "0.5", "--shares", "", "--data", f"{name}.csv", "--out", f"{name}-out", "--quiet"]
        assert commands.main(["prune", *arguments]) == 0
        assert json.loads((tmp_path / f"{name}-out" / "pruning.json").read_text())["rows"] == len(ROWS)


def test_an_export_is_a_plain_hugging_face_model_with_zeros_in_place(folder, capsys):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    save_bert(folder)
    capsys.readouterr()
    assert prune("bert", "--share", "0.5", "--shares", "", "--export", "plain") == 0
    assert not capsys.readouterr().err
    stored = load_sparse(folder / "pruned" / "model.sparse.safetensors")
    state = AutoModelForSequenceClassification.from_pretrained("plain").state_dict()
    assert state.keys() == stored.keys()
    assert all(torch.equal(value, stored[name]) for name, value in state.items())
    assert AutoTokenizer.from_pretrained("plain")("a good film")["input_ids"]
    assert prune("bert", "--share", "0.5", "--shares", "", "--export", "plain") == 2  # nothing is overwritten
    capsys.readouterr()
    assert prune("bert", "--share", "0.5", "--shares", "", "--export", "again", "--quiet") == 0
    again = AutoModelForSequenceClassification.from_pretrained("again").state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in again.items())
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def save_with_words(folder, model):
    """A Hugging Face model in ``bert``, with a tokenizer."""
    model.save_pretrained("bert")
    (folder / "bert" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "bert" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def save_bert(folder):
    """A Hugging Face classifier in ``bert``, and texts with its labels."""
    model = hugging_face("bert")
    save_with_words(folder, model)
    labels = load_for_audit(folder / "bert").classes
    (folder / "texts.csv").write_text(f"text,label\na good film,{labels[0]}\nbad,{labels[1]}\n")
    return model


def test_a_hugging_face_classifier(folder, capsys):
    save_bert(folder)
    assert prune("bert", "--share", "0.5", "--shares", "0") == 0
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["magnitude", "margin"])
def test_an_encoder_without_a_head_is_compared_with_its_dense_self(folder, by):
    save_with_words(folder, hugging_face("bert").base_model)
    texts = [row.split(",")[0] for row in ROWS]
    calibration = ["--calibration", "1"] if by == "margin" else []
    assert prune("bert", "--share", "0.9", "--shares", "0", "--batch-size", "2", "--by", by, *calibration) == 0
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["measure"] == "cosine to the dense model"
    assert [point["quality"] for point in told["quality"]] == [pytest.approx(1)]
    vectors = []
    for name in ("bert", "pruned"):
        loaded = load_for_audit(name)
        with torch.no_grad():
            each = [loaded.model(**loaded.tokenizer(text, return_tensors="pt")).last_hidden_state for text in texts]
        vectors.append(torch.cat([one.mean(1) for one in each[len(calibration) // 2 :]]))
    assert told["pruned"]["mean"] == pytest.approx(float(torch.cosine_similarity(*vectors).mean()), abs=1e-5)
    assert told["pruned"]["mean"] < 0.999


def test_an_encoder_has_no_loss_for_taylor(folder, capsys):
    save_with_words(folder, hugging_face("bert").base_model)
    assert prune("bert", "--share", "0.5", "--structured", "head", "--calibration", "1") == 2
    said = capsys.readouterr().err
    assert "--by taylor" in said
    assert "batches" not in said
    assert not (folder / "pruned").exists()


def test_a_pruned_model_is_read_again_with_its_zeros(folder):
    assert prune("ours", "--share", "0.8", "--shares", "", "--quiet") == 0
    again = load_for_audit("pruned")
    stored = load_sparse(folder / "pruned" / "model.sparse.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in again.model.state_dict().items())
    assert again.classes == ("negative", "positive")
    arguments = ["--data", "texts.csv", "--limit", "4", "--out", "audited", "--quiet"]
    assert commands.main(["audit", "pruned", *arguments]) == 0
    assert (folder / "audited" / "audit.html").is_file()


def test_a_pruned_hugging_face_model_is_read_again(folder):
    model = save_bert(folder)
    assert prune("bert", "--share", "0.5", "--shares", "", "--quiet") == 0
    again = load_for_audit("pruned")
    assert type(again.model) is type(model)
    assert not again.model.training
    stored = load_sparse(folder / "pruned" / "model.sparse.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in again.model.state_dict().items())
    assert again.tokenizer("a good film")["input_ids"] == load_for_audit("bert").tokenizer("a good film")["input_ids"]


def test_tied_weights_are_stored_and_counted_once(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), **sizes)).eval()
    save_with_words(folder, model)
    assert prune("bert", "--share", "0.5", "--shares", "", "--quiet") == 0
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["bytes"]["dense"] == 4 * sum(param.numel() for param in model.parameters())
    assert "lm_head.weight" not in load_sparse(folder / "pruned" / "model.sparse.safetensors")
    again = load_for_audit("pruned").model
    assert again.lm_head.weight is again.transformer.wte.weight
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_a_dense_model_saved_into_the_folder_since_is_the_one_that_is_read(folder):
    model = save_bert(folder)
    assert prune("bert", "--share", "0.5", "--shares", "", "--quiet") == 0
    model.save_pretrained("pruned")
    again = load_for_audit("pruned").model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_a_language_model_of_ours_loses_and_is_read_again(folder):
    torch.manual_seed(0)
    texts = [f"a {word} film of rare {other} warmth" for word in WORDS[5:] for other in WORDS[5:]]
    tokenizer = language_tokenizer("byte", texts)
    model = Decoder(DecoderConfig(tokenizer.get_vocab_size(), context=48, dim=16, hidden=32, blocks=1, heads=2))
    trained = {"data": "elsewhere.txt", "test": 0.2, "split_seed": 0, "context": 48}
    save_model(folder / "lm", model, (), tokenizer, trained)
    (folder / "texts.txt").write_text("\n".join(texts))
    assert commands.main(["prune", "lm", "--share", "0.8", "--shares", "0", "--data", "texts.txt", "--quiet"]) == 0
    told = json.loads((folder / "pruned" / "pruning.json").read_text())
    assert told["measure"] == "loss per token"
    ids = torch.from_numpy(token_stream(tokenizer, texts[:1]))[None, :-1]
    model.load_state_dict(load_sparse(folder / "pruned" / "model.sparse.safetensors"))
    again = load_for_audit("pruned")
    torch.testing.assert_close(again.model(ids).logits, model(ids), rtol=1e-4, atol=1e-5)
    assert again.tokenizer(texts[0])["input_ids"] == ids[0].tolist()
    assert again.training == trained  # by which an audit knows what it was trained on


def test_texts_beyond_the_models_context_are_told(folder, capsys):
    (folder / "texts.csv").write_text(f"text,label\n{'good ' * 80},positive\nbad,negative\n")
    assert prune("ours", "--share", "0.5", "--shares", "") == 0
    assert "1 of 2 texts were longer than the model's context of 64 tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("place", ["ours", "nowhere/plain"])
def test_an_export_over_a_folder_or_into_none_writes_nothing(folder, capsys, place):
    save_bert(folder)
    capsys.readouterr()
    before = sorted(path.name for path in folder.iterdir())
    assert prune("bert", "--share", "0.5", "--export", place) == 2
    error = capsys.readouterr().err
    assert "--export" in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before
