"""Reads no further on a connection while requests wait on it: else what a caller sends ahead without end is kept."""

import asyncio
from collections.abc import Sized

from uvicorn.protocols.http.flow_control import FlowControl


class NoReadAhead(FlowControl):
    """uvicorn's, which pauses reading for a request that waits for the answers before it, and goes on with each answer.

    Args:
        transport: Of the connection.
        waiting: Its requests that wait; the last one takes itself out as it begins, and may need the rest of its body.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if not self._waiting:
            super().resume_reading()
