"""How a text model reads a review: the attention of its [CLS] query in the last block, and what it concludes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mirrormax.data.pivots import Span

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reading:
    """One text of T tokens as a model read it.

    ``attention`` (T,) is that of the [CLS] query in the last block, the mean over heads, so it sums to 1;
    ``offsets`` are the characters ``text[start:end]`` of each token; ``special`` (T,) is True where a token is not
    of the text, as [CLS] and [SEP]; ``prediction`` is the class with the largest logit.
    """

    attention: Array
    offsets: tuple[Span, ...]
    special: npt.NDArray[np.bool_]
    prediction: int

    def __post_init__(self) -> None:
        attention = np.asarray(self.attention, dtype=np.float64)
        special = np.asarray(self.special, dtype=np.bool_)
        if not attention.shape == special.shape == (len(self.offsets),):
            raise ValueError(
                f"attention {attention.shape}, special {special.shape} and {len(self.offsets)} offsets "
                "must be one for each token."
            )
        if not (np.isfinite(attention).all() and (attention >= 0).all()):
            raise ValueError("attention must hold finite numbers that are not negative; check the model's weights.")
        object.__setattr__(self, "attention", attention)
        object.__setattr__(self, "special", special)
        object.__setattr__(self, "offsets", tuple((int(start), int(end)) for start, end in self.offsets))

    @property
    def text_tokens(self) -> npt.NDArray[np.intp]:
        """Indices of the tokens that are of the text."""
        lengths = np.array([end - start for start, end in self.offsets])
        return np.flatnonzero(~self.special & (lengths > 0))


def read_reviews(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], *, batch_size: int = 64
) -> tuple[Reading, ...]:
    """Read texts with ``model(ids, attention=True) -> (logits (B, classes), maps (blocks, B, heads, T, T))``.

    The tokenizer must put [CLS] first, and every text must fit the model's ``config.max_length``: nothing is
    cut off. Dropout is off while reading, and the model is given back in the mode it came in.
    """
    encodings = [_trimmed(encoding) for encoding in tokenizer.encode_batch(list(texts))]
    config: Any = model.config
    for text, (ids, _, special) in zip(texts, encodings, strict=True):
        if not ids or not special[0]:
            raise ValueError("the tokenizer puts no [CLS] before a text; give the one the model was trained with.")
        if len(ids) > config.max_length:
            raise ValueError(
                f"a text has {len(ids)} tokens, but the model reads {config.max_length}; shorten {text!r}."
            )
    was_training = model.training
    model.eval()
    try:
        batches = (encodings[start : start + batch_size] for start in range(0, len(encodings), batch_size))
        return tuple(reading for batch in batches for reading in _read(model, batch))
    finally:
        model.train(was_training)


_Encoded = tuple[list[int], list[Span], list[int]]


def _trimmed(encoding: Any) -> _Encoded:
    """Ids, offsets and special marks without the padding that a tokenizer may add."""
    length = sum(encoding.attention_mask)
    return encoding.ids[:length], encoding.offsets[:length], encoding.special_tokens_mask[:length]


@torch.inference_mode()
def _read(model: nn.Module, batch: Sequence[_Encoded]) -> list[Reading]:
    config: Any = model.config
    ids = torch.full((len(batch), max(len(row) for row, _, _ in batch)), config.pad_id, dtype=torch.int64)
    for place, (row, _, _) in zip(ids, batch, strict=True):
        place[: len(row)] = torch.tensor(row)
    logits, maps = model(ids.to(next(model.parameters()).device), attention=True)
    attention = maps[-1][:, :, 0].double().mean(dim=1).cpu().numpy()
    predictions = logits.argmax(dim=1).tolist()
    return [
        Reading(weights[: len(row)], tuple(offsets), np.array(special, dtype=np.bool_), prediction)
        for weights, prediction, (row, offsets, special) in zip(attention, predictions, batch, strict=True)
    ]
