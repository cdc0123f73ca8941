"""The HTTP interface of a served adapter."""

import functools
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import TYPE_CHECKING

import anyio
import torch
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from driftproof.data.images import decode_image
from driftproof.errors import DriftproofError, InputError
from driftproof.serve.errors import RequestError, describe_error
from driftproof.serve.history import History
from driftproof.serve.middleware import Gate
from driftproof.serve.page import load_page
from driftproof.serve.predictor import Answer, Image
from driftproof.serve.security import check_token
from driftproof.serve.service import Service
from driftproof.serve.uploads import ByteBudget, Upload, read_body, read_uploads

if TYPE_CHECKING:
    from driftproof.data.images import Size

__all__ = ["build_app"]

_EMPTY: Answer = dict.fromkeys(
    ("predicted", "class", "probability", "novelty", "selected", "quarantined", "alarm", "health")
)
_DECODERS = 2


def build_app(
    service: Service,
    registry: CollectorRegistry,
    *,
    size: "Size" = None,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    history: History | None = None,
) -> Starlette:
    """Build the ASGI application.

    Args:
        service: Answers predictions.
        registry: Metrics to show.
        size: How images are resized, as in `driftproof.data.FileSet`.
        token: Guards the state; None disables what it guards.
        hosts: Names that requests may be sent to; None allows every name.
        history: What the page shows; None has no page.
    """
    endpoints = _Endpoints(service, registry, size, token, history)
    routes = {
        "/predict": ("POST", endpoints.predict),
        "/healthz": ("GET", endpoints.show_health),
        "/readyz": ("GET", endpoints.show_readiness),
        "/metrics": ("GET", endpoints.show_metrics),
        "/reset": ("POST", endpoints.reset),
    }
    if history is not None:
        routes |= {"/": ("GET", endpoints.show_page), "/history": ("GET", endpoints.show_history)}
    known = [Route(path, call, methods=[method]) for path, (method, call) in routes.items()]
    known += [
        Route("/state", endpoints.download_state, methods=["GET"]),
        Route("/state", endpoints.upload_state, methods=["PUT"]),
    ]
    paths = {**routes, "/state": None}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    gate = Middleware(Gate, metrics=service.metrics, paths=paths, hosts=hosts)
    return Starlette(
        routes=known, middleware=[gate], lifespan=lifespan, exception_handlers={HTTPException: _name_http_error}
    )


