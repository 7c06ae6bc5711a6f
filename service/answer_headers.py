"""What answers beside those of the hot paths carry; and HEAD wherever there is GET."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANSWER_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
"""Each is of one moment, and none is to be taken for a page or a script; a route that says otherwise is heard."""


class AnswerHeaders:
    """Middleware that adds what a route did not say itself.

    Args:
        app: What answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. The server leaves the body out of what is answered to HEAD."""

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ANSWER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send_marked)
