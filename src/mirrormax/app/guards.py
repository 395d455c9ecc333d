"""What stands between the page and everybody else: who may ask, how much, and what a page may do."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = ("127.0.0.1", "localhost")
PAGE_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
FILE_POLICY = "sandbox; default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; frame-ancestors 'none'"


def refusal(sentence: str, status: int) -> JSONResponse:
    """One sentence for the page to show."""
    return JSONResponse({"error": sentence}, status)


class LocalOnly:
    """Refuse requests under another name than this machine's, and those that another site's page makes.

    A page elsewhere can point its own name at 127.0.0.1 and so reach this server in a visitor's browser; its
    requests then carry that name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin")
            if _name(f"//{host}") not in LOCAL_NAMES:
                return await refusal("this explorer answers to 127.0.0.1 and localhost only.", 400)(
                    scope, receive, send
                )
            if origin is not None and origin != f"http://{host}":
                return await refusal("this explorer answers to its own page only.", 403)(scope, receive, send)
        return await self.app(scope, receive, send)


class SafeHeaders:
    """Let a page load nothing from elsewhere, guess no types and tell nobody where it was."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

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

        await self.app(scope, receive, send_with_headers)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
