"""Every experiment at a size that takes a moment; run as a script, the command line at that size."""

import atexit
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from mirrormax.experiments import (
    Measured,
    Work,
    _sweeps,
    batches,
    classes,
    experiment_names,
    feasibility,
    fig1,
    fig2,
    fig4,
    fig5,
    fig6,
    heads,
    horizon,
    joint,
    layers,
    load_experiment,
    next_token,
    norms,
    nuclear,
    practice,
    sparsity,
    starts,
    step_size,
    thm1,
    thm3,
    thm4,
    thm5,
    vit,
)
from mirrormax.experiments._sweeps import Contender, Sweep
from mirrormax.training import SentimentTraining, VisionTraining

RIVALS = (
    Contender("md", 1.1, (0.05, 0.1), 2),
    Contender("md", 2.0, (0.1, 0.2), 2),
    Contender("adamw", 2.0, (1e-3, 1e-2), 2),
)
TINY_TEXTS = SentimentTraining(
    vocab_size=300, dim=8, hidden=8, blocks=1, heads=2, train_limit=100, validation=0.02, test=0.02, epochs=2
)
TINY_IMAGES = VisionTraining(dim=8, hidden=8, blocks=1, heads=2, head_dim=4, train_limit=100, epochs=2)

TINY = {
    "fig1": replace(
        fig1.Config(), p=(1.75, 2.0), problems=4, mu=(0.03, 0.1), radii=(1.0, 30.0), least_steps=400, pictured_starts=4
    ),
    "feasibility": replace(feasibility.Config(), shapes=((3, 4), (2, 5)), d=(2, 3, 4), problems=8),
    "fig2": fig2.Config(),
    "fig3": fig2.Config(),
    "fig4": replace(
        fig4.Config(),
        p=(1.75, 2.0, 6.0),
        lr=(0.1, 0.1, 10.0),
        steps=(30, 40, 50),
        shared_steps=(60, 80, 100),
        trials=4,
        plain_trials=3,
        plain_steps=50,
        block=2,
        points=8,
        n=2,
        T=3,
        d=4,
    ),
    "fig5": replace(fig5.Config(), p=(1.1, 2.0), lr=(0.1, 0.1), steps=(40, 40), longer=2, points=12, n=2, T=3, d=5),
    "fig6": replace(fig6.Config(), steps=(60, 60, 60), points=10, first_steps=25),
    "fig7": replace(fig6.Config(), steps=(80, 80, 80), points=10, first_steps=25),
    "thm1": replace(thm1.Config(), p=(2.0,), problems=2, radii=3, largest=300.0, n=2, T=3, d=4),
    "thm4": replace(
        thm4.Config(),
        p=(2.0, 3.0),
        lr=(1.0, 1.0),
        radius=(8.0, 8.0),
        normalised_p=(1.5, 2.0),
        steps=300,
        trials=2,
        points=12,
        n=2,
        T=3,
        d=4,
    ),
    "thm3": replace(
        thm3.Config(), cases=(thm3.Case(2.0),), problems=4, steps=200, search=100, points=8, checked=1, n=2, T=3, d=4
    ),
    "thm5": replace(
        thm5.Config(), p=(3.0,), radii=3, largest=(1000.0, 100.0, 30.0), random_p=(3.0,), seeds=(0,), samples=20
    ),
    "nuclear": replace(nuclear.Config(), n=2, T=3, d=3, problems=3, steps=200, points=8, block=2),
    **dict.fromkeys(
        ("table1", "fig8", "fig9"), _sweeps.TextConfig((("tiny", Sweep(TINY_TEXTS, RIVALS, tuning_epochs=1)),))
    ),
    "vit": vit.Config(Sweep(TINY_IMAGES, RIVALS, tuning_epochs=1)),
    "classes": replace(
        classes.Config(), p=(2.0,), lr=(0.1,), steps=300, problems=3, pinned=20, points=8, n=3, T=4, d=6
    ),
    "heads": replace(
        heads.Config(),
        p=(2.0,),
        lr=(0.1,),
        values_lr=(0.1,),
        steps=200,
        plain=200,
        problems=3,
        points=8,
        n=3,
        T=4,
        d=6,
    ),
    "joint": replace(joint.Config(), p=(1.5, 2.0), lr=(0.1, 0.1), steps=200, problems=3, n=3, T=3, d=4),
    "starts": replace(
        starts.Config(),
        p=(2.0,),
        lr=(0.1,),
        steps=(60,),
        problems=3,
        basin_problems=2,
        directions=1,
        mu=(0.1, 0.4),
        n=2,
        T=3,
        d=4,
    ),
    "batches": replace(batches.Config(), p=(2.0,), lr=(0.1,), steps=20, problems=2, points=5, n=2, T=3, d=4),
    "next_token": replace(next_token.Config(), p=(2.0,), lr=(0.1,), plain_lr=(2.0,), problems=2, steps=40, plain=60),
    "norms": replace(norms.Config(), n=2, T=3, d=3, problems=2, steps=30, records=3, draws=100),
    "horizon": replace(horizon.Config(), n=2, T=3, d=3, problems=3, steps=(200, 200, 200, 400), records=4),
    "layers": replace(
        layers.Config(), p=(2.0,), lr=(0.1,), n=2, T=3, d=4, problems=3, steps=40, factors_steps=40, points=4
    ),
    "sparsity": replace(sparsity.Config(), steps=20),
    "practice": practice.Config(
        (
            practice.Task(
                "digits",
                TINY_IMAGES,
                4,
                50,
                (
                    ("AdamW", ((1e-3, 0.01), (1e-2, 0.01))),
                    ("MirrorAdamW", ((1e-3, 1.1), (1e-2, 1.1))),
                    ("target", ((1e-3, 0.01), (1e-2, 0.01))),
                ),
                seeds=2,
            ),
        )
    ),
    "step_size": replace(step_size.Config(), p=(1.5, 2.0), multiples=(1.0,), epochs=1, training_images=200),
}


@cache
def result(name):
    """The arrays of an experiment, made once in a process; not to be written to."""
    return load_experiment(name).run(TINY[name], Work(runs=runs_folder()))


@cache
def runs_folder():
    """Where the training runs of this process are kept, until it ends."""
    folder = tempfile.TemporaryDirectory(prefix="mirrormax-runs-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def measured(name, data=None):
    """What an experiment measures of its arrays, or of those of its tiny configuration."""
    return Measured(load_experiment(name).measure(result(name) if data is None else data))


def claims(name, data):
    """The claims of the paper that an experiment bears on."""
    return load_experiment(name).tell(data, measured(name, data)).claims


def shrink(setitem):
    """Put the tiny configurations in place of the quick ones, by ``setitem(mapping, key, value)``."""
    for name in experiment_names():
        setitem(load_experiment(name), "PROFILES", {"quick": TINY[name], "paper": TINY[name]})


if __name__ == "__main__":
    from mirrormax import commands

    shrink(setattr)
    raise SystemExit(commands.main(sys.argv[1:]))
