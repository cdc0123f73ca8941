"""Connections: how many there may be, and how long they may say nothing."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from driftproof.serve.limits import Limits
from driftproof.serve.metrics import ServerMetrics

__all__ = ["make_protocol"]


def make_protocol(limits: Limits, metrics: ServerMetrics) -> type[asyncio.Protocol]:
    """Make the protocol of connections, for `uvicorn.Config(http=…)`.

    Uvicorn itself waits for the first request of a connection, and for the rest of a header, without end.
    """

    class BoundedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # as uvicorn declares it
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                metrics.closed_connections.labels("full").inc()
                transport.abort()
                return
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_waiting:
                self._start_timer()
            else:
                self._stop_timer()

        @property
        def _is_waiting(self) -> bool:
            """Whether the header of a request is still to come."""
            return self.cycle is None or self.cycle.response_complete

        def _start_timer(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.header_seconds, self._close_if_waiting)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close_if_waiting(self) -> None:
            self._timer = None
            if self._is_waiting and not self.transport.is_closing():
                metrics.closed_connections.labels("idle").inc()
                self.transport.close()

    return BoundedProtocol
