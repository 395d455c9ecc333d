"""Token-selection problems, texts and images, from files and from generators."""

from mirrormax.data.encodings import encode_once
from mirrormax.data.images import ImageData, Images, load_images
from mirrormax.data.npz import read_npz, write_npz
from mirrormax.data.problems import Problem, example1, example2, load_problem, save_problem, sphere_problem
from mirrormax.data.sources import resolve_data_dir
from mirrormax.data.splits import split
from mirrormax.data.text import TextData, Texts, load_text
from mirrormax.data.tokenizer import encode, encode_with_offsets, load_tokenizer, train_tokenizer

__all__ = [
    "ImageData",
    "Images",
    "Problem",
    "TextData",
    "Texts",
    "encode",
    "encode_once",
    "encode_with_offsets",
    "example1",
    "example2",
    "load_images",
    "load_problem",
    "load_text",
    "load_tokenizer",
    "read_npz",
    "resolve_data_dir",
    "save_problem",
    "sphere_problem",
    "split",
    "train_tokenizer",
    "write_npz",
]
