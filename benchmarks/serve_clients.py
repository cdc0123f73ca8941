"""A process of clients for `serve_load.py`: sends images over a few connections, and checks every answer.

    python benchmarks/serve_clients.py --address http://127.0.0.1:8000 --images images.json --out counts.json

A request is sent again after a connection error or a refusal with status 503, until it is answered. One that is not
answered within two minutes is lost.
"""

import argparse
import base64
import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["make_form", "run_clients"]

GIVE_UP = 120.0
PAUSE = 0.05
EDGE = "----driftproof"


def make_form(files: dict[str, bytes]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a form with these files."""
    parts = [
        f'--{EDGE}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files.items()
    ]
    return b"".join([*parts, f"--{EDGE}--\r\n".encode()]), {"Content-Type": f"multipart/form-data; boundary={EDGE}"}


class Connection(threading.Thread):
    """Sends one request after the other until the time is up.

    Args:
        address: The server.
        images: Encoded images and their labels.
        name: Distinguishes this connection; names of images begin with it.
        deadline: When to stop, in seconds of `time.monotonic`.
        most: Images in a request, at most.

    Attributes:
        counts: What happened.
        latencies: Milliseconds of each answered request, from its last attempt.
    """

    def __init__(self, address: str, images: list[tuple[bytes, int]], name: str, deadline: float, most: int) -> None:
        super().__init__(name=name)
        self._host, self._images, self._deadline, self._most = urlsplit(address).netloc, images, deadline, most
        self._random = random.Random(name)
        self._connection: http.client.HTTPConnection | None = None
        self.counts = dict.fromkeys(
            ("sent", "answered", "images", "correct", "lost", "mismatched", "unexpected", "broken", "busy"), 0
        )
        self.latencies: list[float] = []

    def run(self) -> None:
        """Send requests."""
        number = 0
        while time.monotonic() < self._deadline:
            chosen = self._random.choices(self._images, k=self._random.randint(1, self._most))
            files = {f"{self.name}-{number}-{index}.png": image for index, (image, _) in enumerate(chosen)}
            self.counts["sent"] += 1
            self._send(files, [label for _, label in chosen])
            number += 1
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, files: dict[str, bytes], labels: list[int]) -> None:
        body, headers = make_form(files)
        give_up = time.monotonic() + GIVE_UP
        while time.monotonic() < give_up:
            started = time.perf_counter()
            try:
                status, content = self._request(body, headers)
            except (OSError, http.client.HTTPException, ValueError):
                self.counts["broken"] += 1
                self._close()
            else:
                if status != 503:
                    self.latencies.append(1000 * (time.perf_counter() - started))
                    self._check(status, content, files, labels)
                    return
                self.counts["busy"] += 1
            time.sleep(PAUSE)
        self.counts["lost"] += 1

    def _request(self, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, timeout=GIVE_UP)
        self._connection.request("POST", "/predict", body, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def _check(self, status: int, content: Any, files: dict[str, bytes], labels: list[int]) -> None:  # noqa: ANN401  # JSON
        self.counts["answered"] += 1
        if status != 200:
            self.counts["unexpected"] += 1
            return
        rows = content["predictions"]
        if [row["name"] for row in rows] != list(files) or any(row["error"] for row in rows):
            self.counts["mismatched"] += 1
        self.counts["images"] += len(rows)
        self.counts["correct"] += sum(row["predicted"] == label for row, label in zip(rows, labels, strict=True))


def run_clients(
    address: str, images: list[tuple[bytes, int]], *, seconds: float, connections: int, name: str, most: int
) -> dict[str, Any]:
    """Send requests over several connections; return the counts and the latencies."""
    deadline = time.monotonic() + seconds
    threads = [Connection(address, images, f"{name}-{index}", deadline, most) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = {key: sum(thread.counts[key] for thread in threads) for key in threads[0].counts}
    return totals | {"latencies": [round(value, 2) for thread in threads for value in thread.latencies]}


def main() -> None:
    """Run the clients and write what they counted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--name", default="client")
    given = parser.parse_args()
    images = [(base64.b64decode(image), label) for image, label in json.loads(given.images.read_text())]
    results = run_clients(
        given.address,
        images,
        seconds=given.seconds,
        connections=given.connections,
        name=given.name,
        most=given.most,
    )
    given.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
