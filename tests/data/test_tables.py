"""A user's own CSV or parquet file: any classes, named columns, and every broken row refused."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormax.data import load_text


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_csv_with_quotes_newlines_and_other_columns_is_read(tmp_path):
    content = '\ufeffid,label,text\r\n1,pos,"good, ""really""\nfine"\r\n\r\n2,neg,bad\r\n3,meh,so-so\r\n'
    data = load_text(write(tmp_path / "mine.CSV", content))
    assert (data.name, data.classes, data.test) == ("mine.CSV", ("meh", "neg", "pos"), None)
    assert data.train.texts == ('good, "really"\nfine', "bad", "so-so")
    assert data.train.labels.tolist() == [2, 1, 0]


def test_columns_are_chosen_by_name(tmp_path):
    path = write(tmp_path / "a.csv", "stars,review\n1,bad\n5,good\n")
    data = load_text(str(path), text_column="review", label_column="stars")
    assert data.train.texts == ("bad", "good")
    assert data.classes == ("1", "5")


def test_integer_classes_are_sorted_as_numbers_and_the_same_from_both_formats(tmp_path):
    numbers = [10, 2, -1, 2]
    pq.write_table(pa.table({"text": list("abcd"), "label": numbers}), tmp_path / "a.parquet")
    write(tmp_path / "a.csv", "text,label\n" + "".join(f"{t},{n}\n" for t, n in zip("abcd", numbers, strict=True)))
    for name in ("a.parquet", "a.csv"):
        data = load_text(tmp_path / name)
        assert data.classes == ("-1", "2", "10")
        assert data.train.labels.tolist() == [2, 1, 0, 1]


def test_strings_of_every_kind_are_read_from_parquet(tmp_path):
    table = pa.table(
        {"text": pa.array(["a", "b"], pa.large_string()), "label": pa.array(["x", "y"]).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert load_text(tmp_path / "a.parquet").classes == ("x", "y")


def test_a_very_long_text_is_read_and_the_limit_of_the_csv_module_put_back(tmp_path):
    before = csv.field_size_limit()
    path = write(tmp_path / "a.csv", f"text,label\n{'long ' * 40000},a\nshort,b\n")
    assert len(load_text(path).train.texts[0]) == 200000
    assert csv.field_size_limit() == before


BAD_CSV = {
    "empty": ("", r"the table .*a\.csv is empty"),
    "blank lines": ("\n\n", r"has no column 'text' among \[\]"),
    "no such column": ("words,label\na,b\n", r"has no column 'text' among \['words', 'label'\]"),
    "a column twice": ("text,label,text\na,b,c\n", r"has more than one column 'text'"),
    "no rows": ("text,label\n", r"has fewer than two classes in column 'label'"),
    "one class": ("text,label\na,x\nb,x\n", r"has fewer than two classes in column 'label', \['x'\]; give two or more"),
    "short row": ("text,label\na,x\nb\n", r"row 2 of the table .*a\.csv has more or fewer fields"),
    "long row": ("text,label\na,x,y\n", r"row 1 .* has more or fewer fields"),
    "open quote": ('text,label\na,x\n"b,y\n', r"row 2 .* cannot be read \(unexpected end of data\)"),
    "quote inside": ('text,label\n"a"b,x\n', r"row 1 .* cannot be read"),
    "empty text": ("text,label\na,x\n  ,y\n", r"row 2 .* has an empty text"),
    "a fraction": ("text,label\na,0.5\nb,1\n", r"row 1 .* has the label '0\.5'"),
    "nan": ("text,label\na,0\nb,nan\n", r"row 2 .* has no label"),
    "infinity": ("text,label\na,0\nb,inf\n", r"row 2 .* has no label"),
    "empty label": ("text,label\na,x\nb, \n", r"row 2 .* has no label"),
    "NUL": ("text,label\na,x\nb\0,y\n", r"line 3 of the table .*a\.csv holds a NUL byte"),
    "not UTF-8": (b"text,label\na,x\ncaf\xe9,y\n", r"line 3 of the table .*a\.csv is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_a_bad_csv_is_refused_by_row(tmp_path, name):
    content, message = BAD_CSV[name]
    with pytest.raises(ValueError, match=message) as caught:
        load_text(write(tmp_path / "a.csv", content))
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_the_same_classes_however_a_table_writes_them(tmp_path):
    pq.write_table(pa.table({"text": list("abc"), "label": [0.0, 10.0, 2.0]}), tmp_path / "a.parquet")
    write(tmp_path / "a.csv", "text,label\na,0.0\nb,10\nc,2.\n")
    for name in ("a.parquet", "a.csv"):
        data = load_text(tmp_path / name)
        assert data.classes == ("0", "2", "10")
        assert data.train.labels.tolist() == [0, 2, 1]


BAD_PARQUET = {
    "fractions": ({"text": ["a", "b"], "label": [0.5, 1.0]}, r"row 1 .* has the label 0\.5"),
    "NaN": ({"text": ["a", "b"], "label": [0.0, float("nan")]}, r"row 2 .* has no label"),
    "null label": ({"text": ["a", "b"], "label": ["x", None]}, r"row 2 .* has no label"),
    "null text": ({"text": [None, "b"], "label": ["x", "y"]}, r"row 1 .* has no text but null"),
    "bytes": ({"text": [b"a", b"b"], "label": ["x", "y"]}, r"row 1 .* has no text but bytes"),
    "lists": ({"text": [["a"], ["b"]], "label": ["x", "y"]}, r"row 1 .* has no text but list"),
    "no column": ({"text": ["a", "b"]}, r"has no column 'label' among \['text'\]"),
}


@pytest.mark.parametrize("name", BAD_PARQUET)
def test_a_bad_parquet_is_refused_by_row(tmp_path, name):
    columns, message = BAD_PARQUET[name]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        load_text(tmp_path / "a.parquet")


def test_undecodable_bytes_in_a_parquet_are_refused_by_their_place(tmp_path):
    ends = pa.py_buffer(np.array([0, 1, 2, 6], dtype=np.int32))
    texts = pa.Array.from_buffers(pa.utf8(), 3, [None, ends, pa.py_buffer(b"abcaf\xe9")])
    pq.write_table(pa.table({"text": texts, "label": [0, 1, 1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"the table .*a\.parquet is damaged.*UTF8.* index 2"):
        load_text(tmp_path / "a.parquet")


def test_a_parquet_in_which_any_byte_of_the_footer_changed_is_read_or_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "label": ["x", "y"]}), path)
    whole = path.read_bytes()
    for place in range(len(whole) - 1, len(whole) // 2, -3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            load_text(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017 - some changes are harmless


def test_the_same_column_for_both_is_refused(tmp_path):
    with pytest.raises(ValueError, match="label_column must be another column than text_column"):
        load_text(write(tmp_path / "a.csv", "text,label\na,x\nb,y\n"), text_column="label")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_path_to_nothing_or_to_a_directory_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    with pytest.raises(FileNotFoundError, match=r"the table .*a\..* does not exist"):
        load_text(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=r"the table .*a\..* is not a file"):
        load_text(path)


pieces = st.sampled_from(
    [b"text", b"label", b",", b"\n", b"\r", b'"', b"a", b"b", b" ", b"\0", b"\xff", b"\xef\xbb\xbf"]
)


@given(content=st.binary(max_size=200) | st.lists(pieces, max_size=30).map(lambda p: b"text,label\n" + b"".join(p)))
def test_no_bytes_make_the_csv_reader_raise_anything_else(tmp_path_factory, content):
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", content)
    try:
        data = load_text(path)
    except (ValueError, OSError):
        return
    assert len(data.classes) >= 2
    assert all(text.strip() for text in data.train.texts)
