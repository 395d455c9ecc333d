"""Small models of every make, with batches for them."""

import torch
from torch import nn

from mirrormax.nets import TransformerClassifier, TransformerConfig, VisionConfig, VisionTransformer

SIZES = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "vocab_size": 40,
    "max_position_embeddings": 24,
    "attn_implementation": "eager",
}


def words(count=6, length=9, seed=0):
    """Ids with padding at the end of some."""
    ids = torch.randint(3, 40, (count, length), generator=torch.Generator().manual_seed(seed))
    ids[1, 6:], ids[3, 4:] = 0, 0
    return ids


def text_model(seed=0, classes=2, blocks=2):
    torch.manual_seed(seed)
    return TransformerClassifier(
        TransformerConfig(vocab_size=40, classes=classes, dim=16, hidden=32, blocks=blocks, heads=2, max_length=16)
    )


def image_model(seed=0):
    torch.manual_seed(seed)
    return VisionTransformer(
        VisionConfig(image_size=12, patch=4, channels=1, classes=3, dim=16, hidden=16, blocks=2, heads=2, head_dim=6)
    )


def encoder(batch_first=True, seed=0, layers=2):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for parameter in model.parameters():  # biases start at zero, where they would test nothing
        nn.init.normal_(parameter, std=0.3)
    return model


def hugging_face(name, seed=0):
    import transformers

    torch.manual_seed(seed)
    if name == "distilbert":
        config = transformers.DistilBertConfig(
            dim=16, n_heads=2, n_layers=2, hidden_dim=32, vocab_size=40, max_position_embeddings=24,
            attn_implementation="eager",
        )  # fmt: skip
        model = transformers.DistilBertForSequenceClassification(config)
    elif name == "vit":
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(**SIZES, image_size=12, patch_size=4, num_channels=1)
        )
    elif name == "roberta":
        model = transformers.RobertaModel(transformers.RobertaConfig(**SIZES, pad_token_id=0))
    else:
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def hugging_face_batch(name):
    if name == "vit":
        return {"pixel_values": torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(1))}
    ids = words()
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}
