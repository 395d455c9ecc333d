"""Token-selection problems, texts and images, from files and from generators."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.data.corpus import END, TOKENS, corpus_files, language_tokenizer, load_corpus, text_of, token_stream
    from mirrormax.data.files import read_columns, read_npz, read_utf8, resolve_data_dir
    from mirrormax.data.images import IMAGE_SOURCES, image_files, load_images
    from mirrormax.data.labelled import ImageData, Images, TextData, Texts, split, split_indices
    from mirrormax.data.pivots import KINDS, Pivot, Span, load_pivots, word_spans
    from mirrormax.data.problems import (
        ClassProblem,
        class_problem,
        example1,
        example2,
        load_problem,
        save_problem,
        sphere_problem,
    )
    from mirrormax.data.text import TEXT_SOURCES, load_text, reviews_file, text_files
    from mirrormax.data.tokenizer import bert_tokenizer, encode, encode_with_offsets, load_tokenizer, train_tokenizer
    from mirrormax.problem import Problem

__all__ = [
    "ClassProblem",
    "ImageData",
    "Images",
    "Pivot",
    "Problem",
    "TextData",
    "Texts",
    "bert_tokenizer",
    "class_problem",
    "encode",
    "encode_with_offsets",
    "example1",
    "example2",
    "language_tokenizer",
    "load_corpus",
    "load_images",
    "load_pivots",
    "load_problem",
    "load_text",
    "load_tokenizer",
    "save_problem",
    "sphere_problem",
    "split",
    "text_of",
    "token_stream",
    "train_tokenizer",
]

__getattr__, __dir__ = lazy(__name__)
