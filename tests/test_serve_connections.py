"""Connections that are idle, slow or too many, over real sockets."""

import socket
import time
from contextlib import ExitStack

import pytest

from driftproof.serve.limits import Limits
from serving import random_image, served, small_adapter

SHORT = Limits(header_seconds=0.3, seconds=2.0, max_connections=20)
HEADER = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture(scope="module")
def client():
    with served(small_adapter(), limits=SHORT) as client:
        yield client


def connect(client):
    connection = socket.create_connection(("127.0.0.1", int(client.address.rpartition(":")[2])), timeout=5)
    connection.settimeout(5)
    return connection


def read_json(connection):
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(4096)
    return answer


def count_closed(client, reason):
    return client.metric(f'driftproof_serve_closed_connections_total{{reason="{reason}"}}')


def test_idle_connections_are_closed_and_counted(client):
    before = count_closed(client, "idle")
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(client)) for _ in range(10)]
        assert client.request("GET", "/readyz")[0] == 200
        assert all(connection.recv(1) == b"" for connection in idle)
    assert count_closed(client, "idle") == before + 10


@pytest.mark.parametrize("answered", [0, 2])
def test_header_that_never_ends_is_closed(client, answered):
    with connect(client) as connection:
        for _ in range(answered):
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_json(connection).startswith(b"HTTP/1.1 200 OK")
        connection.sendall(b"GET /rea")
        started = time.monotonic()
        assert connection.recv(4096) == b""
        assert time.monotonic() - started < 4


def test_slow_body_is_answered_and_closed(client):
    with connect(client) as connection:
        connection.sendall(HEADER + b"x")
        answer = read_json(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"upload_timeout"' in answer
        assert connection.recv(4096) == b""
    assert client.metric("driftproof_serve_buffered_bytes") == 0


def test_connections_beyond_the_limit_are_refused_and_the_next_are_not(client):
    before = count_closed(client, "full")
    with ExitStack() as stack:
        held = [stack.enter_context(connect(client)) for _ in range(30)]
        closed = 0
        for connection in held[20:]:
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        assert closed == 10
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert client.send_image(random_image(0))[0] == 200
            break
        except OSError:
            time.sleep(0.05)
    assert count_closed(client, "full") >= before + 10


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 100_000,
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: nonsense\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_broken_requests_are_refused(client, sent):
    with connect(client) as connection:
        received = b""
        try:
            connection.sendall(sent)
            while chunk := connection.recv(4096):
                received += chunk
        except ConnectionError:
            pass
    assert received == b"" or b" 400 " in received.partition(b"\r\n")[0]
    assert client.request("GET", "/readyz")[0] == 200


def test_client_that_hangs_up_does_not_stop_the_others(client):
    for sent in (HEADER, HEADER + b"x" * 500, HEADER + b"x" * 1000):
        with connect(client) as connection:
            connection.sendall(sent)
    assert client.send_image(random_image(0))[0] == 200
    deadline = time.monotonic() + 5
    while client.metric("driftproof_serve_buffered_bytes") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert client.metric("driftproof_serve_buffered_bytes") == client.metric("driftproof_serve_pending_images") == 0
