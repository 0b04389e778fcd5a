"""Running commands in this process, as `fencepost` does, and in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from sqlalchemy import URL

from fencepost.cli.main import main
from fencepost.ids import new_id
from fencepost.store import Store

TASKS = """
import fencepost
app = fencepost.App({url!r})

@app.job(kind="send", queue="mail")
async def send(user_id: int, text: str = "") -> str:
    return f"sent to {{user_id}}"

@app.job(kind="crash", max_attempts=1)
def crash(text: str) -> None:
    raise RuntimeError(text)

@app.job(kind="burn", executor="process")
def burn(n: int) -> int:
    return sum(range(n))
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON value that it is."""
        return json.loads(self.out)


class Run(Protocol):
    """Runs a command line in this process."""

    def __call__(self, *arguments: str) -> Ended: ...


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FENCEPOST_URL", "FENCEPOST_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`main()` as the console script calls it."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call


@pytest.fixture
def at(url: URL) -> str:
    """The database's URL as a command takes it."""
    return url.render_as_string(hide_password=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is the current directory. Modules that are imported from it are forgotten afterwards."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    before, path = set(sys.modules), list(sys.path)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def tasks(project: Path, at: str) -> str:
    """An app with handlers, on the test's database, as APP."""
    name = f"tasks_{new_id().replace('-', '')}"
    (project / f"{name}.py").write_text(TASKS.format(url=at))
    return f"{name}:app"


@pytest.fixture
def kept(url: URL) -> Iterator[Store]:
    """A store on the test's database and its own clock, which the commands use too."""
    from fencepost.store import Database

    store = Store(Database(url), migrates=False)
    yield store
    store.close()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Starts commands in processes of their own, with pipes; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def call(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=project,
            env=os.environ | environment,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
