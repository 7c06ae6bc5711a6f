"""The console's page and its files, read once; nothing of them comes from another host, and none is made of a request.

Links in it are relative to /console, so that it works behind a proxy that puts a path before it; whoever comes by
another way is led there, by a relative address too. A browser keeps the files and asks each time whether they hold.

The page itself holds no data, so that it needs no token: it asks for one where the routes under /admin do.
"""

import hashlib
from dataclasses import dataclass, replace
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.problems import HttpProblem

PAGE = "index.html"

_NEEDED, _NOT_NEEDED = b'data-token="needed"', b'data-token="none"'

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media: str

    @property
    def tag(self) -> str:
        """Of its content, for ``ETag``."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def page_router(*, needs_token: bool) -> APIRouter:
    """GET /console and the files of its page, which is told whether the routes need a token."""
    router, held = APIRouter(), _held()
    if not needs_token:
        held[PAGE] = replace(held[PAGE], content=held[PAGE].content.replace(_NEEDED, _NOT_NEEDED))

    @router.get("/console", summary="The console, a page for a browser", response_class=Response)
    async def page(request: Request) -> Response:
        return _respond(held[PAGE], request)

    @router.get("/console/", include_in_schema=False)
    @router.get(f"/console/{PAGE}", include_in_schema=False)
    async def lead_to_page() -> Response:
        return Response(status_code=307, headers=HEADERS | {"Location": "../console"})

    @router.get("/console/{name}", include_in_schema=False)
    async def part(name: str, request: Request) -> Response:
        if name not in held:
            raise HttpProblem(404, "http", f"the console has no file {name!r}")
        return _respond(held[name], request)

    return router


def _respond(file: _File, request: Request) -> Response:
    """The file, or that the one which the browser keeps still holds."""
    headers = HEADERS | {"ETag": file.tag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {file.tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers | {"Content-Type": file.media})


def _held() -> dict[str, _File]:
    folder = files("service").joinpath("console")
    held = {}
    for path in folder.iterdir():
        media = MEDIA.get(f".{path.name.rpartition('.')[2]}")
        if media is not None:
            held[path.name] = _File(path.read_bytes(), media)
    return held
