"""Run the server until a signal ends it."""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from driftproof.serve.connections import make_protocol
from driftproof.serve.limits import Limits
from driftproof.serve.metrics import ServerMetrics

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["make_server", "open_socket", "run_server"]

_MAX_HEADER = 2**15
_BACKLOG = 2048
_KEEP_ALIVE = 15


def open_socket(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def make_server(app: "Starlette", limits: Limits, metrics: ServerMetrics) -> uvicorn.Server:
    """Make the server of an application; requests in flight have `limits.seconds` to end when it stops."""
    config = uvicorn.Config(
        app,
        http=make_protocol(limits, metrics),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(limits.seconds)),
        h11_max_incomplete_event_size=_MAX_HEADER,
    )
    return uvicorn.Server(config)


def run_server(server: uvicorn.Server, listener: socket.socket, on_start: Callable[[str], None]) -> bool:
    """Serve until the process gets SIGINT, SIGTERM or SIGHUP; returns whether it ever started.

    Args:
        server: The server.
        listener: Where it listens.
        on_start: Called with the address.
    """
    for name in ("uvicorn.error", "python_multipart"):
        logging.getLogger(name).setLevel(logging.ERROR)  # else a line for each broken request
    host, port = listener.getsockname()[:2]
    on_start(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    with listener, _stop_on_hangup(server):
        server.run(sockets=[listener])
    return server.started


@contextmanager
def _stop_on_hangup(server: uvicorn.Server) -> Iterator[None]:
    """End the server when its terminal goes away, unless the process ignores that; uvicorn handles other signals."""
    number = getattr(signal, "SIGHUP", None)
    before = None if number is None else signal.getsignal(number)
    if number is None or not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    note = before

    def stop(received: int, frame: FrameType | None) -> None:
        server.should_exit = True
        note(received, frame)

    signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)
