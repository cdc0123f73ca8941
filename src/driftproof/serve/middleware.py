"""What happens to every request: checks, named errors, counts and the access log."""

import logging
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftproof.serve.errors import RequestError, describe_error
from driftproof.serve.metrics import ServerMetrics
from driftproof.serve.security import HEADERS, check_host, check_origin

__all__ = ["Gate"]

_LOG = logging.getLogger("driftproof.serve")
_ACCESS = logging.getLogger("driftproof.serve.access")


class Gate:
    """Checks host and origin, turns errors into JSON, counts and logs.

    Neither headers, nor queries, nor bodies are logged: they may hold secrets.

    Args:
        app: What answers.
        metrics: Counts requests.
        paths: Paths that are counted by name.
        hosts: Names that requests may be sent to; None allows every name.
    """

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, paths: Mapping[str, object], hosts: frozenset[str] | None
    ) -> None:
        self.app, self.metrics, self.paths, self.hosts = app, metrics, frozenset(paths), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._answer(scope, receive, send_noted)
        except RequestError as error:
            if status:
                raise
            await self._refuse(error, scope, receive, send_noted)
        except Exception:
            _LOG.exception("a request failed")
            if status:
                raise
            failed = RequestError("internal", "Expected an answer, but the request failed. See the log.")
            await self._refuse(failed, scope, receive, send_noted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            seconds = time.perf_counter() - started
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            _ACCESS.info("%s %s %d %.1f ms", scope["method"][:10], path, status, 1000 * seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        check_host(headers, self.hosts)
        check_origin(headers)
        await self.app(scope, receive, send)

    async def _refuse(self, error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.errors.labels(error.code).inc()
        await JSONResponse(describe_error(error), error.status, error.headers)(scope, receive, send)
