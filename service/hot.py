"""FastAPI for everything but the hot paths: a POST to one of them goes past its layers to a raw ASGI callable."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class HotApplication(FastAPI):
    """An application with hot paths.

    Args:
        hot: ASGI callables by path.
        options: Of FastAPI.
    """

    def __init__(self, hot: Mapping[str, ASGIApp], **options: Any) -> None:
        super().__init__(**options)
        self._hot = hot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await super().__call__(scope, receive, send)
        else:
            await route(scope, receive, send)


def hot_router(path: str, hot: ASGIApp, **described: Any) -> APIRouter:
    """A hot path as a route of FastAPI's, for the OpenAPI document, and for requests that are not plainly to it.

    Args:
        described: What the document says of it.
    """
    router = APIRouter()

    async def delegate(request: Request) -> Response:
        return _Delegated(hot)

    delegate.__name__ = path.strip("/").replace("/", "_")  # its name in the document
    router.add_api_route(path, delegate, methods=["POST"], response_class=Response, **described)
    return router


class _Delegated(Response):
    """A response that an ASGI callable makes."""

    def __init__(self, hot: ASGIApp) -> None:
        super().__init__()
        self._hot = hot

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._hot(scope, receive, send)
