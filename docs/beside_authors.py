"""Our models beside the authors' own code, on the same weights: ``python docs/beside_authors.py CHECKOUT``.

CHECKOUT is a clone of github.com/addskj2002/AttentionMD; its modules are imported from there. For the text classifier
and the vision transformer, at the paper's own sizes, the script copies the weights of one into the other and prints the
largest relative difference of outputs, of losses and of gradients, without dropout, in float64. It then compares the
places where dropout acts, by counting the entries that reach it in a training step.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets import TransformerClassifier, VisionTransformer
from mirrormax.training import PROFILES

TEXTS, LENGTH, IMAGES = 4, 96, 2


def text_pair(module: Any, blocks: int) -> tuple[TransformerClassifier, nn.Module, dict[str, list[str]]]:
    """Ours, theirs, and which of our parameters make up each of theirs, one under the other."""
    profile: Any = PROFILES["sentiment"]["paper"]
    sizes = {
        "n_embd": profile.dim,
        "n_hidden": profile.hidden,
        "n_blocks": blocks,
        "n_head": blocks,
        "bias": False,
        "vocab_size": profile.vocab_size,
        "max_length": profile.max_length,
        "dropout": profile.dropout,
    }
    theirs = module.TransformerClassifier(SimpleNamespace(**sizes))
    config = profile.network(profile.vocab_size)
    ours = TransformerClassifier(type(config)(**{**vars(config), "blocks": blocks, "heads": blocks}))
    names = {"emb_static.weight": ["tokens.weight"], "emb_pos.weight": ["positions.weight"]}
    for k in range(blocks):
        names[f"blocks.{k}.ln1.weight"] = [f"blocks.{k}.attention_norm.weight"]
        names[f"blocks.{k}.ln2.weight"] = [f"blocks.{k}.hidden_norm.weight"]
        parts = ("query", "key", "value")
        names[f"blocks.{k}.attn.attn_matrix.weight"] = [f"blocks.{k}.attention.{part}.weight" for part in parts]
        names[f"blocks.{k}.attn.linear.weight"] = [f"blocks.{k}.attention.output.weight"]
        names[f"blocks.{k}.mlp.lin1.weight"] = [f"blocks.{k}.expand.weight"]
        names[f"blocks.{k}.mlp.lin2.weight"] = [f"blocks.{k}.contract.weight"]
    return ours, theirs, {**names, "lin.weight": ["head.weight"]}


def vision_pair(module: Any) -> tuple[VisionTransformer, nn.Module, dict[str, list[str]]]:
    """As :func:`text_pair`; the pixels of a patch come in another order, see :func:`reordered`."""
    config = PROFILES["vision"]["paper"].network()  # type: ignore[attr-defined]
    theirs = module.ViT(
        image_size=config.image_size,
        patch_size=config.patch,
        num_classes=config.classes,
        dim=config.dim,
        depth=config.blocks,
        heads=config.heads,
        mlp_dim=config.hidden,
        dropout=config.dropout,
        emb_dropout=config.dropout,
    )
    names = {"pos_embedding": ["positions"], "cls_token": ["class_token"]}
    for kind in ("weight", "bias"):
        names[f"to_patch_embedding.{kind}"] = [f"patches.{kind}"]
        names[f"mlp_head.0.{kind}"], names[f"mlp_head.1.{kind}"] = [f"norm.{kind}"], [f"head.{kind}"]
    for k in range(config.blocks):
        attention, hidden, own = f"transformer.layers.{k}.0", f"transformer.layers.{k}.1", f"blocks.{k}"
        names[f"{attention}.fn.to_qkv.weight"] = [
            f"{own}.attention.{part}.weight" for part in ("query", "key", "value")
        ]
        for kind in ("weight", "bias"):
            names[f"{attention}.norm.{kind}"] = [f"{own}.attention_norm.{kind}"]
            names[f"{attention}.fn.to_out.0.{kind}"] = [f"{own}.attention.output.{kind}"]
            names[f"{hidden}.norm.{kind}"] = [f"{own}.hidden_norm.{kind}"]
            names[f"{hidden}.fn.net.0.{kind}"] = [f"{own}.expand.{kind}"]
            names[f"{hidden}.fn.net.3.{kind}"] = [f"{own}.contract.{kind}"]
    return VisionTransformer(config), theirs, names


def reordered(name: str, value: Tensor) -> Tensor:
    """A patch's pixels as channel, row, column (ours) put into the order row, column, channel (theirs)."""
    if name != "to_patch_embedding.weight":
        return value
    return value.unflatten(1, (3, 4, 4)).permute(0, 2, 3, 1).flatten(1)


