"""Downloads from a local HTTP server that injects faults."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.request import Request

import numpy as np
import pytest

from driftproof.cli import main
from driftproof.data import (
    DATASETS,
    DatasetInfo,
    FileCheck,
    RemoteFile,
    array_folder,
    fetch,
    get_dataset_info,
    unpack,
    verify,
)
from driftproof.errors import ConfigurationError, DownloadError, DriftproofError

CONTENT = bytes(range(256)) * 4096
OTHER = CONTENT[::-1]
PAGE = b"\n<!DOCTYPE html><html><body>Please log in</body></html>"


class Server(ThreadingHTTPServer):
    """Serves `content`; each request consumes the next set of `faults`, if any is left."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.faults = []
        self.requests = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/files/archive.tar?download=1"

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        fault = self.server.faults.pop(0) if self.server.faults else set()
        self.server.requests.append(dict(self.headers))
        if "change" in fault:
            self.server.content = OTHER
        content = self.server.content
        for code in (404, 416, 429, 500, 503):
            if str(code) in fault:
                return self.send_error(code)
        tag = f'"{hashlib.sha1(content).hexdigest()}"'
        start = self.start_of_range(fault, tag, len(content))
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if "html" in fault else "application/x-tar")
        self.send_header("Connection", "close")
        if "no tag" not in fault:
            self.send_header("ETag", f"W/{tag}" if "weak tag" in fault else tag)
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if start:
            start += "wrong place" in fault
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        body = content[start:]
        if "truncate" in fault:
            body = body[: len(body) // 2]
        if "nonsense length" in fault:
            self.send_header("Content-Length", "nonsense")
        elif "no length" not in fault:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if "drop" in fault else body)
        return None

    def start_of_range(self, fault, tag, length):
        requested = self.headers.get("Range")
        if requested is None or "ignore range" in fault:
            return 0
        if "ignore if-range" not in fault and self.headers.get("If-Range", tag) != tag:
            return 0
        return int(requested.removeprefix("bytes=").removesuffix("-"))


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def pauses():
    return []


def remote(server, content=CONTENT, **known):
    published = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return RemoteFile(server.url, **{**published, **known})


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


# fetch


def test_download_is_complete_and_reports_progress(server, tmp_path):
    seen = []
    path = fetch(remote(server), tmp_path / "new" / "folder", progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "new" / "folder" / "archive.tar"
    assert path.read_bytes() == CONTENT
    assert leftovers(path.parent) == ["archive.tar"]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_existing_file_is_checked_and_not_downloaded(server, tmp_path):
    fetch(remote(server), tmp_path)
    fetch(remote(server), tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "archive.tar").write_bytes(OTHER)
    with pytest.raises(DownloadError, match=r"wrong checksum.*Delete"):
        fetch(remote(server), tmp_path)
    assert (tmp_path / "archive.tar").read_bytes() == OTHER


def test_dropped_connection_resumes(server, tmp_path, pauses):
    server.faults = [{"drop"}, {"drop"}]
    fetch(remote(server), tmp_path, sleep=pauses.append)
    half, most = len(CONTENT) // 2, len(CONTENT) * 3 // 4
    assert [request.get("Range") for request in server.requests] == [None, f"bytes={half}-", f"bytes={most}-"]
    assert (tmp_path / "archive.tar").read_bytes() == CONTENT
    assert leftovers(tmp_path) == ["archive.tar"]
    assert pauses == [1.0, 1.0]


def test_weak_etag_is_not_used_as_version(server, tmp_path, pauses):
    server.faults = [{"drop", "weak tag"}, {"ignore if-range", "weak tag"}]
    assert fetch(remote(server), tmp_path, sleep=pauses.append).read_bytes() == CONTENT
    assert server.requests[1]["If-Range"] == "Thu, 01 Jan 2026 00:00:00 GMT"
    assert len(server.requests) == 2


def test_partial_download_is_resumed_by_the_next_call(server, tmp_path):
    server.faults = [{"drop"}]
    with pytest.raises(DownloadError, match="524,288 bytes are kept"):
        fetch(remote(server), tmp_path, attempts=1)
    assert leftovers(tmp_path) == ["archive.tar.part", "archive.tar.part.version"]
    fetch(remote(server), tmp_path, attempts=1)
    assert server.requests[1]["Range"] == f"bytes={len(CONTENT) // 2}-"
    assert (tmp_path / "archive.tar").read_bytes() == CONTENT


def test_complete_part_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "archive.tar.part").write_bytes(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == []


def test_complete_part_of_unknown_size_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "archive.tar.part").write_bytes(CONTENT)
    assert fetch(remote(server, size=None), tmp_path).read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize(
    "second",
    [
        {"ignore range"},
        {"ignore range", "no tag"},
        {"change"},
        {"change", "no tag"},
        {"change", "ignore if-range"},
        {"wrong place"},
        {"416"},
    ],
    ids=lambda faults: " and ".join(sorted(faults)),
)
def test_part_that_cannot_be_resumed_restarts(server, tmp_path, pauses, second):
    server.faults = [{"drop"}, second]
    content = OTHER if "change" in second else CONTENT
    fetch(remote(server, content), tmp_path, sleep=pauses.append)
    assert (tmp_path / "archive.tar").read_bytes() == content
    assert leftovers(tmp_path) == ["archive.tar"]


