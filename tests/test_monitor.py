"""The monitor: what reports hold, where they go, and that nothing they meet ends a stream."""

import io
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import driftproof as dp
from driftproof.cli.monitor import LoggedRun
from driftproof.errors import ConfigurationError, InputError
from driftproof.monitor import METRICS, BatchReport, Exporter, JsonLog, LiveView, Monitor, Notice, Webhook, read_log
from driftproof.monitor.curves import draw_curve, parse_notice, parse_report
from driftproof.monitor.json_log import LogReader
from driftproof.record import Outcome, Record
from rows_on_disk import run_command


class Kept(Exporter):
    def __init__(self):
        self.reports, self.notices, self.is_closed = [], [], False

    def export(self, report, notices):
        self.reports += [] if report is None else [report]
        self.notices += notices

    def close(self):
        self.is_closed = True


def make_record(seed=0, size=6, disagreement=0.0, actions=(), skipped=None):
    generator = torch.Generator().manual_seed(seed)
    averages = torch.tensor([0.5, 0.5, 0.6, 0.5, 0.5, disagreement, 0.1, math.nan])
    return Record(
        selected=torch.rand(size, generator=generator) < 0.5,
        novelty=torch.where(torch.arange(size) == 1, torch.nan, torch.rand(size, generator=generator)),
        quarantined=torch.arange(size) == 1,
        objective=torch.tensor(0.25),
        outcome=Outcome(stepped=skipped is None, skipped=skipped),
        averages=averages,
        actions=actions,
    )


@given(st.integers(0, 2**31), st.integers(2, 9), st.integers(2, 5))
def test_report_counts_what_the_record_holds(seed, size, classes):
    record = make_record(seed, size)
    logits = torch.randn(size, classes, generator=torch.Generator().manual_seed(seed))
    logits[1] = torch.nan
    kept = Kept()
    alarms = dp.Alarm(0.5)(record.novelty)
    report = Monitor(kept)(record, alarms, logits=logits, errors=["x"] * 3, seconds=0.5)
    assert kept.reports == [report]
    assert (report.images, report.selected, report.quarantined) == (size, int(record.selected.sum()), 1)
    finite = [value for value in record.novelty.tolist() if not math.isnan(value)]
    assert report.novelty == pytest.approx(sum(finite) / len(finite), abs=1e-6)
    assert report.alarms == sum(value > 0.5 for value in finite)
    entropies = [torch.distributions.Categorical(logits=row).entropy() for row in logits[logits.isfinite().all(1)]]
    assert report.entropy == pytest.approx(float(sum(entropies)) / len(entropies) / math.log(classes), abs=1e-5)
    assert (report.errors, report.loss, report.seconds) == (3, 0.25, 0.5)
    kinds = [notice.kind for notice in kept.notices]
    assert kinds == ["error", *["alarm"] * bool(alarms)]


def test_notices_tell_changes_of_health_guards_and_skipped_batches():
    kept = Kept()
    with Monitor(kept, clock=lambda: 7.0) as monitor:
        monitor(make_record())
        monitor(make_record(disagreement=0.9, actions=("rolled back", "paused")))
        monitor(make_record(disagreement=0.9, skipped="nothing was selected"))
        monitor(make_record(disagreement=0.9, skipped="nothing was selected"))
        monitor(None, errors=["a cannot be read"])
        monitor(make_record())
        monitor.notify("run", "the run ended", images=24)
    told = [(notice.batch, notice.kind) for notice in kept.notices]
    assert told == [(2, "guard"), (2, "guard"), (2, "health"), (3, "skipped"), (5, "error"), (6, "health"), (6, "run")]
    assert kept.notices[2].details == {"state": "collapsed", "before": "healthy"}
    assert kept.notices[-1].details == {"images": 24}
    assert {notice.time for notice in kept.notices} == {7.0}
    assert kept.is_closed


def test_exporter_that_fails_does_not_end_the_stream():
    class Broken(Exporter):
        def export(self, report, notices):
            raise OSError(28, "No space left on device")

        def close(self):
            raise RuntimeError("twice")

    kept = Kept()
    with Monitor(Broken(), kept) as monitor:
        monitor(make_record())
        monitor(make_record())
    assert len(kept.reports) == 2
    assert kept.is_closed
    assert monitor.failures == {"Broken": 3}
    assert isinstance(monitor.last_error, RuntimeError)


def test_log_can_be_read_back_and_stays_bounded(tmp_path):
    path, kept = tmp_path / "logs" / "run.jsonl", Kept()
    with Monitor(JsonLog(path, max_bytes=4000, keep=2), kept) as monitor:
        for seed in range(60):
            monitor(make_record(seed, disagreement=seed % 2), dp.Alarm(0.5)(make_record(seed).novelty), names="abcdef")
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ["run.jsonl", "run.jsonl.1", "run.jsonl.2"]
    assert all(file.stat().st_size <= 4000 for file in path.parent.iterdir())
    lines = list(read_log(path))
    reports = [parse_report(line) for line in lines if line["type"] == "batch"]
    notices = [parse_notice(line) for line in lines if line["type"] == "notice"]
    assert list(map(repr, reports)) == list(map(repr, kept.reports[-len(reports) :]))
    assert notices == kept.notices[-len(notices) :]
    assert 3 < len(reports) < 60


