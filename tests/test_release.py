"""What users install: a wheel and an sdist that hold all they need, and a core that works without any extra."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import mirrormax
from mirrormax.data import save_problem, sphere_problem

ROOT = Path(__file__).parents[1]
SHIPPED = Path(mirrormax.__file__).parent / "app" / "models"
OF_EXTRAS = (
    *("cvxpy", "clarabel", "dask", "distributed", "jax", "joblib", "lightning", "matplotlib", "numba", "optax"),
    *("optuna", "pandas", "pyarrow", "rich", "safetensors", "sklearn", "starlette", "tensorboard", "tokenizers"),
    *("transformers", "uvicorn"),
)
AS_IF_MISSING = """
import contextlib, io, json, sys
missing, lines = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(missing))
from mirrormax import commands
for line in lines:
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        code = commands.main(line)
    print(json.dumps([code, told.getvalue()]))
"""


def run_without_extras(folder, lines):
    """(exit code, stderr) of each command line where only the core is installed."""
    words = json.dumps([OF_EXTRAS, lines])
    done = subprocess.run(
        [sys.executable, "-c", AS_IF_MISSING, words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(mirrormax.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_the_core_alone_does_its_part_and_names_the_extra_for_the_rest(tmp_path):
    save_problem(tmp_path / "problem.npz", sphere_problem(seed=0))
    core = [
        ["svm", "problem.npz", "--p", "1.75", "--out", "solution.npz"],
        ["simulate", "problem.npz", "--p", "1.75", "--steps", "20", "--out", "run.npz"],
        ["doctor"],
    ]
    needing = {
        "reproduce": ["reproduce", "fig2"],
        "train": ["train", "vision"],
        "tune": ["tune", "vision"],
        "audit": ["audit", "model", "--data", "reviews.csv"],
        "audit]": ["compare", "a", "b", "--data", "reviews.csv"],
        "explore": ["explore", "--no-browser"],
        "bench": ["bench", "svm"],
    }
    ended = run_without_extras(tmp_path, [*core, *needing.values()])
    assert ended[: len(core)] == [(0, "")] * len(core)
    for extra, (code, err) in zip(needing, ended[len(core) :], strict=True):
        assert code == 2, err
        assert f"pip install 'mirrormax[{extra}" in err
        assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"problem.npz", "solution.npz", "run.npz"}


HELP = """
import sys
from mirrormax import commands
commands.build_parser([]).format_help()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
for name in commands.COMMANDS:
    commands.build_parser([name]).format_help()
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_waits_for_no_library():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    whole, of_commands = (set(line.split()) for line in done.stdout.splitlines())
    assert not whole & {"torch", "numpy", "scipy", *OF_EXTRAS}
    assert not of_commands & {"torch", "scipy", *OF_EXTRAS} - {"rich"}


IMPORTS = f"""
import sys
import mirrormax
import mirrormax.auditing as auditing
[getattr(mirrormax, name) for name in mirrormax.__all__]
mirrormax.nets.load_model({str(SHIPPED / "l2")!r})
print("torch._dynamo" in sys.modules)
print(mirrormax.audit is auditing.audit, type(mirrormax.audit).__name__)
from mirrormax.experiments import Results, fig4, vit
print("matplotlib" in sys.modules)
"""


def test_names_and_models_come_without_the_compiler_of_torch_and_the_audit_is_a_function():
    """The compiler takes longer to import than all the rest. The package of the audit is imported before the names.

    Nor does anything wait for what draws before a picture is asked for.
    """
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue function\nFalse\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def tracked(*folders):
    """The files of the repository: all that git does not ignore."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines())


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"mirrormax-{mirrormax.__version__}-py3-none-any.whl"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in tracked("src")}
    wanted = (
        "py.typed",
        "data/pivots.csv",
        "report/templates/page.css",
        "app/static/index.html",
        "app/models/l2/config.json",
    )
    assert names >= {f"mirrormax/{name}" for name in wanted}


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_test_and_document(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert names - {"PKG-INFO"} == tracked() - tracked(".ci")
