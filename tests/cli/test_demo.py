"""The demo from end to end, with few files; and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fencepost import App
from fencepost.demo import audit, jobs, timetable
from fencepost.demo.audit import Enqueued
from fencepost.job import Claim
from fencepost.store import Database
from fencepost.testing import VirtualClock
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
        "worker 2 is stopped (SIGTERM) and has ended: no worker is left",
        "0 ran at the same time",
        "Nothing acknowledged was lost",
    ):
        assert expected in said
    died = re.search(r"(\d+) attempts died with the killed worker; (\d+) of these jobs were run again", said)
    assert died is not None
    assert int(died[1]) == int(died[2]) > 0
    beat = re.search(r"'beat': (\d+) seconds from its first to its last, (\d+) occurrences, (\d+) of them ran", said)
    assert beat is not None
    assert beat[1] == beat[2] == beat[3]
    slow = re.search(r"'slow': of (\d+) occurrences (\d+) ran and (\d+) were skipped", said)
    assert slow is not None
    assert int(slow[1]) == int(slow[2]) + int(slow[3])
    assert int(slow[3]) > 0
    punctual = re.search(r"'punctual': of (\d+) seconds (\d+) ran and (\d+) were missed", said)
    assert punctual is not None
    assert int(punctual[1]) == int(punctual[2]) + int(punctual[3])
    assert int(punctual[3]) > 0
    assert "WRONG" not in said
    assert len(pids(said)) == 4
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


class TestTheTimetable:
    """Nor does it pass over what schedules did wrong."""

    START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())

    @pytest.fixture
    def app(self, tmp_path: Path) -> Iterator[App]:
        """Eight seconds: at the second one `slow` still runs, and from the third to the sixth nothing plans."""
        clock = VirtualClock()
        app = App(f"sqlite:///{tmp_path / 'timetable.db'}", clock=clock)

        @app.job(kind="demo.record_run")
        def record_run(seconds: float = 0) -> None: ...

        with app.store.transaction() as conn:
            jobs.runs.create(conn)
        app.schedules.upsert(jobs.BEAT, record_run, every=1)
        app.schedules.upsert(jobs.SLOW, record_run, every=1, overlap="skip")
        app.schedules.upsert(jobs.PUNCTUAL, record_run, every=1, misfire="skip", grace=1)
        claims: list[Claim] = []
        for seconds, ends in ((1, {jobs.BEAT, jobs.PUNCTUAL}), (1, set(jobs.SCHEDULES)), (6, set(jobs.SCHEDULES))):
            clock.advance(seconds)
            app.store.materialise_due()
            claims += app.store.claim("me", kinds=["demo.record_run"], limit=100)
            for claim in [claim for claim in claims if claim.schedule in ends]:
                assert claim.schedule is not None
                assert claim.scheduled_for is not None
                self.record(app, claim.schedule, claim.scheduled_for / 1_000_000, token=claim.fencing_token)
                assert app.store.complete(claim)
                claims.remove(claim)
        yield app
        app.close()

    def record(self, app: App, schedule: str, started: float, *, token: int | None = None) -> None:
        row = {"schedule": schedule, "scheduled_for": int(started), "started": started, "ended": started + 0.5}
        with app.store.transaction() as conn:
            conn.execute(jobs.runs.insert().values(**row, fencing_token=token))

    def failed(self, app: App) -> list[str]:
        return [check.said for check in timetable.audit_schedules(app) if not check.is_kept]

    def test_a_good_run_passes(self, app: App) -> None:
        assert self.failed(app) == []
        assert timetable.has_overlapped(app)
        assert timetable.has_missed(app)

    def test_an_instant_that_ran_twice_is_found(self, app: App) -> None:
        for schedule in (jobs.BEAT, jobs.PUNCTUAL):
            self.record(app, schedule, self.START + 2)
        beat, punctual = self.failed(app)
        assert "8 occurrences, 7 of them ran exactly once" in beat
        assert "'punctual'" in punctual

    def test_an_instant_that_was_passed_over_is_found(self, app: App) -> None:
        gone = self.START + 7
        with app.store.transaction() as conn:
            conn.exec_driver_sql(
                f"DELETE FROM fencepost_jobs WHERE scheduled_for = {gone * 1_000_000} AND schedule <> 'slow'"
            )
            conn.exec_driver_sql(f"DELETE FROM demo_runs WHERE scheduled_for = {gone}")
        beat, punctual = self.failed(app)
        assert "8 seconds from its first to its last, 7 occurrences" in beat
        assert "of 8 seconds 3 ran and 4 were missed" in punctual

    def test_two_that_ran_at_once_and_a_token_that_went_back_are_found(self, app: App) -> None:
        self.record(app, jobs.SLOW, self.START + 1.2, token=1)
        (said,) = self.failed(app)
        assert "1 ran at the same time; the fencing token grew 1 of 2 times" in said


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