def test_log_goes_on_after_a_line_that_was_not_written_whole(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"type": "batch", "batch": 1, "ti')
    with Monitor(JsonLog(path, batches=False)) as monitor:
        monitor(make_record(disagreement=0.9))
    assert [line["kind"] for line in read_log(path)] == ["health"]
    with pytest.raises(ConfigurationError, match="at least 1"):
        JsonLog(path, keep=0)


@given(st.builds(BatchReport, batch=st.integers(1, 9), time=st.floats(0, 1e10), kept=st.floats(), novelty=st.floats()))
def test_every_report_is_plain_json(report):
    line = json.loads(json.dumps(report.to_json(), allow_nan=False))
    back = parse_report(line)
    for name in ("kept", "novelty"):
        value = getattr(report, name)
        assert getattr(back, name) == value if math.isfinite(value) else math.isnan(getattr(back, name))


def test_prometheus_has_every_metric_with_the_numbers_of_the_reports():
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    kept, exporter = Kept(), dp.monitor.Prometheus(0)
    with Monitor(exporter, kept) as monitor:
        for seed in range(5):
            monitor(make_record(seed, actions=("rolled back",)), seconds=0.1)
        with urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=5) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert set(METRICS) <= set(families)
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["driftproof_images_total",] == sum(report.images for report in kept.reports)
    assert values["driftproof_selected_total",] == sum(report.selected for report in kept.reports)
    assert values["driftproof_guard_actions_total", "rolled_back"] == 5
    assert values["driftproof_kept_ratio",] == pytest.approx(kept.reports[-1].kept)
    assert values["driftproof_health", "distance"] == pytest.approx(kept.reports[-1].health.distance)
    assert ("driftproof_health", "statistics_gap") not in values, "NaN is not sent"
    assert values["driftproof_step_seconds_count",] == 5
    assert values["driftproof_notices_total", "guard"] == 5
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=5)


def test_opentelemetry_records_every_metric():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    kept, reader = Kept(), InMemoryMetricReader()
    with Monitor(dp.monitor.OpenTelemetry(MeterProvider([reader])), kept) as monitor:
        for seed in range(3):
            monitor(make_record(seed, actions=("paused",)), errors=["x"], seconds=0.1)
        monitor(make_record(), dp.Alarm(-1)(make_record().novelty))
    (resource,) = reader.get_metrics_data().resource_metrics
    points = {
        (metric.name, *point.attributes.values()): point
        for metric in resource.scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert {name.replace("_", ".", 1) for name in METRICS} - {"driftproof.entropy"} <= {name for name, *_ in points}
    assert points["driftproof.images",].value == sum(report.images for report in kept.reports)
    assert points["driftproof.guard_actions", "paused"].value == 3
    assert points["driftproof.step_seconds",].count == 3
    assert points["driftproof.novelty",].value == pytest.approx(kept.reports[-1].novelty)
    assert points["driftproof.notices", "error"].value == 3


def test_tensorboard_reads_the_curves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = Kept()
    with Monitor(dp.monitor.TensorBoard(tmp_path), kept) as monitor:
        for seed in range(4):
            monitor(make_record(seed), seconds=0.1)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("novelty")]
    assert drawn == [(report.batch, pytest.approx(report.novelty)) for report in kept.reports]
    assert "health/distance" in events.Tags()["scalars"]


