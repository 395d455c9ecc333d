"""Problem files are read strictly and written whole; made-up problems are what the paper says."""

import os
import zipfile

import numpy as np
import pytest

from mirrormax.data import (
    Problem,
    class_problem,
    example1,
    example2,
    load_problem,
    read_npz,
    save_problem,
    sphere_problem,
)


def arrays(**changes):
    problem = sphere_problem(0, 3, 4, 5)
    plain = {"X": problem.X, "y": problem.y, "z": problem.z, "v": problem.v, **changes}
    return {name: value for name, value in plain.items() if value is not None}


def test_a_problem_comes_back_bit_for_bit(tmp_path):
    mask = np.ones((3, 4), dtype=bool)
    mask[0, 3] = False
    problem = Problem(**arrays(alpha=np.array([0, 1, 2]), mask=mask))
    save_problem(tmp_path / "p.npz", problem)
    back = load_problem(tmp_path / "p.npz")
    for name in ("X", "y", "z", "v", "alpha", "mask"):
        assert np.array_equal(getattr(problem, name), getattr(back, name))


def test_what_is_optional_may_be_absent_and_what_is_unknown_is_ignored(tmp_path):
    np.savez(tmp_path / "p.npz", **arrays(seed=np.array(3)))
    problem = load_problem(tmp_path / "p.npz")
    assert problem.alpha is None
    assert problem.mask is None


def test_integers_and_single_precision_become_double(tmp_path):
    plain = arrays()
    np.savez(tmp_path / "p.npz", **{**plain, "X": plain["X"].astype(np.float32), "y": plain["y"].astype(np.int8)})
    problem = load_problem(tmp_path / "p.npz")
    assert problem.X.dtype == problem.y.dtype == np.float64


BAD = {
    "no y": ({"y": None}, r"has no array 'y'"),
    "no X": ({"X": None}, r"has no array 'X'"),
    "no z": ({"z": None}, r"has no array 'z'"),
    "no v": ({"v": None}, r"has no array 'v'"),
    "misspelt alpha": ({"Alpha": np.array([0, 0, 0])}, r"'Alpha'; did you mean 'alpha'"),
    "X flat": ({"X": np.ones((3, 5))}, r"X must have the shape \(\.\.\., n, T, d\), got \(3, 5\)"),
    "y long": ({"y": np.ones(4)}, r"y must have the shape .*got \(4,\)"),
    "labels": ({"y": np.array([0.0, 1.0, 1.0])}, r"y must hold the labels \+1 and -1, got 0"),
    "X NaN": ({"X": np.full((3, 4, 5), np.nan)}, r"X holds nan"),
    "z infinite": ({"z": np.full((3, 5), -np.inf)}, r"z holds -inf"),
    "X text": ({"X": np.full((3, 4, 5), "a")}, r"X must hold real numbers, got <U1"),
    "alpha floating": ({"alpha": np.zeros(3)}, r"alpha must hold integers"),
    "a batch": ({"X": np.ones((2, 3, 4, 5))}, r"it holds a batch of shape \(2,\)"),
    "mask of numbers": ({"mask": np.ones((3, 4))}, r"mask must be boolean, got float64"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_sentence(name, tmp_path):
    change, message = BAD[name]
    np.savez(tmp_path / "p.npz", **arrays(**change))
    with pytest.raises(ValueError, match=message) as caught:
        load_problem(tmp_path / "p.npz")
    assert "p.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_archives_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz does not exist"):
        load_problem(tmp_path / "nothing.npz")
    with pytest.raises(IsADirectoryError, match="is not a file"):
        load_problem(tmp_path)
    for name, content in (("text", b"hello, world"), ("cut", b"PK\x03\x04abc")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"is not an \.npz file"):
            load_problem(tmp_path / name)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        load_problem(tmp_path / "one.npy")


def test_python_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "p.npz", **arrays(X=np.array([Trap()], dtype=object)))
    with pytest.raises(ValueError, match=r"'X'.*Python objects"):
        load_problem(tmp_path / "p.npz")
    (tmp_path / "q.npz").write_bytes(b"\x80\x04\x95.")
    with pytest.raises(ValueError, match=r"is not an \.npz file"):
        load_problem(tmp_path / "q.npz")
    assert not (tmp_path / "sprung").exists()


