"""Send notices to a web address."""

import json
import queue
import threading
import time
from collections.abc import Collection, Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from driftproof.errors import ConfigurationError
from driftproof.monitor.base import BatchReport, Exporter, Notice, NoticeKind

__all__ = ["Webhook"]


class Webhook(Exporter):
    """Posts notices as JSON, with retries, in a thread of its own.

    The stream never waits: if `capacity` notices wait already, new ones are dropped and counted. A request that fails,
    or is answered with 429 or 5xx, is tried again after 1, 2, 4, … seconds; any other answer than 2xx drops the notice.
    Redirects are not followed.

    Args:
        url: Address, `http://…` or `https://…`.
        kinds: Which notices to send.
        headers: Additional headers, such as a token.
        timeout: Seconds to wait for a connection and for each part of an answer.
        attempts: How often a notice is tried.
        backoff: Seconds before the second attempt.
        capacity: How many notices may wait.
        close_timeout: Seconds that `close` waits for what is left.

    Attributes:
        sent: How many notices were accepted.
        dropped: How many were not.
        last_error: Why the latest attempt failed; None if none did.
    """

    def __init__(
        self,
        url: str,
        *,
        kinds: Collection[NoticeKind] = ("alarm", "guard", "health", "run"),
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        attempts: int = 5,
        backoff: float = 1.0,
        capacity: int = 1000,
        close_timeout: float = 5.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"Expected `url` to begin with http:// or https://, but got {url!r}.")
        if attempts < 1 or capacity < 1 or timeout <= 0:
            raise ConfigurationError(
                f"Expected `attempts` and `capacity` of at least 1 and a `timeout` above 0, but got {attempts}, "
                f"{capacity} and {timeout}."
            )
        self._url, self._kinds, self._headers = (
            url,
            frozenset(kinds),
            {"Content-Type": "application/json"} | (headers or {}),
        )
        self._timeout, self._attempts, self._backoff, self._close_timeout = timeout, attempts, backoff, close_timeout
        self.sent = self.dropped = 0
        self.last_error: str | None = None
        self._queue: queue.Queue[Notice | None] = queue.Queue(capacity)
        self._stopping = threading.Event()
        self._open = build_opener(_NoRedirect).open
        self._thread = threading.Thread(target=self._run, name="driftproof-webhook", daemon=True)
        self._thread.start()

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Queue the notices."""
        for notice in notices:
            if notice.kind in self._kinds:
                try:
                    self._queue.put_nowait(notice)
                except queue.Full:
                    self.dropped += 1

    def close(self) -> None:
        """Send what waits, for at most `close_timeout` seconds; what is left then is dropped and counted."""
        deadline = time.monotonic() + self._close_timeout
        while self._thread.is_alive() and not self._is_idle() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        while True:
            try:
                self.dropped += self._queue.get_nowait() is not None
            except queue.Empty:
                break
        self._queue.put_nowait(None)
        self._thread.join(max(0.1, deadline - time.monotonic()))

    def _is_idle(self) -> bool:
        return self._queue.unfinished_tasks == 0

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            try:
                if self._send(json.dumps(notice.to_json(), allow_nan=False, default=str).encode()):
                    self.sent += 1
                else:
                    self.dropped += 1
            except Exception as error:  # one bad notice must not stop the others
                self.last_error, self.dropped = repr(error), self.dropped + 1
            finally:
                self._queue.task_done()

    def _send(self, body: bytes) -> bool:
        for attempt in range(self._attempts):
            if attempt and self._stopping.wait(self._backoff * 2 ** (attempt - 1)):
                return False
            try:
                request = Request(self._url, data=body, headers=self._headers, method="POST")
                with self._open(request, timeout=self._timeout) as answer:
                    answer.read(1024)
                return True
            except HTTPError as error:
                self.last_error = f"the answer was {error.code}"
                error.close()
                if error.code != 429 and error.code < 500:
                    return False
            except (OSError, HTTPException, ValueError) as error:
                self.last_error = repr(error)
        return False


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: it would carry the headers to another address."""

    def redirect_request(self, *_: object) -> None:
        return None
