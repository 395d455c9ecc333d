"""The models of the Attention page: our own checkpoints, Hugging Face folders and GGUF files, by name."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from mirrormax import auditing, pruning
from mirrormax._statistics import bootstrap_mean
from mirrormax.app.folders import DAMAGE, plain_text, read_object, reason, run_label, walk

SHIPPED = Path(__file__).parent / "models"
DEEPEST = 4
OWN_KINDS = ("sentiment", "lm")
WEIGHTS = (".safetensors", ".gguf")
LARGEST_MEASURED, MEASURED, MEASURED_TOKENS = 5_000_000, 512, 64
PRUNED_SHARES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""Weights of the largest model whose quality is measured here, rows and their tokens, and the shares pruned."""
SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "blocks"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads"),
    "dim": ("hidden_size", "n_embd", "dim", "d_model"),
}
"""How configurations call the sizes of a model."""
KIND_TEXTS, KIND_TOKENS = 8, 32
"""Texts, and tokens of each, on which the kinds of heads are counted."""


@dataclass(frozen=True)
class Entry:
    """A model that reads texts: a name to ask for it by, where it is, and what it says of itself.

    ``label`` says how it was trained, ``about`` what it is; ``damaged`` why it cannot be shown, if so.
    """

    name: str
    folder: Path  # or a GGUF file
    about: str
    damaged: str | None = None
    label: str = ""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model that has been read, and what is known of it whatever text it is given."""

    loaded: auditing.Loaded

    @cached_property
    def adapter(self) -> Any:
        """How its attention layers are watched."""
        return auditing.adapter_for(self.loaded.model)

    @cached_property
    def sparsity(self) -> dict[str, dict[str, float]]:
        """How concentrated the query, key and value weights of a model of ours are; empty for others.

        Hoyer's index, and the share of ‖w‖₁ in the largest 1 %.
        """
        if not isinstance(self.loaded, auditing.OwnModel):
            return {}  # theirs are too large to be sorted while somebody waits
        weights = auditing.attention_weights(self.loaded.model)
        measured = {role: auditing.sparsity(*matrices) for role, matrices in weights.items()}
        names = ("hoyer", "top_mass")
        return {role: {name: round(getattr(part, name), 4) for name in names} for role, part in measured.items()}

    @contextmanager
    def pruned(self, share: float) -> Iterator[None]:
        """The model with this share of its weights, those of the smallest magnitude, set to zero for a while."""
        with ExitStack() as stack:
            if share:
                stack.callback(pruning.prune(self.loaded.model, share).undo)
            yield

    @cached_property
    def quality(self) -> dict[str, Any]:
        """How good the model is over the share of its weights that is pruned, on rows that it was not trained on."""
        loaded = self.loaded
        if sum(weight.numel() for weight in loaded.model.parameters()) > LARGEST_MEASURED:
            raise ValueError("measuring this model takes minutes; 'mirrormax prune' does it.")
        source = str(loaded.training.get("data", "reviews"))
        data = auditing.read_data(source, limit=MEASURED, models=[loaded])
        batches = auditing.make_batches(loaded, data, MEASURED_TOKENS, 64, with_labels=bool(loaded.classes))
        quality, labels = auditing.quality_of(loaded, batches), batches.labels
        points: list[list[float]] = []
        for share in PRUNED_SHARES:
            with self.pruned(share):
                estimate = bootstrap_mean(quality())
            points.append([share, round(estimate.mean, 4), round(estimate.low, 4), round(estimate.high, 4)])
        return {
            "measure": auditing.measure_of(loaded),
            "rows": len(batches),
            "chance": None if labels is None else float(labels.bincount().max()) / len(labels),
            "points": points,
        }

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The kind of every head, on a few reviews and, of a language model, on repeated random tokens."""
        texts = auditing.read_data("reviews", limit=KIND_TEXTS)
        batches = auditing.make_batches(self.loaded, texts, KIND_TOKENS, KIND_TEXTS)
        layers = auditing.head_kinds(self.adapter, batches, self.loaded.vocabulary)
        return {"names": dict(auditing.KINDS), "texts": len(texts), "layers": layers}


