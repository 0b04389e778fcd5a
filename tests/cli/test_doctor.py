"""The doctor finds each condition, says what to do, and tells a problem by its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

import fencepost
from fencepost.cli import targets
from fencepost.ids import new_id
from fencepost.job import Options
from fencepost.schedule import Every, NewSchedule
from fencepost.store import Database, Pass, PassReport, Store, diagnosis, schema
from fencepost.store.diagnosis import Finding, Level, diagnose
from fencepost.store.dialects import mysql_settings, postgres_settings, sqlite_settings
from fencepost.testing import VirtualClock
from tests.cli.conftest import Run
from tests.jobs import MINUTE, SECOND, claim_one, empty_database, new, overwrite, put

MEGABYTES_6 = 6 * 1024 * 1024


def found(store: Store, check: str, **how: Any) -> Finding:
    """The one finding of a check."""
    findings = diagnose(store.database, payload_bytes=MEGABYTES_6, **how)
    (finding,) = [finding for finding in findings if finding.check == check]
    assert (finding.do is None) == (finding.level is Level.OK)
    return finding


def report_worker(store: Store, *, owner: str = "h:1:aa", kinds: str = '["k"]', **changed: Any) -> None:
    described = {"owner": owner, "host": "h", "pid": 1, "concurrency": 10, "running": 0, "lease": 30_000_000}
    store.record_worker(
        described | {"kinds": kinds, "queues": None, "labels": None, "started_at": store.now()} | changed
    )


class TestTheCommand:
    def test_all_is_well_is_exit_code_0_and_nothing_to_do(self, run: Run, at: str) -> None:
        ended = run("doctor", "--url", at)
        assert ended.code == 0
        assert "All is well." in ended.out
        assert "->" not in ended.out

    def test_a_problem_is_exit_code_1_with_what_to_do(self, run: Run, at: str, kept: Store) -> None:
        put(kept)
        ended = run("doctor", "--url", at)
        assert ended.code == 1
        assert "1 job is ready, and no worker is alive (none is known)." in ended.out
        assert "-> Start one: fencepost worker APP" in ended.out
        assert "1 problem, 0 warnings." in ended.out

    def test_a_warning_alone_is_exit_code_0(self, run: Run, at: str, kept: Store) -> None:
        put(kept, queue="mail")
        kept.set_paused("mail", paused=True)
        ended = run("doctor", "--url", at, "--json")
        assert (ended.code, ended.json["level"]) == (0, "warning")

    def test_its_json_is_an_object_with_every_finding(self, run: Run, at: str) -> None:
        answer = run("doctor", "--url", at, "--json", "--integrity").json
        assert answer["level"] == "ok"
        checks = [finding["check"] for finding in answer["findings"]]
        assert len(checks) == len(set(checks))
        assert {"database", "clock", "schema", "workers", "leases", "due", "paused", "quarantine"} < set(checks)
        assert all(finding.keys() == {"check", "level", "what", "do"} for finding in answer["findings"])

    @pytest.mark.parametrize("database_name", ["mysql"], indirect=True)
    def test_the_apps_own_payload_limit_is_what_the_packet_is_judged_by(self, run: Run, at: str, project: Path) -> None:
        for number, most in enumerate((1024, 1024**3)):
            module = f"limit_{number}_{new_id().replace('-', '')}"
            (project / f"{module}.py").write_text(
                f"import fencepost\napp = fencepost.App({at!r}, max_payload_bytes={most})\n"
            )
            answer = run("doctor", "--app", f"{module}:app", "--json").json
            (packet,) = [finding for finding in answer["findings"] if finding["check"] == "packet"]
            assert packet["level"] == ("ok", "warning")[number]

    def test_a_file_that_is_not_there_is_a_problem_and_is_not_made(self, run: Run, tmp_path: Path) -> None:
        ended = run("doctor", "--url", f"sqlite:///{tmp_path}/none.db", "--json")
        assert ended.code == 1
        (finding,) = ended.json["findings"]
        assert (finding["check"], finding["level"]) == ("database", "problem")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
    def test_a_server_that_does_not_answer_is_a_problem(
        self, run: Run, scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(targets, "_PATIENCE_SECONDS", 0.0)
        ended = run("doctor", "--url", f"{scheme}://nobody:secret@127.0.0.1:1/jobs")
        assert ended.code == 1
        assert "cannot be used" in ended.out
        assert "secret" not in ended.out

    def test_no_database_named_is_a_usage_error(self, run: Run) -> None:
        assert run("doctor").code == 2


class TestTheTables:
    @pytest.fixture
    def bare(self, database_name: str, tmp_path: Path) -> Iterator[Store]:
        """A store on a database without tables."""
        with empty_database(database_name, tmp_path) as url:
            store = Store(Database(url), migrates=False)
            yield store
            store.close()

    def test_missing_old_and_newer_are_told_apart(self, bare: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = found(bare, "schema")
        assert missing.level is Level.PROBLEM
        assert missing.what == "There are no fencepost tables."
        assert missing.do is not None
        assert "fencepost migrate" in missing.do

        bare.migrate()
        assert found(bare, "schema").level is Level.OK

        with monkeypatch.context() as patched:
            patched.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9000"))
            old = found(bare, "schema")
        assert old.level is Level.PROBLEM
        assert "this build needs 9000" in old.what

        bare.database.write(lambda conn: conn.exec_driver_sql("UPDATE fencepost_schema SET version_num = '9999'"))
        newer = found(bare, "schema")
        assert newer.level is Level.PROBLEM
        assert "newer than this build knows" in newer.what
        assert newer.do is not None
        assert "Upgrade fencepost" in newer.do

    def test_jobs_are_not_looked_at_in_tables_of_another_version(self, bare: Store) -> None:
        checks = {finding.check for finding in diagnose(bare.database, payload_bytes=MEGABYTES_6)}
        assert "leases" not in checks


class TestTheClock:
    @pytest.mark.parametrize(("seconds", "word"), [(3600.0, "behind"), (-3600.0, "ahead of")])
    def test_a_skew_is_reported_with_its_direction(self, url: URL, seconds: float, word: str) -> None:
        plain = Store(Database(url), migrates=False)
        now = plain.now()
        plain.close()

        class Skewed:
            def now(self) -> int:
                return now + int(seconds * 1_000_000)

        skewed = Store(Database(url, clock=Skewed()), migrates=False)
        finding = found(skewed, "clock")
        skewed.close()
        assert finding.level is Level.WARNING
        assert f"s {word} the database's" in finding.what

    def test_clocks_that_agree_are_fine(self, kept: Store) -> None:
        assert found(kept, "clock").level is Level.OK


class TestTheLeader:
    def lead(self, store: Store, *passes: Pass) -> None:
        found = store.lead("h:1:aa")
        assert found is not None
        store.record_passes(found, [PassReport(name, 0, 0) for name in passes])

    def test_who_leads_is_named_with_since_when_and_the_epoch(self, store: Store, clock: VirtualClock) -> None:
        assert found(store, "leader").level is Level.OK
        self.lead(store)
        clock.advance(4)
        finding = found(store, "leader")
        assert finding.level is Level.OK
        assert finding.what == "h:1:aa leads the planners for 4 s (since 2026-01-01 00:00:00 UTC), epoch 1."

    def test_nobody_who_leads_though_workers_live_is_a_warning(self, store: Store, clock: VirtualClock) -> None:
        self.lead(store)
        started = store.now()
        report_worker(store)
        clock.advance(9)
        assert found(store, "leader").level is Level.OK, "one that has just started takes the lead within moments"
        clock.advance(2)
        finding = found(store, "leader")
        assert finding.level is Level.WARNING
        assert "1 worker is alive, and nobody leads the planners (the last renewal was 11 s ago)" in finding.what
        clock.advance(60)
        assert store.now() - started > 60 * SECOND
        assert found(store, "leader").level is Level.OK, "no worker is alive"

    def test_a_pass_that_has_not_succeeded_for_long_is_a_warning(self, store: Store, clock: VirtualClock) -> None:
        for _ in range(20):
            self.lead(store, Pass.MATERIALISE, Pass.PROMOTE, Pass.TOKENS, Pass.TURNS, Pass.PERMITS)
            assert found(store, "passes").level is Level.OK
            clock.advance(3)
        for _ in range(20):
            self.lead(store, Pass.PERMITS, Pass.TURNS, Pass.TOKENS, Pass.PROMOTE)
            clock.advance(3)
        self.lead(store)
        finding = found(store, "passes")
        assert finding.level is Level.WARNING
        assert "materialise (63 s ago); reclaim (never)" in finding.what


class TestTheJobs:
    def test_ready_jobs_without_a_living_worker_are_a_problem(self, store: Store, clock: VirtualClock) -> None:
        assert found(store, "workers").level is Level.OK
        put(store)
        report_worker(store)
        assert found(store, "workers").level is Level.OK
        clock.advance(121)
        finding = found(store, "workers")
        assert finding.level is Level.PROBLEM
        assert "1 job is ready, and no worker is alive (the last one reported 2 min ago)" in finding.what
        assert "1 worker stopped reporting" in finding.what

    def test_jobs_that_no_living_worker_serves_are_a_warning(self, store: Store) -> None:
        put(store, kind="k", queue="mail")
        report_worker(store)
        assert found(store, "unserved").level is Level.OK
        put(store, kind="unknown", queue="mail")
        put(store, kind="unknown", queue="mail")
        finding = found(store, "unserved")
        assert finding.level is Level.WARNING
        assert "2 of kind 'unknown' in queue 'mail'" in finding.what
        report_worker(store, kinds='["k", "unknown"]', queues='["other"]')
        assert "1 of kind 'k' in queue 'mail'" in found(store, "unserved").what

    def test_what_keeps_jobs_from_every_living_worker_is_named_by_line(self, store: Store) -> None:
        needs = {"gpu": '{"gpu":"a100"}', "both": '{"gpu":"a100","zone":"eu"}', "broken": "[7"}
        put(store, "k", labels=needs["gpu"])
        report_worker(store, labels=needs["gpu"])
        assert found(store, "unserved").level is Level.OK
        put(store, "k", labels=needs["both"])
        put(store, "k", labels=needs["broken"])
        put(store, "stranger")
        put(store, "other", queue="mail")
        report_worker(store, owner="h:2:bb", kinds='["other"]', queues='["bulk"]', labels=needs["both"])
        said = found(store, "unserved").what
        assert (
            "1 of kind 'k' in queue 'default' with the labels gpu=a100, zone=eu (no such worker has the labels)" in said
        )
        assert "1 of kind 'k' in queue 'default' with the labels [7 (no such worker has the labels)" in said
        assert "1 of kind 'stranger' in queue 'default' (no worker registers the kind)" in said
        assert "1 of kind 'other' in queue 'mail' (no worker that registers the kind serves the queue)" in said
        assert "with the labels gpu=a100 (" not in said
        store.set_paused("default", paused=True)
        assert "kind 'k'" not in found(store, "unserved").what

    def test_the_apps_health_tells_of_jobs_that_no_living_worker_can_take(self, app: fencepost.App) -> None:
        put(app.store, "k", labels='{"gpu":"a100"}')
        report_worker(app.store)
        (finding,) = [one for one in app.health().findings if one.check == "unserved"]
        assert (finding.level, "gpu=a100" in finding.what) == (Level.WARNING, True)

    def test_a_schedule_whose_jobs_need_labels_that_nobody_has_is_a_warning(self, store: Store) -> None:
        options = Options(labels='{"gpu":"a100"}')
        store.save_schedule(NewSchedule("nightly", "k", "{}", options, Every(MINUTE, 0)))
        report_worker(store)
        finding = found(store, "schedule-kinds")
        assert "'nightly' (kind 'k' in queue 'default' with the labels gpu=a100)" in finding.what
        report_worker(store, labels='{"gpu":"a100"}')
        assert found(store, "schedule-kinds").level is Level.OK

    def test_many_ready_jobs_are_counted_no_further_than_it_matters(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(diagnosis, "_MOST_COUNTED", 3)
        store.enqueue([new(kind) for kind in ("a", "b") for _ in range(3)])
        assert "over 3 jobs are ready, and no worker is alive" in found(store, "workers").what
        report_worker(store)
        assert "3 of kind 'a' in queue" in found(store, "unserved").what
        put(store, "a")
        put(store, "a")
        assert "over 3 of kind 'a' in queue" in found(store, "unserved").what

    def test_a_lease_that_nobody_takes_back_is_a_problem(self, store: Store, clock: VirtualClock) -> None:
        put(store)
        claim_one(store, lease=30)
        clock.advance(35)
        assert found(store, "leases").level is Level.OK  # a living planner may be on its way
        clock.advance(120)
        finding = found(store, "leases")
        assert finding.level is Level.PROBLEM
        assert "1 job is running by name only" in finding.what
        assert "2 min ago" in finding.what

    def test_due_jobs_that_nobody_makes_ready_are_a_problem(self, store: Store, clock: VirtualClock) -> None:
        put(store, delay=MINUTE)
        assert found(store, "due").level is Level.OK
        clock.advance(75)
        finding = found(store, "due")
        assert finding.level is Level.PROBLEM
        assert "1 job is due for up to 15 s" in finding.what

    def test_jobs_in_paused_queues_are_a_warning_and_no_reason_to_start_a_worker(
        self, store: Store, clock: VirtualClock
    ) -> None:
        store.set_paused("mail", paused=True)
        assert found(store, "paused").level is Level.OK
        put(store, queue="mail")
        clock.advance(7200)
        finding = found(store, "paused")
        assert finding.level is Level.WARNING
        assert "'mail' (1 job, paused 2 h ago)" in finding.what
        assert found(store, "workers").level is Level.OK

    def test_quarantined_jobs_are_a_warning_for_a_week(self, store: Store, clock: VirtualClock) -> None:
        job_id = put(store).id
        overwrite(store, job_id, options="{broken")
        assert store.claim("me", kinds=["k"]) == []
        finding = found(store, "quarantine")
        assert finding.level is Level.WARNING
        assert "1 job failed as undecodable" in finding.what
        clock.advance(8 * 86_400)
        assert found(store, "quarantine").level is Level.OK

    def test_looking_changes_nothing(self, store: Store, clock: VirtualClock) -> None:
        job_id = put(store).id
        claim_one(store)
        clock.advance(3600)
        before = store.get(job_id)
        diagnose(store.database, payload_bytes=MEGABYTES_6, is_thorough=True)
        assert store.get(job_id) == before


def judged(findings: list[Finding], check: str) -> Finding | None:
    return next((finding for finding in findings if finding.check == check), None)


class TestSQLite:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "jobs.db"

    def store_on(self, file: Path, **options: Any) -> Store:
        store = Store(Database(f"sqlite:///{file}", **options), migrates=True)
        store.ensure_schema()
        return store

    def test_files_that_others_may_read_are_a_warning(self, file: Path) -> None:
        store = self.store_on(file)
        assert found(store, "permissions").level is Level.OK
        companion = Path(f"{file}-wal")
        companion.chmod(0o644)
        finding = found(store, "permissions")
        store.close()
        assert finding.level is Level.WARNING
        assert f"{companion} (644)" in finding.what
        assert finding.do is not None
        assert f"chmod 600 {companion}" in finding.do

    def test_synchronous_normal_is_a_warning(self, file: Path) -> None:
        store = self.store_on(file, synchronous="NORMAL")
        finding = found(store, "synchronous")
        store.close()
        assert finding.level is Level.WARNING
        assert "synchronous is NORMAL" in finding.what

    def test_the_integrity_is_checked_when_asked_for(self, file: Path) -> None:
        store = self.store_on(file)
        assert judged(diagnose(store.database, payload_bytes=1), "integrity") is None
        assert found(store, "integrity", is_thorough=True).level is Level.OK
        store.close()

    def test_a_damaged_file_is_a_problem(self, file: Path, run: Run) -> None:
        store = self.store_on(file)
        for _ in range(50):
            put(store, arguments=f'"{"x" * 2000}"')
        store.close()
        with file.open("r+b") as opened:
            opened.seek(6 * 4096)
            opened.write(b"\xa5" * 8 * 4096)
        assert run("doctor", "--url", f"sqlite:///{file}", "--integrity").code == 1

    def test_a_journal_that_is_no_wal_and_damage_are_told(self) -> None:
        findings = sqlite_settings.judge({"journal_mode": "delete", "synchronous": "2", "quick_check": "row 1 missing"})
        journal, integrity = judged(findings, "journal"), judged(findings, "integrity")
        assert journal is not None
        assert journal.level is Level.WARNING
        assert integrity is not None
        assert integrity.level is Level.PROBLEM
        assert "row 1 missing" in integrity.what


POSTGRES = {
    "server_version": "16.2",
    "server_version_num": "160002",
    "transaction_isolation": "read committed",
    "server_encoding": "UTF8",
    "fsync": "on",
    "synchronous_commit": "on",
    "in_recovery": "False",
}
MARIADB = {
    "version": "10.6.16-MariaDB-log",
    "tx_isolation": "READ-COMMITTED",
    "character_set_connection": "utf8mb4",
    "max_allowed_packet": "16777216",
    "innodb_flush_log_at_trx_commit": "1",
    "read_only": "OFF",
    "engine": "InnoDB",
    "collation": "utf8mb4_bin",
}


class TestSettings:
    def test_good_settings_are_fine(self) -> None:
        findings = postgres_settings.judge(POSTGRES) + mysql_settings.judge(MARIADB, payload_bytes=MEGABYTES_6)
        assert {finding.level for finding in findings} == {Level.OK}

    @pytest.mark.parametrize(
        ("changed", "check", "level"),
        [
            ({"server_version_num": "120017", "server_version": "12.17"}, "version", Level.PROBLEM),
            ({"transaction_isolation": "serializable"}, "isolation", Level.WARNING),
            ({"server_encoding": "SQL_ASCII"}, "encoding", Level.PROBLEM),
            ({"fsync": "off"}, "durability", Level.WARNING),
            ({"synchronous_commit": "off"}, "durability", Level.WARNING),
            ({"in_recovery": "True"}, "read-only", Level.PROBLEM),
        ],
    )
    def test_postgresql(self, changed: dict[str, str], check: str, level: Level) -> None:
        finding = judged(postgres_settings.judge(POSTGRES | changed), check)
        assert finding is not None
        assert finding.level is level
        assert finding.do

    @pytest.mark.parametrize(
        ("changed", "check", "level"),
        [
            ({"version": "10.5.23-MariaDB"}, "version", Level.PROBLEM),
            ({"version": "5.5.5-10.5.23-MariaDB"}, "version", Level.PROBLEM),
            ({"version": "8.0.15"}, "version", Level.PROBLEM),
            ({"version": "5.7.44-log"}, "version", Level.PROBLEM),
            ({"tx_isolation": "REPEATABLE-READ"}, "isolation", Level.WARNING),
            ({"character_set_connection": "latin1"}, "encoding", Level.PROBLEM),
            ({"collation": "utf8mb3_general_ci"}, "encoding", Level.PROBLEM),
            ({"max_allowed_packet": "4194304"}, "packet", Level.WARNING),
            ({"engine": "MyISAM"}, "engine", Level.PROBLEM),
            ({"innodb_flush_log_at_trx_commit": "2"}, "durability", Level.WARNING),
            ({"read_only": "ON"}, "read-only", Level.PROBLEM),
        ],
    )
    def test_mariadb_and_mysql(self, changed: dict[str, str], check: str, level: Level) -> None:
        finding = judged(mysql_settings.judge(MARIADB | changed, payload_bytes=MEGABYTES_6), check)
        assert finding is not None
        assert finding.level is level
        assert finding.do

    @pytest.mark.parametrize("version", ["8.0.16", "8.4.0", "11.4.2-MariaDB-ubu2404", "5.5.5-10.6.0-MariaDB"])
    def test_new_enough_versions(self, version: str) -> None:
        finding = judged(mysql_settings.judge(MARIADB | {"version": version}, payload_bytes=1), "version")
        assert finding is not None
        assert finding.level is Level.OK

    def test_the_packet_that_is_needed_is_named(self) -> None:
        finding = judged(
            mysql_settings.judge(MARIADB | {"max_allowed_packet": "1048576"}, payload_bytes=MEGABYTES_6), "packet"
        )
        assert finding is not None
        assert finding.do is not None
        assert f"SET GLOBAL max_allowed_packet = {2 * MEGABYTES_6 + 65_536}," in finding.do
