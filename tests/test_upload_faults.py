"""Mutated uploads: an answer or a named error for each, never anything else.

`DRIFTPROOF_FUZZ=10` sends ten times as many.
"""

import base64
import json
import os
import random
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from driftproof.serve.errors import STATUS
from driftproof.serve.limits import Limits
from fuzz_readers import mutate
from serving import AUTHORIZED, TOKEN, encode, random_pixels, served, small_adapter

JSON = "application/json"
SCALE = int(os.environ.get("DRIFTPROOF_FUZZ", "1"))
KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


@pytest.fixture(scope="module")
def client():
    limits = Limits(max_pixels=10_000, max_images=4, max_bytes=200_000)
    with served(small_adapter("source"), limits=limits, token=TOKEN, max_wait=0.001) as client:
        yield client


class KeptConnection:
    """Sends many requests over one connection; opens it again when the server has closed it."""

    def __init__(self, client):
        self._client, self._connection = client, client.connect()

    def close(self):
        self._connection.close()

    def send(self, method, path, body, headers):
        try:
            return self._send(method, path, body, headers)
        except OSError:
            self.close()
            self._connection = self._client.connect()
            return self._send(method, path, body, headers)

    def _send(self, method, path, body, headers):
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = json.loads(answer.read())
        if answer.headers.get("connection") == "close":
            self._connection.close()
        return answer.status, content


def check(status, content):
    """Whether the upload was answered; anything but a named error fails."""
    if status == 200:
        for row in content["predictions"]:
            assert (row["error"] is None) == (row["predicted"] is not None)
        return True
    error = content["error"]
    assert STATUS[error["code"]] == status
    assert error["code"] not in ("internal", "timeout", "not_ready", "overloaded")
    assert error["message"].startswith("Expected ")
    assert "0x" not in error["message"]
    return False


def send_all(client, bodies):
    with closing(KeptConnection(client)) as connection:
        answered = [check(*connection.send("POST", "/predict", body, headers)) for body, headers in bodies]
    assert client.metric("driftproof_serve_buffered_bytes") == client.metric("driftproof_serve_pending_images") == 0
    return sum(answered), len(answered)


def test_mutated_images_are_answered_or_refused(client):
    rng = random.Random(0)
    seeds = [encode(random_pixels(0), kind) for kind in KINDS]
    bodies = ((mutate(seeds[index % len(seeds)], rng), {"Content-Type": "image/any"}) for index in range(SCALE * 40))
    answered, sent = send_all(client, bodies)
    assert 0 < answered < sent


def test_mutated_json_is_answered_or_refused(client):
    rng = random.Random(1)
    image = encode(random_pixels(0), "BMP")

    def write(*images):
        return json.dumps({"images": [base64.b64encode(image).decode() for image in images], "more": [None]}).encode()

    bodies = (
        (mutate(write(image), rng) if index % 2 else write(image, mutate(image, rng)), {"Content-Type": JSON})
        for index in range(SCALE * 30)
    )
    answered, sent = send_all(client, bodies)
    assert 0 < answered < sent


def test_mutated_forms_are_answered_or_refused(client):
    rng = random.Random(2)
    image = encode(random_pixels(0), "BMP")
    part = b'--edge\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    form = part + image + b"\r\n" + part + image + b"\r\n--edge--\r\n"
    types = [
        "multipart/form-data; boundary=edge",
        "multipart/form-data; boundary=",
        "multipart/form-data; charset=x; boundary=edge",
    ]
    bodies = (
        (mutate(form, rng), {"Content-Type": types[0 if index % 5 else index % 3]}) for index in range(SCALE * 30)
    )
    answered, sent = send_all(client, bodies)
    assert 0 < answered < sent


def test_mutated_states_are_refused_and_change_nothing(client):
    rng = random.Random(3)
    _, _, state = client.request("GET", "/state", headers=AUTHORIZED)
    with closing(KeptConnection(client)) as connection:
        for _ in range(SCALE * 20):
            changed = mutate(state, rng)
            if changed != state:
                _, content = connection.send("PUT", "/state", changed, AUTHORIZED)
                assert content["error"]["code"] in ("bad_state", "too_large")
    assert client.request("GET", "/state", headers=AUTHORIZED)[2] == state


def test_files_of_other_kinds_are_refused(client):
    hostile = [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"PK\3\4",
    ]
    for content in hostile:
        status, answer = client.send_image(content)
        assert (status, answer["error"]["code"]) == (422, "bad_image")
    long = Image.new("RGB", (10_001, 1))
    status, answer = client.send_image(encode(np.asarray(long)))
    assert (status, answer["error"]["code"]) == (422, "bad_image")
    assert "at most 10,000 pixels" in answer["error"]["message"]
