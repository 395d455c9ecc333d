"""Data and configurations whose training takes a moment."""

import csv
import random
import shutil
import signal

import pytest

from mirrormax.training import SentimentTraining, VisionTraining, train

GOOD, BAD = ["lovely", "warm", "clever", "moving", "superb"], ["dull", "awful", "clumsy", "boring", "bleak"]
REST = ["the", "film", "was", "a", "story", "of", "some", "people", "in", "town", "and", "it", "felt", "very"]


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: a process in the background may have been started deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A CSV file of 120 made-up reviews of 3 to 15 words, one of which decides."""
    generator = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(120):
            words = [*generator.choices(REST, k=generator.randint(2, 14)), generator.choice((BAD, GOOD)[number % 2])]
            generator.shuffle(words)
            writer.writerow([" ".join(words), ("bad", "good")[number % 2]])
    return path


@pytest.fixture(scope="session")
def text_run(texts):
    """Configurations of a tiny text model under plain mirror descent, by what is otherwise."""

    def make(**choices):
        sizes = {"optimizer": "md", "vocab_size": 100, "max_length": 12, "dim": 8, "hidden": 8, "blocks": 2, "heads": 2}
        length = {"epochs": 3, "batch_size": 16, "stop_accuracy": 2.0}
        return SentimentTraining(**{"data": str(texts), **sizes, **length, **choices})

    return make


@pytest.fixture(scope="session")
def image_run():
    """Configurations of a tiny image model under plain mirror descent, by what is otherwise."""

    def make(**choices):
        sizes = {"optimizer": "md", "patch": 4, "dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "head_dim": 4}
        length = {"epochs": 2, "batch_size": 16, "train_limit": 60, "stop_accuracy": 2.0}
        return VisionTraining(**{**sizes, **length, **choices})

    return make


@pytest.fixture(scope="module")
def ended(image_run, tmp_path_factory):
    """A configuration of one epoch, and the folder of its run; not to be written to."""
    config = image_run(epochs=1)
    return config, train(config, tmp_path_factory.mktemp("ended") / "run")


@pytest.fixture
def finished(ended, tmp_path):
    """The same in a folder of one's own."""
    config, folder = ended
    return config, shutil.copytree(folder, tmp_path / "run")
