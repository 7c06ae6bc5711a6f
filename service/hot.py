"""FastAPI for everything but the hot paths: a POST to one of them goes past its layers to a raw ASGI callable."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
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