class Receiver(BaseHTTPRequestHandler):
    """Answers with the server's next code; "hang" waits, "drop" closes the connection."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.codes.pop(0) if self.server.codes else 200
        self.server.asked.append((code, self.headers.get("X-Token"), body))
        self.server.tokens.append(self.headers.get("Authorization"))
        if code == "hang":
            self.server.ended.wait(10)
        elif code != "drop":
            self.send_response(code)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.codes, server.asked, server.tokens, server.ended = [], [], [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()
    thread.join()


def address(server):
    return f"http://127.0.0.1:{server.server_port}/hook"


def test_webhook_tries_again_until_a_notice_is_accepted(receiver):
    receiver.codes = [500, "drop", 429, 200, 404, 302, 200]
    webhook = Webhook(address(receiver), backoff=0.01, headers={"X-Token": "secret"})
    with Monitor(webhook) as monitor:
        for name in ("first", "gone", "moved", "last"):
            monitor.notify("run", name)
        monitor.notify("error", "of a kind that is not sent")
    assert [(code, body["message"]) for code, _, body in receiver.asked] == [
        *((code, "first") for code in (500, "drop", 429, 200)),
        *((404, "gone"), (302, "moved"), (200, "last")),
    ]
    assert {token for _, token, _ in receiver.asked} == {"secret"}
    assert (webhook.sent, webhook.dropped) == (2, 2)
    assert monitor.failures == {}


def test_webhook_that_hangs_neither_blocks_nor_grows(receiver):
    receiver.codes = ["hang"] * 50
    webhook = Webhook(address(receiver), timeout=0.3, attempts=2, backoff=0.01, capacity=5, close_timeout=0.5)
    started = time.monotonic()
    with Monitor(webhook) as monitor:
        for _ in range(200):
            monitor.notify("run", "the run goes on")
        assert time.monotonic() - started < 0.25, "the stream does not wait"
        assert webhook._queue.qsize() <= 5
    assert time.monotonic() - started < 5
    deadline = time.monotonic() + 5
    while webhook._thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (webhook.sent, webhook.dropped) == (0, 200)
    assert "timed out" in webhook.last_error


def test_webhook_without_a_server_counts_what_it_drops():
    webhook = Webhook("http://127.0.0.1:9/", attempts=2, backoff=0.01, timeout=0.5)
    with Monitor(webhook) as monitor:
        monitor.notify("run", "nobody listens")
    assert (webhook.sent, webhook.dropped) == (0, 1)
    for url in ("ftp://host/x", "file:///etc/passwd", "localhost"):
        with pytest.raises(ConfigurationError, match="to begin with http"):
            Webhook(url)


def test_live_view_draws_curves_and_notices():
    console = Console(force_terminal=True, width=100, height=40, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    view = LiveView(console, window=3)
    with Monitor(view) as monitor:
        for seed in range(5):
            monitor(make_record(seed, disagreement=0.9 * (seed == 4)))
        text = Console(width=100, record=True, file=console.file)
        text.print(view._render())
    shown = text.export_text()
    assert "batches 3 to 5" in shown
    assert "novelty" in shown
    assert "health: adaptation is collapsed" in shown
    console.file.close()


@given(st.lists(st.floats(-1e300, 1e300) | st.just(math.nan), min_size=1, max_size=40), st.integers(1, 12))
def test_curve_has_a_character_per_stretch(values, width):
    curve = draw_curve(values, width)
    assert len(curve) == min(width, len(values))
    assert set(curve) <= set(" ▁▂▃▄▅▆▇█")
    assert (" " in curve) == any(
        all(map(math.isnan, values[round(i * len(values) / len(curve)) : round((i + 1) * len(values) / len(curve))]))
        for i in range(len(curve))
    )


def test_command_draws_a_run_from_its_log(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    with Monitor(JsonLog(path)) as monitor:
        for seed in range(8):
            monitor(make_record(seed, actions=("paused",) * (seed == 6)), seconds=0.01)
        monitor.num_batches = 6  # a resumed run repeats batches
        monitor(make_record(6), seconds=0.01)
    assert run_command("monitor", path) == 0
    shown = capsys.readouterr().out
    assert "batches 1 to 8, 48 images" in shown
    assert "guard: a guard acted: paused" in shown
    assert run_command("monitor", path, "--last", 3) == 0
    assert "18 images" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("no log")
    assert run_command("monitor", tmp_path / "other.txt") == 2
    assert "holds no batch and no event" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text('{"type": "batch", "batch": "x"}\n')
    assert run_command("monitor", tmp_path / "other.txt") == 2
    assert "Expected" in capsys.readouterr().err
    assert run_command("monitor", tmp_path / "missing.jsonl") == 2


JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@given(
    st.dictionaries(st.sampled_from([*BatchReport(1, 1.0).to_json(), "kind", "message", "details"]), JSON), st.data()
)
def test_lines_of_any_content_are_drawn_or_named(folder, changes, data):
    whole = data.draw(st.sampled_from([BatchReport(1, 1.0), Notice("alarm", "x", 1.0)])).to_json()
    (folder / "run.jsonl").write_text(f"{json.dumps(whole | changes)}\n")
    run = LoggedRun(folder / "run.jsonl", None, 5)
    try:
        run.read()
    except InputError:  # the line is named
        return
    Console(file=io.StringIO()).print(run.draw(80))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def test_growing_log_is_read_on_across_new_files(tmp_path):
    path, seen = tmp_path / "run.jsonl", []
    reader, log = LogReader(path), JsonLog(path, max_bytes=2500, keep=9)
    with Monitor(log) as monitor:
        for seed in range(40):
            monitor(make_record(seed))
            if seed % 7 == 0:
                seen += [line["batch"] for line in reader.read()]
    with path.open("a") as file:
        file.write('{"type": "batch", "ba')
    seen += [line["batch"] for line in reader.read()]
    assert seen == list(range(1, 41))
    assert list(reader.read()) == []


def test_monitor_reads_an_adapter_at_work():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    adapter, kept = dp.tent(model), Kept()
    with Monitor(kept) as monitor:
        for _ in range(3):
            logits, record = adapter.step(torch.rand(5, 3, 4, 4))
            monitor(record, logits=logits)
        adapter.step(torch.full((2, 3, 4, 4), math.nan))
        monitor(adapter.last)
    assert [report.images for report in kept.reports] == [5, 5, 5, 2]
    assert kept.reports[-1].quarantined == 2
    assert [notice.kind for notice in kept.notices] == ["skipped"]


def test_notice_is_data():
    notice = Notice("alarm", "2 alarms", 1.5, 3, {"count": 2})
    assert parse_notice(json.loads(json.dumps(notice.to_json()))) == notice
