"""Predictions over HTTP: answers, batches, errors, tokens, and the state."""

import concurrent.futures
import copy
import json
import logging
import struct
import threading
import time
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof as dp
from driftproof.data import FileSet, ResizeShorterSide
from driftproof.errors import ConfigurationError, ForwardError, StateError
from driftproof.serve.errors import STATUS
from driftproof.serve.limits import Limits
from driftproof.serve.predictor import Image, Predictor
from driftproof.serve.security import allowed_hosts, check_token, is_loopback, read_token
from driftproof.serve.snapshots import load_snapshot, save_snapshot
from serving import AUTHORIZED, TOKEN, encode, random_image, random_pixels, served, small_adapter, small_model

COLUMNS = [
    "name", "predicted", "class", "probability", "novelty", "selected", "quarantined", "alarm", "health", "error",
]  # fmt: skip


@pytest.fixture(scope="module")
def client():
    with served(small_adapter(), alarm=dp.Alarm(0.5), class_names=tuple("abcd"), token=TOKEN) as client:
        yield client


def to_tensor(seeds, side=12):
    return torch.stack([torch.from_numpy(random_pixels(seed, side)).permute(2, 0, 1) for seed in seeds]).float() / 255


def make_form(contents):
    parts = [
        b'--edge\r\nContent-Disposition: form-data; name="f"; filename="%d.png"\r\n\r\n%s\r\n' % (index, content)
        for index, content in enumerate(contents)
    ]
    return b"".join(parts) + b"--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


