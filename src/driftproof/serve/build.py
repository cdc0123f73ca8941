"""Put a server together from an adapter and settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from driftproof.monitor import Monitor, Prometheus
from driftproof.serve.app import build_app
from driftproof.serve.history import History
from driftproof.serve.limits import Limits
from driftproof.serve.metrics import ServerMetrics
from driftproof.serve.predictor import Predictor
from driftproof.serve.security import allowed_hosts, is_loopback
from driftproof.serve.server import make_server
from driftproof.serve.service import Service

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm
    from driftproof.data.images import Size

__all__ = ["Settings", "build_server", "build_service"]


@dataclass(frozen=True)
class Settings:
    """How to serve an adapter.

    Attributes:
        size: How images are resized, as in `driftproof.data.FileSet`.
        class_names: Names of the classes; empty if unknown.
        alarm: Flags novel images; None flags none.
        limits: What is accepted.
        batch_size: Images in a batch, at most.
        max_wait: Seconds that an image waits for others.
        state: File that keeps the state; None keeps none.
        save_every: Save the state after so many batches.
        resume: Whether to continue from `state` if it exists.
        follow: State file of another server to answer with.
        host: Address to listen at.
        allow_hosts: Further names that requests may be sent to.
        token: Guards the state; None disables what it guards.
        page: Whether to show the page; None shows it on loopback only.
        monitor: Gets the record of each batch, and metrics and the page as further exporters; None makes one.
    """

    size: "Size" = None
    class_names: Sequence[str] = ()
    alarm: "Alarm | None" = None
    limits: Limits = field(default_factory=Limits)
    batch_size: int = 64
    max_wait: float = 0.01
    state: Path | None = None
    save_every: int = 50
    resume: bool = False
    follow: Path | None = None
    host: str = "127.0.0.1"
    allow_hosts: Sequence[str] = ()
    token: str | None = field(default=None, repr=False)
    page: bool | None = None
    monitor: Monitor | None = None


def build_server(adapter: "Adapter", settings: Settings) -> "uvicorn.Server":
    """Build the server of an adapter; the adapter belongs to it from now on."""
    app, service = build_service(adapter, settings)
    return make_server(app, settings.limits, service.metrics)


def build_service(adapter: "Adapter", settings: Settings) -> "tuple[Starlette, Service]":
    """Build the application of an adapter and the service behind it."""
    registry = CollectorRegistry()
    has_page = is_loopback(settings.host) if settings.page is None else settings.page
    history = History() if has_page else None
    monitor = settings.monitor or Monitor()
    monitor.exporters += (Prometheus(registry=registry), *([] if history is None else [history]))
    predictor = Predictor(
        adapter,
        settings.alarm,
        settings.class_names,
        monitor,
        learns=settings.follow is None,
        on_alarm=None if history is None else history.add_alarm,
    )
    service = Service(
        predictor,
        settings.limits,
        ServerMetrics(registry),
        batch_size=settings.batch_size,
        max_wait=settings.max_wait,
        state=settings.state,
        save_every=settings.save_every,
        follow=settings.follow,
    )
    if settings.resume:
        service.load()
    hosts = allowed_hosts(settings.host, settings.allow_hosts)
    app = build_app(service, registry, size=settings.size, token=settings.token, hosts=hosts, history=history)
    return app, service
