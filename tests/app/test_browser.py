"""The page in a real browser: it draws, answers, shows text as text, and asks nobody but its own server."""

import itertools
import json
import re
import shutil
import threading
from contextlib import contextmanager

import pytest
import uvicorn
from pages import CONTRAST

from mirrormax._drawing import look_of
from mirrormax.app import make_app
from mirrormax.app.guards import cookie_name, server_settings
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
WIDE = {"width": 1400, "height": 900}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@contextmanager
def serving(models, runs):
    """The application on a free port, in a thread."""
    listener = listen(0)
    server = uvicorn.Server(uvicorn.Config(make_app(models, runs, "token"), **server_settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:  # a thread that is left would keep the tests from ending
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def address(models, results):
    """Of one server for all: what a test has asked is known to the next."""
    with serving(models, results) as address:
        yield address


@pytest.fixture(scope="module")
def window(browser, address):
    """One for all, as opening another takes longer than most tests."""
    with opened(browser, address) as page:
        yield page


@pytest.fixture
def page(window):
    window.unroute_all()
    window.set_viewport_size(WIDE)
    window.emulate_media(color_scheme="light")
    window.goto("about:blank")
    window.wrong.clear()
    yield window
    assert window.wrong == []


@contextmanager
def opened(browser, address):
    """A page that must end without a word on the console, a dialog, or a request to anybody else."""
    page = browser.new_page(viewport=WIDE)
    page.context.add_cookies([{"name": cookie_name("token"), "value": "token", "url": address}])
    page.set_default_timeout(PATIENCE)
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
    own = (address, f"blob:{address}")
    page.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
    page.address, page.wrong = address, wrong
    yield page
    page.close()
    assert wrong == []


def open_quietly(page, place):
    """A place of the Geometry page that does not play, with its first answer."""
    page.goto("about:blank")
    page.goto(f"{page.address}{place}")
    page.wait_for_selector("#stage[data-p][aria-busy='false']")


def wait_for_p(page, p):
    page.wait_for_selector(f"#stage[data-p='{p}'][aria-busy='false']")


def pictures(page):
    return [page.inner_html(f"#{name}-plot") for name in ("tokens", "weights", "curve")]


def test_every_picture_follows_p_while_it_is_dragged(page, capsys):
    """The slider moves every 16 ms: answers are drawn meanwhile, one question at a time, and the last is shown."""
    open_quietly(page, "#geometry?frame=20&steps=100")
    before, facts = pictures(page), page.inner_text("#facts")
    under_way, most, asked = [], [0], []

    def started(request):
        if "/api/geometry" in request.url:
            asked.append(request)
            under_way.append(request)
            most[0] = max(most[0], len(under_way))

    page.on("request", started)
    page.on("requestfinished", lambda request: under_way.remove(request) if request in under_way else None)
    drag = """async () => {
      const slider = document.getElementById("p-slider"), stage = document.getElementById("stage");
      const drawn = () => Number(stage.dataset.redraws) - first;
      const began = performance.now(), first = Number(stage.dataset.redraws);
      let moves = 0;
      while (moves < 60 || drawn() < 4) {
        moves += 1;
        slider.value = 0.5 + 0.4 * Math.sin(moves / 20);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((done) => setTimeout(done, 16));
      }
      const during = drawn(), seconds = (performance.now() - began) / 1000;
      slider.value = 0.8;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      const wanted = document.getElementById("p-number").value;
      while (stage.dataset.p !== wanted || stage.ariaBusy === "true") await new Promise((done) => setTimeout(done, 5));
      return { during, seconds, moves, wanted, all: drawn() };
    }"""
    found = page.evaluate(drag)
    rate = found["during"] / found["seconds"]
    with capsys.disabled():
        print(
            f"\n{found['during']} redraws during {found['moves']} moves of p: {rate:.1f} per second, without the kernel"
        )
    assert found["during"] >= 4
    assert found["all"] == len(asked) < found["moves"]
    assert most[0] == 1
    assert float(found["wanted"]) == pytest.approx(1 + 0.05 * 100**0.8, abs=0.01)
    assert all(old != new for old, new in zip(before, pictures(page), strict=True))
    assert page.inner_text("#facts") != facts


def test_fewer_frames_under_the_hand_and_all_of_them_when_it_is_still(page):
    """Drafts hold the step that is shown; the answer that stays is the whole one."""
    open_quietly(page, "#geometry?frame=20&steps=100&problem=sphere")
    step, frames = page.inner_text("#scrub-step"), int(page.get_attribute("#scrub", "max"))
    seen = """async () => {
      const slider = document.getElementById("p-slider"), stage = document.getElementById("stage");
      const seen = [];
      new MutationObserver(() => seen.push([
        Number(document.getElementById("scrub").max), document.getElementById("scrub-step").textContent,
        document.getElementById("curve-note").textContent.includes("Fewer points while you drag"),
        document.querySelectorAll("#curve-plot .line-rate").length,
      ])).observe(stage, { attributeFilter: ["data-redraws"] });
      for (let k = 0; k < 40; k += 1) {
        slider.value = 0.3 + k / 100;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((done) => setTimeout(done, 8));
      }
      while (stage.ariaBusy === "true") await new Promise((done) => setTimeout(done, 5));
      await new Promise((done) => setTimeout(done, 5));
      return seen;
    }"""
    *drafts, last = page.evaluate(seen)
    assert last == [frames, step, False, 1]
    assert any(told for _, _, told, _ in drafts)
    for count, shown, told, rates in drafts:
        assert shown == step
        assert count < frames / 2 if told else count == frames
        assert rates == (not told)  # a few frames would put it elsewhere


MOVE_P = """(place) => {
  const slider = document.getElementById("p-slider");
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


@contextmanager
def waiting(page, such=lambda question: True):
    """Questions such as these reach the server only when this ends; there is at least one by then."""
    held, over = [], False

    def sent(route):
        if not over and such(route.request.post_data_json):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/geometry", sent)
    yield
    for _ in range(PATIENCE // 10):
        if held:
            break
        page.wait_for_timeout(10)
    assert held
    over = True
    for route in held:
        route.continue_()


def test_a_file_that_is_yet_to_be_given_is_not_asked_about(page):
    open_quietly(page, "#geometry?frame=20&steps=100")
    with waiting(page):
        page.evaluate(MOVE_P, 0.7)
        page.select_option("#geometry-form [name=problem]", "file")
    page.wait_for_selector("#stage[aria-busy='false']")
    assert page.is_hidden("#geometry-error")
    assert page.locator("#stage.stale").count() == 1


@pytest.mark.parametrize("drafts", [True, False], ids=["a draft is under way", "a draft is shown"])
def test_a_step_that_is_picked_meanwhile_is_that_of_the_address(page, drafts):
    open_quietly(page, "#geometry?frame=20&steps=100")
    with waiting(page, lambda question: ("draft" in question) == drafts):
        page.evaluate(MOVE_P, 0.7)
        if not drafts:
            page.wait_for_selector("#curve-note:has-text('Fewer points while you drag')")
        page.locator("#scrub").fill("11")
        step = page.inner_text("#scrub-step")
    page.wait_for_selector("#curve-note:has-text('Click to go to a step')")
    page.wait_for_selector("#stage[aria-busy='false']")
    assert page.inner_text("#scrub-step") == step
    frame = page.get_attribute("#stage", "data-frame")
    assert (frame == "11") == drafts  # in a draft it has another place
    page.wait_for_url(re.compile(rf"frame={frame}\b.*"))
    open_quietly(page, page.url.removeprefix(page.address))
    assert page.inner_text("#scrub-step") == step


@pytest.mark.parametrize("moved", [False, True], ids=["opened", "opened, then moved"])
def test_a_view_that_is_opened_goes_to_its_own_frame(page, moved):
    """Neither the answer to an older question nor another move of a slider takes that from it."""
    open_quietly(page, "#geometry?frame=20&steps=100")
    with waiting(page):
        page.evaluate(MOVE_P, 0.7)
        page.evaluate("location.hash = '#geometry?frame=30&steps=300&p=1.5'")
        sync_api.expect(page.locator("[name=steps]")).to_have_value("300")
        if moved:
            page.evaluate(MOVE_P, 0.8)
    wait_for_p(page, page.input_value("#p-number"))
    assert page.get_attribute("#stage", "data-frame") == "30"
    assert page.inner_text("#play") == "Play"
    page.wait_for_url("**frame=30**")


def test_on_a_phone_p_is_dragged_beside_the_pictures_that_it_moves(page):
    page.set_viewport_size({"width": 390, "height": 844})
    open_quietly(page, "#geometry?frame=20&steps=100")
    page.locator("#weights-plot").scroll_into_view_if_needed()
    plot, slider = page.locator("#weights-plot").bounding_box(), page.locator("#p-slider").bounding_box()
    assert 0 <= slider["y"] < 844
    assert plot["y"] < slider["y"]
    on_top = "({x, y}) => document.elementFromPoint(x, y)?.id"
    assert page.evaluate(on_top, {"x": slider["x"] + 20, "y": slider["y"] + slider["height"] / 2}) == "p-slider"
    before = pictures(page)
    page.focus("#p-slider")
    page.keyboard.press("End")
    wait_for_p(page, 6)
    assert pictures(page) != before
    page.set_viewport_size(WIDE)
    page.wait_for_selector("#geometry-form #p-slider")


def test_on_a_phone_weights_are_pruned_beside_the_prediction_that_follows(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{page.address}#attention")
    page.wait_for_selector(".verdict")
    page.evaluate("document.querySelector('.verdict').scrollIntoView({ block: 'center' })")
    before = page.locator(".verdict").first.inner_text()
    assert 0 <= page.locator("#pruned").bounding_box()["y"] < 844
    page.focus("#pruned")
    page.keyboard.press("End")
    page.wait_for_function("old => document.querySelector('.verdict').innerText !== old", arg=before)
    page.focus("#pruned")
    page.keyboard.press("Home")
    page.set_viewport_size(WIDE)
    page.wait_for_selector("#attention-form #pruned")


OVERLAPS = """(plot) => {
  const boxes = [...plot.querySelectorAll("text.line-name")].map((name) => name.getBoundingClientRect());
  const { right } = plot.getBoundingClientRect();
  const [line] = [...plot.querySelectorAll(".line-training")].map((one) => one.getBoundingClientRect());
  const apart = (a, b) => a.bottom <= b.top + 3 || b.bottom <= a.top + 3; // a box is taller than its letters
  return boxes.some((a, k) => a.right > right || a.left < line.right || boxes.slice(k + 1).some((b) => !apart(a, b)));
}"""


def test_names_of_lines_stand_beside_them_and_clear_of_each_other(page):
    open_quietly(page, "#geometry?problem=sphere&start=zero&p=1.1&others=[1.75,2,3]&frame=20")
    for plot in ("curve", "mass"):
        assert page.locator(f"#{plot}-plot text.line-name").count() >= 4
        assert not page.locator(f"#{plot}-plot").evaluate(OVERLAPS), plot


def test_what_stays_is_not_drawn_anew(page):
    """Marked nodes are still there after another answer, at new places: a browser lays out and paints what changed."""
    open_quietly(page, "#geometry?frame=20&steps=100")
    marked = "document.querySelectorAll('#tokens-plot *, #weights-plot *, #curve-plot *, #mass-plot *')"
    page.evaluate(f"{marked}.forEach((node) => {{ node.marked = true; }})")
    before = pictures(page)
    page.fill("#p-number", "1.6")
    wait_for_p(page, 1.6)
    assert pictures(page) != before
    kept = page.evaluate(f"[...{marked}].filter((node) => node.marked).length")
    assert kept > 0.9 * page.evaluate(f"{marked}.length")


FOCUS = """() => {
  const { id, name, dataset } = document.activeElement;
  return [id || name || dataset.handle, document.activeElement.matches(":focus-visible, body")];
}"""


def test_every_control_is_reached_and_used_by_keys(page):
    open_quietly(page, "#geometry?frame=20&steps=100")
    page.focus("#tab-geometry")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        name, visible = page.evaluate(FOCUS)
        reached.add(name)
        assert visible
    assert {
        "tour-start",
        "hero",
        "problem",
        "p-number",
        "p-slider",
        "lr-slider",
        "steps",
        "sample",
        "play",
        "scrub",
    } <= reached
    assert {"z", "0", "1", "save-svg", "save-png", "save-npz", "show-python", "copy-link", "run-seeds"} <= reached
    page.focus("#p-slider")
    page.keyboard.press("Home")
    wait_for_p(page, 1.05)
    page.focus("#scrub")
    page.keyboard.press("Home")
    assert page.inner_text("#scrub-step") == "start"
    page.focus("#tab-geometry")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#attention:not([hidden])")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#runs:not([hidden])")


SEEN = """() => {
  window.seen = [];
  new MutationObserver(() => seen.push(document.getElementById("stage").dataset.frame))
    .observe(document, { attributeFilter: ["data-frame"], subtree: true });
}"""


def test_it_opens_at_the_start_and_plays_and_a_click_on_a_curve_goes_to_a_step(browser, address):
    with opened(browser, address) as page:
        check_playing(page)


def check_playing(page):
    page.add_init_script(f"({SEEN})()")
    page.context.clear_cookies()
    page.goto(f"{page.address}?token=token")
    page.wait_for_url(page.address)  # the token is in a cookie now
    page.wait_for_selector("#stage[data-frame]:not([data-frame='0'])")
    assert page.evaluate("seen[0]") == "0"
    page.locator("#curve-plot").scroll_into_view_if_needed()
    box = page.locator("#curve-plot").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 100)
    assert page.inner_text("#scrub-step") == "step 300"
    assert page.inner_text("#play") == "Play"
    last = pictures(page)
    page.locator("#scrub").fill("0")
    assert page.inner_text("#scrub-step") == "start"
    assert all(old != new for old, new in zip(last, pictures(page), strict=True))


def test_tokens_are_dragged_by_mouse_and_keys_and_the_svm_is_solved_again(page):
    open_quietly(page, "#geometry?frame=20&steps=100")
    margin = page.inner_text("#facts dd >> nth=0")
    box = page.locator("[data-handle='1'] .token").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(1, 6):
        page.mouse.move(x + 8 * k, y - 4 * k)
    page.mouse.up()
    sync_api.expect(page.locator("#facts dd >> nth=0")).not_to_have_text(margin)
    page.wait_for_selector("#stage[aria-busy='false']")
    moved = page.locator("[data-handle='1'] .token").bounding_box()
    assert moved["x"] - box["x"] == pytest.approx(40, abs=2)
    assert moved["y"] - box["y"] == pytest.approx(-20, abs=2)
    margin = page.inner_text("#facts dd >> nth=0")
    page.focus("[data-handle='z']")
    page.keyboard.press("Shift+ArrowUp")
    sync_api.expect(page.locator("#facts dd >> nth=0")).not_to_have_text(margin)
    assert page.evaluate("document.activeElement.dataset.handle") == "z"
    page.focus("[data-handle='1']")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("[name=alpha]")).to_have_value("mine")
    page.click("#put-back")
    page.wait_for_selector("#put-back", state="hidden")


def test_the_address_holds_what_is_on_the_screen(page):
    open_quietly(page, "#geometry?problem=sphere&n=3&T=4&d=3&p=1.5&others=[3]&frame=7&steps=100&nonsense=1&lr=[")
    wait_for_p(page, 1.5)
    assert page.get_attribute("#stage", "data-frame") == "7"
    assert page.locator("#heat canvas").count() == 2
    page.click("#p-chips >> text='1.1'")
    wait_for_p(page, 1.1)
    page.wait_for_url("**p=1.1**")
    url = page.url
    shown = pictures(page)
    page.goto("about:blank")
    page.goto(url)
    wait_for_p(page, 1.1)
    assert pictures(page) == shown
    with page.expect_download() as found:
        page.click("#save-png")
    assert found.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as found:
        page.click("#save-svg")
    saved = found.value.path().read_text("utf-8")
    assert saved.count("<svg") >= 5
    assert saved.count("<rect") > 2 * 9  # two maps of weights
    assert all(f">{name}<" in saved for name in ("support token", "solution, Wₘₘ", "p = 3"))  # the legend
    assert "paint-order" in saved  # else the rim of a name covers it
    assert "sphere, seed 0 (n = 3, T = 4, d = 3), sample 1; p = 1.1" in saved
    page.select_option("#geometry-form [name=problem]", "file")  # not given yet: the picture is still the last one
    page.wait_for_selector("#stage.stale")
    with page.expect_download() as found:
        page.click("#save-svg")
    assert "sphere, seed 0 (n = 3, T = 4, d = 3), sample 1; p = 1.1" in found.value.path().read_text("utf-8")
    page.select_option("#geometry-form [name=problem]", "sphere")
    page.wait_for_selector("#stage:not(.stale)")
    page.click("#show-python")
    page.wait_for_selector("#python:has-text('sphere_problem(seed=0, n=3, T=4, d=3)')")


def test_a_tour_that_is_begun_before_anything_is_seen_starts_at_the_start(page):
    held = []
    page.route("**/api/geometry", lambda route: route.continue_() if held else held.append(route))  # the first waits
    with page.expect_request("**/api/geometry"):
        page.goto(page.address)
    page.click("#tour-start")
    held[0].continue_()
    wait_for_p(page, 2)
    assert page.get_attribute("#stage", "data-frame") == "0"
    assert page.inner_text("#play") == "Play"
    page.click("#tour-end")


@pytest.mark.parametrize("width", [1440, 390])
def test_the_tour_has_five_steps_and_symbols_say_what_they_mean(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    open_quietly(page, "#geometry?frame=0&steps=100")
    page.click("#tour-start")
    for k in range(1, 6):
        page.wait_for_selector(f"#tour-count:has-text('Step {k} of 5')")
        card, part = page.locator("#tour").bounding_box(), page.locator(".pointed > svg").bounding_box()
        assert (
            -1 <= card["y"] < card["y"] + card["height"] <= part["y"] < 860
        )  # both are seen, neither behind the other
        page.keyboard.press("Enter")
    assert page.is_hidden("#tour")
    page.hover(".lead [data-sym=sigma]")
    assert "Softmax" in page.inner_text("#tip")
    page.click("text=What the symbols mean")
    assert "Softmax" in page.inner_text("#symbols")
    symbols = page.eval_on_selector_all("[data-sym]", "all => all.filter(one => !one.dataset.def).length")
    assert symbols == 0


def test_mistakes_are_told_in_place_with_faded_pictures_and_forgotten_when_mended(page):
    open_quietly(page, "#geometry?frame=20&steps=100")
    page.fill("#p-number", "0.5")
    page.wait_for_selector("#geometry-error:has-text('p must be a finite number at least 1.01')")
    assert page.get_attribute("#p-number", "aria-invalid") == "true"
    assert "of the last answer, p = 1.75" in page.inner_text("#stale-note")
    assert float(page.locator(".plots").evaluate("plots => getComputedStyle(plots).opacity")) < 0.3
    page.wrong.clear()  # the browser itself notes every refusal of a server
    page.fill("#p-number", "2")
    wait_for_p(page, 2)
    assert page.is_hidden("#geometry-error")
    assert page.is_hidden("#stale-note")


def test_files_are_taken_and_bad_ones_refused(page, tmp_path):
    open_quietly(page, "#geometry?frame=20&steps=100")
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
    page.select_option("#head", label="0")
    page.wait_for_selector(".reading >> nth=0 >> h3:has-text('head 0')")
    first = words.evaluate(shades)
    page.select_option("#head", label="1")
    page.wait_for_selector(".reading >> nth=0 >> h3:has-text('head 1')")
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
    rows = page.locator(".result table").first.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [["W, p = 2", "rerun: 1"], ["W, p = 3", "rerun: 1"]]
    assert page.locator(".result script, .result b").count() == 0
    sync_api.expect(page.locator(".result img")).to_have_js_property("naturalWidth", 9)


def test_trained_models_are_drawn_by_method_and_listed_to_sort_and_filter(browser, models, runs):
    with serving(models, runs) as address, opened(browser, address) as page:
        check_trained_models(page, runs)


def check_trained_models(page, runs):
    def make(name, optimizer, p, accuracy, seed=0, task="sentiment", epochs=2, complete=True):
        (runs / name).mkdir()
        (runs / name / "mirrormax.json").write_text(json.dumps({"complete": complete}))
        config = {"task": task, "optimizer": optimizer, "p": p, "lr": None, "lr_taken": 0.1, "seed": seed, "data": "x"}
        (runs / name / "config.json").write_text(json.dumps({**config, "epochs": 2}))
        if complete:
            (runs / name / "summary.json").write_text(json.dumps({"test_accuracy": accuracy}))
        rows = [f"{k},{0.7 / k},{accuracy - 0.1 / k}" for k in range(1, epochs + 1)]
        (runs / name / "metrics.csv").write_text("\n".join(["epoch,train_loss,validation_accuracy", *rows]))

    make("a", "md", 1.1, 0.6)
    make("b", "adamw", 1.1, 0.8)
    make("c", "md", 2, 0.7)
    make("c2", "md", 2, 0.75, seed=1)
    make("d", "mirror", 1.5, 0.5, epochs=1)
    make("e", "mirror", 3, 0.5, epochs=1, complete=False)
    make("other", "md", 2, 0.9, task="vision")
    page.goto("about:blank")
    page.goto(f"{page.address}#runs")
    page.wait_for_selector("#runs-table tbody tr")

    def column(place):
        return page.locator(f"#runs-table tbody td:nth-child({place})").all_inner_texts()

    methods = ["AdamW, lr 0.1, seed 0", "ℓ2, lr 0.1, seed 1", "ℓ2, lr 0.1, seed 0", "ℓ1.1, lr 0.1, seed 0"]
    assert column(2)[:4] == methods  # images are no rivals of texts
    assert column(3)[:4] == ["", "2", "2", "1.1"]
    assert set(column(4)) == {"0.1"}  # the learning rate that was taken, where none was chosen
    assert column(6)[-1] == "1 of 2, running"
    colours = page.eval_on_selector_all("#runs-table polyline", "all => all.map((one) => getComputedStyle(one).stroke)")
    assert [[*map(int, re.findall(r"\d+", colour))] for colour in colours] == [
        [int(look_of(method).colour[k : k + 2], 16) for k in (1, 3, 5)] for method in ("AdamW", 2, 2, 1.1)
    ]
    assert page.locator("#runs-table circle").count() == 2  # one epoch is a mark
    assert page.locator("#overlay-legend li").count() == 5
    drawn = page.locator("#overlay-plot svg").first
    assert (drawn.locator("polygon").count(), drawn.locator("circle").count()) == (1, 2)  # a band over two seeds
    page.click("th >> text=test accuracy")
    assert column(2)[0] == "MirrorAdamW ℓ1.5, lr 0.1, seed 0"
    page.fill("#runs-filter", "ℓ2")
    assert column(2) == ["ℓ2, lr 0.1, seed 0", "ℓ2, lr 0.1, seed 1"]
    page.locator("#runs-table input").nth(1).uncheck()
    assert page.locator("#overlay-plot polygon").count() == 0
    page.fill("#runs-filter", "")
    page.click("#runs-kinds >> text=vision")
    assert column(2) == ["ℓ2, lr 0.1, seed 0"]
    make("f", "mirror", 4, 0.5)
    page.click("#runs-kinds >> text=sentiment")
    sync_api.expect(page.locator("#runs-table tbody tr")).to_have_count(7, timeout=PATIENCE)  # a run goes on: live


SMALL_TYPE = """() => [...document.querySelectorAll("svg text, p, td, th, span, label, li, dd, dt, button, figcaption")]
  .filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.data?.trim()))
  .map((one) => {
    const scale = one.ownerSVGElement ? Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b) : 1;
    return [one.textContent.trim(), parseFloat(getComputedStyle(one).fontSize) * scale];
  })
  .filter(([, size]) => size < 11)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_is_not_small_and_nothing_sticks_out_of_any_window(page, scheme):
    page.emulate_media(color_scheme=scheme)
    ready = {"geometry?frame=9&steps=100": "#stage[data-p]", "attention": ".word", "runs": ".result"}
    for width in (1440, 1280, 1060, 820, 390) if scheme == "light" else (1440,):  # colours take no room
        page.set_viewport_size({"width": width, "height": 860})
        for tab, there in ready.items():
            page.goto(f"{page.address}#{tab}")
            page.wait_for_selector(there)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (tab, width)
            assert page.evaluate(SMALL_TYPE) == [], (tab, width)
            if width == 1440:
                assert tab in ("attention", "runs") or page.locator("main svg text").count() > 20
                assert page.evaluate(CONTRAST) == [], tab


