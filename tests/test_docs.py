"""What the documentation shows runs, what it links to is there, and the API reference leaves no public name out."""

import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import mirrormax
from mirrormax import commands
from mirrormax.commands._shared import chosen
from mirrormax.commands.bench import BENCHES
from mirrormax.commands.reproduce import GROUPS
from mirrormax.experiments import experiment_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
ELSEWHERE = ("integrations.md", "clusters.md")  # run by test_integrations_page.py


def helper(name):
    """A module of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_in_the_navigation(page):
    assert re.search(rf"(: |- ){re.escape(page)}$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE and blocks(page, "python")])
def test_the_python_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(block, names)


def named(page):
    """The dotted names of this package in inline code, as ``mm.att_svm`` or ``mirrormax.theory.constants``."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text("utf-8"), flags=re.S)
    found = re.findall(r"`(?:mm|mirrormax)\.([A-Za-z_][\w.]*)(?=[`(\[])", text)
    return sorted({name for name in found if not name.endswith((".json", ".jsonl")) and name != "json"})


@pytest.mark.parametrize("page", [page for page in [*PAGES, "../README.md", "../CONTRIBUTING.md"] if named(page)])
def test_the_names_that_a_page_gives_exist(page):
    for name in named(page):
        found = mirrormax
        for part in name.split("."):
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def command_lines():
    """Every ``mirrormax …`` of the pages, in shell blocks, indented lines and inline code."""
    found = set()
    for page in [*PAGES, "../README.md"]:
        text = (DOCS / page).read_text("utf-8")
        lines = [
            *"\n".join([*blocks(page, "sh"), *blocks(page, "bash")]).splitlines(),
            *re.findall("`([^`\n]+)`", text),
        ]
        lines += re.findall(r"^ {4}(mirrormax .*)$", text, re.M)
        found |= {(page, line.strip()) for line in lines if line.strip().startswith("mirrormax ")}
    return sorted(found)


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_command_lines_are_understood(page, line):
    words = shlex.split(line, comments=True)[1:]
    if words[1:] in ([], ["…"]):  # only a command's name
        assert words[0] in commands.COMMANDS
        return
    if "--help" in words:
        words.remove("--help")
    alternatives = next((word.split("|") for word in words if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word)), [""])
    for one in alternatives:
        typed = [one if word.split("|") == alternatives else word for word in words]
        args = commands.build_parser(typed).parse_args(typed)
        if args.command in ("reproduce", "bench"):
            known = {"reproduce": (*experiment_names(), *GROUPS), "bench": BENCHES}[args.command]
            assert chosen(args.names, known)


def test_a_page_that_a_docstring_names_is_there_and_speaks_of_it():
    packages = [room.name for room in pkgutil.iter_modules(mirrormax.__path__) if room.ispkg]
    rooms = [mirrormax, *(importlib.import_module(f"mirrormax.{name}") for name in packages)]
    things = {name: getattr(room, name) for room in rooms for name in getattr(room, "__all__", ())}
    named = [
        (name, page) for name, thing in things.items() for page in re.findall(r"docs/\S+?\.md", thing.__doc__ or "")
    ]
    assert ("equivalent_lr", "docs/choose.md") in named
    for name, page in named:
        assert name in (ROOT / page).read_text("utf-8"), (name, page)


def test_the_places_that_contributing_names_are_there():
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Where things go")[1].split("## Rules")[0]
    named = re.findall(r"`([^`\s]+)`", table)
    paths = [name for name in named if "/" in name or name.endswith(".py")]
    assert len(paths) > 8
    for path in paths:
        assert (ROOT / "src" / "mirrormax" / path).exists(), path
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in set(named) - set(paths):
        if re.fullmatch(r"[A-Za-z_]+", name):
            assert re.search(rf"\b{name}\b", source), name


