"""The smallest study that has all there is: first points, random and proposed ones, and trials given up."""

TINY = {
    "epochs": 2,
    "dim": 8,
    "hidden": 8,
    "blocks": 1,
    "heads": 1,
    "head_dim": 8,
    "patch": 4,
    "train_limit": 100,
}


def flags(out, trials, *more):
    choices = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    common = ["--quiet", "--jobs", "1", "--accelerator", "cpu", "--out", str(out), "--trials", str(trials)]
    return ["tune", "vision", *choices, *common, *more]
