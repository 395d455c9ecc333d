"""The Geometry page of the documentation, which computes in the browser: it must agree with the library."""

import importlib.util
import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from mirrormax.app.geometry import geometry
from mirrormax.app.question import Problems, read_question

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed to compute in")
DOCS = Path(__file__).parents[2] / "docs"
REPRODUCIBLE = 20
"""Steps of size 0.1 oscillate later, and then a last bit decides: the library's own engines part there as well."""
BASE = {"lr": 0.1, "steps": 300, "start": "zero", "alpha": "trained", "others": [], "moves": {"x": [], "z": []}}
QUESTIONS = [
    {**BASE, "problem": "example1", "p": 1.75},
    {**BASE, "problem": "example1", "p": 3, "start": "random", "others": [1.1, 2]},
    {**BASE, "problem": "example2", "p": 2},
    {**BASE, "problem": "sphere", "seed": 0, "p": 2, "others": [3]},
    {**BASE, "problem": "sphere", "seed": 1, "p": 1.1, "alpha": "optimal"},
    {**BASE, "problem": "sphere", "seed": 2, "p": 6, "start": "random", "alpha": [0, 1, 2, 3, 4, 5]},
    {**BASE, "problem": "sphere", "seed": 3, "p": 1.5, "moves": {"x": [[0, 1, [0.1] * 10]], "z": [[2, [-0.1] * 10]]}},
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing on the terminal."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder as a build of the documentation leaves it, served on a free port."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS / "live", folder / "live")
    hooks.on_post_build({"site_dir": str(folder)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/live/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def page(site):
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        page.wrong = []
        page.on("console", lambda message: page.wrong.append(message.text))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(site) else page.wrong.append(asked.url))
        page.goto(f"{site}index.html")
        page.wait_for_selector("#stage[data-p][aria-busy='false']")
        yield page
        browser.close()


def answers(page, question):
    """The browser's answer and the library's, as plain data."""
    ask = """async (question) => {
      const { answered } = await import(new URL("./answer.js", location.href));
      const problems = await (await fetch("./problems.json")).json();
      return JSON.stringify(answered(problems, { held: null, ...question }));
    }"""
    asked = {"n": 6, "T": 8, "d": 10, "seed": 0, **question}
    ours = geometry(Problems().named(asked), read_question(asked), "tensor")
    return json.loads(page.evaluate(ask, question)), json.loads(json.dumps(ours))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: f"{question['problem']}-{question['p']}")
def test_training_and_solution_in_the_browser_are_the_librarys(page, question):
    theirs, ours = answers(page, question)
    assert theirs["steps"] == ours["steps"]
    early = np.array(ours["steps"]) <= REPRODUCIBLE
    for name in ("norms", "mass"):
        np.testing.assert_allclose(np.array(theirs[name])[early], np.array(ours[name])[early], rtol=1e-4)
    assert theirs["alpha"] == ours["alpha"]
    paths = (np.array(answer["weights"]["path"])[early] for answer in (theirs, ours))
    np.testing.assert_allclose(*paths, atol=1e-4)
    assert theirs["solution"]["support"] == ours["solution"]["support"]
    assert theirs["solution"]["locally_optimal"] == ours["solution"]["locally_optimal"]
    assert theirs["solution"]["margin"] == pytest.approx(ours["solution"]["margin"], rel=1e-6)
    assert theirs["solution"]["gap"] <= 1e-8
    np.testing.assert_allclose(theirs["tokens"]["places"], ours["tokens"]["places"], atol=1e-4)
    np.testing.assert_allclose(theirs["weights"]["ball"], ours["weights"]["ball"], atol=1e-3)
    for mine, other in zip(theirs["others"], ours["others"], strict=True):
        assert mine["p"] == other["p"]
        np.testing.assert_allclose(mine["solution"], other["solution"], atol=1e-4)


def test_tokens_that_nothing_separates_have_no_solution(page):
    """With the queries of both samples equal, Example 1's tokens contradict each other."""
    question = {**QUESTIONS[1], "others": [], "alpha": [0, 0], "moves": {"x": [], "z": [[1, [10.0, 0.0]]]}}
    theirs, ours = answers(page, question)
    assert theirs["solution"] is None
    assert ours["solution"] is None


def test_the_page_draws_follows_p_and_asks_nobody(page):
    before = page.inner_html("#weights-plot")
    page.fill("#p-number", "1.5")
    page.wait_for_selector("#stage[data-p='1.5'][aria-busy='false']")
    assert page.locator(".film button").count() == 9
    assert page.inner_html("#weights-plot") != before
    page.fill("#p-number", "0.5")
    page.wait_for_selector("#geometry-error:not([hidden])")
    assert page.inner_text("#geometry-error").startswith("p must be")
    assert page.wrong == []
