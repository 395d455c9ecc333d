"""Processor time of layers that skip zeros over that of dense ones, for the shapes of SmolLM2-135M, on one thread.

``python docs/sparse_layers.py`` prints how many times as fast products are, by zeros and tokens, and a whole model with
random weights, which generates one token after the other.
"""

import copy
import statistics
import time

import torch
from torch import nn

from mirrormax import prune
from mirrormax.pruning import SparseLinear, compress

SHAPES = [(576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)]
BLOCKS, ROUNDS, GENERATED = 10, 5, 16


def seconds(compute):
    """Processor time of a call."""
    start = time.process_time()
    compute()
    return time.process_time() - start


def ratio(dense, sparse):
    """How many times as fast the second call is: medians of rounds in turn, the first of which does not count."""
    times = [(seconds(dense), seconds(sparse)) for _ in range(ROUNDS + 1)][1:]
    return statistics.median(d for d, _ in times) / statistics.median(s for _, s in times)


def products(share, tokens):
    """All layers of ten blocks."""
    layers = [nn.Linear(*shape, bias=False) for _ in range(BLOCKS) for shape in SHAPES]
    for layer in layers:
        layer.weight.mul_(torch.rand_like(layer.weight) >= share)
    sparse = [SparseLinear(layer) for layer in layers]
    inputs = {width: torch.randn(tokens, width) for width in (576, 1536)}

    def run(layers):
        return [layer(inputs[layer.in_features]) for layer in layers]

    return ratio(lambda: run(layers), lambda: run(sparse))


def language_model():
    """One of SmolLM2's shape, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    return LlamaForCausalLM(LlamaConfig(vocab_size=49152, num_key_value_heads=3, **size)).eval()


def generate(model):
    """Token by token, its keys and values kept."""
    model.generate(torch.ones(1, 8, dtype=torch.long), max_new_tokens=GENERATED, do_sample=False, pad_token_id=0)


@torch.inference_mode()
def main():
    """Print a row for each share of zeros, then the model's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for share in (0.5, 0.6, 0.7, 0.8, 0.9):
        print(f"{share:.0%} zeros:", {tokens: round(products(share, tokens), 2) for tokens in (1, 8, 64)})
    dense = language_model()
    for share in (0.5, 0.7, 0.8, 0.9):
        prune(dense, share).finish()
        sparse = copy.deepcopy(dense)
        compressed = compress(sparse, least=0.5)
        times = ratio(lambda: generate(dense), lambda sparse=sparse: generate(sparse))
        print(
            f"{share:.0%} zeros: {times:.2f} times as many tokens per second, {len(compressed.layers)} layers of "
            f"{compressed.dense:,} bytes take {compressed.sparse:,}"
        )


if __name__ == "__main__":
    main()