def test_part_that_is_too_long_restarts(server, tmp_path, pauses):
    (tmp_path / "archive.tar.part").write_bytes(CONTENT + b"more")
    assert fetch(remote(server), tmp_path, sleep=pauses.append).read_bytes() == CONTENT


def test_part_without_version_or_checksum_restarts(server, tmp_path, pauses):
    server.faults = [{"drop", "no tag"}, {"no tag", "change"}]
    path = fetch(RemoteFile(server.url), tmp_path, sleep=pauses.append)
    assert path.read_bytes() == OTHER
    assert "Range" not in server.requests[1]


def test_joined_versions_fail_the_checksum(server, tmp_path, pauses):
    server.faults = [{"drop", "no tag"}, {"no tag", "change"}]
    with pytest.raises(DownloadError, match="wrong checksum"):
        fetch(remote(server, OTHER), tmp_path, sleep=pauses.append)
    assert leftovers(tmp_path) == []
    assert fetch(remote(server, OTHER), tmp_path).read_bytes() == OTHER


@pytest.mark.parametrize("codes", [["503"], ["500", "429"], ["503"] * 4])
def test_retryable_codes_back_off_exponentially(server, tmp_path, pauses, codes):
    server.faults = [{code} for code in codes]
    assert fetch(remote(server), tmp_path, sleep=pauses.append).read_bytes() == CONTENT
    assert pauses == [2.0**index for index in range(len(codes))]


def test_retries_end_after_attempts(server, tmp_path, pauses):
    server.faults = [{"503"}] * 9
    with pytest.raises(DownloadError, match="gave up because the server answered 503"):
        fetch(remote(server), tmp_path, attempts=3, sleep=pauses.append)
    assert len(server.requests) == 3
    assert pauses == [1.0, 2.0]


def test_backoff_is_capped(server, tmp_path, pauses):
    server.faults = [{"503"}] * 9
    fetch(remote(server), tmp_path, attempts=10, sleep=pauses.append)
    assert pauses[-3:] == [30.0, 30.0, 30.0]


def test_only_new_bytes_reset_the_attempts(server, tmp_path, pauses):
    server.faults = [{"drop", "ignore range"}] * 20
    with pytest.raises(DownloadError, match="gave up"):
        fetch(remote(server), tmp_path, attempts=3, sleep=pauses.append)
    assert len(server.requests) == 3


def test_not_found_is_not_retried(server, tmp_path):
    server.faults = [{"404"}]
    with pytest.raises(DownloadError, match="404 Not Found"):
        fetch(remote(server), tmp_path)
    assert len(server.requests) == 1


def test_refused_connection_is_retried(tmp_path, pauses):
    with Server() as server:
        file = remote(server)
    with pytest.raises(DownloadError, match="no connection"):
        fetch(file, tmp_path, attempts=2, sleep=pauses.append)
    assert pauses == [1.0]


