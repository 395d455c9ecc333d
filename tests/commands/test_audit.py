"""``mirrormax audit`` and ``mirrormax compare`` from the command line, on folders and files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from audited_models import hugging_face, image_model
from command_line import refusal

from mirrormax import commands
from mirrormax.auditing import load_for_audit, sides
from mirrormax.auditing.data import class_numbers, make_batches, read_data
from mirrormax.data import bert_tokenizer, load_pivots
from mirrormax.nets import TransformerClassifier, TransformerConfig, save_model

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very", "<", ">", "script", ".")
TEXTS = ["a good film", "a bad film", "a very very good film .", "bad <script>", "good", "a film"]


def text_checkpoint(folder, seed=0, tokenizer=True):
    torch.manual_seed(seed)
    sizes = TransformerConfig(vocab_size=len(WORDS), dim=16, hidden=32, blocks=2, heads=2, max_length=64)
    tokens = bert_tokenizer(WORDS) if tokenizer else None
    return save_model(folder, TransformerClassifier(sizes), ("negative", "positive"), tokens)


@pytest.fixture
def folder(drawn_folder, dots):
    """Two checkpoints and their texts, for results without pictures."""
    return drawn_folder


@pytest.fixture
def drawn_folder(tmp_path, monkeypatch):
    """The same with pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sides, "load_pivots", lambda: load_pivots()[:5])
    text_checkpoint(tmp_path / "first")
    text_checkpoint(tmp_path / "second" / "model", seed=1)  # as a run of mirrormax train keeps it
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    labels = ["positive", "negative", "positive", "negative", "positive", "positive"]
    rows = "\n".join(f"{text},{label}" for text, label in zip(TEXTS, labels, strict=True))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}\n")
    return tmp_path


def test_a_checkpoint_is_audited_on_a_text_file(drawn_folder, capsys):
    options = ["--samples", "3", "--scan", "2", "--controls", "1", "--out", "out", "--quiet"]
    assert commands.main(["audit", "first", "--data", "texts.txt", *options]) == 0
    assert capsys.readouterr().out == ""
    told = json.loads((drawn_folder / "out" / "config.json").read_text())
    assert told["samples"] == 3
    assert told["data"] == "texts.txt"
    assert told["sequences"] == 6
    assert (drawn_folder / "out" / "heads.png").stat().st_size > 10_000
    page = (drawn_folder / "out" / "audit.html").read_text()
    assert "Audit of first" in page
    assert "<script>" not in page


def test_texts_that_lose_their_end_are_counted(folder, capsys):
    options = ["--max-length", "4", "--samples", "3", "--scan", "", "--out", "out"]
    assert commands.main(["audit", "second", "--data", "texts.csv", *options]) == 0
    notes = json.loads((folder / "out" / "audit.json").read_text())["notes"]
    assert any("4 of 6 texts were longer" in note for note in notes)
    assert "heads in 2 layers" in capsys.readouterr().out