class _Endpoints:
    def __init__(
        self,
        service: Service,
        registry: CollectorRegistry,
        size: "Size",
        token: str | None,
        history: History | None,
    ) -> None:
        self.service, self.registry, self.size, self.token, self.history = service, registry, size, token, history
        self.limits, self.metrics = service.limits, service.metrics
        self.budget = ByteBudget(self.limits.max_buffered_bytes)
        self.metrics.watch("pending_images", "Images that wait for an answer.", lambda: service.num_pending)
        self.metrics.watch("buffered_bytes", "Bytes of uploads in memory.", lambda: self.budget.used)

    @functools.cached_property
    def _decoders(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_DECODERS)

    async def predict(self, request: Request) -> Response:
        """Answer each image of the request."""
        self.service.check_ready()
        deadline, stage = time.monotonic() + self.limits.seconds, "upload_timeout"
        try:
            with anyio.fail_after(self.limits.seconds):
                async with read_uploads(request, self.limits, self.budget) as uploads:
                    stage = "timeout"
                    self.service.reserve(len(uploads))
                    try:
                        answers = await self._predict(uploads, deadline)
                    finally:
                        self.service.release(len(uploads))
        except TimeoutError as error:
            words = "upload in" if stage == "upload_timeout" else "answer within"
            raise RequestError(stage, f"Expected an {words} {self.limits.seconds:g} s, but it took longer.") from error
        return self._respond(uploads, answers)

    async def _predict(self, uploads: list[Upload], deadline: float) -> list[Answer | DriftproofError]:
        decode = functools.partial(self._decode, uploads, deadline)
        decoded = await anyio.to_thread.run_sync(decode, limiter=self._decoders)
        images = [image for image in decoded if isinstance(image, Image)]
        found = iter(await self.service.predict(images) if images else [])
        return [next(found) if isinstance(image, Image) else image for image in decoded]

    def _decode(self, uploads: list[Upload], deadline: float) -> list[Image | RequestError]:
        decoded: list[Image | RequestError] = []
        for upload in uploads:
            if time.monotonic() > deadline:
                raise TimeoutError
            try:
                pixels = decode_image(
                    upload.name, BytesIO(upload.content), size=self.size, max_pixels=self.limits.max_pixels
                )
                decoded.append(Image(upload.name, torch.from_numpy(pixels).permute(2, 0, 1)))
            except InputError as error:
                decoded.append(RequestError("bad_image", str(error)))
        return decoded

    def _respond(self, uploads: list[Upload], answers: Sequence[Answer | DriftproofError]) -> Response:
        failures = [answer for answer in answers if isinstance(answer, RequestError)]
        rows = [
            {"name": upload.name} | _EMPTY | {"error": str(answer)} if isinstance(answer, DriftproofError) else answer
            for upload, answer in zip(uploads, answers, strict=True)
        ]
        content, status = {"predictions": rows}, 200
        for error in failures:
            self.metrics.errors.labels(error.code).inc()
        if len(failures) == len(uploads):
            content, status = describe_error(failures[0]) | content, failures[0].status
        return JSONResponse(content, status)

    async def show_health(self, request: Request) -> Response:
        """Say that the process answers and its model is not stuck."""
        self.service.check_alive()
        predictor = self.service.predictor
        follower = self.service.follower
        shown = {
            "status": "ok",
            "learns": predictor.learns,
            "batches": predictor.num_batches,
            "state": None
            if follower is None
            else {"loaded": follower.num_loaded, "failed": follower.num_failed, "error": follower.last_error},
        }
        return JSONResponse(shown)

    async def show_readiness(self, request: Request) -> Response:
        """Say whether predictions are answered."""
        self.service.check_ready()
        return JSONResponse({"status": "ready"})

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics as Prometheus reads them."""
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def show_page(self, request: Request) -> Response:
        """Return the page."""
        page = load_page()
        return HTMLResponse(page.html, headers={"content-security-policy": page.policy})

    async def show_history(self, request: Request) -> Response:
        """Return the latest batches and alarms."""
        assert self.history is not None
        after, after_alarm = (_parse_number(request, name) for name in ("after", "after_alarm"))
        return JSONResponse(self.history.to_json(after, after_alarm))

    async def download_state(self, request: Request) -> Response:
        """Return the state as a file."""
        check_token(request.headers, self.token)
        self.service.check_ready()
        content = await self.service.export_state()
        headers = {"content-disposition": 'attachment; filename="state.safetensors"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def upload_state(self, request: Request) -> Response:
        """Continue from an uploaded state."""
        check_token(request.headers, self.token)
        self.service.check_ready()
        most = 4 * await self.service.run(self.service.count_state_bytes) + 2**20
        budget = ByteBudget(most)  # guarded by the token, so apart from the uploads of others
        try:
            with anyio.fail_after(self.limits.seconds):
                async with read_body(request, most, budget) as body:
                    await self.service.import_state(body)
        except TimeoutError as error:
            raise RequestError("upload_timeout", f"Expected a state within {self.limits.seconds:g} s.") from error
        return JSONResponse({"status": "loaded"})

    async def reset(self, request: Request) -> Response:
        """Return to the trained weights."""
        check_token(request.headers, self.token)
        self.service.check_ready()
        await self.service.reset()
        return JSONResponse({"status": "reset"})


async def _name_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise RequestError("method_not_allowed", "Expected another method for this address.")
    if error.status_code == 404:
        raise RequestError("not_found", "Expected an address of this server, but got another. See its documentation.")
    raise RequestError("malformed", "Expected a request that can be read.")


def _parse_number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not text.isdecimal() or len(text) > math.ceil(math.log10(2**63)):
        raise RequestError("malformed", f"Expected `{name}` to be a number of at least 0, but got something else.")
    return int(text)
