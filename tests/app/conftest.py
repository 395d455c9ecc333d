"""A small world for the explorer: checkpoints, results, and the application over them."""

import json
import shutil

import pytest
import torch
from starlette.testclient import TestClient

from mirrormax.app import make_app
from mirrormax.app.guards import cookie_name
from mirrormax.data.tokenizer import SPECIAL, bert_tokenizer
from mirrormax.nets import TransformerClassifier, TransformerConfig, save_model

WORDS = ("a", "warm", "funny", "film", "dull", "script", "<", ">", ".", ",", "alert", "(", ")", "/", "un", "##happy")
HOST = "http://127.0.0.1"
TOKEN = "the-token"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Two text checkpoints with random weights, one of them as the model of a training run."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = bert_tokenizer([*SPECIAL, *WORDS])
    config = TransformerConfig(vocab_size=len(SPECIAL) + len(WORDS), max_length=16, dim=8, hidden=16, blocks=2, heads=2)
    for seed, place in enumerate(("first", "run/model")):
        torch.manual_seed(seed)
        model = TransformerClassifier(config)
        save_model(folder / place, model, ("negative", "positive"), tokenizer, {"p": 1.1 + seed})
    return folder


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """Hugging Face folders with random weights: a Llama, and a BERT without a readout."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("theirs")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bert_tokenizer([*SPECIAL, *WORDS]), pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 32, "initializer_range": 0.5,
    }  # fmt: skip
    torch.manual_seed(0)
    made = {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)),
        "bert": transformers.BertModel(transformers.BertConfig(**sizes)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """One finished result with a picture and a report, and something beside the folder that is nobody's business."""
    here = tmp_path_factory.mktemp("finished")
    folder = here / "results" / "fig2" / "abc"
    folder.mkdir(parents=True)
    files = {
        "config.json": {"experiment": "fig2", "note": "<b>bold</b>"},
        "summary.json": {"p=2": {"margin": 1.5}},
        "comparisons.json": {
            "shows": "It <script>shows</script>.",
            "comparisons": [
                {
                    "quantity": "W",
                    "column": f"p = {p}",
                    "published": "1",
                    "ours": "1",
                    "verdict": "met",
                    "source": "rerun",
                }
                for p in (2, 3)
            ],
        },
        "mirrormax.json": {"complete": True, "files": {"summary.json": None}, "facts": {"seconds": 0.5}},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "fig2.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>')
    (here / "results" / "report.html").write_text("<!doctype html><title>report</title><script>alert(1)</script>")
    (here / "secret.json").write_text('{"secret": 1}')
    return here / "results"


@pytest.fixture
def runs(results, tmp_path):
    """The same, to be changed by a test."""
    shutil.copytree(results.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "results"


@pytest.fixture
def client(models, runs):
    return TestClient(make_app(models, runs, TOKEN), base_url=HOST, cookies={cookie_name(TOKEN): TOKEN})


@pytest.fixture
def stranger(models, runs):
    """Somebody who does not know the token."""
    return TestClient(make_app(models, runs, TOKEN), base_url=HOST)
