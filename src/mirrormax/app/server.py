"""The explorer as a web application: three pages' data as JSON, the files of the page itself, and result files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import mirrormax
from mirrormax._checks import integer, number
from mirrormax.app.attention import MEAN, read
from mirrormax.app.checkpoints import Checkpoints
from mirrormax.app.folders import DAMAGE, plain_text, reason
from mirrormax.app.geometry import geometry
from mirrormax.app.guards import FILE_POLICY, PATIENCE, Gate, refusal
from mirrormax.app.question import Problems, Question, read_question
from mirrormax.app.runs import Runs
from mirrormax.app.sharing import MOST_SEEDS, batch, snippet
from mirrormax.data import example1, save_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.problem import Problem

STATIC = Path(__file__).parent / "static"
LARGEST_REQUEST, LARGEST_UPLOAD = 100_000, 2_000_000
QUESTIONS = ("geometry", "seeds", "snippet", "export", "problem", "attention")
"""What the pages post: methods of :class:`Explorer`."""
FACTS = ("kinds", "quality")
"""What they post about a model: properties of :class:`Opened`."""
TOO_SLOW = (ClientDisconnect, asyncio.TimeoutError)
BAD_INPUT = (ValueError, TypeError, OSError)


def make_app(models: Path | None, runs: Path, token: str, backend: Backend | None = None) -> Starlette:
    """The application over a folder of checkpoints, or none, and a folder of results, which need not exist yet.

    It answers to those who know ``token``.
    """
    backend = backend or Backend()
    explorer = Explorer(Checkpoints(models), Runs(runs), backend)
    backend.then = explorer.get_ready
    return Starlette(
        routes=[
            Route("/", _front_page),
            *(Route(f"/api/{name}", getattr(explorer, name), methods=["POST"]) for name in QUESTIONS),
            *(Route(f"/api/{name}", partial(explorer.fact, name), methods=["POST"]) for name in FACTS),
            Route("/api/models", explorer.models),
            Route("/api/runs", explorer.runs_listing),
            Route("/runs/{place:path}", explorer.run_file),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Gate, token=token)],
        exception_handlers=dict.fromkeys((HTTPException, *TOO_SLOW, *BAD_INPUT, Exception), _refused),
    )


class Explorer:
    """What the pages ask for. One computation at a time: a second one would only slow the first."""

    def __init__(self, checkpoints: Checkpoints, runs: Runs, backend: Backend) -> None:
        self.checkpoints, self.runs, self.backend = checkpoints, runs, backend
        self.problems = Problems()
        self._turn = asyncio.Lock()
        self._geometry = lru_cache(maxsize=64)(lambda problem, question: geometry(problem, question, self.backend.name))

    def get_ready(self) -> None:
        """Read a text with the models that the Attention page opens with, before anybody goes there."""
        with suppress(*DAMAGE):
            for entry in self.checkpoints.entries()[:2]:
                read(self.checkpoints.load(entry.name), "it is boring and far too long")

    async def geometry(self, request: Request) -> Response:
        """Train and solve for one problem, p and step size."""
        question, problem, _ = await self._question(request)
        return await self._in_turn(request, lambda: self._geometry(problem, question))

    async def seeds(self, request: Request) -> Response:
        """The same for many seeds."""
        question, _, body = await self._question(request)
        count = integer("seeds", body.get("seeds"), at_least=2, at_most=MOST_SEEDS)
        return await self._in_turn(request, lambda: batch(self.problems, question, count, self.backend.name))

    async def snippet(self, request: Request) -> Response:
        """Python that shows the same again."""
        question, problem, _ = await self._question(request)
        return JSONResponse({"python": snippet(question.moved(problem), question)})

    async def export(self, request: Request) -> Response:
        """The problem as it is on the screen, as an ``.npz`` file."""
        question, problem, _ = await self._question(request)

        def written() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                save_problem(Path(folder) / "problem.npz", question.moved(problem))
                return (Path(folder) / "problem.npz").read_bytes()

        return Response(await run_in_threadpool(written), media_type="application/octet-stream")

    async def _question(self, request: Request) -> tuple[Question, Problem, dict[str, Any]]:
        body = await _read_json(request)
        problem = self.problems.named(body)  # refused here rather than after waiting
        return read_question(body), problem, body

    async def problem(self, request: Request) -> Response:
        """Take a problem file, whose content is the body of the request."""
        name = request.query_params.get("name", "")[:200] or "the file"
        content = await _read_body(request, LARGEST_UPLOAD)
        key, problem = await run_in_threadpool(self.problems.add, content, name)
        return JSONResponse({"file": key, "shape": dict(zip("nTd", problem.X.shape, strict=True))})

    def models(self, _: Request) -> Response:
        """Which checkpoints there are."""
        shown = ("name", "label", "about", "damaged")
        return JSONResponse([{name: getattr(entry, name) for name in shown} for entry in self.checkpoints.entries()])

    async def attention(self, request: Request) -> Response:
        """What one or two models see in a text, each asked about a token of its own."""
        body = await _read_json(request)
        text, names = body.get("text"), body.get("models")
        if not isinstance(text, str):
            raise ValueError(f"text must be a text, got {text!r}.")
        text = plain_text(text)
        if not isinstance(names, list) or len(names) not in (1, 2):
            raise ValueError("models must name one or two checkpoints.")
        queries, without = (_places(name, body.get(name), len(names)) for name in ("queries", "without"))
        head = body.get("head", 0)
        head = head if head == MEAN else integer("head", head, at_least=0)
        layer = None if body.get("layer") is None else integer("layer", body["layer"], at_least=0)
        words_only = bool(body.get("words_only", True))
        pruned = number("pruned", body.get("pruned", 0.0), at_least=0.0, below=1.0)

        def reading(name: Any, query: int | None, ablated: int | None) -> dict[str, Any]:
            try:
                opened = self.checkpoints.load(name)
            except DAMAGE as error:
                if len(names) == 1:
                    raise ValueError(f"{reason(error)}.") from error
                return {"name": str(name), "damaged": reason(error)}  # the other one is shown
            answer = read(opened, text, query, words_only, layer, head, pruned, ablated)
            return {"name": name, "damaged": None, **answer}

        return await self._in_turn(request, lambda: [*map(reading, names, queries, without)])

    async def fact(self, fact: str, request: Request) -> Response:
        """What is known of a model whatever text it is given: one of ``FACTS``."""
        name = (await _read_json(request)).get("model")
        return await self._in_turn(request, lambda: getattr(self.checkpoints.load(name), fact))

    def runs_listing(self, _: Request) -> Response:
        """What is in the folder of results."""
        return JSONResponse(self.runs.listing())

    async def run_file(self, request: Request) -> Response:
        """One file of the results, which may show pictures and styles of its own and run nothing."""
        try:
            path, kind = self.runs.file(request.path_params["place"])
        except ValueError as error:
            return refusal(str(error), 404)
        return FileResponse(path, media_type=kind, headers={"content-security-policy": FILE_POLICY})

    async def _in_turn(self, request: Request, answer: Callable[[], Any]) -> Response:
        async with self._turn:
            if await request.is_disconnected():  # the slider has moved on
                return Response(status_code=204)
            return JSONResponse(await run_in_threadpool(answer))


def _places(name: str, places: Any, models: int) -> list[int | None]:
    """The place of a token for each model, or None for the usual one."""
    places = [None] * models if places is None else places
    if not isinstance(places, list) or len(places) != models:
        raise ValueError(f"{name} must be as many as models.")
    return [None if place is None else integer(name, place, at_least=0) for place in places]


async def _read_json(request: Request) -> dict[str, Any]:
    # Another site's page cannot send this type without asking first, which is refused.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ValueError("send JSON, with the content type application/json.")
    try:
        content = json.loads(await _read_body(request, LARGEST_REQUEST))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("the request is not JSON.") from None
    if not isinstance(content, dict):
        raise ValueError("the request must be a JSON object.")
    return content


async def _read_body(request: Request, most: int) -> bytes:
    async def read() -> bytes:
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > most:
                raise HTTPException(413, f"this is more than {most:,} bytes; send less.")
        return bytes(content)

    return await asyncio.wait_for(read(), PATIENCE)


async def _front_page(_: Request) -> Response:
    page = (STATIC / "index.html").read_text("utf-8").replace("{version}", mirrormax.__version__)
    return Response(page, media_type="text/html")


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return refusal(str(error.detail), error.status_code)
    if isinstance(error, TOO_SLOW):  # before OSError, of which a timeout is one
        return refusal(f"the request did not come to its end in {PATIENCE:g} seconds.", 408)
    if isinstance(error, BAD_INPUT):
        return refusal(str(error), 400)
    cause = f"{type(error).__name__}: {reason(error)}"
    sys.stderr.write(f"mirrormax explore: {request.method} {request.url.path} failed ({cause}).\n")
    return refusal(f"the explorer failed ({cause}); this is a mistake in it.", 500)


class Backend:
    """``name`` is the backend of :func:`mirrormax.simulate` to use now: plain tensors until the kernel is compiled.

    Compiling takes half a minute the first time, and holds the interpreter while it does. So another process does
    it, and leaves the kernel in numba's cache on disk, from where it is loaded in a second.
    """

    def __init__(self) -> None:
        self.name = "tensor"
        self.then: Callable[[], None] = lambda: None  # what else to get ready, when the kernel is
        self._compiler: subprocess.Popen[bytes] | None = None

    def warm_up(self) -> None:
        """Start getting the kernel ready, if there can be one, and return at once."""
        if find_spec("numba") is not None:
            code = f"from {__name__} import run_kernel, step_back; step_back(); run_kernel()"
            self._compiler = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        threading.Thread(target=self._load, daemon=True).start()

    def close(self) -> None:
        """Leave nothing running."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.wait()

    def _load(self) -> None:
        if self._compiler is not None and self._compiler.wait() == 0:
            run_kernel()
            self.name = "numba"
        self.then()


def step_back() -> None:
    """Leave the processor to the process that answers."""
    if hasattr(os, "nice"):
        os.nice(10)


def run_kernel() -> None:
    """A tiny run, for the sake of what it compiles or loads."""
    simulate(example1(), p=1.5, steps=2, options=SimulationOptions(backend="numba"))
