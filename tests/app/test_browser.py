"""The page in a real browser: it draws, answers, shows text as text, and asks nobody but its own server."""

import shutil
import threading

import pytest
import uvicorn

from mirrormax.app.guards import server_settings
from mirrormax.app.server import make_app
from mirrormax.commands.explore import listen
from mirrormax.data import example1, save_problem

sync_api = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"none of {', '.join(BROWSERS)} is installed; apt-get install chromium to test the page"
)
EVIL = "<script>alert(1)</script> film"
PATIENCE = 60_000


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.fixture
def address(models, runs):
    """The application on a free port, in a thread."""
    listener = listen(0)
    server = uvicorn.Server(uvicorn.Config(make_app(models, runs, "token"), **server_settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def page(browser, address):
    """A page that must end without a word on the console, a dialog, or a request to anybody else."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(PATIENCE)
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith(address) else wrong.append(request.url))
    page.address, page.wrong = address, wrong
    page.goto(f"{address}?token=token")
    page.wait_for_url(address)
    yield page
    page.close()
    assert wrong == []


def wait_for_p(page, p):
    page.wait_for_selector(f".stage[data-p='{p}']:not(.waiting)")


def pictures(page):
    return [page.inner_html(f"#{name}-plot") for name in ("tokens", "weights", "curve")]


def test_moving_p_moves_every_picture(page):
    page.goto(page.address)
    wait_for_p(page, 1.75)
    before, facts = pictures(page), page.inner_text("#facts")
    page.locator("#p-slider").fill("0.9")
    wait_for_p(page, page.input_value("#p-number"))
    assert float(page.input_value("#p-number")) > 3
    assert all(old != new for old, new in zip(before, pictures(page), strict=True))
    assert page.inner_text("#facts") != facts
    page.click("text='1.1'")
    wait_for_p(page, 1.1)


def test_training_is_played_and_scrubbed(page):
    page.goto(page.address)
    wait_for_p(page, 1.75)
    assert page.inner_text("#scrub-step") == "step 300"
    last = pictures(page)
    page.locator("#scrub").fill("0")
    assert page.inner_text("#scrub-step") == "step 1"
    assert all(old != new for old, new in zip(last, pictures(page), strict=True))
    page.click("#play")
    sync_api.expect(page.locator("#scrub-step")).not_to_have_text("step 1")
    page.click("#play")
    assert page.inner_text("#play") == "Play"


def test_mistakes_are_told_in_place_and_forgotten_when_mended(page):
    page.goto(page.address)
    wait_for_p(page, 1.75)
    page.fill("#p-number", "0.5")
    page.wait_for_selector("#geometry-error:has-text('p must be a finite number at least 1.01')")
    assert page.get_attribute("#p-number", "aria-invalid") == "true"
    page.wrong.clear()  # the browser itself notes every refusal of a server
    page.fill("#p-number", "2")
    wait_for_p(page, 2)
    assert page.is_hidden("#geometry-error")


def test_files_are_taken_and_bad_ones_refused(page, tmp_path):
    page.goto(page.address)
    wait_for_p(page, 1.75)
    page.select_option("[name=problem]", "file")
    (tmp_path / "<b>bad.npz").write_bytes(b"no archive")
    page.set_input_files("[name=upload]", tmp_path / "<b>bad.npz")
    page.wait_for_selector("#geometry-error:has-text('<b>bad.npz is not an .npz file')")
    page.wrong.clear()
    save_problem(tmp_path / "good.npz", example1())
    page.set_input_files("[name=upload]", tmp_path / "good.npz")
    page.wait_for_selector("#file-note:has-text('n = 2, T = 2, d = 2')")
    page.wait_for_selector("#geometry-error", state="hidden")


def test_tokens_are_shaded_per_head_and_text_stays_text(page):
    page.goto(f"{page.address}#attention")
    page.wait_for_selector(".reading .word.pivot")
    assert page.locator(".reading").count() == 2
    page.fill("#review", EVIL)
    page.wait_for_selector(".words:has-text('alert')")
    words = page.locator(".reading").first.locator(".words")
    assert words.inner_text().replace("\n", "").startswith("[CLS] <script>")
    assert page.locator("main script").count() == 0
    shades = "words => [...words.children].map(word => word.style.backgroundColor)"
    page.select_option("#head", label="1")
    first = words.evaluate(shades)
    page.select_option("#head", label="2")
    assert words.evaluate(shades) != first
    assert len(set(first)) > 3
    words.locator("button").nth(2).click()
    page.wait_for_selector(".word:nth-of-type(3)[aria-pressed=true]")


def test_results_are_shown_and_text_in_them_stays_text(page):
    page.goto(page.address)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")  # from the first tab around to the last
    page.wait_for_selector(".result")
    page.click(".result > summary")
    assert "It <script>shows</script>." in page.inner_text(".result")
    assert page.locator(".result script, .result b").count() == 0
    sync_api.expect(page.locator(".result img")).to_have_js_property("naturalWidth", 9)


@pytest.mark.parametrize("tab", ["geometry", "attention", "runs"])
def test_nothing_sticks_out_of_a_narrow_window(page, tab):
    page.set_viewport_size({"width": 400, "height": 860})
    page.goto(f"{page.address}#{tab}")
    page.wait_for_selector({"geometry": ".stage[data-p]", "attention": ".word", "runs": ".result"}[tab])
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
