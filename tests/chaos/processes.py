"""Real processes: workers and producers that a test starts, signals, and always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from sqlalchemy import URL

import fencepost
from tests.chaos.handlers import URL_VARIABLE
from tests.chaos.journal import JOURNAL_VARIABLE, Journal
from tests.waiting import until

__all__ = ["Crew", "Process", "is_running"]

_ROOT = Path(__file__).resolve().parents[2]
_TROUBLE = ("Traceback", "ERROR", "CRITICAL", "Warning", "database is locked", "Deadlock", "deadlock")


class Process:
    """One started process and what it said."""

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path, name: str) -> None:
        self.name = name
        self._said = folder / f"{name}.stderr"
        self._answered = folder / f"{name}.stdout"
        with self._said.open("wb") as stderr, self._answered.open("wb") as stdout:
            self._popen = self._start(arguments, environment, stdout, stderr)

    @staticmethod
    def _start(
        arguments: list[str], environment: dict[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", *arguments], env=environment, stdout=stdout, stderr=stderr, cwd=_ROOT
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def said(self) -> str:
        """Its stderr so far: the log."""
        return self._said.read_text()

    @property
    def answered(self) -> str:
        """Its stdout so far."""
        return self._answered.read_text()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self._popen.kill()
        self._popen.wait(10)

    def exit_code(self, *, within: float) -> int:
        """Wait for its end.

        Raises:
            AssertionError: it goes on.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(within)
        raise AssertionError(f"{self.name} did not end within {within:g} s; it said:\n{self.said}")

    def trouble(self) -> list[str]:
        """The lines of its log that nobody should see in a calm run."""
        return [line for line in self.said.splitlines() if any(word in line for word in _TROUBLE)]

    def end(self) -> None:
        """End it, whatever state it is in."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGCONT)
            self._popen.kill()
            self._popen.wait(10)
        for line in self.answered.splitlines():
            if line.startswith("pid "):  # a process that it forked off, and may have left behind
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[1]), signal.SIGKILL)


class Crew:
    """The processes of one test, all on one database and one journal."""

    def __init__(self, url: URL, folder: Path) -> None:
        self.journal = Journal(folder / "journal.jsonl")
        self.folder = folder
        self.environment = os.environ | {
            URL_VARIABLE: url.render_as_string(hide_password=False),
            JOURNAL_VARIABLE: str(self.journal.path),
        }
        self._processes: list[Process] = []

    def run(self, module: str, *arguments: object) -> Process:
        """Start `python -m tests.chaos.<module>`."""
        name = f"{module}-{len(self._processes)}"
        command = ["-m", f"tests.chaos.{module}", *map(str, arguments)]
        process = Process(command, self.environment, self.folder, name)
        self._processes.append(process)
        return process

    def worker(self, **options: object) -> Process:
        """Start a worker. Options as in `worker_main`."""
        arguments: list[object] = []
        for option, value in options.items():
            arguments.append(f"--{option.replace('_', '-')}")
            if value is not True:
                arguments.append(value)
        return self.run("worker_main", *arguments)

    def working(self, app: fencepost.App, **options: object) -> Process:
        """Start a worker and wait until it says that it works."""
        worker = self.worker(**options)
        self.await_working(app, worker)
        return worker

    def await_working(self, app: fencepost.App, *workers: Process) -> None:
        """Wait until these workers have recorded themselves."""
        wanted = {worker.pid for worker in workers}

        def ready() -> bool:
            for worker in workers:
                assert worker.is_alive, f"{worker.name} ended:\n{worker.said}"
            return wanted <= {recorded.pid for recorded in app.store.list_workers()}

        until(ready, f"workers {sorted(wanted)} work", seconds=30, look=0.05)

    def end(self) -> None:
        """End everything that was started."""
        for process in self._processes:
            process.end()


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
