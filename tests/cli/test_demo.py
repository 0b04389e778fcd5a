"""The demo from end to end, with few files; and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from fencepost import App
from fencepost.demo import audit, jobs
from fencepost.demo.audit import Enqueued
from fencepost.store import Database
from tests.cli.conftest import Run, Start
from tests.jobs import claim_one


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"starts \(process (\d+)\)", text)]


def test_it_kills_a_worker_and_its_audit_holds(start: Start, project: Path) -> None:
    process = start("demo", "--files", "40", "--database", "demo.db", NO_COLOR="1")
    out, err = process.communicate(timeout=150)
    said = out.decode()
    assert (process.returncode, err) == (0, b""), said
    assert "kill -9 worker 1" in said
    for expected in (
        "41 jobs enqueued, 41 acknowledged, 41 of these in the database",
        "41 succeeded, 0 failed, 0 otherwise",
        "4 jobs were to fail at first, 4 were tried again",
        "2 jobs were delayed, 0 of them came early",
        "40 rows in the application's own table for 40 jobs, 40 exactly once",
        "40 SHA-256 agree",
        "Nothing acknowledged was lost",
    ):
        assert expected in said
    died = re.search(r"(\d+) attempts died with the killed worker; (\d+) of these jobs were run again", said)
    assert died is not None
    assert int(died[1]) == int(died[2]) > 0
    assert "WRONG" not in said
    assert len(pids(said)) == 3
    assert not any(is_alive(pid) for pid in pids(said))
    with sqlite3.connect(project / "demo.db") as conn:
        assert conn.execute("SELECT count(*), count(DISTINCT job_id) FROM demo_files").fetchone() == (40, 40)
    conn.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_ends_every_process_and_removes_its_folder(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = start("demo", TMPDIR=str(folder), PYTHONUNBUFFERED="1")
    said = read_until(process, "jobs are enqueued")
    assert list(folder.iterdir())
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    hired = pids(said + out.decode())
    assert len(hired) >= 2
    assert not any(is_alive(pid) for pid in hired)
    assert list(folder.iterdir()) == []


def test_a_file_that_is_there_is_not_touched(run: Run, project: Path) -> None:
    (project / "mine.db").write_text("precious")
    ended = run("demo", "--database", "mine.db")
    assert ended.code == 1
    assert "exists already" in ended.err
    assert (project / "mine.db").read_text() == "precious"


class TestTheAudit:
    """It finds what is wrong: a check that cannot fail proves nothing."""

    @pytest.fixture
    def app(self, tmp_path: Path) -> object:
        app = App(f"sqlite:///{tmp_path / 'audit.db'}")
        with app.store.transaction() as conn:
            jobs.files.create(conn)
        yield app
        app.close()

    def enqueue(self, app: App, tmp_path: Path) -> Enqueued:
        source = tmp_path / "source.py"
        source.write_text("a = 1\nb = 2\n")
        built = [
            jobs.count_file.build(path=str(source)),
            jobs.digest_files.build(paths=[str(source)]),
        ]
        counting, digest = (handle.id for handle in app.enqueue_many(built))
        return Enqueued(2, {counting: str(source)}, frozenset(), frozenset(), digest)

    def failed(self, app: App, enqueued: Enqueued) -> str:
        return "\n".join(check.said for check in audit.audit(app, enqueued, [], "nobody") if not check.is_kept)

    def run(self, app: App, enqueued: Enqueued, *, times: int = 1, lines: int = 2) -> None:
        (path,) = enqueued.files.values()
        figures = jobs.figures_of(path)._replace(lines=lines)
        claim = claim_one(app.store, "demo.count_file")
        with app.store.transaction() as conn:
            for _ in range(times):
                conn.execute(jobs.files.insert().values(job_id=claim.id, path=path, **figures._asdict()))
        assert app.store.complete(claim)
        whole = jobs.digest_files([path])
        assert app.store.complete(claim_one(app.store, "demo.digest_files"), whole)

    def test_a_good_run_passes_but_for_the_worker_that_was_not_killed(self, app: App, tmp_path: Path) -> None:
        enqueued = self.enqueue(app, tmp_path)
        self.run(app, enqueued)
        assert self.failed(app, enqueued).startswith("0 attempts died")
        assert "\n" not in self.failed(app, enqueued)

    def test_a_row_that_was_stored_twice_is_found(self, app: App, tmp_path: Path) -> None:
        enqueued = self.enqueue(app, tmp_path)
        self.run(app, enqueued, times=2)
        assert "2 rows in the application's own table for 1 jobs, 0 exactly once" in self.failed(app, enqueued)

    def test_a_wrong_count_is_found(self, app: App, tmp_path: Path) -> None:
        enqueued = self.enqueue(app, tmp_path)
        self.run(app, enqueued, lines=3)
        assert "in the table 3 lines" in self.failed(app, enqueued)
        assert "counted directly 2 lines" in self.failed(app, enqueued)

    def test_a_lost_job_and_an_unfinished_one_are_found(self, app: App, tmp_path: Path) -> None:
        enqueued = self.enqueue(app, tmp_path)
        app.store.database.write(
            lambda conn: conn.exec_driver_sql(f"DELETE FROM fencepost_jobs WHERE id = '{next(iter(enqueued.files))}'")
        )
        failed = self.failed(app, enqueued)
        assert "2 acknowledged, 1 of these in the database" in failed
        assert "0 succeeded, 0 failed, 1 otherwise" in failed


def read_until(process: subprocess.Popen[bytes], text: str) -> str:
    """What the process prints, up to a text."""
    assert process.stdout is not None
    seen = b""
    while text.encode() not in seen:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, f"nothing more came: {seen.decode()}"
        more = os.read(process.stdout.fileno(), 4096)
        assert more, f"it ended: {seen.decode()}"
        seen += more
    return seen.decode()


def test_the_jobs_module_can_be_imported_anywhere() -> None:
    assert isinstance(jobs.app.store.database, Database)
    assert jobs.app.store.database.in_memory