def as_theirs(values: dict[str, Tensor], names: dict[str, list[str]], like: nn.Module) -> dict[str, Tensor]:
    """Our parameters, or their gradients, under the names and shapes of theirs."""
    shapes = {name: parameter.shape for name, parameter in like.named_parameters()}
    return {
        name: reordered(name, torch.cat([values[own] for own in names[name]])).reshape(shapes[name]) for name in names
    }


def compare(ours: nn.Module, theirs: nn.Module, names: dict[str, list[str]], losses: Any) -> None:
    """Print the largest differences; ``losses`` gives outputs and loss of either."""
    ours.double().eval(), theirs.double().eval()
    assert {name for name, _ in theirs.named_parameters()} == set(names), "a parameter of theirs has no counterpart"
    assert {name for name, _ in ours.named_parameters()} == {own for each in names.values() for own in each}
    theirs.load_state_dict(as_theirs({k: v.detach() for k, v in ours.named_parameters()}, names, theirs))
    (our_outputs, our_loss), (their_outputs, their_loss) = losses(ours, theirs)
    our_loss.backward(), their_loss.backward()
    gradients = as_theirs({k: v.grad for k, v in ours.named_parameters()}, names, theirs)
    worst = max(apart(gradients[k], v.grad) for k, v in theirs.named_parameters())
    outputs, loss = apart(our_outputs, their_outputs), apart(our_loss, their_loss)
    print(f"  outputs {outputs:.1e}, loss {loss:.1e}, gradients {worst:.1e}")


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max() / other.detach().abs().max())


def dropped(model: nn.Module, call: Any) -> int:
    """How many entries reach dropout in a forward pass in training."""
    count, original, of_torch = 0, nn.Dropout.forward, torch.dropout

    def counting(self: nn.Dropout, x: Tensor) -> Tensor:
        nonlocal count
        count += x.numel() if self.p > 0 else 0
        return x

    def counting_function(x: Tensor, p: float, train: bool) -> Tensor:
        nonlocal count
        count += x.numel()
        return x

    kinds = {type(module) for module in model.modules() if isinstance(module, nn.Dropout)} | {nn.Dropout}
    before = {kind: kind.__dict__.get("forward") for kind in kinds}
    for kind in kinds:
        kind.forward = counting  # type: ignore[method-assign]
    torch.dropout = counting_function  # type: ignore[assignment]
    try:
        with torch.no_grad():
            call(model.train())
    finally:
        torch.dropout = of_torch  # type: ignore[assignment]
        for kind, forward in before.items():
            if forward is None:
                del kind.forward
            else:
                kind.forward = forward  # type: ignore[method-assign]
        nn.Dropout.forward = original  # type: ignore[method-assign]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    sys.path.insert(0, str(parser.parse_args().checkout / "real-data"))
    torch.manual_seed(0)
    ids = torch.randint(1, 30522, (TEXTS, LENGTH))
    for row, length in enumerate((LENGTH, 60, 7, 33)):
        ids[row, length:] = 0
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0])
    for blocks in (3, 4, 6):
        ours, theirs, names = text_pair(importlib.import_module("tools.sent_analysis_model"), blocks)

        def texts(ours: Any, theirs: Any) -> Any:
            logits, probabilities = ours(ids), theirs(ids, "cpu")
            loss = functional.cross_entropy(logits, labels.long(), reduction="sum")
            return (logits[:, 1].sigmoid(), loss), (
                probabilities,
                nn.BCELoss(reduction="sum")(probabilities, labels.double()),
            )

        print(f"text classifier, {blocks} blocks, {sum(p.numel() for p in ours.parameters()):,} parameters")
        compare(ours, theirs, names, texts)
        count, expected = dropped(ours, lambda m: m(ids)), dropped(theirs, lambda m: m(ids, "cpu"))
        # Our last block computes the first token's row alone: there, of T rows of T weights and T rows of dim, one.
        saved = TEXTS * (LENGTH - 1) * (blocks * LENGTH + 2 * 384)
        print(f"  reach dropout: theirs {expected:,} entries, ours {count:,} and {saved:,} in rows never read")
        assert count + saved == expected
    ours, theirs, names = vision_pair(importlib.import_module("tools.vit_model"))
    pixels, classes = torch.randn(IMAGES, 3, 48, 48, dtype=torch.float64), torch.tensor([3, 7])

    def images(ours: Any, theirs: Any) -> Any:
        outputs = [model(pixels) for model in (ours, theirs)]
        return [(each, functional.cross_entropy(each, classes)) for each in outputs]

    print(f"vision transformer, {sum(p.numel() for p in ours.parameters()):,} parameters")
    compare(ours, theirs, names, images)
    count, expected = dropped(ours, lambda m: m(pixels)), dropped(theirs, lambda m: m(pixels))
    saved = IMAGES * 144 * 3 * 512
    print(f"  reach dropout: theirs {expected:,} entries, ours {count:,} and {saved:,} in rows never read")
    assert count + saved == expected


if __name__ == "__main__":
    main()