class Checkpoints:
    """All models below some folders, or one GGUF file. A request names one of these and never a path."""

    def __init__(self, folder: Path | None, shipped: Path = SHIPPED) -> None:
        self._roots = [shipped] if folder is None else [folder, shipped]
        # A model is loaded again only if its weights have changed since.
        self._open = lru_cache(maxsize=3)(lambda folder, changed: Opened(auditing.load_for_audit(folder)))

    def entries(self) -> list[Entry]:
        """What is there now, the user's own before the shipped ones; a name that occurs twice means the first."""
        entries: dict[str, Entry] = {}
        for root in self._roots:
            if root.is_file():
                entries.setdefault(root.stem, _gguf(root.stem, root))
            for folder, names in walk(root, DEEPEST) if root.is_dir() else ():
                for entry in _entries(root, folder, names):
                    entries.setdefault(entry.name, entry)
        return list(entries.values())

    def load(self, name: Any) -> Opened:
        """The model of this name."""
        known = {entry.name: entry for entry in self.entries()}
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"there is no checkpoint {name!r}; choose one from the list.")
        entry = known[name]
        if entry.damaged is not None:
            raise ValueError(f"the checkpoint {name!r} is damaged: {entry.damaged}.")
        files = [entry.folder] if entry.folder.is_file() else sorted(entry.folder.iterdir())
        changed = tuple(file.stat().st_mtime_ns for file in files if file.suffix in WEIGHTS)
        return self._open(entry.folder, changed)


def _entries(root: Path, folder: Path, names: Collection[str] | None) -> list[Entry]:
    """What a folder holds: one model, several GGUF files, or nothing that reads texts."""
    name = _name(root, folder)
    if names is None:
        return [Entry(name, folder, "", "it cannot be read")]
    weights = [file for file in names if file.endswith(WEIGHTS)]
    if "config.json" not in names:
        files = sorted(file for file in weights if file.endswith(".gguf"))
        inside = "" if folder == root else f"{name}/"
        return [_gguf(plain_text(f"{inside}{Path(file).stem}"), folder / file) for file in files]
    if not weights:
        return []
    try:
        config = read_object(folder / "config.json")
        sizes, label = config, ""
        if "kind" in config:
            if config["kind"] not in OWN_KINDS:
                return []
            weights.append("tokenizer.json")
            training: dict[str, Any] = config.get("training") or {}
            about: Any = training.get("data")  # what it was trained on, or else what it is
            sizes, label = config.get("model") or {}, run_label(training)
        elif "model_type" not in config or "patch_size" in config or "vision_config" in config:
            return []  # no model, or one of images
        else:
            made = config.get("architectures")
            about = str(made[0] if isinstance(made, list) and made else config["model_type"])
        for file in weights:
            if not stat.S_ISREG((folder / file).lstat().st_mode):
                raise ValueError(f"{file} is no regular file")
        parts = [about] if isinstance(about, str) else []
        parts += [f"{shown} {size}" for shown in SIZES if (size := size_of(sizes, shown)) is not None]
        return [Entry(name, folder, ", ".join(parts), label=label)]
    except DAMAGE as error:
        return [Entry(name, folder, "", reason(error))]


def _gguf(name: str, file: Path) -> Entry:
    try:
        size = file.stat().st_size
    except OSError as error:
        return Entry(name, file, "", reason(error))
    return Entry(name, file, f"GGUF, {size / 1e6:.0f} MB")


def _name(root: Path, folder: Path) -> str:
    """The place below the root; the ``model`` of a training run goes by the name of the run."""
    parts = folder.relative_to(root).parts
    if len(parts) > 1 and parts[-1] == "model":
        parts = parts[:-1]
    whole = folder.resolve()
    return plain_text("/".join(parts) or (whole.parent.name if whole.name == "model" else whole.name))


def size_of(config: Mapping[str, Any], name: str) -> int | None:
    """How many layers, heads or dimensions a model has, if its configuration says."""
    return next((config[key] for key in SIZES[name] if isinstance(config.get(key), int)), None)
