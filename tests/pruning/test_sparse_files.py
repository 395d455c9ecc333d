"""Files in which zeros take one bit each."""

import pytest
import torch

from mirrormax.pruning import load_sparse, save_sparse


def test_sparse_files_give_back_every_bit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(5, 7, generator=generator)
    sparse = dense * (torch.rand(5, 7, generator=generator) < 0.2)
    tensors = {
        "dense": dense,
        "sparse": sparse,
        "half": sparse.bfloat16(),
        "nothing": torch.zeros(3, 3),
        "none": torch.zeros(0),
        "scalar": torch.tensor(2.0),
        "whole": torch.tensor([0, 0, 5]),
    }
    save_sparse(tmp_path / "file", tensors)
    found = load_sparse(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_a_file_of_others_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"not a tensor")
    with pytest.raises(ValueError, match="not written by save_sparse"):
        load_sparse(tmp_path / "file")


def test_what_is_no_state_dict_and_no_file_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"tensors must be a state_dict, got Linear"):
        save_sparse(tmp_path / "file", torch.nn.Linear(2, 2))
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load_sparse(tmp_path)
    assert not list(tmp_path.iterdir())
