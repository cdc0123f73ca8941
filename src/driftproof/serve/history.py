"""Keep the latest batches and alarms for the page."""

import base64
import uuid
from collections import deque
from collections.abc import Sequence
from io import BytesIO
from threading import Lock
from typing import Any

from driftproof.monitor import BatchReport, Exporter, Notice
from driftproof.optional import require
from driftproof.serve.predictor import Answer, Image

__all__ = ["History"]

_BATCHES, _ALARMS, _NOTICES = 900, 24, 50
_SIDE = 96
_COLUMNS = ("batch", "time", "images", "selected", "alarms", "kept", "novelty", "entropy")


class History(Exporter):
    """The latest batches, notices and alarms, as data for JSON.

    The model's thread writes and the server's reads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._batches: deque[dict[str, Any]] = deque(maxlen=_BATCHES)
        self._notices: deque[dict[str, Any]] = deque(maxlen=_NOTICES)
        self._alarms: deque[dict[str, Any]] = deque(maxlen=_ALARMS)
        self._num_alarms = 0
        self._run = uuid.uuid4().hex[:8]

    def export(self, report: BatchReport | None, notices: Sequence[Notice]) -> None:
        """Keep a batch and its notices."""
        with self._lock:
            for notice in notices:
                if notice.kind != "alarm":  # alarms are kept with their images
                    self._add_notice(notice)
            if report is not None and report.images:
                values = report.to_json()
                health = {name: values["health"][name] for name in ("state", "disagreement", "mean_entropy")}
                self._batches.append({name: values[name] for name in _COLUMNS} | {"health": health})

    def _add_notice(self, notice: Notice) -> None:
        """Keep a notice; one that says the same as the last is counted with it."""
        latest = self._notices[-1] if self._notices else None
        if latest is not None and (latest["kind"], latest["message"]) == (notice.kind, notice.message):
            latest |= {"time": notice.time, "count": latest["count"] + 1}
            return
        self._notices.append({"time": notice.time, "kind": notice.kind, "message": notice.message, "count": 1})

    def add_alarm(self, image: Image, answer: Answer, now: float) -> None:
        """Keep a thumbnail of an image that raised the alarm."""
        pillow = require("PIL.Image", "Drawing thumbnails", "'driftproof[serve]'")
        picture = pillow.fromarray(image.pixels.permute(1, 2, 0).contiguous().numpy())
        picture.thumbnail((_SIDE, _SIDE))
        content = BytesIO()
        picture.save(content, "PNG")
        kept = {name: answer[name] for name in ("name", "predicted", "class", "probability", "novelty")}
        picture_url = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
        with self._lock:
            self._num_alarms += 1
            self._alarms.append(kept | {"alarm": self._num_alarms, "time": now, "image": picture_url})

    def to_json(self, after: int = 0, after_alarm: int = 0) -> dict[str, Any]:
        """Return the batches and alarms after these numbers, oldest first, and the latest notices.

        Args:
            after: Number of the last batch that the reader has.
            after_alarm: Number of the last alarm that the reader has.
        """
        with self._lock:
            return {
                "run": self._run,  # numbers begin anew when a server is started again
                "batches": [batch for batch in self._batches if batch["batch"] > after],
                "alarms": [alarm for alarm in self._alarms if alarm["alarm"] > after_alarm],
                "notices": list(map(dict, self._notices)),
            }
