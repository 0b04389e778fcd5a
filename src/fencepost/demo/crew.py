"""The demo's worker processes: started, frozen, killed, and all of them ended at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from fencepost.demo.jobs import QUEUE, SCHEDULE_QUEUE, URL_VARIABLE
from fencepost.errors import FencepostError

__all__ = ["CONCURRENCY", "LEASE_SECONDS", "Crew", "WorkerProcess"]

LEASE_SECONDS = 2
CONCURRENCY = 4
_GRACE_SECONDS = 5
_END_SECONDS = 10.0


class WorkerProcess:
    """One `fencepost worker` in a process and a session of its own.

    Args:
        number: for people.
        url: of the database.
        log: the file that takes what it says.
    """

    def __init__(self, number: int, url: str, log: Path) -> None:
        self.name = f"worker {number}"
        self.log = log
        command = [sys.executable, "-m", "fencepost.cli", "worker", "fencepost.demo.jobs:app"]
        command += ["--queue", QUEUE, "--queue", SCHEDULE_QUEUE, "--concurrency", str(CONCURRENCY), "--processes", "1"]
        command += ["--lease", str(LEASE_SECONDS), "--grace", str(_GRACE_SECONDS)]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the demo alone, which then ends its workers itself.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                env=os.environ | {URL_VARIABLE: url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise FencepostError where it has ended by itself."""
        if not self.is_running:
            said = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise FencepostError(f"{self.name} ended by itself with exit code {self._process.returncode}: {said}")

    def freeze(self) -> bool:
        """Stop it where it stands, and return when it stands. False: it has ended."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.is_running:
            self._process.terminate()

    def end(self) -> None:
        """Wait until it has stopped; kill it, and the processes that it started, if it does not."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


class Crew:
    """The workers of one demo. As a context manager it ends every one of them, whatever happens.

    Args:
        url: of the database.
        folder: for their logs.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.workers: list[WorkerProcess] = []

    def hire(self) -> WorkerProcess:
        """Start one more."""
        number = len(self.workers) + 1
        worker = WorkerProcess(number, self._url, self._folder / f"worker-{number}.log")
        self.workers.append(worker)
        return worker

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.end()
