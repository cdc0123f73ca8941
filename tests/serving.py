"""A served adapter for tests: a real server on a free port of this machine, in a thread."""

import base64
import http.client
import json
import threading
import time
from contextlib import contextmanager
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image
from torch import nn

from driftproof.methods.by_name import build_method
from driftproof.serve.build import Settings, build_service
from driftproof.serve.server import make_server, open_socket

TOKEN = "a-token-for-the-tests-only"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def small_model(classes=4):
    torch.manual_seed(3)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(32, classes))


def small_adapter(method="tent+crowd", model=None, **options):
    return build_method(method, small_model() if model is None else model, options)


def random_pixels(seed, side=12):
    generator = np.random.default_rng(seed)
    return (generator.random(3) * 200 + generator.random((side, side, 3)) * 55).astype(np.uint8)


def encode(pixels, kind="PNG"):
    content = BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def random_image(seed, side=12):
    return encode(random_pixels(seed, side))


class Client:
    """Sends requests to a server and reads its answers."""

    def __init__(self, address, service=None):
        self.address, self.service = address, service

    def connect(self, timeout=20):
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """Return status, headers and body of an answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def json(self, method, path, body=None, headers=None):
        """Return status and content of an answer."""
        status, _, content = self.request(method, path, body, headers)
        return status, json.loads(content)

    def send_image(self, content, **headers):
        return self.json("POST", "/predict", content, {"Content-Type": "image/png"} | headers)

    def send_images(self, contents):
        images = [base64.b64encode(content).decode() for content in contents]
        return self.json("POST", "/predict", json.dumps({"images": images}), {"Content-Type": "application/json"})

    def metric(self, name):
        """Return the value of a metric, with its labels in the name; 0 if it is not there."""
        lines = self.request("GET", "/metrics")[2].decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextmanager
def served(adapter, **options):
    """Serve an adapter; yields a client."""
    settings = Settings(**options)
    app, service = build_service(adapter, settings)
    server, listener = make_server(app, settings.limits, service.metrics), open_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()