def test_whether_a_sample_has_settled_is_said_in_the_terminal_too(folder, capsys):
    options = ["--samples", "3", "--scan", "", "--controls", "0", "--settle", "0.5", "--out", "out"]
    assert commands.main(["audit", "first", "--data", "texts.txt", *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The sample has 3 rows, too few to see whether ratios settle" in out


def test_two_checkpoints_are_compared(drawn_folder, capsys):
    options = ["--data", "texts.csv", "--label-column", "label", "--samples", "3", "--maps", "2", "--out", "both"]
    assert commands.main(["compare", "first", "second", *options]) == 0
    told = json.loads((drawn_folder / "both" / "compare.json").read_text())
    assert [model["name"] for model in told["models"]] == ["first", "second"]
    difference = told["models"][0]["accuracy"]["mean"] - told["models"][1]["accuracy"]["mean"]
    assert told["difference"]["accuracy"]["mean"] == pytest.approx(difference)
    assert set(told["models"][0]["sparsity"]) == {"query", "key", "value"}
    assert told["models"][0]["pivots"]["reviews"] == 5
    page = (drawn_folder / "both" / "compare.html").read_text()
    assert "Where they look" in page
    assert "<script" not in page
    assert "accuracy" in capsys.readouterr().out


def test_models_that_read_less_than_the_marked_reviews_are_compared_in_all_else(folder, capsys, monkeypatch):
    long = replace(load_pivots()[0], text=load_pivots()[0].text + " and so on" * 40)
    monkeypatch.setattr(sides, "load_pivots", lambda: [*load_pivots()[:4], long])
    options = ["--data", "texts.csv", "--label-column", "label", "--samples", "3", "--maps", "0", "--out", "both"]
    assert commands.main(["compare", "first", "second", *options]) == 0
    told = json.loads((folder / "both" / "compare.json").read_text())
    assert [model["pivots"] for model in told["models"]] == [None, None]
    assert "accuracy" in told["difference"]
    said = "first has no pivot scores: 1 of the 5 marked reviews are longer than it reads."
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in told["notes"]


def test_a_model_compared_with_itself_differs_in_nothing(folder):
    options = ["--data", "texts.csv", "--label-column", "label", "--samples", "2", "--controls", "0", "--quiet"]
    assert commands.main(["compare", "first", "first", *options]) == 0
    told = json.loads((folder / "compare" / "compare.json").read_text())
    assert told["difference"]["accuracy"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert all(one["mean"] == 0 for one in told["difference"]["pivots"].values())
    first, second = ({k: v for k, v in model.items() if k != "name"} for model in told["models"])
    assert first == second


def test_images_are_audited_from_an_npz(tmp_path, monkeypatch, dots):
    monkeypatch.chdir(tmp_path)
    save_model("seer", image_model(), ("a", "b", "c"))
    pixels = np.random.default_rng(0).integers(0, 255, (5, 1, 10, 10), dtype=np.uint8)
    np.savez("images.npz", pixels=pixels, labels=np.array([0, 1, 2, 1, 0]))
    options = ["--samples", "3", "--scan", "", "--target", "label", "--quiet"]
    assert commands.main(["audit", "seer", "--data", "images.npz", *options]) == 0
    assert json.loads((tmp_path / "audit" / "config.json").read_text())["layers"] == 2
    assert commands.main(["compare", "seer", "seer", "--data", "images.npz", "--samples", "2", "--quiet"]) == 0
    assert json.loads((tmp_path / "compare" / "compare.json").read_text())["models"][0]["pivots"] is None


def test_a_hugging_face_folder_is_audited_from_safetensors_alone(tmp_path, monkeypatch, dots):
    monkeypatch.chdir(tmp_path)
    model = hugging_face("bert")
    model.resize_token_embeddings(len(WORDS))
    model.save_pretrained("bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "bert" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    loaded = load_for_audit("bert")
    assert loaded.classes == ("LABEL_0", "LABEL_1")
    assert loaded.names([2, 6]) == ["[CLS]", "good"]
    own = loaded.model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())
    assert commands.main(["audit", "bert", "--data", "texts.txt", "--samples", "2", "--scan", "", "--quiet"]) == 0
    (tmp_path / "bert" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no \.safetensors weights"):
        load_for_audit("bert")
    assert torch.equal(
        load_for_audit("bert", allow_pickle=True).model.state_dict()["classifier.bias"], own["classifier.bias"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "texts.txt"], "has no labels to judge the answers by"),
        (["--data", "texts.csv", "--label-column", "text"], "is not a class of the model"),
        (["--data", "texts.csv", "--label-column", "label", "--maps", "-1"], "--maps must be at least 0"),
    ],
    ids=["no labels", "other labels", "maps"],
)
def test_bad_comparisons_are_refused(options, message, folder, capsys):
    before = sorted(folder.rglob("*"))
    assert commands.main(["compare", "first", "second", *options]) == 2
    assert message in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def hugging_face_folder(folder, seed=0, kind="BertModel", vocabulary=WORDS):
    import transformers

    torch.manual_seed(seed)
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    maker = getattr(transformers, kind)
    model = maker(maker.config_class(**sizes, intermediate_size=24, max_position_embeddings=16))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def test_hugging_face_models_are_compared_head_by_head(folder, capsys):
    hugging_face_folder(folder / "base")
    hugging_face_folder(folder / "tuned", seed=1)
    options = ["--data", "texts.txt", "--samples", "3", "--controls", "1", "--out", "both"]
    assert commands.main(["compare", "base", "tuned", *options]) == 0
    told = json.loads((folder / "both" / "compare.json").read_text())
    assert told["models"][0]["accuracy"] is None
    assert told["models"][0]["form"] == "token"
    assert told["difference"]["margins"]["ratio"]["mean"] != 0
    assert "4 pairs of heads" in (folder / "both" / "compare.html").read_text()
    assert "difference" in capsys.readouterr().out


def test_a_language_model_is_audited_at_its_last_token(folder, capsys):
    hugging_face_folder(folder / "llama", kind="LlamaForCausalLM")
    options = ["--data", "texts.txt", "--samples", "3", "--controls", "1", "--out", "out"]
    assert commands.main(["audit", "llama", *options, "--interventions", "1", "--intervention-texts", "3"]) == 0
    told = json.loads((folder / "out" / "audit.json").read_text())
    assert told["config"]["query"] == "last"
    assert told["config"]["form"] == "query"
    assert all(head["induction"] is not None for head in told["heads"])
    assert {effect["kind"] for effect in told["effects"]} == {"off", "max-margin"}
    assert any("nats per token" in note for note in told["notes"])
    assert not any("lost their end" in note for note in told["notes"])
    page = (folder / "out" / "audit.html").read_text()
    assert "induction" in page
    assert "whether the margins stand out cannot be told" in page


def test_what_rounding_changes_is_predicted_and_measured_on_texts_kept_out(folder, capsys):
    options = ["audit", "first", "--data", "texts.txt", "--samples", "2", "--controls", "0", "--shuffled", "0"]
    assert commands.main([*options, "--robustness", "int3,0.5", "--held-out", "2", "--out", "out"]) == 0
    told = json.loads((folder / "out" / "audit.json").read_text())
    assert {one["scheme"] for one in told["robustness"]} == {"int3", "0.5"}
    assert all(0 <= one[name] <= 1 for one in told["robustness"] for name in ("predicted", "measured"))
    assert told["config"]["sequences"] == 4
    assert len((folder / "out" / "robustness.csv").read_text().splitlines()) == 1 + len(told["robustness"])
    capsys.readouterr()
    options += ["--out", "none"]
    assert "--robustness" in refusal(capsys, *options, "--held-out", "2")
    assert "--held-out" in refusal(capsys, *options, "--robustness", "int8", "--held-out", "6")
    assert "int5" in refusal(capsys, *options, "--robustness", "int5")
    assert not (folder / "none").exists()


def test_weights_that_are_missing_or_do_not_fit_are_one_sentence(folder, capsys):
    from safetensors.torch import load_file, save_file

    hugging_face_folder(folder / "llama", kind="LlamaForCausalLM")
    path = folder / "llama" / "model.safetensors"
    whole = load_file(path)
    name = "model.layers.1.self_attn.q_proj.weight"
    cases = {
        "has no weights for model.layers.1.self_attn.q_proj.weight": {k: v for k, v in whole.items() if k != name},
        f"do not fit its config.json: {name} is (4, 16) and should be (16, 16)": {
            **whole,
            name: whole[name][:4].clone(),
        },
        "has numbers that are not finite": {**whole, name: torch.full_like(whole[name], torch.nan)},
    }
    for message, weights in cases.items():
        save_file(weights, path, {"format": "pt"})
        capsys.readouterr()
        assert commands.main(["audit", "llama", "--data", "texts.txt"]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert not (folder / "audit").exists()


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def as_an_adapter(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")


def with_a_third_head(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 3}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_weights, "llama has no weights (a .safetensors file)"),
        (as_an_adapter, "holds an adapter and no whole model"),
        (with_a_third_head, "is not a multiple of the number of attention heads (3)"),
    ],
)
def test_folders_without_a_whole_model_are_one_sentence(folder, capsys, damage, message):
    hugging_face_folder(folder / "llama", kind="LlamaForCausalLM")
    damage(folder / "llama")
    capsys.readouterr()
    assert message in refusal(capsys, "audit", "llama", "--data", "texts.txt")
    assert not (folder / "audit").exists()


def test_texts_beyond_the_models_context_lose_their_end_and_it_is_said(folder, capsys):
    hugging_face_folder(folder / "llama", kind="LlamaForCausalLM")
    (folder / "long.txt").write_text("\n".join([*TEXTS, "film " * 40]) + "\n")
    options = ["--samples", "3", "--controls", "0", "--out", "out"]
    assert commands.main(["audit", "llama", "--data", "long.txt", *options]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "1 of 7 texts were longer than the model's context of 16 tokens and lost their end." in told


@pytest.mark.parametrize("part", ["config.json", "tokenizer_config.json"])
def test_code_of_a_folder_is_never_run(folder, capsys, part):
    hugging_face_folder(folder / "llama", kind="LlamaForCausalLM")
    config = json.loads((folder / "llama" / part).read_text())
    config |= {
        "config.json": {
            "model_type": "strange",
            "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
        },
        "tokenizer_config.json": {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", None]}},
    }[part]
    (folder / "llama" / part).write_text(json.dumps(config))
    (folder / "llama" / "evil.py").write_text("open('ran', 'w').close()")
    capsys.readouterr()
    assert commands.main(["audit", "llama", "--data", "texts.txt"]) == 2
    err = capsys.readouterr().err
    assert "wants to run code of its own, which is never done" in err
    assert err.count("\n") == 1
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("no-such-package", "does not exist"), ("numpy", "must carry one model"), ("fake.gguf", "is no GGUF file")],
)
def test_names_without_a_model_are_one_sentence(folder, capsys, name, message):
    (folder / "fake.gguf").write_text("nothing")
    assert commands.main(["audit", name, "--data", "texts.txt"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_labels_are_matched_by_name_or_by_number():
    assert class_numbers(["b", "a"], ("a", "b")).tolist() == [1, 0]
    assert class_numbers(["1", "0"], ("a", "b")).tolist() == [1, 0]
    assert class_numbers(["1", "0"], ("1", "0")).tolist() == [0, 1]
    with pytest.raises(ValueError, match="label 'c' is not a class of the model; it knows 'a', 'b'"):
        class_numbers(["a", "c"], ("a", "b"))


def test_a_limit_keeps_a_stated_sample_in_order(folder):
    whole, part = read_data("texts.txt"), read_data("texts.txt", limit=3, seed=4)
    assert whole.rows == tuple(TEXTS)
    places = [TEXTS.index(text) for text in part.rows]
    assert places == sorted(places)
    assert len(places) == 3
    assert part.note == "3 of the 6 texts of texts.txt, a uniform sample with seed 4."


def test_padding_of_batches_is_not_read(folder):
    loaded = load_for_audit("first")
    batches = list(make_batches(loaded, read_data("texts.txt"), 64, 4))
    assert [len(batch["ids"]) for batch in batches] == [4, 2]
    assert (batches[0]["ids"] == 0).any()
    assert batches[0]["ids"][0].tolist()[:5] == [2, 5, 6, 8, 3]


AUDIT = ["audit", "first", "--data", "texts.txt", "--samples", "2", "--scan", "", "--controls", "0", "--out", "out"]
COMPARE = [
    *("compare", "first", "second", "--data", "texts.csv", "--label-column", "label"),
    *("--samples", "2", "--controls", "0", "--maps", "0", "--out", "out"),
]
BOTH = pytest.mark.parametrize("command", [AUDIT, COMPARE], ids=["audit", "compare"])


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@BOTH
@pytest.mark.parametrize("name", ["heads.csv", "a/audit.json"])
@pytest.mark.parametrize("options", [[], ["--force"]], ids=["plain", "force"])
def test_a_folder_with_files_of_others_is_refused_before_any_work(folder, capsys, command, name, options):
    (folder / "out" / name).parent.mkdir(parents=True)
    (folder / "out" / name).write_text("mine")
    before = snapshot(folder)
    assert commands.main([*command, *options]) == 2
    assert "holds files that are not of a" in capsys.readouterr().err
    assert snapshot(folder) == before


@BOTH
def test_a_finished_result_is_shown_again_and_another_one_needs_force(folder, capsys, command):
    assert commands.main(command) == 0
    assert "(written)" in capsys.readouterr().out
    before = snapshot(folder / "out")
    assert commands.main(command) == 0
    first, second = capsys.readouterr().out, snapshot(folder / "out")
    assert "(already there)" in first
    assert second == before
    assert commands.main([*command, "--seed", "1"]) == 2
    assert "differs in seed" in capsys.readouterr().err
    assert snapshot(folder / "out") == before
    assert commands.main([*command, "--seed", "1", "--force"]) == 0
    assert snapshot(folder / "out") != before


@BOTH
def test_nothing_stale_is_shown(folder, capsys, command):
    assert commands.main(command) == 0
    (page,) = (folder / "out").glob("*.html")
    data = folder / command[command.index("--data") + 1]
    changes = [
        (page, b"something else", ".html is not as it was written"),
        (data, data.read_bytes().replace(b"a good film", b"a bad bad film"), "contents of data texts"),
    ]
    for path, changed, message in changes:
        before = path.read_bytes()
        path.write_bytes(changed)
        capsys.readouterr()
        assert commands.main(command) == 2
        assert message in capsys.readouterr().err
        path.write_bytes(before)
    text_checkpoint(folder / "first", seed=5)
    assert commands.main(command) == 2
    assert "contents of" in capsys.readouterr().err
    assert commands.main([*command, "--force", "--quiet"]) == 0


def test_the_terminal_and_the_page_say_which_rows_were_used(folder, capsys):
    assert commands.main(COMPARE) == 0
    out = capsys.readouterr().out
    assert out.startswith("• All 6 texts of texts.csv.\n")
    assert "Whether first was trained on some of these texts is not known." in out.replace("\n", " ")
    page = (folder / "out" / "compare.html").read_text()
    assert "All 6 texts of texts.csv." in page
    assert "Whether second was trained on some of these texts is not known." in page


def test_unknown_tokens_are_told_in_the_terminal_and_on_the_page(folder, capsys):
    (folder / "texts.txt").write_text("a good film\nun bon film\n")
    assert commands.main(AUDIT) == 0
    told = "33% of the tokens are unknown to the tokenizer"
    assert told in capsys.readouterr().err
    assert told in (folder / "out" / "audit.html").read_text()