def bomb(side):
    """A PNG of side × side black pixels in a few kilobytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(b"\0" * (side * (side // 8 + 1)), 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_answers_are_those_of_the_adapter_whatever_the_form():
    contents = [random_image(seed) for seed in range(5)]
    forms = [
        lambda client: client.send_images(contents),
        lambda client: client.json("POST", "/predict", *make_form(contents)),
    ]
    for send in forms:
        with served(small_adapter(), class_names=tuple("abcd"), alarm=dp.Alarm(-0.1)) as client:
            status, content = send(client)
        twin = small_adapter()
        logits, record = twin.step(to_tensor(range(5)))
        assert status == 200
        rows = content["predictions"]
        assert [list(row) for row in rows] == [COLUMNS] * 5
        assert [row["predicted"] for row in rows] == logits.argmax(dim=1).tolist()
        assert [row["class"] for row in rows] == ["abcd"[index] for index in logits.argmax(dim=1)]
        torch.testing.assert_close(torch.tensor([row["probability"] for row in rows]), logits.softmax(1).amax(1))
        torch.testing.assert_close(torch.tensor([row["novelty"] for row in rows]), record.novelty)
        assert [row["selected"] for row in rows] == record.selected.tolist()
        assert [row["alarm"] for row in rows] == (record.novelty > -0.1).tolist()


def test_many_requests_share_batches_and_each_gets_its_own_answer():
    """A source model answers each image alone, so that an answer in the wrong place would show."""
    adapter, images = small_adapter("source"), 96
    expected = copy.deepcopy(adapter).step(to_tensor(range(images))).logits.softmax(dim=1).amax(dim=1)
    with served(adapter, batch_size=16, max_wait=0.05) as client:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda seed: client.send_image(random_image(seed)), range(images)))
        batches = client.service.predictor.num_batches
    found = torch.tensor([content["predictions"][0]["probability"] for _, content in answers])
    torch.testing.assert_close(found, expected)
    assert images / 16 <= batches < images / 2


def test_images_are_prepared_as_files_are(tmp_path):
    paths = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, path in enumerate(paths):
        path.write_bytes(random_image(seed, side=20 + 5 * seed))
    size = ResizeShorterSide(16, 12)
    expected = small_adapter("source").step(FileSet(paths, size=size).batch(range(3)).float() / 255).logits
    with served(small_adapter("source"), size=size) as client:
        _, content = client.send_images([path.read_bytes() for path in paths])
    found = torch.tensor([row["probability"] for row in content["predictions"]])
    torch.testing.assert_close(found, expected.softmax(dim=1).amax(dim=1))


def test_images_of_several_sizes_make_a_step_each_and_keep_their_order():
    adapter = small_adapter()
    twin, sides = copy.deepcopy(adapter), (12, 20, 12)
    answers = Predictor(adapter).predict(
        [
            Image(str(seed), torch.from_numpy(random_pixels(seed, side)).permute(2, 0, 1))
            for seed, side in enumerate(sides)
        ]
    )
    small = twin.step(to_tensor((0, 2))).record.novelty.tolist()
    large = twin.step(to_tensor((1,), 20)).record.novelty.tolist()
    assert [answer["novelty"] for answer in answers] == [small[0], large[0], small[1]]


def test_bad_images_do_not_spoil_the_others(client):
    good, broken = random_image(1), random_image(2)[:60]
    status, content = client.send_images([good, broken, b"no image", b""])
    assert status == 200
    first, *others = content["predictions"]
    assert first["error"] is None
    for row in others:
        assert list(row) == COLUMNS
        assert row["error"].startswith("Expected image")
        assert "0x" not in row["error"]
        assert row["predicted"] is None
    before = client.metric('driftproof_serve_errors_total{code="bad_image"}')
    status, content = client.send_images([broken])
    assert (status, content["error"]["code"]) == (422, "bad_image")
    assert client.metric('driftproof_serve_errors_total{code="bad_image"}') == before + 1


class FailsOnWideImages(torch.nn.Sequential):
    def forward(self, x):
        if x.shape[-1] > 12:
            raise RuntimeError("too wide")
        return super().forward(x)


def test_model_that_fails_gives_an_error_and_keeps_its_state():
    adapter = small_adapter(model=FailsOnWideImages(*small_model()))
    before = adapter.state_dict()
    with served(adapter) as client:
        status, content = client.send_image(random_image(0, side=20))
        assert (status, content["error"]["code"]) == (422, "model_failed")
        assert "too wide" in content["error"]["message"]
        after = adapter.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert client.send_image(random_image(0))[0] == 200
    with pytest.raises(ForwardError):
        adapter.step(torch.rand(1, 3, 20, 20))


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"", {"Content-Type": "application/json"}, "malformed"),
        (b"[]", {"Content-Type": "application/json"}, "malformed"),
        (b'{"images": []}', {"Content-Type": "application/json"}, "malformed"),
        (b'{"images": [3]}', {"Content-Type": "application/json"}, "malformed"),
        (b'{"images": ["\xc3\xa4"]}', {"Content-Type": "application/json"}, "malformed"),
        (b"[" * 100_000, {"Content-Type": "application/json"}, "malformed"),
        (b"", {"Content-Type": "multipart/form-data; boundary=edge"}, "malformed"),
        (b"--edge\r\n", {"Content-Type": "multipart/form-data"}, "malformed"),
        (b"abc", {"Content-Type": "text/plain"}, "unsupported_type"),
        (b"abc", {}, "unsupported_type"),
        (b"x" * (8 * 2**20 + 1), {"Content-Type": "image/png"}, "too_large"),
        (json.dumps({"images": ["AAAA"] * 33}).encode(), {"Content-Type": "application/json"}, "too_large"),
        (*make_form([b"x"] * 40), "too_large"),
        (bomb(20_000), {"Content-Type": "image/png"}, "bad_image"),
        (b"x", {"Content-Type": "image/png", "Origin": "http://elsewhere.example"}, "other_origin"),
        (b"x", {"Content-Type": "image/png", "Origin": "null"}, "other_origin"),
        (b"x", {"Content-Type": "image/png", "Host": "elsewhere.example"}, "wrong_host"),
    ],
)
def test_refused_requests_are_named_and_counted(client, body, headers, code):
    name = f'driftproof_serve_errors_total{{code="{code}"}}'
    before = client.metric(name)
    status, content = client.json("POST", "/predict", body, headers)
    assert (status, content["error"]["code"]) == (STATUS[code], code)
    assert content["error"]["message"].startswith("Expected ")
    assert client.metric(name) == before + 1
    assert client.metric("driftproof_serve_buffered_bytes") == client.metric("driftproof_serve_pending_images") == 0


def test_unknown_addresses_and_methods_are_named(client):
    assert client.json("GET", "/nowhere")[0] == 404
    assert client.json("GET", "/predict")[1]["error"]["code"] == "method_not_allowed"
    assert client.json("GET", "/history?after=x")[1]["error"]["code"] == "malformed"
    assert client.request("GET", "/readyz")[0] == client.request("GET", "/healthz")[0] == 200


def test_every_answer_carries_security_headers(client):
    for path in ("/", "/metrics", "/nowhere", "/state"):
        headers = client.request("GET", path)[1]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    policy = client.request("GET", "/")[1]["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


# The state


@pytest.mark.parametrize("path", ["/state", "/reset"])
def test_state_needs_the_token(client, path):
    method = "GET" if path == "/state" else "POST"
    for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}x"}):
        status, content = client.json(method, path, headers=wrong)
        assert (status, content["error"]["code"]) == (401, "unauthorized")
    assert client.request(method, path, headers=AUTHORIZED)[0] == 200


def test_state_is_disabled_without_a_token():
    with served(small_adapter()) as client:
        for method, path in (("GET", "/state"), ("PUT", "/state"), ("POST", "/reset")):
            for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
                assert client.json(method, path, headers=headers)[1]["error"]["code"] == "disabled"


@given(st.text())
def test_no_other_text_is_taken_for_the_token(text):
    from starlette.datastructures import Headers

    from driftproof.serve.errors import RequestError

    raw = [(b"authorization", f"Bearer {text}".encode(errors="replace"))]
    if text.strip() == TOKEN:
        return
    with pytest.raises(RequestError):
        check_token(Headers(raw=raw), TOKEN)


def test_state_can_be_downloaded_uploaded_and_reset(tmp_path):
    adapter = small_adapter()
    start = adapter.state_dict()
    with served(adapter, token=TOKEN, state=tmp_path / "state.safetensors") as client:
        for seed in range(3):
            client.send_images([random_image(seed), random_image(seed + 10)])
        status, _, moved = client.request("GET", "/state", headers=AUTHORIZED)
        assert status == 200
        assert client.json("POST", "/reset", headers=AUTHORIZED) == (200, {"status": "reset"})
        now = adapter.state_dict()
        assert now.keys() == start.keys()
        assert all(torch.equal(now[name], start[name]) for name in start)
        for damaged in (moved[:-1], moved[:100] + b"\0" + moved[101:], b"", b"x" * 1000, b"x" * 2**21):
            status, content = client.json("PUT", "/state", damaged, AUTHORIZED)
            assert content["error"]["code"] in ("bad_state", "too_large")
            assert str(tmp_path) not in content["error"]["message"]
        assert client.json("PUT", "/state", moved, AUTHORIZED) == (200, {"status": "loaded"})
        assert client.request("GET", "/state", headers=AUTHORIZED)[2] == moved
        assert (tmp_path / "state.safetensors").read_bytes() == moved, "kept on disk at once"


def test_state_is_saved_while_running_and_at_the_end_and_resumed(tmp_path):
    path, twin = tmp_path / "state.safetensors", small_adapter(lr=0.2)
    with served(small_adapter(lr=0.2), state=path, save_every=2) as client:
        client.send_images([random_image(0), random_image(1)])
        assert not path.exists()
        client.send_images([random_image(2), random_image(3)])
        deadline = time.monotonic() + 10
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        client.send_images([random_image(4), random_image(5)])
        early = path.read_bytes()
    for seed in (0, 2, 4):
        twin.step(to_tensor((seed, seed + 1)))
    twin.save(tmp_path / "twin.safetensors")
    assert path.read_bytes() == (tmp_path / "twin.safetensors").read_bytes() != early
    with served(small_adapter(lr=0.2), state=path, resume=True) as client:
        _, content = client.send_images([random_image(6), random_image(7)])
    logits, record = twin.step(to_tensor((6, 7)))
    assert [row["novelty"] for row in content["predictions"]] == record.novelty.tolist()
    torch.testing.assert_close(
        torch.tensor([row["probability"] for row in content["predictions"]]), logits.softmax(1).amax(1)
    )


def test_guards_go_on_where_they_were_unless_they_are_others(tmp_path):
    adapter = small_adapter("tent", guard="roll_back")
    adapter.method.guards[0].set_memory({"snapshots": [], "last": 7, "pause": 9, "paused_until": 11})
    adapter.step(to_tensor(range(4)))
    save_snapshot(adapter, tmp_path / "state")
    for guard, last in (("roll_back", 7), ("fall_back+roll_back", 0)):
        other = small_adapter("tent", guard=guard)
        load_snapshot(other, tmp_path / "state")
        assert other.method.guards[-1].get_memory()["last"] == last
    adapter.step(to_tensor(range(4)))
    adapter.save(tmp_path / "state")
    other = small_adapter("tent", guard="roll_back")
    load_snapshot(other, tmp_path / "state")
    assert other.method.guards[0].get_memory()["last"] == 0, "these guards belong to an earlier state"
    (tmp_path / "state.guards").write_bytes(b"damaged")
    with pytest.raises(StateError, match=r"state\.guards to hold what guards remember"):
        load_snapshot(other, tmp_path / "state")
    (tmp_path / "state.guards").unlink()
    load_snapshot(other, tmp_path / "state")


def make_alarm(rate=0.3):
    return dp.Alarm.from_false_alarm_rate(rate, window=12)


def ask(client, seeds):
    """Send batches of four images; returns which raised the alarm."""
    answers = [client.send_images([random_image(4 * seed + index) for index in range(4)])[1] for seed in seeds]
    return [row["alarm"] for answer in answers for row in answer["predictions"]]


@pytest.mark.parametrize("done", [2, 5])
def test_resumed_server_raises_the_alarms_of_an_uninterrupted_one(tmp_path, done):
    with served(small_adapter(), alarm=make_alarm()) as client:
        expected = ask(client, range(8))
    with served(small_adapter(), alarm=make_alarm(), state=tmp_path / "state") as client:
        assert ask(client, range(done)) == expected[: 4 * done]
    with served(small_adapter(), alarm=make_alarm(), state=tmp_path / "state", resume=True, token=TOKEN) as client:
        moved = client.request("GET", "/state", headers=AUTHORIZED)[2]
        assert ask(client, range(done, 8)) == expected[4 * done :]
        assert client.json("PUT", "/state", moved, AUTHORIZED) == (200, {"status": "loaded"})
        assert ask(client, range(done, 8)) == expected[4 * done :]
    assert {True, False} == set(expected[4 * done :])


def test_server_with_another_alarm_resumes_and_says_that_its_alarm_begins_anew(tmp_path, caplog):
    with served(small_adapter(), alarm=make_alarm(), state=tmp_path / "state") as client:
        ask(client, range(5))
    follower = small_adapter()
    with served(follower, alarm=make_alarm(), follow=tmp_path / "state") as client:
        wait_for(client, loaded=1)
        assert len(ask(client, range(2))) == 8
    others = (make_alarm(0.4), dp.Alarm(0.5), None)
    for alarm in others:
        caplog.clear()
        adapter = small_adapter()
        load_snapshot(adapter, tmp_path / "state", alarm)
        assert all(torch.equal(value, follower.state_dict()[name]) for name, value in adapter.state_dict().items())
        assert ("the alarm begins anew" in caplog.text) == (alarm is others[0])
    assert others[0].num_missing == 12
    save_snapshot(small_adapter(), tmp_path / "state")
    alarm = make_alarm()
    load_snapshot(small_adapter(), tmp_path / "state", alarm)
    assert alarm.num_missing == 12


def test_full_disk_does_not_end_the_service(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("driftproof.serve.service.save_snapshot", fail)
    with served(small_adapter(), state=tmp_path / "state", save_every=1) as client:
        for seed in range(3):
            assert client.send_image(random_image(seed))[0] == 200
        assert client.metric('driftproof_serve_state_saves_total{result="failed"}') >= 1
    assert "No space left on device" in caplog.text


# Following


def test_follower_answers_with_the_snapshot_and_learns_nothing(tmp_path):
    path, leader = tmp_path / "state.safetensors", small_adapter(lr=0.3)
    follower = small_adapter(lr=0.3)
    with served(follower, follow=path, token=TOKEN) as client:
        assert client.send_image(random_image(0))[1]["error"]["code"] == "not_ready"
        assert client.request("GET", "/readyz")[0] == 503
        for round_number in range(2):
            leader.step(to_tensor(range(8 * round_number, 8 * round_number + 8)))
            leader.save(path)
            wait_for(client, loaded=round_number + 1)
            expected = copy.deepcopy(leader).step(to_tensor((40, 41)))
            for _ in range(2):
                _, content = client.send_images([random_image(40), random_image(41)])
                rows = content["predictions"]
                assert [row["novelty"] for row in rows] == expected.record.novelty.tolist()
                assert not any(row["selected"] for row in rows)
        path.write_bytes(path.read_bytes()[:-1])
        wait_for(client, failed=1)
        assert client.send_image(random_image(0))[0] == 200, "it keeps the state it has"
        assert client.json("POST", "/reset", headers=AUTHORIZED)[1]["error"]["code"] == "read_only"
        assert client.json("PUT", "/state", b"x", AUTHORIZED)[1]["error"]["code"] == "read_only"


def wait_for(client, **counts):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        state = client.json("GET", "/healthz")[1]["state"]
        if all(state[name] >= count for name, count in counts.items()):
            return
        time.sleep(0.02)
    raise AssertionError(state)


@pytest.mark.parametrize("method", ["adapt", "tent+crowd", "source", "rotta", "roid", "t3a", "sentinel"])
def test_predicting_without_learning_answers_as_a_step_and_changes_nothing(method):
    adapter = small_adapter(method)
    for _ in range(3):
        adapter.step(torch.rand(16, 3, 12, 12))
    images, before = torch.rand(16, 3, 12, 12), adapter.state_dict()
    images[3, 0, 0, 0] = torch.nan
    logits, record = adapter.predict(images)
    after = adapter.state_dict()
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    expected = adapter.step(images)
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(record.novelty, expected.record.novelty, rtol=0, atol=0, equal_nan=True)
    assert record.quarantined.tolist() == expected.record.quarantined.tolist()


def test_predicting_without_learning_falls_back_as_a_step_does():
    adapter = small_adapter("tent", guard="fall_back")
    adapter.step(torch.rand(16, 3, 12, 12))
    adapter.state.guard_counters["falls_back_until"] = 100
    images = torch.rand(16, 3, 12, 12)
    assert torch.equal(adapter.predict(images).logits, adapter.step(images).logits)


# Load


class Blocked(torch.nn.Sequential):
    """A model that waits until it may go on."""

    gate = threading.Event()

    def forward(self, x):
        assert self.gate.wait(20)
        return super().forward(x)

    def __deepcopy__(self, memo):
        return Blocked(*(copy.deepcopy(module, memo) for module in self))


@pytest.fixture
def blocked():
    Blocked.gate.clear()
    adapter = small_adapter("source", model=Blocked(*small_model()))
    yield adapter
    Blocked.gate.set()


def test_request_that_takes_too_long_is_answered_and_the_next_ones_too(blocked):
    with served(blocked, limits=Limits(seconds=0.3)) as client:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            late = [pool.submit(client.send_image, random_image(seed)) for seed in range(8)]
            answers = [answer.result() for answer in late]
        assert {content["error"]["code"] for _, content in answers} == {"timeout"}
        Blocked.gate.set()
        deadline = time.monotonic() + 10
        while client.metric("driftproof_serve_pending_images") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.send_image(random_image(9))[0] == 200
        assert client.service.predictor.num_batches < 9, "canceled requests are left out of batches"


def test_stuck_model_is_reported(blocked):
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        served(blocked, limits=Limits(seconds=0.05)) as client,
    ):
        assert client.json("GET", "/healthz")[0] == 200
        late = pool.submit(client.send_image, random_image(0))
        deadline = time.monotonic() + 10
        while client.request("GET", "/healthz")[0] == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.json("GET", "/healthz")[1]["error"]["code"] == "stuck"
        Blocked.gate.set()
        late.result()


def test_more_images_than_may_wait_are_refused_at_once(blocked):
    with (
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        served(blocked, limits=Limits(max_pending=4, max_images=4)) as client,
    ):
        sent = [pool.submit(client.send_images, [random_image(0), random_image(1)]) for _ in range(2)]
        while client.service.num_pending < 4:
            time.sleep(0.005)
        for _ in range(3):
            assert client.send_image(random_image(2))[1]["error"]["code"] == "overloaded"
        Blocked.gate.set()
        assert [answer.result()[0] for answer in sent] == [200, 200]
        assert client.send_image(random_image(2))[0] == 200


def test_requests_in_flight_are_answered_when_the_server_stops(blocked):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        with served(blocked) as client:
            sent = [pool.submit(client.send_image, random_image(seed)) for seed in range(4)]
            while client.service.num_pending < 4:
                time.sleep(0.005)
            threading.Timer(0.3, Blocked.gate.set).start()
        assert [answer.result()[0] for answer in sent] == [200] * 4


# Settings


def test_logs_hold_no_secret_and_no_query(caplog):
    caplog.set_level(logging.DEBUG)
    with served(small_adapter(), token=TOKEN) as client:
        client.request("GET", "/state", headers=AUTHORIZED)
        client.request("GET", f"/state?token={TOKEN}", headers={"Authorization": f"Bearer {TOKEN[:-1]}"})
        client.request("GET", f"/{TOKEN}")
        client.send_image(b"broken")
    assert TOKEN[:-1] not in caplog.text
    assert "/state" in caplog.text


def test_token_files_are_checked(tmp_path):
    path = tmp_path / "token"
    for content in ("", "short", "ä" * 20):
        path.write_text(content)
        with pytest.raises(ConfigurationError, match="at least 16"):
            read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert read_token(path) == TOKEN


def test_loopback_answers_only_to_its_own_names():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
    assert "example.org" in allowed_hosts("127.0.0.1", ["Example.org"])
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("0.0.0.0", ["a"]) == {"a"}


def test_page_is_left_out_where_other_machines_can_come_in():
    with served(small_adapter(), host="0.0.0.0") as client:
        assert client.request("GET", "/")[0] == client.request("GET", "/history")[0] == 404
        assert client.request("GET", "/readyz")[0] == 200


def test_limits_are_checked():
    with pytest.raises(ConfigurationError, match="`max_bytes` to be above 0"):
        Limits(max_bytes=0)
    with pytest.raises(ConfigurationError, match="`max_pending` to be at least"):
        Limits(max_pending=1)


def test_alarms_are_kept_with_a_thumbnail():
    with served(small_adapter(), alarm=dp.Alarm(-10.0)) as client:
        client.send_images([encode(random_pixels(seed, 300)) for seed in range(2)])
        history = client.json("GET", "/history")[1]
        assert [batch["images"] for batch in history["batches"]] == [2]
        assert {"kept", "novelty", "entropy", "health"} <= set(history["batches"][0])
        assert [alarm["alarm"] for alarm in history["alarms"]] == [1, 2]
        assert history["alarms"][0]["image"].startswith("data:image/png;base64,")
        assert len(history["alarms"][0]["image"]) < 60_000
        assert client.json("GET", "/history?after=1&after_alarm=1")[1]["batches"] == []
