"""Take the pictures in docs/images/explorer-*.png: ``python docs/screenshots.py [--runs DIR] [--models DIR]``.

Starts the explorer on a free port, and looks at it with Chromium in a wide and in a narrow window.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZES = {"wide": (1400, 900), "narrow": (400, 860)}
LARGEST = 200_000


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


def geometry(page: Page) -> None:
    page.select_option("[name=problem]", "example2")
    page.wait_for_selector(".stage[data-p='1.75']")
    page.fill("#p-number", "3")
    page.wait_for_selector(".stage[data-p='3']")
    page.locator("#scrub").fill("22")


def sphere(page: Page) -> None:
    page.select_option("[name=problem]", "sphere")
    page.fill("#p-number", "1.1")
    page.wait_for_selector(".stage[data-p='1.1']")


def attention(page: Page) -> None:
    page.wait_for_selector(".word.pivot")
    page.select_option("#head", label="1")


def runs(page: Page) -> None:
    page.wait_for_selector("#runs-lead:not(:empty)")
    for result in page.query_selector_all(".result > summary")[:1]:
        result.click()
    page.wait_for_load_state("networkidle")


PAGES = {
    "geometry": ("geometry", geometry),
    "sphere": ("geometry", sphere),
    "attention": ("attention", attention),
    "runs": ("runs", runs),
}


def shoot(browser: Any, address: str, folder: Path, dark: bool) -> None:
    for size, (width, height) in SIZES.items():
        for name, (tab, prepare) in PAGES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            page.goto(address)
            page.wait_for_url(address.partition("?")[0])  # the token is in a cookie now
            page.goto(f"{address.partition('?')[0]}#{tab}")
            prepare(page)
            path = folder / f"explorer-{name}-{size}{'-dark' if dark else ''}.png"
            page.wait_for_timeout(600)  # for what fades in
            page.screenshot(path=path, full_page=size == "wide")
            page.close()
            print(path, path.stat().st_size)
            assert path.stat().st_size <= LARGEST, f"{path} is larger than {LARGEST:,} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs")
    parser.add_argument("--models")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--out", type=Path, default=IMAGES)
    args = parser.parse_args()
    options = [
        text for name in ("runs", "models") if getattr(args, name) for text in (f"--{name}", getattr(args, name))
    ]
    with explorer(options) as address, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shoot(browser, address, args.out, args.dark)
        browser.close()


if __name__ == "__main__":
    main()