@pytest.mark.parametrize("by_type", [True, False])
def test_web_page_is_not_saved_as_the_file(server, tmp_path, by_type):
    server.content = CONTENT if by_type else PAGE
    server.faults = [{"html"}] if by_type else []
    with pytest.raises(DownloadError, match="web page"):
        fetch(RemoteFile(server.url), tmp_path)
    assert leftovers(tmp_path) == []


def test_web_page_keeps_the_partial_download(server, tmp_path, pauses):
    server.faults = [{"drop"}, {"html", "ignore range"}]
    with pytest.raises(DownloadError, match="web page"):
        fetch(remote(server), tmp_path, sleep=pauses.append)
    assert (tmp_path / "archive.tar.part").read_bytes() == CONTENT[: len(CONTENT) // 2]


def test_truncated_file_raises(server, tmp_path):
    server.faults = [{"truncate"}]
    with pytest.raises(DownloadError, match="1,048,576 bytes, but the server has 524,288"):
        fetch(remote(server), tmp_path)
    server.faults = [{"truncate"}]
    with pytest.raises(DownloadError, match="wrong checksum"):
        fetch(remote(server, size=None), tmp_path)
    assert leftovers(tmp_path) == []


def test_published_size_detects_truncation_without_content_length(server, tmp_path, pauses):
    server.faults = [{"truncate", "no length"}]
    assert fetch(remote(server), tmp_path, sleep=pauses.append).read_bytes() == CONTENT
    assert server.requests[1]["Range"] == f"bytes={len(CONTENT) // 2}-"


@pytest.mark.parametrize("known", [{"size": 1000}, {"size": None}])
def test_download_is_cut_at_the_known_length(server, tmp_path, monkeypatch, known):
    monkeypatch.setattr("driftproof.data.download._MAX_UNKNOWN_LENGTH", 1000)
    monkeypatch.setattr("driftproof.data.download._CHUNK", 4096)
    server.content = CONTENT * 20
    server.faults = [{"no length"}]
    received = []
    with pytest.raises(DownloadError, match="at most 1,000 bytes, but the server sends more"):
        fetch(remote(server, **known), tmp_path, progress=lambda done, _: received.append(done))
    assert not received
    assert leftovers(tmp_path) == []


def test_length_that_is_no_number_is_an_error(server, tmp_path, pauses):
    server.faults = [{"nonsense length"}]
    with pytest.raises(DownloadError, match="a length in bytes, but got 'nonsense'"):
        fetch(remote(server), tmp_path, sleep=pauses.append)
    assert leftovers(tmp_path) == []


def test_encrypted_address_must_not_lead_to_a_plain_one(server, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "driftproof.data.download.Request",
        lambda url, headers: Request(url.replace("https:", "http:"), headers=headers),
    )
    with pytest.raises(DownloadError, match="stay encrypted, but it leads to http:"):
        fetch(RemoteFile(server.url.replace("http:", "https:")), tmp_path)
    assert leftovers(tmp_path) == []


def test_empty_response_is_retried(server, tmp_path, pauses):
    server.faults = [{"no length"}] * 2
    server.content = CONTENT[:1]
    file = RemoteFile(server.url)
    assert fetch(file, tmp_path / "one").read_bytes() == CONTENT[:1]
    server.faults = [{"truncate", "no length"}] * 2
    with pytest.raises(DownloadError, match="sent nothing"):
        fetch(file, tmp_path / "none", attempts=2, sleep=pauses.append)


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_wrong_checksum_deletes_the_download(server, tmp_path, algorithm):
    known = {"sha256": None, algorithm: hashlib.new(algorithm, OTHER).hexdigest()}
    with pytest.raises(DownloadError, match=f"wrong checksum.*{algorithm}"):
        fetch(remote(server, **known), tmp_path)
    assert leftovers(tmp_path) == []


def test_first_download_records_its_checksum(server, tmp_path):
    file = RemoteFile(server.url)
    path = fetch(file, tmp_path)
    record = tmp_path / "archive.tar.sha256"
    assert record.read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  archive.tar\n"
    path.unlink()
    server.content = OTHER
    with pytest.raises(DownloadError, match=r"expected by .*archive\.tar\.sha256"):
        fetch(file, tmp_path)
    record.unlink()
    assert fetch(file, tmp_path).read_bytes() == OTHER


def test_manual_files_cannot_be_downloaded(tmp_path):
    for file in (DATASETS["imagenet"].files[0], RemoteFile("file:///etc/hostname")):
        with pytest.raises(DownloadError, match="by hand"):
            fetch(file, tmp_path)
    with pytest.raises(ConfigurationError, match="attempts"):
        fetch(DATASETS["cifar10"].files[0], tmp_path, attempts=0)


def test_download_error_is_a_driftproof_error_and_an_os_error():
    assert issubclass(DownloadError, DriftproofError)
    assert issubclass(DownloadError, OSError)


# unpack


def make_tar(path, *members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for member in members:
            name, content, *link = member
            info = tarfile.TarInfo(name)
            if link:
                info.type, info.linkname = link
            info.size = 0 if link else len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_zip(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz", "w:xz"])
def test_archives_are_unpacked(tmp_path, kind):
    members = [("set/a.npy", b"a"), ("set/deep/b.npy", b"b"), ("./README", b"read")]
    archive = tmp_path / "archive"
    created = unpack(
        make_zip(archive, *members) if kind == "zip" else make_tar(archive, *members, mode=kind),
        tmp_path / "new" / "root",
    )
    root = tmp_path / "new" / "root"
    assert created == [root / "README", root / "set"]
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert files == {"set/a.npy": b"a", "set/deep/b.npy": b"b", "README": b"read"}


def test_several_archives_share_a_folder(tmp_path):
    for part in ("noise", "blur"):
        unpack(make_tar(tmp_path / f"{part}.tar", (f"{part}/a", b"a")), tmp_path / "ImageNet-C")
    assert leftovers(tmp_path / "ImageNet-C") == ["blur", "noise"]


def test_tar_that_ends_in_a_zip_is_a_tar(tmp_path):
    inner = make_zip(tmp_path / "inner.zip", ("inside", b"x")).read_bytes()
    unpack(make_tar(tmp_path / "outer.tar", ("inner.zip", inner)), tmp_path / "root")
    assert (tmp_path / "root" / "inner.zip").read_bytes() == inner


UNSAFE = {
    "absolute": [("/harm", b"x")],
    "parent": [("fine/a", b"x"), ("../harm", b"x")],
    "hidden parent": [("fine/../../harm", b"x")],
    "drive": [("c:/harm", b"x")],
    "backslashes": [("..\\harm", b"x")],
    "symbolic link": [("link", b"", tarfile.SYMTYPE, ".."), ("link/harm", b"x")],
    "absolute link": [("link", b"", tarfile.SYMTYPE, "/etc")],
    "hard link": [("link", b"", tarfile.LNKTYPE, "../secret")],
    "device": [("device", b"", tarfile.CHRTYPE, "")],
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_unsafe_members_are_not_unpacked(tmp_path, kind):
    (tmp_path / "secret").write_text("secret")
    archives = [make_tar(tmp_path / "a.tar", *UNSAFE[kind])]
    if all(len(member) == 2 for member in UNSAFE[kind]):
        archives.append(make_zip(tmp_path / "a.zip", *UNSAFE[kind]))
    for archive in archives:
        with pytest.raises(DownloadError, match=archive.name):
            unpack(archive, tmp_path / "root")
        assert leftovers(tmp_path / "root") == []
    assert not list(tmp_path.rglob("harm"))


def test_damaged_archives_leave_nothing(tmp_path):
    members = [(f"set/{index}", CONTENT[:99999]) for index in range(3)]
    for whole in (make_tar(tmp_path / "a.tar", *members), make_tar(tmp_path / "a.gz", *members, mode="w:gz")):
        written = whole.read_bytes()
        whole.write_bytes(written[: len(written) // 2])
        with pytest.raises(DownloadError, match=whole.name):
            unpack(whole, tmp_path / "root")
    flipped = bytearray(make_zip(tmp_path / "a.zip", *members).read_bytes())
    flipped[1000] ^= 255
    (tmp_path / "a.zip").write_bytes(flipped)
    (tmp_path / "text").write_text("neither")
    for name, message in (("a.zip", "CRC"), ("text", "neither a tar nor a zip")):
        with pytest.raises(DownloadError, match=message):
            unpack(tmp_path / name, tmp_path / "root")
    assert leftovers(tmp_path / "root") == []


def test_unpack_keeps_existing_entries(tmp_path):
    archive = make_tar(tmp_path / "a.tar", ("new", b"x"), ("set/a", b"x"))
    (tmp_path / "root" / "set").mkdir(parents=True)
    (tmp_path / "root" / "set" / "mine").touch()
    with pytest.raises(DownloadError, match="exists already"):
        unpack(archive, tmp_path / "root")
    assert leftovers(tmp_path / "root") == ["set"]
    assert leftovers(tmp_path / "root" / "set") == ["mine"]


# verify


def test_verify_distinguishes_five_states(tmp_path):
    contents = {"whole": b"12", "long": b"123", "other": b"21", "unknown": b"??", "md5": b"12"}
    for name, content in contents.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
    (tmp_path / "unpacked").mkdir()
    digest = hashlib.sha256(b"12").hexdigest()
    files = [RemoteFile(f"http://x/{name}.tar", 2, digest) for name in ("whole", "long", "other", "gone")]
    files += [
        RemoteFile("http://x/unknown.tar"),
        RemoteFile("http://x/md5.tar", 2, md5=hashlib.md5(b"12").hexdigest()),
        RemoteFile("http://x/deleted.tar", 2, digest, unpacks_to=("unpacked",)),
        RemoteFile("http://x/half.tar", 2, digest, unpacks_to=("unpacked", "not unpacked")),
    ]
    found = verify(DatasetInfo("mine", tuple(files), "none", "http://x"), tmp_path)
    assert {finding.file: finding.state for finding in found} == {
        "whole.tar": "present",
        "long.tar": "wrong length",
        "other.tar": "wrong checksum",
        "gone.tar": "missing",
        "unknown.tar": "unchecked",
        "md5.tar": "present",
        "deleted.tar": "unchecked",
        "half.tar": "missing",
    }
    assert found[0] == FileCheck("whole.tar", "present", "sha256 as expected")
    assert found[5].detail == "md5 as expected; no sha256 is published, and md5 does not reveal a forged file"


def test_verify_finds_files_in_the_folder_of_the_set(tmp_path):
    digest = hashlib.sha256(b"12").hexdigest()
    source = DatasetInfo("mine", (RemoteFile("http://x/a.mat", 2, digest),), "none", "http://x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.mat").write_bytes(b"12")
    assert verify(source, tmp_path)[0].state == "present"


def test_verify_uses_the_recorded_checksum(tmp_path):
    source = DatasetInfo("mine", (RemoteFile("http://x/a.tar"),), "none", "http://x")
    (tmp_path / "a.tar").write_bytes(b"12")
    (tmp_path / "a.tar.sha256").write_text(f"{hashlib.sha256(b'12').hexdigest()}  a.tar\n")
    assert verify(source, tmp_path)[0].state == "present"
    (tmp_path / "a.tar").write_bytes(b"21")
    assert verify(source, tmp_path)[0].state == "wrong checksum"


# The registry


def test_dataset_registry_is_consistent():
    assert all(name == entry.name and entry.license and entry.homepage for name, entry in DATASETS.items())
    files = [file for entry in DATASETS.values() for file in entry.files]
    assert len({file.name for file in files}) == len(files)
    for file in files:
        assert file.url.startswith("https://")
        assert len(file.md5) == 32
        assert file.sha256 is None or len(file.sha256) == 64
        assert int(file.md5 + (file.sha256 or ""), 16)
        assert (file.unpacks_in is None) == file.name.endswith(".mat")
        assert {str(PurePosixPath(unpacked).parent) for unpacked in file.unpacks_to} <= {file.unpacks_in}


def test_datasets_say_where_only_md5_is_known():
    weak = {name for name, entry in DATASETS.items() if any(file.sha256 is None for file in entry.files)}
    assert weak == {name for name, entry in DATASETS.items() if "MD5" in entry.note}


def test_unknown_dataset_raises_with_suggestion():
    assert get_dataset_info("svhn") is DATASETS["svhn"]
    with pytest.raises(ConfigurationError, match=r"'cifr10'.*cifar10"):
        get_dataset_info("cifr10")


# The command line


def tar_bytes(folder, name):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=name)
    return buffer.getvalue()


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_manual_file_is_checked_but_not_unpacked(tmp_path, monkeypatch, capsys):
    unpacked = tmp_path / "1.JPEG"
    unpacked.write_bytes(b"a picture")
    content = tar_bytes(unpacked, "1.JPEG")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "val.tar").write_bytes(content)
    file = RemoteFile("https://example.org/val.tar", len(content), unpacks_to=("val",), manual=True)
    monkeypatch.setitem(
        DATASETS, "by-hand", DatasetInfo("by-hand", (file,), "CC0", "http://x", note="Sort it into val.")
    )
    assert run("data", "get", "by-hand", "--data", tmp_path / "root") == 0
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["val.tar"]
    assert "Sort it into val." in capsys.readouterr().err


def test_verify_of_a_missing_folder_fails(tmp_path, capsys):
    assert run("data", "verify", "--data", tmp_path / "mistyped") == 2
    assert "mistyped" in capsys.readouterr().err


def test_data_get_survives_a_bad_connection(server, tmp_path, monkeypatch, capsys):
    unpacked = tmp_path / "made"
    unpacked.mkdir()
    np.save(unpacked / "images.npy", np.zeros((50, 32, 32, 3), dtype=np.uint8))
    np.save(unpacked / "labels.npy", np.arange(50) % 7)
    server.content = tar_bytes(unpacked, "Set-C")
    server.faults = [{"503"}, {"drop"}, {"drop"}]
    file = remote(server, server.content, unpacks_to=("Set-C",))
    monkeypatch.setitem(DATASETS, "set-c", DatasetInfo("set-c", (file,), license="CC0", homepage="http://127.0.0.1"))
    monkeypatch.setitem(fetch.__kwdefaults__, "sleep", lambda _: None)
    root = tmp_path / "root"
    assert run("data", "verify", "set-c", "--data", root) == 1
    assert run("data", "verify", "--data", root) == 2, "an empty folder is not a verified one"
    assert "but found none" in capsys.readouterr().err
    assert run("data", "get", "set-c", "--data", root) == 0
    assert len(server.requests) == 4
    assert len(array_folder(root / "Set-C")) == 50
    assert run("data", "verify", "set-c", "--data", root) == 0
    assert "present" in capsys.readouterr().out
    assert run("data", "get", "set-c", "--data", root) == 0
    assert len(server.requests) == 4, "nothing is downloaded twice"


def test_data_get_reports_a_web_page(server, tmp_path, monkeypatch, capsys):
    server.content = PAGE
    file = RemoteFile(server.url, unpacks_to=("Set-C",))
    monkeypatch.setitem(DATASETS, "set-c", DatasetInfo("set-c", (file,), license="CC0", homepage="http://127.0.0.1"))
    server.faults = [{"html"}]
    assert run("data", "get", "set-c", "--data", tmp_path) == 2
    assert "web page" in capsys.readouterr().err
    assert leftovers(tmp_path) == []


def test_archive_that_unpacks_to_far_more_than_its_length_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("driftproof.data.unpacking._MIN_UNPACKED", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/zeros", bytes(10_000_000))
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("bomb/zeros")
        entry.size = 10_000_000
        archive.addfile(entry, io.BytesIO(bytes(10_000_000)))
    for name in ("bomb.zip", "bomb.tar.gz"):
        with pytest.raises(DownloadError, match=rf"{name} .* more than 100 times its length"):
            unpack(tmp_path / name, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