MAPS = """() => [...document.querySelectorAll(".reading")].map((card) => {
  const pixels = (canvas) => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return Array.from({ length: data.length / 4 }, (_, k) => [...data.subarray(4 * k, 4 * k + 3)]);
  };
  const words = [...card.querySelectorAll(".word")];
  return {
    map: pixels(card.querySelector(".map canvas")), width: card.querySelector(".map canvas").width,
    thumb: pixels(card.querySelector(".thumb[aria-pressed=true] canvas")),
    query: words.findIndex((word) => word.getAttribute("aria-pressed") === "true"),
    shares: words.map((word) => Number(word.title.match(/attention ([\\d.]+) %/)[1]) / 100),
    shades: words.map((word) => word.style.backgroundColor.match(/\\d+/g).map(Number)),
  };
})"""


def test_one_shade_means_one_share_of_attention_on_every_card_and_map(page):
    page.goto(f"{page.address}#attention")
    page.wait_for_selector(".reading .word.pivot")
    page.uncheck("#words-only")
    page.wait_for_selector("#attention-stage[aria-busy='false']")
    found = page.evaluate(MAPS)
    assert len(found) == 2
    seen = []
    for card in found:
        row = card["map"][card["query"] * card["width"] :][: card["width"]]
        for share, shade, pixel in zip(card["shares"], card["shades"], row, strict=True):
            assert shade == pytest.approx(pixel, abs=3)
            seen.append((share, sum(shade)))
        assert all(thumb == pytest.approx(cell, abs=3) for thumb, cell in zip(card["thumb"], card["map"], strict=True))
    darkness = [-brightness for _, brightness in sorted(seen)]
    assert all(low <= high + 3 for low, high in itertools.pairwise(darkness))
    full = page.locator("#scale-steps span").last.evaluate("step => step.style.backgroundColor")
    assert sum(map(int, re.findall(r"\d+", full))) < 250  # 100 % is dark


