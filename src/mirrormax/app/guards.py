"""What stands between the page and everybody else: who may ask, for how long, and what a page may do."""

from __future__ import annotations

import asyncio
import hashlib
import re
from hmac import compare_digest
from html import escape
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"  # blob: pictures that the page itself has drawn, to be saved as PNG
)
FILE_POLICY = "sandbox; default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
PATIENCE = 20.0
"""Seconds in which a client has to send a request, and to take what is sent to it."""
NO_TOKEN = (
    "This explorer shows its pages to whoever has its token. Open the address that 'mirrormax explore' printed in its "
    "terminal, with all that follows the question mark."
)


def refusal(sentence: str, status: int) -> JSONResponse:
    """One sentence for the page to show."""
    return JSONResponse({"error": sentence}, status)


def cookie_name(token: str) -> str:
    """Of its own for each explorer: browsers give the cookies of one port to all ports of a machine."""
    return f"mirrormax-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


class Gate:
    """Before the application: refuses who may not ask, and gives every answer headers that keep a page to itself.

    A page elsewhere can point its own name at 127.0.0.1 and so reach this server in a visitor's browser; its requests
    then carry that name, and those of a script there its origin. Both are refused.

    Anybody with an account on this machine can reach the port, so the first request brings the token in its address.
    The answer puts it into a cookie that no script and no other site can use, and sends the browser on to the address
    without it. This is a page and not a redirect: a browser does not send a strict cookie along with a redirect of a
    link that was followed from elsewhere.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self._token, self._cookie = app, token.encode(), cookie_name(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", PAGE_POLICY)
                headers.setdefault("cache-control", "no-store")
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
                headers["cross-origin-resource-policy"] = "same-origin"
            await send(message)

        await self._answering(Request(scope))(scope, receive, send_with_headers)

    def _answering(self, request: Request) -> ASGIApp:
        """The application, or what is answered in its place."""
        host, origin, path = request.headers.get("host", ""), request.headers.get("origin"), request.scope["path"]
        if LOCAL_HOST.fullmatch(host) is None:
            return refusal("this explorer answers to 127.0.0.1 and localhost only.", 400)
        if origin is not None and origin != f"http://{host}":
            return refusal("this explorer answers to its own page only.", 403)
        if self._is_token(request.query_params.get("token", "")):
            return self._welcome(path) if request.method == "GET" else self.app
        if self._is_token(request.cookies.get(self._cookie, "")):
            return self.app
        if path.startswith("/api/"):
            return refusal(NO_TOKEN, 403)
        return HTMLResponse(f"<!doctype html><meta charset=utf-8><title>mirrormax</title><p>{escape(NO_TOKEN)}", 403)

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode("utf-8", "replace"), self._token)

    def _welcome(self, path: str) -> HTMLResponse:
        place = escape("/" + path.lstrip("/"))  # of this server: two slashes would name another one
        head = "<!doctype html><meta charset=utf-8><title>mirrormax</title><link rel=icon href='/static/icon.svg'>"
        page = f"{head}<meta http-equiv=refresh content='0; url={place}'><a href='{place}'>mirrormax</a>"
        answer = HTMLResponse(page)
        answer.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="strict", path="/")
        return answer


class ImpatientProtocol(H11Protocol):
    """Connections end where a client takes longer than ``PATIENCE`` over a request's head or over an answer."""

    _sending: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sending = self.loop.call_later(PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._sending is not None and is_answering:
            self._sending.cancel()
            self._sending = None
        elif self._sending is None and not is_answering:
            self._sending = self.loop.call_later(PATIENCE, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._sending, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)


def server_settings() -> dict[str, Any]:
    """How uvicorn runs: without a word of its own, since what goes wrong is told by the application."""
    return {"http": ImpatientProtocol, "log_level": "critical", "server_header": False, "ws": "none", "lifespan": "off"}