def test_every_result_page_is_listed():
    listed = (DOCS / "results" / "index.md").read_text("utf-8")
    pages = [path.relative_to(DOCS / "results").as_posix() for path in (DOCS / "results").glob("*/*.md")]
    assert [page for page in pages if f"]({page})" not in listed] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as CI builds it: warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Targets(HTMLParser):
    """What one page points to, what it loads, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.assets, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id"))
        if found.get("href"):
            (self.links if tag == "a" else self.assets).add(found["href"])
        if found.get("src"):
            self.assets.add(found["src"])


@pytest.mark.timeout(1800)
def test_every_link_and_asset_of_the_site_is_in_it(site):
    pages = {path.resolve(): Targets(path.read_text("utf-8")) for path in site.rglob("*.html")}
    pages.pop((site / "404.html").resolve())
    assert len(pages) > 20
    for path, page in pages.items():
        for target in page.links | page.assets:
            assert not re.match(r"(?!data:)[a-z]+:|//", target), f"{path.name} points out of the site: {target}"
            if target.startswith("data:"):
                continue
            place, _, anchor = unquote(target).partition("#")
            goal = (path.parent / place).resolve() if place not in ("", ".") else path
            goal = goal / "index.html" if goal.is_dir() else goal
            assert goal.is_file(), f"{path.name}: {target}"
            assert not anchor or goal not in pages or anchor in pages[goal].anchors, f"{path.name}: {target}"


def public_names():
    """The places of every name in ``__all__`` of a room, and of what contrib's modules define."""
    packages = [room.name for room in pkgutil.iter_modules(mirrormax.__path__) if not room.name.startswith("_")]
    rooms = [importlib.import_module(f"mirrormax.{name}") for name in packages]
    found = [(room.__name__, name, getattr(room, name)) for room in rooms for name in getattr(room, "__all__", ())]
    for library in ("sklearn", "optax"):
        module = importlib.import_module(f"mirrormax.contrib.{library}")
        own = [(name, it) for name, it in vars(module).items() if getattr(it, "__module__", "") == module.__name__]
        found += [(module.__name__, name, it) for name, it in own if callable(it) and not name.startswith("_")]
    return found


@pytest.mark.timeout(1800)
def test_the_reference_covers_every_public_name(site):
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    covered = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
    names = public_names()
    assert len(names) > 100
    # A function may have the name of the module that it is in, and then stands under both.
    places = {(room, name): {f"{room}.{name}", f"{getattr(it, '__module__', '')}.{name}"} for room, name, it in names}
    assert [place for place, either in places.items() if not either & covered] == []
    assert {*mirrormax.__all__} <= {name for _, name, _ in names}


def test_docstrings_become_markdown():
    as_markdown = helper("docstrings").as_markdown
    assert as_markdown("See :func:`~mirrormax.svm.att_svm`.") == "See [`att_svm`][mirrormax.svm.att_svm]."
    assert as_markdown("See :meth:`convexity`.") == "See `convexity`."
    assert as_markdown("W_mm of ‖W‖_p\n\n    a_b = c*d") == "W\\_mm of ‖W‖\\_p\n\n    a_b = c*d"
    assert as_markdown("Text.\n\n>>> 1 + 1\n2") == "Text.\n\n```pycon\n>>> 1 + 1\n2\n```\n"
    assert as_markdown("``nu``     first\n           line\n``gap`` second") == "- `nu`: first line\n- `gap`: second"
    shapes = "``loss``, ``norm`` (K, ...)  risk\n``W`` (d, d)   weights\n      of heads"
    assert as_markdown(shapes) == "- `loss`, `norm` (K, ...): risk\n- `W` (d, d): weights of heads"
    arguments = "Args:\n    lr_v: step of v_mm."
    assert as_markdown(arguments) == "Args:\n    lr_v: step of v\\_mm."


NOTEBOOKS = sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_prints_what_is_shown(name):
    """Words and order are held; numbers may differ in their last digits from machine to machine."""
    path = DOCS / "notebooks" / f"{name}.ipynb"
    spec = importlib.util.spec_from_file_location("make", DOCS / "notebooks" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)

    def printed(notebook):
        text = "".join(line for cell in notebook["cells"] for out in cell.get("outputs", []) for line in out["text"])
        return re.sub(r"[\d.e+-]*\d", "#", text)

    assert printed(make.run(path)) == printed(json.loads(path.read_text("utf-8")))
    assert f"<!-- notebook: {name} -->" in (DOCS / "gallery.md").read_text("utf-8")


def test_formulas_become_mathml_and_symbols_get_their_indices(site):
    page = (site / "math" / "selection.html").read_text("utf-8")
    assert page.count('<div class="formula"><math') >= 8
    assert "‖W<sub>mm</sub>‖<sub>p</sub>" in page
    assert not re.search(r"mathematics\d+place|\\operatorname|\$`", page)
    assert "merror" not in page
    place = helper("site").raised_and_lowered
    assert place("<p>D_ψ(W) and <code>x_1</code></p>") == "<p>D<sub>ψ</sub>(W) and <code>x_1</code></p>"
    assert place("see docs_dir, e^(−x), ℓ1.1") == "see docs_dir, e<sup>−x</sup>, ℓ<sub>1.1</sub>"


def test_the_page_of_figures_shows_what_the_command_prints(tmp_path):
    from mirrormax.experiments import Results, Work, config_of

    collected = helper("collect_figures")
    result = Results(tmp_path).run("fig2", config_of("fig2", "quick"), Work())
    section = collected.section("fig2", result.folder)
    rows = [line for line in section.splitlines() if line.startswith("| ") and "quantity" not in line]
    assert len(rows) >= 2
    shown = (DOCS / "results" / "figures.md").read_text("utf-8").splitlines()
    assert all(row in shown for row in rows)