def test_pruning_and_ablation_change_what_is_read(page):
    page.goto(f"{page.address}#attention")
    page.wait_for_selector(".reading .ablate")
    page.fill("#review", "a film , a film")
    page.wait_for_selector(".reading >> nth=0 >> .ablate >> text=film₂")  # repeated tokens are told apart
    card = page.locator(".reading").first
    shares = "card => [...card.querySelectorAll('.word')].map((word) => word.title.match(/[\\d.]+ %/)[0])"
    table = card.locator(".path tbody td:nth-child(3)").all_inner_texts()
    assert set(table) <= set(card.evaluate(shares))  # the numbers of the words are those of the table
    before = card.locator(".verdict").inner_text()
    card.locator(".ablate").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".reading >> nth=0 >> .ablation:has-text('log-odds')")
    assert page.evaluate("document.activeElement.classList.contains('ablate')")
    page.focus("#pruned")
    page.keyboard.press("End")
    page.wait_for_selector("#pruned-share:has-text('95 %')")
    page.wait_for_function("old => document.querySelector('.verdict').innerText !== old", arg=before)


@pytest.fixture
def decoders(browser, theirs, results):
    with serving(theirs, results) as address, opened(browser, address) as page:
        yield page


def test_a_language_model_shows_all_heads_their_kinds_and_the_path_to_its_next_token(decoders):
    page = decoders
    page.goto(f"{page.address}#attention")
    page.wait_for_selector(".thumb")
    page.select_option("#model-a", "llama")
    page.fill("#review", "a warm funny film")
    page.wait_for_selector("h3:has-text('Next token after “[SEP]”')")
    page.wait_for_selector(".model-view .chips:has-text('of 12 without a clear pattern')")
    assert page.locator(".thumb").count() == 12
    assert page.locator(".verdict .bar").count() == 5
    page.click(".thumb >> nth=5")
    page.wait_for_selector("h3:has-text('Layer 1, head 1')")
    assert page.input_value("#layer") == "1"
    assert page.evaluate("document.activeElement.title").startswith("layer 1, head 1")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("h3:has-text('Layer 2, head 1')")
    before = page.inner_text(".path tbody")
    page.focus(".map canvas")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("h3:has-text('Next token after “film”')")
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    assert page.inner_text(".path tbody") != before
    assert page.locator(".path tbody tr").count() == 4  # the first token of a language model is left out
    page.hover(".map canvas")
    assert "looks at" in page.inner_text(".readout")
    page.select_option("#head", "mean")
    page.wait_for_selector("text=a mean of heads has none")
    page.select_option("#model-b", "bert")
    page.wait_for_selector("text=This model has no readout")
    page.click(".reading >> nth=0 >> .word >> text=funny")
    page.wait_for_selector(".reading >> nth=1 >> .word[aria-pressed=true] >> text=funny")
