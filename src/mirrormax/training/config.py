"""What a training run is: every choice that its result depends on, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from mirrormax._checks import check_exponent, integer, number
from mirrormax._identity import later
from mirrormax.data import TOKENS
from mirrormax.nets import DecoderConfig, TransformerConfig, VisionConfig, check_sizes

OPTIMIZERS = ("adabreg", "mirror", "md", "sgd", "adamw")
"""Names of optimizers: MirrorAdamW under a threshold, MirrorAdamW, the paper's plain mirror descent, SGD, AdamW."""
ALIASES = {"paper": "md"}
"""Other names that are taken for them."""
WITH_P = ("mirror", "md")
"""Those that have a potential."""
CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": (*OPTIMIZERS, *ALIASES),
    "potential": ("Lp", "SquaredLp", "Hypentropy"),
    "schedule": ("constant", "cosine", "cosine-epochs"),
    "precision": ("32", "bf16-mixed", "16-mixed", "64"),
    "moments": ("entry", "tensor", "matrix"),
    "normalize": ("none", "tensor", "global"),
    "reduction": ("mean", "sum"),
}
"""The values that a choice may take, by its name, where there are only a few."""
NEEDS: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "p": (("optimizer", WITH_P), ("sparsity", (0,)), ("potential", ("Lp", "SquaredLp"))),
    "potential": (("optimizer", WITH_P), ("sparsity", (0,))),
    "beta": (("optimizer", WITH_P), ("sparsity", (0,)), ("potential", ("Hypentropy",))),
    "lam": (("optimizer", ("adabreg",)),),
    "density": (("optimizer", ("adabreg",)),),
    "sparsity": (("optimizer", ("mirror",)),),
    "moments": (("optimizer", ("mirror",)),),
    "rest_lr": (("optimizer", ("md",)), ("attention_only", (True,))),
    "attention_only": (("optimizer", ("md",)),),
    "momentum": (("optimizer", ("md", "sgd")),),
    "normalize": (("optimizer", ("md",)),),
}
"""A choice is looked at only where each of these others has one of these values."""
BOUNDS: tuple[tuple[dict[str, float], tuple[str, ...]], ...] = (
    ({"above": 0}, ("beta", "lam", "density", "lr", "rest_lr", "stop_accuracy", "embedding_std")),
    ({"at_least": 0}, ("weight_decay", "warmup")),
    ({"at_least": 0, "below": 1}, ("sparsity", "momentum", "validation", "dropout")),
    ({"above": 0, "below": 1}, ("test",)),
)
"""The choices that are floats, but for p."""
MIRROR_P = 1.5
"""The p of MirrorAdamW, which ``mirrormax train`` takes where it is given none."""
TARGET_LR = {"entry": 6e-3, "tensor": 6e-3, "matrix": 2.4e-2}
"""The step size of MirrorAdamW with a target of sparsity, likewise, by its moments."""
REVISION = 5
"""Raised when the same configuration would train another model."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What runs on text and on images have in common.

    ``lr=None`` takes a step size that suits the optimizer and p (see ``default_lr``).
    ``validation`` is the share of the training split that is held out to choose epoch and step size by (0, as in the
    paper: none is, and the last epoch's model is taken),
    ``test`` the share held out where the data has no test split of its own; which examples these are
    depends on ``split_seed`` alone, while ``seed`` decides initial weights, order of batches and dropout.
    ``attention_only`` puts the query, key and value matrices under mirror descent and everything else under
    SGD with ``rest_lr``. ``optimizer`` is ``mirror`` (MirrorAdamW for the matrices, AdamW's step for the rest),
    ``adabreg`` (the same with the potential ElasticNet(``lam``), from a random share ``density`` of the matrices' first
    weights), ``md`` or ``paper`` (plain mirror descent for everything, as in the paper), ``sgd`` or ``adamw``.
    With ``sparsity``, ``mirror`` trains towards that share of zeros in the matrices: an epoch may be chosen, and the
    training stopped, only once the share is reached. ``moments`` are those of MirrorAdamW.
    ``warmup`` is in epochs; None takes a share of ``epochs``, a twelfth for text, a twentieth for images and a tenth
    for language models. ``schedule`` is ``constant``, ``cosine`` (falling with every step) or ``cosine-epochs`` (with
    every epoch, as in the paper). A choice that the optimizer would ignore must be left as it is by default.
    """

    task: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]]
    warmup_part: ClassVar[int]
    measure: ClassVar[str] = "accuracy"  # by which the validation split chooses an epoch: accuracy, or loss

    data: str
    optimizer: str = "mirror"
    p: float = 1.1
    potential: str = "Lp"
    beta: float = 1.0
    lam: float = 0.1
    density: float = 0.1
    sparsity: float = later(0.0)
    moments: str = later("entry")
    lr: float | None = None
    rest_lr: float | None = None
    attention_only: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    normalize: str = "none"
    schedule: str = "constant"
    warmup: float | None = 0.0
    epochs: int = 10
    batch_size: int = 50
    reduction: str = "mean"
    stop_accuracy: float = 0.995
    train_limit: int | None = None
    validation: float = 0.1
    test: float = 0.2
    split_seed: int = 0
    seed: int = 0
    precision: str = "32"

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "optimizer", ALIASES.get(self.optimizer, self.optimizer))
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        object.__setattr__(self, "p", check_exponent(self.p))
        for bounds, names in BOUNDS:
            for name in names:
                if getattr(self, name, None) is not None:  # 2 and 2.0 are one choice, so they have one key
                    object.__setattr__(self, name, number(name, getattr(self, name), **bounds))
        if self.density > 1:
            raise ValueError(f"density must be at most 1, got {self.density!r}.")
        for name in ("seed", "split_seed"):
            integer(name, getattr(self, name), at_least=0)
        check_sizes(self, ("epochs", "batch_size", *self.sizes))
        if self.train_limit is not None:
            check_sizes(self, ("train_limit",))
        self.refuse_ignored(field.name for field in fields(self) if getattr(self, field.name) != field.default)
        self.network()  # refuses sizes that do not go together before any data is read

    def network(self) -> Any:
        """The sizes of the model."""
        raise NotImplementedError

    @property
    def warmup_epochs(self) -> float:
        """Epochs in which the step size rises."""
        return self.epochs / self.warmup_part if self.warmup is None else self.warmup

    @property
    def chosen_by(self) -> str:
        """What the epoch whose model is kept is chosen by: validation accuracy or loss, or being the last."""
        return self.measure if self.validation > 0 else "last"

    def ignored(self) -> tuple[str, ...]:
        """The choices that this run's optimizer does not look at."""
        return tuple(name for name in NEEDS if self._unmet(name))

    def _unmet(self, name: str) -> list[tuple[str, tuple[Any, ...]]]:
        """The other choices because of which this one is ignored, and the values that they should have."""
        return [need for need in NEEDS.get(name, ()) if getattr(self, need[0]) not in need[1]]

    def refuse_ignored(self, names: Iterable[str]) -> None:
        """ValueError if one of these choices, which somebody has made, would be ignored."""
        for name in names:
            for other, (value, *_) in self._unmet(name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is ignored with {other}={getattr(self, other)!r}; leave it out, "
                    f"or choose {other}={value!r}."
                )

    def _check_types(self) -> None:
        """Refuse what is neither text nor a switch where one is asked for; numbers are checked with their bounds."""
        for field in fields(self):
            value, (kind, *rest) = getattr(self, field.name), str(field.type).split(" | ")
            if kind == "str" and not (isinstance(value, str) or (value is None and "None" in rest)):
                raise TypeError(f"{field.name} must be a string, got {value!r} ({type(value).__name__}).")
            if kind == "bool" and not isinstance(value, bool):
                raise TypeError(f"{field.name} must be true or false, got {value!r} ({type(value).__name__}).")

    def to_dict(self) -> dict[str, Any]:
        """All choices as plain data, the task among them."""
        return {"task": self.task, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class SentimentTraining(TrainConfig):
    """A text classifier: data is ``reviews``, ``imdb``, or a .csv or .parquet file with a text and a label column.

    ``vocab`` is a BERT vocab.txt; without it, ``vocab_size`` WordPiece tokens are learnt from the training split.
    ``by_length`` makes batches of texts of similar length, which is faster; the paper's are of any length.
    """

    task: ClassVar[str] = "sentiment"
    warmup_part: ClassVar[int] = 12
    sizes: ClassVar[tuple[str, ...]] = ("vocab_size", "max_length", "dim", "hidden", "blocks", "heads")

    data: str = "reviews"
    text_column: str = "text"
    label_column: str = "label"
    vocab: str | None = None
    vocab_size: int = 8000
    max_length: int = 128
    dim: int = 64
    hidden: int = 256
    blocks: int = 2
    heads: int = 2
    dropout: float = 0.2
    embedding_std: float = 1.0
    by_length: bool = True

    def network(self, vocab_size: int | None = None, classes: int = 2) -> TransformerConfig:
        """The sizes of the model for a vocabulary and a number of classes."""
        sizes = {name: getattr(self, name) for name in (*self.sizes, "dropout", "embedding_std")}
        return TransformerConfig(**sizes | {"classes": classes, "vocab_size": vocab_size or self.vocab_size})


# Mean and deviation of the channels, as the authors' real-data/train_vit.py has them.
PIXELS: dict[str, dict[str, Any]] = {
    "cifar10": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    "cifar100": {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
}


@dataclass(frozen=True, kw_only=True)
class VisionTraining(TrainConfig):
    """An image classifier: data is ``digits``, ``cifar10`` or ``cifar100``. ``augment`` crops and flips at random."""

    task: ClassVar[str] = "vision"
    warmup_part: ClassVar[int] = 20
    sizes: ClassVar[tuple[str, ...]] = ("image_size", "patch", "dim", "hidden", "blocks", "heads", "head_dim")

    data: str = "digits"
    image_size: int = 8
    patch: int = 2
    dim: int = 64
    hidden: int = 128
    blocks: int = 2
    heads: int = 2
    head_dim: int = 32
    dropout: float = 0.1
    augment: bool = False

    def network(self, channels: int = 3, classes: int = 10) -> VisionConfig:
        """The sizes of the model for images of so many channels and classes."""
        sizes = {name: getattr(self, name) for name in (*self.sizes, "dropout")}
        return VisionConfig(channels=channels, classes=classes, **sizes, **PIXELS.get(self.data, {}))


@dataclass(frozen=True, kw_only=True)
class LanguageTraining(TrainConfig):
    """A language model: data is ``reviews``, ``imdb``, a .txt, .csv or .parquet file, or a folder of .txt files.

    ``tokens`` are bytes, characters, or at most ``vocab_size`` pieces learnt from the training split (``bpe``). A row
    is a window of ``context`` tokens, and an epoch goes once through the text; ``train_limit`` counts texts.
    """

    task: ClassVar[str] = "lm"
    warmup_part: ClassVar[int] = 10
    measure: ClassVar[str] = "loss"
    sizes: ClassVar[tuple[str, ...]] = ("vocab_size", "context", "dim", "hidden", "blocks", "heads")

    data: str = "reviews"
    text_column: str = "text"
    tokens: str = "byte"
    vocab_size: int = 1024
    context: int = 128
    dim: int = 128
    hidden: int = 256
    blocks: int = 2
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens not in TOKENS:
            raise ValueError(f"tokens must be one of {', '.join(TOKENS)}, got {self.tokens!r}.")
        if self.validation == 0:
            raise ValueError("validation must be greater than 0 for a language model, got 0.")
        if self.context == 1:
            raise ValueError("context must be at least 2, got 1: with one token there is nothing to attend to.")

    def refuse_ignored(self, names: Iterable[str]) -> None:
        """Also a size of the vocabulary where nothing is learnt."""
        names = tuple(names)
        if "vocab_size" in names and self.tokens != "bpe":
            raise ValueError(
                f"vocab_size={self.vocab_size} is ignored with tokens={self.tokens!r}; leave it out, or choose "
                "tokens='bpe'."
            )
        super().refuse_ignored(names)

    def network(self, vocab_size: int | None = None) -> DecoderConfig:
        """The sizes of the model for so many tokens."""
        sizes = {name: getattr(self, name) for name in (*self.sizes, "dropout")}
        return DecoderConfig(**sizes | {"vocab_size": vocab_size or self.vocab_size})


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
    kinds: dict[Any, type[TrainConfig]] = {
        kind.task: kind for kind in (SentimentTraining, VisionTraining, LanguageTraining)
    }
    kind = kinds.get(training.get("task"))
    if kind is None:
        raise ValueError("the checkpoint does not say how it was trained; give one written by 'mirrormax train'.")
    names = {field.name for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in training.items() if name in names})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint's record of its training is not one of this version ({error})") from error
