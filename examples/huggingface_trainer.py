"""Fine-tuning a BERT with the Hugging Face Trainer, its attention weights under l1.5 mirror descent.

The optimizer enters in either of the Trainer's two ways. The Trainer's checkpoints hold it, and a run resumed from
one ends with the same bits as the run that was never interrupted. The model is built from a config; to start from
pretrained weights, replace `make_model` by `AutoModelForSequenceClassification.from_pretrained(...)`.
"""

import tempfile

import torch
from tiny_task import CLASSES, LENGTH, VOCABULARY, make_data
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, Trainer, TrainingArguments

import mirrormax as mm

STEPS = 80


class Sequences(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        self.ids, self.labels = make_data(count, seed)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def make_model() -> PreTrainedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    # So small a model, trained from nothing in 80 steps, wants larger weights and no dropout.
    start = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=CLASSES, **size, **start)
    return BertForSequenceClassification(config)


def make_groups(model: PreTrainedModel) -> mm.optim.ParamGroups:
    return mm.param_groups(model, attention={"p": 1.5, "lr": 0.1}, rest={"p": 2.0, "lr": 0.05})


def make_trainer(folder: str, by_class: bool) -> Trainer:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        save_steps=STEPS // 2,
        per_device_train_batch_size=32,
        lr_scheduler_type="cosine",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = make_model()
    if by_class:
        # The Trainer makes the optimizer. It takes "params" in place of its own two groups.
        chosen = (mm.MirrorDescent, {"params": make_groups(model), "lr": 0.1, "momentum": 0.9})
        return Trainer(model, arguments, train_dataset=Sequences(512, seed=0), optimizer_cls_and_kwargs=chosen)
    # We make the optimizer, the Trainer its schedule.
    optimizer = mm.MirrorDescent(make_groups(model), lr=0.1, momentum=0.9)
    return Trainer(model, arguments, train_dataset=Sequences(512, seed=0), optimizers=(optimizer, None))


def same_weights(a: PreTrainedModel, b: PreTrainedModel) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


with tempfile.TemporaryDirectory() as folder:
    by_class = make_trainer(folder, by_class=True)
    by_class.train()

    resumed = make_trainer(folder, by_class=False)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{STEPS // 2}")

unseen = Sequences(256, seed=1)
result = (resumed.predict(unseen).predictions.argmax(axis=-1) == unseen.labels.numpy()).mean()
identical = same_weights(by_class.model, resumed.model)
print(f"accuracy on unseen sequences: {result:.3f}; resumed as if never interrupted: {identical}")