def test_damaged_arrays_are_named(tmp_path):
    np.savez(tmp_path / "p.npz", **arrays())
    content = bytearray((tmp_path / "p.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "p.npz") as archive:
        at = archive.getinfo("z.npy").header_offset + 200
    content[at] ^= 0xFF
    (tmp_path / "p.npz").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"array 'z'.*damaged"):
        load_problem(tmp_path / "p.npz")


def test_sphere_problems_are_on_the_sphere_and_repeat():
    problem = sphere_problem(7)
    assert problem.X.shape == (6, 8, 10)
    for points in (problem.X, problem.z, problem.v):
        assert np.allclose(np.linalg.norm(points, axis=-1), 1)
    assert set(np.concatenate([sphere_problem(k).y for k in range(5)])) == {-1.0, 1.0}
    assert np.array_equal(problem.X, sphere_problem(7).X)
    assert not np.array_equal(problem.X, sphere_problem(8).X)
    assert sphere_problem(1, n=2, T=3, d=4).X.shape == (2, 3, 4)


def test_examples_are_those_of_the_paper():
    one, two = example1(), example2()
    assert one.X.tolist() == [[[5, 0], [0, 1]], [[-5, 0], [0, -1]]]
    assert one.best_tokens().tolist() == one.alpha.tolist() == [0, 0]
    assert two.X.shape == (2, 3, 2)
    assert np.array_equal(two.z, two.X[:, 0])
    assert two.X[1, 2].tolist() == [1.8, 0.2]


def test_best_tokens_are_the_highest_scores_among_those_present():
    problem = sphere_problem(3)
    scores = problem.y[:, None] * (problem.X @ problem.v)
    assert np.array_equal(problem.best_tokens(), scores.argmax(axis=1))
    mask = np.ones((6, 8), dtype=bool)
    mask[np.arange(6), scores.argmax(axis=1)] = False
    masked = Problem(problem.X, problem.y, problem.z, problem.v, mask=mask)
    assert np.array_equal(masked.best_tokens(), np.argsort(scores, axis=1)[:, -2])


def test_tied_scores_are_refused_naming_the_sample():
    with pytest.raises(ValueError, match="sample 0 has more than one token"):
        example2().best_tokens()


def test_a_problem_cannot_be_changed():
    with pytest.raises(AttributeError):
        example1().X = np.zeros((2, 2, 2))


def test_what_the_mask_leaves_out_is_never_read(tmp_path):
    problem = sphere_problem(0)
    X, mask = problem.X.copy(), np.ones(problem.X.shape[:2], dtype=bool)
    X[0, 1], mask[0, 1] = np.nan, False
    save_problem(tmp_path / "p.npz", Problem(X, problem.y, problem.z, problem.v, mask=mask))
    assert np.isfinite(load_problem(tmp_path / "p.npz").X).all()
    with pytest.raises(ValueError, match="X holds nan"):
        Problem(X, problem.y, problem.z, problem.v)


def test_scores_that_tie_by_rounding_are_tied():
    X = np.array([[[0.1 + 0.2, 1.0], [0.3, 2.0]]])
    with pytest.raises(ValueError, match="sample 0 has more than one token"):
        Problem(X, np.array([1.0]), np.ones((1, 2)), np.array([1.0, 0.0])).best_tokens()


@pytest.mark.parametrize("shape", [(10**6, 10**6, 10), (10**30,)])
def test_an_array_that_claims_more_than_memory_is_refused(shape, tmp_path):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"huge\.npz cannot be read"):
        read_npz(tmp_path / "huge.npz")


def test_a_header_that_unpacks_without_end_and_a_pipe_are_refused_at_once(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x02\x00" + (0x3FFFFFFF).to_bytes(4, "little") + b" " * 20_000_000)
        for name in "yzv":
            archive.writestr(f"{name}.npy", b"")
    with pytest.raises(ValueError, match=r"array 'X' .* cannot be read \(it is damaged"):
        load_problem(path)
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(OSError, match="is not a file"):
        load_problem(tmp_path / "pipe.npz")


def test_a_problem_of_several_classes_has_its_sizes_and_is_the_same_for_a_seed():
    problem = class_problem(3, n=5, T=4, d=7, classes=4, heads=2, size=3.0)
    assert problem.X.shape == (5, 4, 7)
    assert problem.V.shape == (2, 4, 7)
    assert set(problem.y.tolist()) <= set(range(4))
    np.testing.assert_allclose(np.linalg.norm(problem.V, axis=-1), 3.0)
    np.testing.assert_allclose(np.linalg.norm(problem.X, axis=-1), 1.0)
    np.testing.assert_array_equal(problem.z, class_problem(3, n=5, T=4, d=7, classes=4, heads=2, size=3.0).z)


@pytest.mark.parametrize("make", [sphere_problem, class_problem])
@pytest.mark.parametrize("name", ["n", "T", "d"])
def test_sizes_of_made_up_problems_are_whole_numbers_from_one_on(make, name):
    with pytest.raises(ValueError, match=rf"^{name} must be at least 1, got 0"):
        make(0, **{name: 0})
    with pytest.raises(TypeError, match=rf"^{name} must be an integer, got 2\.5"):
        make(0, **{name: 2.5})


def test_a_sphere_problem_has_a_seed_of_its_own():
    np.testing.assert_array_equal(sphere_problem().X, sphere_problem(0).X)
