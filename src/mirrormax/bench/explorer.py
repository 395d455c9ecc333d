"""How long the explorer's Geometry page waits for an answer when p moves: a real server, asked over HTTP.

Where there is a browser, also how soon it shows its first picture and how often it redraws while p is dragged.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from mirrormax.bench.ratios import Show, say_nothing

EXPONENTS = (1.1, 1.37, 1.75, 2.0, 3.0, 6.0)
CHOICES = {"lr": 0.1, "steps": 300, "start": "random"}  # those of the page as it opens
STEPS = (300, 6000)  # these, and the most that the page makes
PROBLEMS: dict[str, dict[str, Any]] = {
    "Example 1": {"problem": "example1"},
    "Example 2": {"problem": "example2"},
    "sphere, n = 6, T = 8, d = 10": {"problem": "sphere", "seed": 0, "n": 6, "T": 8, "d": 10},
    "sphere, n = T = 20, d = 32": {"problem": "sphere", "seed": 0, "n": 20, "T": 20, "d": 32},
    "sphere, n = 40, T = 10, d = 32": {"problem": "sphere", "seed": 0, "n": 40, "T": 10, "d": 32},
    "sphere, n = 10, T = 40, d = 32": {"problem": "sphere", "seed": 0, "n": 10, "T": 40, "d": 32},
}
DRAGGED = tuple(PROBLEMS)[:3]  # of the paper's sizes
DRAG_SECONDS = 3.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LONGEST_WARM_UP = 300
# When the stage first has an answer, in seconds since the page was asked for.
FIRST = """new MutationObserver((_, watch) => {
  if (!document.querySelector("#stage[data-p]")) return;
  watch.disconnect();
  requestAnimationFrame(() => { window.firstPicture = performance.now() / 1000; });
}).observe(document, { attributeFilter: ["data-p"], subtree: true, childList: true })"""
WHEN = """async () => {
  while (window.firstPicture === undefined) await new Promise(requestAnimationFrame);
  return window.firstPicture;
}"""
# The slider moves with every frame of the browser, as under a finger; frames that show a newer picture are counted.
DRAG = """async (seconds) => {
  const slider = document.getElementById("p-slider"), stage = document.getElementById("stage");
  const began = performance.now();
  let moves = 0, redraws = 0, last = stage.dataset.redraws;
  while (performance.now() - began < 1000 * seconds) {
    slider.value = 0.5 + 0.4 * Math.sin((moves += 1) / 40);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
    redraws += stage.dataset.redraws !== last;
    last = stage.dataset.redraws;
  }
  const passed = (performance.now() - began) / 1000;
  return [redraws / passed, moves / passed];
}"""


@contextmanager
def server() -> Iterator[str]:
    """``mirrormax explore`` on a free port; its address."""
    command = [sys.executable, "-m", "mirrormax", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()
            process.communicate()  # what it says at the end must find its pipe open


def ask(address: str, request: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The answer to one request, and the seconds it took."""
    base, _, token = address.partition("?")
    body = json.dumps({**CHOICES, **request}).encode()
    began = time.perf_counter()
    with urlopen(Request(f"{base}api/geometry?{token}", body, {"Content-Type": "application/json"})) as response:
        content = response.read()
    return json.loads(content), time.perf_counter() - began


def wait_for_kernel(address: str) -> float:
    """Seconds until answers come from the compiled kernel; 0 where there can be none."""
    began, p = time.perf_counter(), 1.5
    while find_spec("numba") is not None and time.perf_counter() - began < LONGEST_WARM_UP:
        p += 1e-6  # another p each time: answers are kept
        if ask(address, {**PROBLEMS["Example 1"], "p": p})[0]["backend"] == "numba":
            return time.perf_counter() - began
        time.sleep(0.5)
    return 0.0


def browse(address: str) -> None:
    """Open the page in a browser, drag p, and print the seconds to its first picture and its redraws per second."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None or find_spec("playwright") is None:
        print("\nNo redraws are counted: that needs the package playwright and chromium.")
        return
    from playwright.sync_api import sync_playwright

    base = address.partition("?")[0]
    print(f"\n{'in the browser':32s}{'first picture':>15s}{'redraws':>12s}{'moves of p':>14s}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(address)
        page.wait_for_url(base)  # the token is in a cookie now
        page.add_init_script(FIRST)
        for name in DRAGGED:
            page.goto("about:blank")
            view = {**PROBLEMS[name], "frame": 20, "p": 1.5}
            page.goto(f"{base}#geometry?{urlencode(view)}")
            page.wait_for_selector("#stage[data-p]")
            first = page.evaluate(WHEN)  # the page's policy forbids what wait_for_function does
            page.evaluate(DRAG, 0.5)  # once before it counts
            redraws, moves = page.evaluate(DRAG, DRAG_SECONDS)
            print(f"{name:32s}{first:13.2f} s{redraws:10.1f}/s{moves:12.1f}/s", flush=True)
        browser.close()


def main(show: Show = say_nothing) -> dict[str, float]:
    """Print the seconds of every answer; return the longest per problem, as ratios to that of the first problem."""
    longest: dict[str, float] = {}
    with server() as address:
        show("waiting for the kernel", 0, len(STEPS) * len(PROBLEMS))
        print(f"Answers of the Geometry page in seconds; the kernel was ready after {wait_for_kernel(address):.0f} s.")
        for steps in STEPS:
            columns = "".join(f"{f'p = {p:g}':>10s}" for p in EXPONENTS)
            print(f"\n{f'{steps} steps':32s}{columns}{'longest':>10s}")
            for name, problem in PROBLEMS.items():
                show(f"{name}, {steps} steps", len(longest), len(STEPS) * len(PROBLEMS))
                seconds = [ask(address, {**problem, "steps": steps, "p": p})[1] for p in EXPONENTS]
                print(f"{name:32s}" + "".join(f"{value:10.2f}" for value in (*seconds, max(seconds))), flush=True)
                longest[f"{name}, {steps} steps"] = max(seconds)
        browse(address)
    first = next(iter(longest.values()))
    return {name: seconds / first for name, seconds in longest.items()}
