import numpy as np
import pytest

from mirrormax._files import load_arrays, load_object, replacing, save_arrays, save_json


def test_arrays_come_back_as_they_were(tmp_path):
    save_arrays(tmp_path / "new" / "a.npz", x=np.arange(3), y=np.array(2.5))
    loaded = load_arrays(tmp_path / "new" / "a.npz")
    assert loaded["x"].tolist() == [0, 1, 2]
    assert float(loaded["y"]) == 2.5


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    save_json(path, {"old": 1})

    def write_half():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_half()
    assert path.read_text() == '{\n  "old": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_objects_are_not_loaded(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_arrays(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[1]", "holds no JSON object but a list")],
    ids=["half", "deep", "list"],
)
def test_a_file_that_holds_no_object_is_one_sentence_with_its_remedy(tmp_path, text, said):
    path = tmp_path / "a.json"
    path.write_text(text)
    for name in ("", "--config a.json"):
        with pytest.raises(ValueError, match=f"^{name or path} {said}; save it again\\.$"):
            load_object(path, "save it again", name)
    path.write_text('{"p": 2}')
    assert load_object(path, "save it again") == {"p": 2}
