"""The report in a real browser: readable in the light and in the dark, wide and narrow, with a mouse and without."""

import re
import shutil
from types import SimpleNamespace

import pytest
from audited_models import text_model, words
from pages import CONTRAST

import mirrormax
from mirrormax.auditing import MARGINS
from mirrormax.experiments import Claim, Measurement, Result
from mirrormax.report import reproduction_page
from mirrormax.report.audits import SPARSITY, audit_page, compare_page

sync_api = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)} is installed")
VERDICTS = ("met", "bettered", "differs", "erratum", "smaller than published", "undecided", "not published")
LONG = "a quantity with a name as long as some of them are, of which there is one for each of the methods"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A report with every verdict, wide matrices and long names."""
    folder = tmp_path_factory.mktemp("report")
    picture = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 400"></svg>'
    results = []
    for name in ("fig4", "table1", "thm4"):
        (folder / f"{name}.svg").write_text(picture)
        rows = [
            Measurement(f"{LONG} {k}", "+0.90 to +1.68", "−0.797 [−4.69, +3.09]", v) for k, v in enumerate(VERDICTS)
        ]
        rows += [
            Measurement(LONG, "at most 1", "1.25e-7 [0.1, 0.2], 2 and 2 runs", verdict, "why", column=f"path ℓ{k}")
            for k, verdict in enumerate(VERDICTS[:-1])
        ]
        claims = [Claim(f"{LONG} holds", "0.5 and more", verdict, larger="text-2") for verdict in VERDICTS]
        config = {"experiment": name, "a_long_setting": "x" * 200}
        results.append(Result(name, f"{name}: {LONG}", folder, config, "It does. And more.", rows, claims, 1.0))
    (folder / "report.html").write_text(reproduction_page(results, "quick"), encoding="utf-8")
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_nothing_sticks_out(browser, address, scheme):
    for width in (1440, 820, 390):
        page = browser.new_page(viewport={"width": width, "height": 860}, color_scheme=scheme)
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("main .verdict").count() > 20
        assert page.evaluate(CONTRAST) == []
        page.close()


def test_paper_shows_all_but_commands_and_configurations(browser, address):
    page = browser.new_page(viewport={"width": 760, "height": 1000})
    page.goto(address)
    folded = page.locator("details :is(p, td, li, h3)")
    assert folded.count() > 50
    assert not any(each.is_visible() for each in folded.all())
    page.emulate_media(media="print")
    assert all(each.is_visible() for each in folded.filter(has_text=re.compile(r"\S")).all())
    made = page.locator("code, pre").filter(has_text=re.compile("mirrormax reproduce|a_long_setting"))
    assert made.count() == 6  # a command and a configuration for each of three
    assert not any(each.is_visible() for each in made.all())
    page.close()


def test_details_are_unfolded_by_keys(browser, address):
    page = browser.new_page(viewport={"width": 1440, "height": 860})
    page.goto(address)
    command = page.locator("text=mirrormax reproduce fig4 --profile quick").first
    assert not command.is_visible()
    page.focus("#fig4 > details > summary")
    page.keyboard.press("Enter")
    assert command.is_visible()
    page.close()


UNNAMED = """() => [...document.querySelectorAll("td:not(:first-child), th ~ td")]
  .filter((cell) => cell.checkVisibility() && getComputedStyle(cell, "::before").content === "none")
  .map((cell) => cell.textContent)"""


def compared():
    """A comparison of two models that reads nothing but numbers."""
    estimate = {"mean": -0.25, "low": -0.5, "high": 0.125, "examples": 64}
    model = {"accuracy": estimate, "sparsity": {"value": dict.fromkeys(SPARSITY, 0.5)}, "pivots": None, "heads": 2}
    models = [{**model, "name": name, "margins": dict.fromkeys(MARGINS, 0.25)} for name in ("runs/first", "second")]
    difference = {"accuracy": estimate, "margins": dict.fromkeys(MARGINS, estimate)}
    result = {"models": models, "difference": difference, "notes": [], "config": {"command": "mirrormax compare"}}
    return compare_page(
        [SimpleNamespace(name=one["name"], pivots=None, readings=None) for one in models], result, [], 0
    )


@pytest.mark.parametrize("kind", ["audit", "comparison"])
def test_on_a_phone_every_number_of_a_stacked_row_has_its_name(browser, tmp_path, kind):
    text = compared() if kind == "comparison" else audit_page(mirrormax.audit(text_model(), [words()]), "it", "", [])
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("td").count() > 20
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
