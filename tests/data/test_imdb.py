"""IMDb is read in the hub's layout and in its authors', and refused by file and row."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrormax.data import load_text


def shard(path, texts, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts, "label": labels}), path)


def hub(folder, train=(["bad", "good"], [0, 1]), test=(["awful", "great"], [0, 1])):
    shard(folder / "train-00000-of-00001.parquet", *train)
    shard(folder / "test-00000-of-00001.parquet", *test)
    shard(folder / "unsupervised-00000-of-00001.parquet", ["whatever"], [-1])


def official(folder):
    for split in ("train", "test"):
        for sentiment in ("neg", "pos"):
            (folder / split / sentiment).mkdir(parents=True)
            for number in (10, 2):
                path = folder / split / sentiment / f"{number}_7.txt"
                path.write_text(f"{split} {sentiment} {number} café", encoding="utf-8")


@pytest.mark.parametrize("place", ["imdb", "imdb/plain_text", ".", "plain_text"])
def test_parquet_files_are_read_wherever_the_hub_puts_them(tmp_path, place, monkeypatch):
    hub(tmp_path / place)
    data = load_text("imdb", tmp_path)
    assert (data.name, data.classes) == ("imdb", ("negative", "positive"))
    assert data.train.texts == ("bad", "good")
    assert data.test.texts == ("awful", "great")
    assert data.test.labels.tolist() == [0, 1]
    monkeypatch.setenv("MIRRORMAX_DATA", str(tmp_path))
    assert load_text("imdb").test.texts == data.test.texts


def test_several_files_of_a_split_are_joined_in_order_even_if_each_has_one_class(tmp_path):
    hub(tmp_path / "imdb")
    (tmp_path / "imdb/train-00000-of-00001.parquet").unlink()
    shard(tmp_path / "imdb/train-00001-of-00002.parquet", ["good", "fine"], [1, 1])
    shard(tmp_path / "imdb/train-00000-of-00002.parquet", ["bad"], [0])
    train = load_text("imdb", tmp_path).train
    assert train.texts == ("bad", "good", "fine")
    assert train.labels.tolist() == [0, 1, 1]


def test_a_missing_file_of_several_is_named(tmp_path):
    hub(tmp_path / "imdb")
    (tmp_path / "imdb/train-00000-of-00001.parquet").unlink()
    shard(tmp_path / "imdb/train-00000-of-00003.parquet", ["bad", "good"], [0, 1])
    shard(tmp_path / "imdb/train-00002-of-00003.parquet", ["bad", "good"], [0, 1])
    with pytest.raises(FileNotFoundError, match=r"holds 2 of the 3 files like train-00000-of-00003.*number 1 too"):
        load_text("imdb", tmp_path)


@pytest.mark.parametrize("place", ["aclImdb", "."])
def test_official_folders_are_read_in_the_order_of_their_numbers(tmp_path, place):
    official(tmp_path / place)
    data = load_text("imdb", tmp_path)
    assert data.train.texts == ("train neg 2 café", "train neg 10 café", "train pos 2 café", "train pos 10 café")
    assert data.test.labels.tolist() == [0, 0, 1, 1]


def test_where_there_is_no_imdb_the_command_that_gets_it_is_given(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"hf download stanfordnlp/imdb --repo-type dataset --local-dir .*imdb`"
    ):
        load_text("imdb", tmp_path)


BAD_ROWS = {
    "label 2": (["a", "b"], [0, 2], r"row 2 of the IMDb file .*test-0.*has the label 2; it must be 0"),
    "label -1": (["a", "b"], [-1, 1], r"row 1 .* has the label -1;"),
    "null label": (["a", "b"], [0, None], r"row 2 .* has the label None;"),
    "floating label": (["a", "b"], [0.0, 1.0], r"row 1 .* has the label 0\.0;"),
    "boolean label": (["a", "b"], [False, True], r"row 1 .* has the label False;"),
    "named label": (["a", "b"], ["neg", "pos"], r"row 1 .* has the label 'neg';"),
    "null text": (["a", None], [0, 1], r"row 2 of the IMDb file .*test-0.* has no text but null"),
    "blank text": (["\n ", "b"], [0, 1], r"row 1 .* has an empty text"),
    "numbers for text": ([1, 2], [0, 1], r"row 1 .* has no text but int"),
    "one class": (["a", "b"], [1, 1], r"the test split in .* has reviews of fewer than two classes"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_refused_by_file_and_number(tmp_path, name):
    texts, labels, message = BAD_ROWS[name]
    hub(tmp_path, test=(texts, labels))
    with pytest.raises(ValueError, match=message):
        load_text("imdb", tmp_path)


def test_files_that_are_not_parquet_or_lack_a_column_are_refused(tmp_path):
    hub(tmp_path)
    path = tmp_path / "test-00000-of-00001.parquet"
    whole = path.read_bytes()
    for content in (b"text,label\n", whole[: len(whole) // 2], whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"the IMDb file .*test-0.* is damaged or not a parquet file"):
            load_text("imdb", tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"the IMDb file .* is empty"):
        load_text("imdb", tmp_path)
    pq.write_table(pa.table({"review": ["a"], "label": [1]}), path)
    with pytest.raises(ValueError, match=r"has no column 'text' among \['review', 'label'\]"):
        load_text("imdb", tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no test-\*\.parquet"):
        load_text("imdb", tmp_path)
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=r"the IMDb file .*test-0.* is not a file"):
        load_text("imdb", tmp_path)


def test_bad_official_reviews_are_refused_by_file(tmp_path):
    official(tmp_path / "aclImdb")
    path = tmp_path / "aclImdb/test/pos/2_7.txt"
    for content, message in ((b"", "is empty"), (b" \n", "has an empty text"), (b"caf\xe9", "line 1 .* is not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            load_text("imdb", tmp_path)
        assert str(path) in str(caught.value)
    for path in (tmp_path / "aclImdb/test/pos").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no review \*\.txt in .*pos"):
        load_text("imdb", tmp_path)
