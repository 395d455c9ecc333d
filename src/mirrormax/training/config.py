"""What a training run is: every choice that its result depends on, as plain data.

A choice is declared once: the field has its default, its meaning, what it may be, and the other choices that it needs.
The checks here and the flags of ``mirrormax train`` and ``tune`` follow from the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from mirrormax._checks import Among, check_exponent, check_options, count, flag, option, text, within
from mirrormax.data import TOKENS
from mirrormax.nets import DecoderConfig, TransformerConfig, VisionConfig

OPTIMIZERS = ("adabreg", "mirror", "md", "sgd", "adamw")
"""Names of optimizers: MirrorAdamW under a threshold, MirrorAdamW, the paper's plain mirror descent, SGD, AdamW."""
ALIASES = {"paper": "md"}
"""Other names that are taken for them."""
WITH_P = ("mirror", "md")
"""Those that have a potential."""
DENSE_WITH_P = {"optimizer": WITH_P, "sparsity": (0,)}
ADABREG, MIRROR, MD = {"optimizer": ("adabreg",)}, {"optimizer": ("mirror",)}, {"optimizer": ("md",)}
POSITIVE, SHARE = within(above=0), within(at_least=0, below=1)
MIRROR_P = 1.5
"""The p of MirrorAdamW, which ``mirrormax train`` takes where it is given none."""
TARGET_LR = {"entry": 6e-3, "tensor": 6e-3, "matrix": 2.4e-2}
"""The step size of MirrorAdamW with a target of sparsity, likewise, by its moments."""
REVISION = 5
"""Raised when the same configuration would train another model."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What runs on text and on images have in common.

    Which examples are held out depends on ``split_seed`` alone, while ``seed`` decides initial weights, order of
    batches and dropout. With ``validation=0``, as in the paper, none are, and the last epoch's model is taken.
    ``attention_only`` puts the query, key and value matrices under mirror descent and everything else under
    SGD with ``rest_lr``. With ``sparsity``, an epoch may be chosen, and the training stopped, only once the share is
    reached. A choice that others make meaningless (``needs``) must be left as it is by default.
    """

    task: ClassVar[str]
    net: ClassVar[type[Any]]
    """The sizes of the model; fields of the same name are choices here."""
    warmup_part: ClassVar[int]
    measure: ClassVar[str] = "accuracy"  # by which the validation split chooses an epoch: accuracy, or loss

    data: str
    optimizer: str = option(
        "mirror",
        "MirrorAdamW, the same under a threshold, plain mirror descent (md, or paper), SGD or AdamW",
        Among((*OPTIMIZERS, *ALIASES)),
    )
    p: float = option(
        1.1,
        "exponent of the potential, above 1; with mirror 1.5 if not given",
        lambda name, value: check_exponent(value, name),
        needs={**DENSE_WITH_P, "potential": ("Lp", "SquaredLp")},
    )
    potential: str = option("Lp", "of mirror descent", Among(("Lp", "SquaredLp", "Hypentropy")), needs=DENSE_WITH_P)
    beta: float = option(1.0, "scale of Hypentropy", POSITIVE, needs={**DENSE_WITH_P, "potential": ("Hypentropy",)})
    lam: float = option(0.1, "threshold of adabreg", POSITIVE, needs=ADABREG)
    density: float = option(
        0.1, "share of the matrices' first weights that adabreg begins with", within(above=0, at_most=1), needs=ADABREG
    )
    sparsity: float = option(
        0.0,
        "with mirror: the share of the matrices' weights that are zero at the end, in [0, 1)",
        SHARE,
        needs=MIRROR,
        later=True,
    )
    moments: str = option(
        "entry",
        "with mirror: Adam's per entry or per tensor, or orthogonalised matrices (Muon)",
        Among(("entry", "tensor", "matrix")),
        needs=MIRROR,
        later=True,
    )
    lr: float | None = option(
        None,
        "step size; None: one that suits the optimizer and p; 0.006 with --sparsity, 0.024 with --moments matrix too",
        POSITIVE,
    )
    rest_lr: float | None = option(
        None,
        "step size of the rest with --attention-only; None: 0.3",
        POSITIVE,
        needs={**MD, "attention_only": (True,)},
    )
    attention_only: bool = option(
        False, "with md: mirror descent for queries, keys and values, SGD for the rest", flag, needs=MD
    )
    momentum: float = option(0.0, "of md and sgd, in [0, 1)", SHARE, needs={"optimizer": ("md", "sgd")})
    weight_decay: float = option(0.0, "at least 0", within(at_least=0))
    normalize: str = option(
        "none",
        "divide gradients by their dual norm: each by its own, or all by one",
        Among(("none", "tensor", "global")),
        needs=MD,
    )
    schedule: str = option(
        "constant",
        "of the step size after warm-up; a cosine falls with every step, or as in the paper with every epoch",
        Among(("constant", "cosine", "cosine-epochs")),
    )
    warmup: float | None = option(
        0.0,
        "epochs in which the step size rises; None: a twelfth of them, of images a twentieth, of lm a tenth",
        within(at_least=0),
    )
    epochs: int = option(10, "at most so many", count())
    batch_size: int = option(50, "examples per step, on each device", count(at_most=2**31 - 1))
    reduction: str = option("mean", "of the loss over a batch", Among(("mean", "sum")))
    stop_accuracy: float = option(0.995, "training accuracy at which to stop; above 1: never", POSITIVE)
    train_limit: int | None = option(
        None, "use so many training examples only (lm: texts, and a text file is one)", count()
    )
    validation: float = option(
        0.1, "share of the training split to choose the epoch by; 0: none, and the last epoch is taken", SHARE
    )
    test: float = option(0.2, "share to test on where the data has no test split", within(above=0, below=1))
    split_seed: int = option(0, "decides which examples these are", count(0))
    seed: int = option(0, "decides first weights, batches and dropout", count(0))
    precision: str = option("32", "of the arithmetic", Among(("32", "bf16-mixed", "16-mixed", "64")))

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "optimizer", ALIASES.get(self.optimizer, self.optimizer))
        self.refuse_ignored(field.name for field in fields(self) if getattr(self, field.name) != field.default)
        self.network()  # refuses sizes that do not go together before any data is read

    def network(self, vocab_size: int | None = None, **known: Any) -> Any:
        """The sizes of the model, with what is ``known`` of the data in the place of the choices."""
        known |= {} if vocab_size is None else {"vocab_size": vocab_size}
        chosen = {each.name: getattr(self, each.name) for each in fields(self.net) if hasattr(self, each.name)}
        return self.net(**chosen | known)

    @property
    def warmup_epochs(self) -> float:
        """Epochs in which the step size rises."""
        return self.epochs / self.warmup_part if self.warmup is None else self.warmup

    @property
    def chosen_by(self) -> str:
        """What the epoch whose model is kept is chosen by: validation accuracy or loss, or being the last."""
        return self.measure if self.validation > 0 else "last"

    def ignored(self) -> tuple[str, ...]:
        """The choices that this run does not look at."""
        return tuple(field.name for field in fields(self) if self._unmet(field.metadata))

    def _unmet(self, about: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
        """The other choices because of which one is ignored, and the values that they should have."""
        return [need for need in about.get("needs", {}).items() if getattr(self, need[0]) not in need[1]]

    def refuse_ignored(self, names: Iterable[str]) -> None:
        """ValueError if one of these choices, which somebody has made, would be ignored."""
        about = {field.name: field.metadata for field in fields(self)}
        for name in names:
            for other, (value, *_) in self._unmet(about[name]):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is ignored with {other}={getattr(self, other)!r}; leave it out, "
                    f"or choose {other}={value!r}."
                )

    def to_dict(self) -> dict[str, Any]:
        """All choices as plain data, the task among them."""
        return {"task": self.task, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class SentimentTraining(TrainConfig):
    """A text classifier."""

    task: ClassVar[str] = "sentiment"
    net: ClassVar[type[Any]] = TransformerConfig
    warmup_part: ClassVar[int] = 12

    data: str = option("reviews", "reviews, imdb, or a .csv or .parquet file of your own", text)
    text_column: str = option("text", "of a file of your own", text)
    label_column: str = option("label", "of a file of your own", text)
    vocab: str | None = option(None, "a BERT vocab.txt; None: learnt from the training split", text)
    vocab_size: int = option(8000, "WordPiece tokens to learn without --vocab", count())
    max_length: int = option(128, "tokens of a text; longer ones are cut", count())
    dim: int = option(64, "of a token's vector", count())
    hidden: int = option(256, "of the perceptrons", count())
    blocks: int = option(2, "of the transformer", count())
    heads: int = option(2, "of each attention", count())
    dropout: float = option(0.2, "share of activations dropped, in [0, 1)", SHARE)
    embedding_std: float = option(1.0, "spread of the first embeddings", POSITIVE)
    by_length: bool = option(
        True, "make batches of texts of similar length, which is faster; the paper's are of any length", flag
    )


# Mean and deviation of the channels, as the authors' real-data/train_vit.py has them.
PIXELS: dict[str, dict[str, Any]] = {
    "cifar10": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    "cifar100": {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
}


@dataclass(frozen=True, kw_only=True)
class VisionTraining(TrainConfig):
    """An image classifier."""

    task: ClassVar[str] = "vision"
    net: ClassVar[type[Any]] = VisionConfig
    warmup_part: ClassVar[int] = 20

    data: str = option("digits", "digits, cifar10 or cifar100", text)
    image_size: int = option(8, "pixels to which images are scaled", count())
    patch: int = option(2, "pixels along an edge of a patch", count())
    dim: int = option(64, "of a token's vector", count())
    hidden: int = option(128, "of the perceptrons", count())
    blocks: int = option(2, "of the transformer", count())
    heads: int = option(2, "of each attention", count())
    head_dim: int = option(32, "of a head's queries, keys and values", count())
    dropout: float = option(0.1, "share of activations dropped, in [0, 1)", SHARE)
    augment: bool = option(False, "crop and flip training images at random", flag)

    def network(self, vocab_size: int | None = None, **known: Any) -> Any:
        """The sizes, with the mean and deviation of the data's channels."""
        return super().network(vocab_size, **PIXELS.get(self.data, {}), **known)


@dataclass(frozen=True, kw_only=True)
class LanguageTraining(TrainConfig):
    """A language model. A row is a window of ``context`` tokens, and an epoch goes once through the text."""

    task: ClassVar[str] = "lm"
    net: ClassVar[type[Any]] = DecoderConfig
    warmup_part: ClassVar[int] = 10
    measure: ClassVar[str] = "loss"

    data: str = option(
        "reviews", "reviews, imdb, a .txt, .csv or .parquet file of your own, or a folder of .txt files", text
    )
    text_column: str = option("text", "of a file of your own", text)
    tokens: str = option("byte", "bytes, characters, or pieces learnt from the training split", Among(TOKENS))
    vocab_size: int = option(1024, "tokens to learn with --tokens bpe", count(), needs={"tokens": ("bpe",)})
    context: int = option(128, "tokens of a window, which is a row", count(2))  # one token has nothing to attend to
    dim: int = option(128, "of a token's vector", count())
    hidden: int = option(256, "of the perceptrons", count())
    blocks: int = option(2, "of the transformer", count())
    heads: int = option(4, "of each attention", count())
    dropout: float = option(0.0, "share of activations dropped, in [0, 1)", SHARE)
    validation: float = option(0.1, "share of the training text to choose the epoch by", within(above=0, below=1))


PROFILES: dict[str, dict[str, TrainConfig]] = {
    # Embeddings of spread 1, as in the paper, hardly move in the few thousand steps that two cores can make: what the
    # model learns is then a linear map of random features. At 0.3 they take part. The step size rises slowly, as large
    # ones, without which nothing is learnt in that time, are stable only once the model has left its first plateau.
    "sentiment": {
        "small": SentimentTraining(
            blocks=1, hidden=128, embedding_std=0.3, batch_size=20, schedule="cosine", warmup=None, epochs=24
        ),
        # As the authors' real-data/configs/1.1/model_size_3.json; what differs all the same is in docs/paper-size.md.
        "paper": SentimentTraining(
            optimizer="md",
            data="imdb",
            vocab="bert-base-uncased/vocab.txt",
            vocab_size=30522,
            max_length=512,
            dim=384,
            hidden=1536,
            blocks=3,
            heads=3,
            lr=8e-4,
            batch_size=100,
            reduction="sum",
            by_length=False,
            validation=0.0,
            epochs=1000,
        ),
    },
    "vision": {
        "small": VisionTraining(schedule="cosine", warmup=None, epochs=20),
        # As the authors' real-data/bash_scripts/vit_cifar10.sh.
        "paper": VisionTraining(
            optimizer="md",
            data="cifar10",
            image_size=48,
            patch=4,
            dim=512,
            hidden=512,
            blocks=6,
            heads=8,
            head_dim=64,
            augment=True,
            lr=0.1,
            schedule="cosine-epochs",
            validation=0.0,
            batch_size=100,
            epochs=2000,
            stop_accuracy=2.0,
        ),
    },
    "lm": {"small": LanguageTraining(schedule="cosine", warmup=None, epochs=4, batch_size=16, stop_accuracy=1.0)},
}
"""By task and name: ``small`` takes minutes on two cores, ``paper`` is the paper's setting, which has no ``lm``."""


def with_choices(config: TrainConfig, choices: Mapping[str, Any]) -> TrainConfig:
    """``config`` with some choices made otherwise; an unknown one raises, by name."""
    known = {field.name for field in fields(config)}
    for name in choices:
        if name not in known:
            raise ValueError(f"{name!r} is no choice of a {config.task} run; known are {', '.join(sorted(known))}.")
    return replace(config, **choices)


def config_of(training: Mapping[str, Any]) -> TrainConfig:
    """The configuration in the ``training`` record of a checkpoint; ValueError with one sentence if there is none."""
    kinds = (SentimentTraining, VisionTraining, LanguageTraining)
    kind = next((kind for kind in kinds if kind.task == training.get("task")), None)
    if kind is None:
        raise ValueError("the checkpoint does not say how it was trained; give one written by 'mirrormax train'.")
    names = {field.name for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in training.items() if name in names})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint's record of its training is not one of this version ({error})") from error
