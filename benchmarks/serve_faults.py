"""Clients that misbehave, for `serve_load.py`: each kind is counted by what it got back."""

import base64
import http.client
import json
import random
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from serve_process import ServerProcess

__all__ = ["FAULTS", "make_bomb"]

IDLE = 1000
SLOW = 50
PNG = {"Content-Type": "image/png"}


def make_bomb(side: int) -> bytes:
    """Return a PNG of side × side black pixels: 20,000 × 20,000 take 49 KB."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(b"\0" * (side * (side // 8 + 1)), 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def send_oversized(server: ServerProcess) -> Counter[str]:
    """Send bodies of 9 MiB and requests of 40 images."""
    many = json.dumps({"images": ["AAAA"] * 40}).encode()
    bodies = [(b"x" * (9 * 2**20), PNG)] * 10 + [(many, {"Content-Type": "application/json"})] * 10
    return Counter(_send(server, "POST", "/predict", body, headers) for body, headers in bodies)


def send_malformed(server: ServerProcess) -> Counter[str]:
    """Send noise as images, forms and JSON."""
    noise = random.Random(0)
    bodies = []
    for _ in range(100):
        content = noise.randbytes(noise.randint(0, 2000))
        bodies += [
            (content, PNG),
            (b"\x89PNG\r\n\x1a\n" + content, PNG),
            (content, {"Content-Type": "application/json"}),
            (b"--edge\r\n" + content, {"Content-Type": "multipart/form-data; boundary=edge"}),
        ]
    return Counter(_send(server, "POST", "/predict", body, headers) for body, headers in bodies)


def send_bombs(server: ServerProcess) -> Counter[str]:
    """Send small files that claim or inflate to many pixels."""
    bomb = make_bomb(20_000)
    packed = json.dumps({"images": [base64.b64encode(bomb).decode()] * 16}).encode()
    bodies = [(bomb, PNG)] * 20 + [(packed, {"Content-Type": "application/json"})] * 5
    return Counter(_send(server, "POST", "/predict", body, headers) for body, headers in bodies)


def send_wrong_tokens(server: ServerProcess) -> Counter[str]:
    """Ask for the state with wrong tokens, and without one."""
    noise, counts = random.Random(1), Counter[str]()
    for number in range(500):
        token = server.token[: number % len(server.token)] + noise.choice("abc")
        headers = {} if number % 10 == 0 else {"Authorization": f"Bearer {token}"}
        method, path = (("GET", "/state"), ("PUT", "/state"), ("POST", "/reset"))[number % 3]
        counts[_send(server, method, path, None, headers)] += 1
    return counts


def send_slowly(server: ServerProcess) -> Counter[str]:
    """Send headers and bodies byte by byte, until the server answers or closes the connection."""

    def send(number: int) -> str:
        text = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        body = b"Content-Length: 100000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.settimeout(0.5)
            slow = text if number % 2 else b"x" * 1000
            try:
                if number % 2 == 0:
                    connection.sendall(text + body)
                for letter in slow:
                    connection.sendall(bytes([letter]))
                    try:
                        answer = connection.recv(4096)
                    except TimeoutError:
                        continue
                    return answer.split(b" ")[1].decode() if answer else "closed"
            except OSError:
                return "closed"
        return "still open"

    with ThreadPoolExecutor(SLOW) as pool:
        return Counter(pool.map(send, range(SLOW)))


def open_idle(server: ServerProcess) -> Counter[str]:
    """Open connections that say nothing, use the server meanwhile, and wait until they are closed."""
    counts, opened = Counter[str](), []
    for _ in range(IDLE):
        try:
            opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        except OSError:
            counts["not connected"] += 1
    counts[f"{_send(server, 'GET', '/readyz', None, {})} to another client meanwhile"] += 1
    deadline = time.monotonic() + 30
    for connection in opened:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            counts["closed" if connection.recv(1) == b"" else "answered"] += 1
        except TimeoutError:
            counts["still open"] += 1
        except OSError:
            counts["closed"] += 1
        connection.close()
    return counts


def _send(server: ServerProcess, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> str:
    try:
        status, content = server.request(method, path, body, headers)
        code = json.loads(content).get("error", {}).get("code", "")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {type(error).__name__}"
    return f"{status} {code}".strip()


FAULTS: dict[str, Callable[[ServerProcess], Counter[str]]] = {
    "oversized uploads": send_oversized,
    "malformed uploads": send_malformed,
    "decompression bombs": send_bombs,
    "wrong tokens": send_wrong_tokens,
    "slow clients": send_slowly,
    "idle connections": open_idle,
}
"""What misbehaves, by name."""
