"""The server of `serve_load.py` as a process: start, kill, restart, and what it keeps."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

__all__ = ["ServerProcess"]

_START = "from driftproof.cli import main; main()"
_READY = 120.0


class ServerProcess:
    """A server on a port of this machine.

    Args:
        folder: Holds its state, token and log.
        words: Words of the command, after `driftproof serve`.
        port: The port.
        save_every: Save the state after so many batches.

    Attributes:
        address: Where it is.
        token: Its token.
    """

    def __init__(self, folder: Path, words: list[str], port: int, save_every: int = 20) -> None:
        self.folder, self.port = folder, port
        self.address = f"http://127.0.0.1:{port}"
        self.token = "token-of-the-load-test"
        self.state = folder / "state.safetensors"
        (folder / "token").write_text(self.token)
        kept = ["--state", str(self.state), "--resume", "--save-every", str(save_every)]
        self._words = [*words, *kept, "--token-file", str(folder / "token"), "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process; return the seconds until it is ready."""
        started = time.perf_counter()
        with (self.folder / "server.log").open("ab") as log:
            command = [sys.executable, "-c", _START, "serve", *self._words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        deadline = time.monotonic() + _READY
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"The server ended with code {self._process.returncode}: {self.read_log()}")
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return time.perf_counter() - started
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"The server is not ready after {_READY:g} s: {self.read_log()}")

    def stop(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=_READY)

    def restart(self, number: signal.Signals) -> dict[str, Any]:
        """End the process with a signal and start it again from its state."""
        began = time.perf_counter()
        code = self.stop(number)
        saved = self.count_batches(self.state)
        self.start()
        seconds = time.perf_counter() - began
        status, content = self.request("GET", "/state", headers=self.authorized)
        assert status == 200
        path = self.folder / "downloaded.safetensors"
        path.write_bytes(content)
        found = self.count_batches(path)
        return {
            "signal": number.name,
            "exit_code": code,
            "seconds_down": round(seconds, 2),
            "batches_in_snapshot": saved,
            "batches_after_restart": found,
            "continued": found >= saved > 0,
        }

    @property
    def authorized(self) -> dict[str, str]:
        """Headers with the token."""
        return {"Authorization": f"Bearer {self.token}"}

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name and labels."""
        lines = self.request("GET", "/metrics")[1].decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] not in ("", "#")}

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return 1024 * int(line.split()[1])

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_log(self) -> str:
        """Return what the process printed."""
        return (self.folder / "server.log").read_text(errors="replace")

    @staticmethod
    def count_batches(path: Path) -> int:
        """Return how many batches a state has seen."""
        with safe_open(path, "pt") as file:
            meta = json.loads(bytes(file.get_tensor("meta").tolist()))
        return int(meta["counters"]["index"])
