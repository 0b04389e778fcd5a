"""Every operator's command, on every database: what it does, what it prints, its exit code."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fencepost import Priority, State
from fencepost.ids import new_id
from fencepost.store import Store
from tests.cli.conftest import Run
from tests.jobs import MINUTE, claim_one, new, put


def ids(text: str) -> list[str]:
    """The first word of each line after the head."""
    return [line.split()[0] for line in text.splitlines()[1:]]


class TestJobsList:
    def test_it_lists_newest_first_with_whole_ids(self, run: Run, at: str, kept: Store) -> None:
        made = [put(kept, kind="send", queue="mail").id for _ in range(3)]
        ended = run("jobs", "list", "--url", at)
        assert ended.code == 0
        assert ids(ended.out) == made[::-1]
        assert ended.out.splitlines()[0].split() == ["ID", "STATE", "KIND", "QUEUE", "TRY", "WHEN", "NOTE"]

    def test_its_json_is_an_array_with_instants_in_utc(self, run: Run, at: str, kept: Store) -> None:
        made = put(kept, kind="send", key="k-1", tags=("a",), tenant="t", priority=Priority.HIGH)
        ended = run("jobs", "list", "--url", at, "--json")
        (job,) = ended.json
        assert (job["id"], job["kind"], job["state"], job["key"]) == (made.id, "send", "ready", "k-1")
        assert (job["tags"], job["tenant"], job["priority"]) == (["a"], "t", "high")
        assert job["created_at"].endswith("Z")
        assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)
        assert not {"arguments", "result", "history"} & job.keys()  # a listing does not load them
        assert not ended.err

    def test_its_filters_choose(self, run: Run, at: str, kept: Store) -> None:
        wanted = put(kept, kind="a", queue="q", key="key", tenant="t").id
        later = put(kept, kind="b", queue="r", delay=MINUTE).id
        for option in (["--kind", "a"], ["--queue", "q"], ["--key", "key"], ["--tenant", "t"], ["--state", "ready"]):
            assert ids(run("jobs", "list", "--url", at, *option).out) == [wanted]
        both = run("jobs", "list", "--url", at, "--state", "ready", "--state", "scheduled").out
        assert ids(both) == [later, wanted]

    def test_labels_choose_and_are_shown(self, run: Run, at: str, kept: Store) -> None:
        wanted = put(kept, labels='{"gpu":"a100","zone":"eu"}').id
        put(kept, labels='{"gpu":"a100"}')
        ended = run("jobs", "list", "--url", at, "--label", "zone=eu", "--label", "gpu=a100")
        assert ids(ended.out) == [wanted]
        assert "needs gpu=a100, zone=eu" in ended.out
        assert run("jobs", "list", "--url", at, "--label", "zone=us").out == ""
        assert "gpu=a100, zone=eu" in run("jobs", "show", wanted, "--url", at).out
        assert run("jobs", "show", wanted, "--url", at, "--json").json["labels"] == {"gpu": "a100", "zone": "eu"}

    def test_what_is_no_label_is_not_understood(self, run: Run, at: str) -> None:
        for wrong, says in ((["gpu"], "Write NAME=VALUE"), (["a=1", "a=2"], "given twice")):
            ended = run("jobs", "list", "--url", at, *(part for text in wrong for part in ("--label", text)))
            assert ended.code == 2
            assert says in ended.err

    def test_a_full_page_says_how_to_see_the_next(self, run: Run, at: str, kept: Store) -> None:
        made = [put(kept).id for _ in range(3)]
        first = run("jobs", "list", "--url", at, "--limit", "2")
        assert ids(first.out) == [made[2], made[1]]
        assert f"--before {made[1]}" in first.err
        assert ids(run("jobs", "list", "--url", at, "--limit", "2", "--before", made[1]).out) == [made[0]]

    def test_nothing_found_is_said_on_stderr_alone(self, run: Run, at: str) -> None:
        ended = run("jobs", "list", "--url", at)
        assert (ended.code, ended.out, ended.err) == (0, "", "No jobs.\n")
        assert run("jobs", "list", "--url", at, "--json").json == []

    def test_a_state_that_is_none_is_a_usage_error(self, run: Run, at: str) -> None:
        ended = run("jobs", "list", "--url", at, "--state", "sleeping")
        assert ended.code == 2
        assert "Invalid value for '--state': 'sleeping' is not one of" in ended.err
        assert "succeeded" in ended.err


class TestJobsShow:
    def test_it_shows_a_failed_job_whole(self, run: Run, at: str, kept: Store) -> None:
        made = put(kept, kind="send", arguments='{"user_id": 7}')
        kept.abandon(claim_one(kept, "send", owner="host:1:aa"), "Traceback (most recent call last)\nValueError: no")
        ended = run("jobs", "show", made.id, "--url", at)
        assert ended.code == 0
        for expected in (made.id, "failed", "abandoned", '{"user_id": 7}', "ValueError: no", "host:1:aa", "1 of 20"):
            assert expected in ended.out

    def test_its_json_is_an_object_with_everything(self, run: Run, at: str, kept: Store) -> None:
        made = put(kept, kind="send", arguments='{"user_id": 7}')
        kept.complete(claim_one(kept, "send"), {"n": [1, 2.5, None, "é"]})
        job = run("jobs", "show", made.id, "--url", at, "--json").json
        assert job["arguments"] == {"user_id": 7}
        assert job["result"] == {"n": [1, 2.5, None, "é"]}
        assert job["state"] == "succeeded"
        assert datetime.fromisoformat(job["finished_at"]) >= datetime.fromisoformat(job["created_at"])

    def test_an_id_in_capitals_and_without_hyphens_is_found(self, run: Run, at: str, kept: Store) -> None:
        made = put(kept)
        assert run("jobs", "show", made.id.upper().replace("-", ""), "--url", at, "--json").json["id"] == made.id

    def test_an_unknown_job_and_no_id_at_all_are_told_in_one_line(self, run: Run, at: str) -> None:
        for job_id in (new_id(), "nonsense"):
            ended = run("jobs", "show", job_id, "--url", at)
            assert ended.code == 1
            assert not ended.out
            assert ended.err.startswith("fencepost: ")
            assert ended.err.count("\n") == 1
            assert job_id in ended.err


class TestJobsStarts:
    def test_it_tells_the_share_that_was_kept_of_the_last_hour(self, run: Run, at: str, kept: Store) -> None:
        assert "No job with a fixed start" in run("jobs", "starts", "--url", at).out
        put(kept, start_at=kept.now(), tolerance=60_000_000)
        kept.complete(claim_one(kept))
        assert run("jobs", "starts", "--url", at).out.startswith("100.0% of fixed starts were kept: 1 kept")
        assert run("jobs", "starts", "--within", "1h30m", "--url", at, "--json").json["kept"] == 1


class TestJobsRetry:
    def test_failed_jobs_are_ready_again(self, run: Run, at: str, kept: Store) -> None:
        made = [put(kept).id for _ in range(2)]
        for claim in kept.claim("me", kinds=["k"], limit=2):
            kept.abandon(claim, "no")
        ended = run("jobs", "retry", *made, "--url", at)
        assert ended.code == 0
        assert ended.out.count("ready again") == 2
        assert kept.states_of(made) == dict.fromkeys(made, State.READY)

    def test_one_that_cannot_be_retried_does_not_keep_the_others(self, run: Run, at: str, kept: Store) -> None:
        live, failed, unknown = put(kept, kind="live").id, put(kept).id, new_id()
        kept.abandon(claim_one(kept), "no")
        ended = run("jobs", "retry", live, unknown, failed, "--url", at)
        assert ended.code == 1
        assert "only failed, cancelled and skipped jobs can be retried" in ended.err
        assert f"No job {unknown}" in ended.err
        assert ended.out == f"{failed} is ready again.\n"

    def test_a_newer_job_with_the_same_key_is_named(self, run: Run, at: str, kept: Store) -> None:
        old = put(kept, key="same").id
        kept.abandon(claim_one(kept), "no")
        newer = put(kept, key="same").id
        ended = run("jobs", "retry", old, "--url", at, "--json")
        assert ended.json == [{"id": old, "retried": False, "live": newer}]
        assert "holds its key" in run("jobs", "retry", old, "--url", at).out


class TestJobsCancel:
    def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_soon(self, run: Run, at: str, kept: Store) -> None:
        waiting, running = put(kept, kind="w").id, put(kept).id
        claim_one(kept)
        ended = run("jobs", "cancel", waiting, running, "--url", at)
        assert ended.code == 0
        assert ended.out == f"{waiting} is cancelled.\n{running} is running and will be stopped.\n"
        assert kept.states_of([waiting]) == {waiting: State.CANCELLED}

    def test_a_final_job_stays_as_it_is_and_an_unknown_one_fails(self, run: Run, at: str, kept: Store) -> None:
        done = put(kept).id
        kept.complete(claim_one(kept))
        ended = run("jobs", "cancel", done, new_id(), "--url", at, "--json")
        assert ended.code == 1
        first, second = ended.json
        assert first == {"id": done, "cancelled": False}
        assert "No job" in second["error"]


class TestJobsEnqueue:
    def test_it_prints_the_id_of_a_job_with_all_that_was_asked(self, run: Run, tasks: str, kept: Store) -> None:
        options = ["--queue", "q", "--priority", "high", "--delay", "1h30m", "--key", "k", "--tenant", "t"]
        options += ["--tag", "a", "--tag", "b", "--label", "gpu=a=1", "--timeout", "10", "--max-attempts", "3"]
        ended = run("jobs", "enqueue", tasks, "send", '{"user_id": 7}', *options)
        assert ended.code == 0
        job = kept.get(ended.out.strip())
        assert job is not None
        assert (job.kind, job.queue, job.priority, job.key, job.tenant) == ("send", "q", "high", "k", "t")
        assert (job.arguments, job.tags, job.max_attempts) == ({"user_id": 7}, ("a", "b"), 3)
        assert job.labels == {"gpu": "a=1"}
        assert timedelta(minutes=89) < job.run_at - job.created_at < timedelta(minutes=91)

    def test_a_live_job_with_the_same_key_is_named_instead(self, run: Run, tasks: str) -> None:
        first = run("jobs", "enqueue", tasks, "send", '{"user_id": 7}', "--key", "k", "--json").json
        second = run("jobs", "enqueue", tasks, "send", '{"user_id": 8}', "--key", "k")
        assert first["created"] is True
        assert second.out.strip() == first["id"]
        assert "No second job" in second.err
        third = run("jobs", "enqueue", tasks, "send", '{"user_id": 8}', "--key", "k", "--json").json
        assert third == {"id": first["id"], "created": False}

    def test_instants_are_taken_with_their_zone(self, run: Run, tasks: str, kept: Store) -> None:
        ended = run(
            *("jobs", "enqueue", tasks, "send", '{"user_id": 7}'),
            *("--run-at", "2099-01-31T08:00:00+02:00", "--deadline", "2099-02-01T00:00:00Z"),
        )
        job = kept.get(ended.out.strip())
        assert job is not None
        assert job.run_at.isoformat() == "2099-01-31T06:00:00+00:00"
        assert job.deadline is not None

    @pytest.mark.parametrize(
        ("arguments", "options", "code", "said"),
        [
            ('{"user": 7}', [], 1, "user_id is missing"),
            ('{"user_id": "x"}', [], 1, "user_id"),
            ("{user_id: 7}", [], 2, "no JSON"),
            ("[7]", [], 2, "JSON object"),
            ('{"user_id": 7}', ["--delay", "soon"], 2, "no duration"),
            ('{"user_id": 7}', ["--run-at", "2099-01-01T00:00:00"], 2, "no time zone"),
            ('{"user_id": 7}', ["--run-at", "tomorrow"], 2, "no instant"),
            ('{"user_id": 7}', ["--queue", " q "], 1, "queue"),
        ],
    )
    def test_what_cannot_be_is_refused_and_nothing_is_stored(
        self, run: Run, tasks: str, kept: Store, arguments: str, options: list[str], code: int, said: str
    ) -> None:
        ended = run("jobs", "enqueue", tasks, "send", arguments, *options)
        assert ended.code == code
        assert said in ended.err
        assert kept.list_jobs() == []

    def test_an_unknown_kind_is_told_with_the_known_ones(self, run: Run, tasks: str) -> None:
        ended = run("jobs", "enqueue", tasks, "sned")
        assert ended.code == 1
        assert "'sned'" in ended.err
        assert "burn, crash, send" in ended.err


class TestQueues:
    def test_they_are_paused_and_resumed_and_listed(self, run: Run, at: str, kept: Store) -> None:
        put(kept, queue="mail")
        put(kept, queue="mail", delay=MINUTE)
        assert run("queues", "pause", "mail", "--url", at).out == "mail is paused; 1 job ready in it.\n"
        (queue,) = run("queues", "list", "--url", at, "--json").json
        assert (queue["name"], queue["ready"], queue["scheduled"], queue["running"]) == ("mail", 1, 1, 0)
        assert queue["paused_since"].endswith("Z")
        assert kept.claim("me", kinds=["k"]) == []
        resumed = run("queues", "resume", "mail", "--url", at, "--json").json
        assert resumed == {"queue": "mail", "paused": False, "ready": 1}
        assert "mail   1      0        1" in run("queues", "list", "--url", at).out
        assert len(kept.claim("me", kinds=["k"])) == 1

    def test_settings_and_weights_are_written_and_shown(self, run: Run, at: str, kept: Store) -> None:
        said = run("queues", "set", "mail", "--fair", "--max-pending", "10", "--overflow", "shed_oldest", "--url", at)
        assert said.out == "mail: fair, at most 10 pending, shed_oldest.\n"
        assert run("queues", "set", "mail", "--overflow", "wait", "--wait", "5s", "--url", at).code == 0
        (queue,) = run("queues", "list", "--url", at, "--json").json
        assert (queue["fair"], queue["max_pending"], queue["overflow"], queue["shed"]) == (True, 10, "wait", 0)
        settings = kept.queue_settings("mail")
        assert settings is not None
        assert settings.wait == 5_000_000
        assert run("queues", "weight", "mail", "acme", "2.5", "--url", at).out == "mail: acme 2.5; all others 1.\n"
        weights = run("queues", "weight", "mail", "other", "0.5", "--url", at, "--json").json
        assert weights == {"queue": "mail", "fair": True, "weights": {"acme": 2.5, "other": 0.5}}
        assert run("queues", "weight", "mail", "acme", "0", "--url", at).code == 1
        plain = run("queues", "set", "mail", "--plain", "--max-pending", "0", "--url", at)
        assert plain.out == "mail: first come, first served, any number of jobs.\n"
        assert "weights mean nothing" in run("queues", "weight", "mail", "acme", "--url", at).out

    def test_a_name_that_no_queue_has_is_refused(self, run: Run, at: str) -> None:
        assert run("queues", "pause", " ", "--url", at).code == 1


class TestWorkers:
    def test_the_living_and_the_silent_are_told_apart(self, run: Run, at: str, kept: Store) -> None:
        now = kept.now()
        described = {
            "host": "h",
            "pid": 7,
            "concurrency": 10,
            "running": 3,
            "lease": 30_000_000,
            "queues": None,
            "kinds": '["a", "b"]',
        }
        kept.record_worker(described | {"owner": "h:7:living", "started_at": now, "labels": '{"gpu":"a100"}'})
        kept.record_worker(described | {"owner": "h:8:silent", "started_at": now, "queues": '["mail"]'})
        long_ago = now - 10 * MINUTE
        kept.database.write(
            lambda conn: conn.exec_driver_sql(
                f"UPDATE fencepost_workers SET seen_at = {long_ago} WHERE owner = 'h:8:silent'"
            )
        )
        found = {worker["owner"]: worker for worker in run("workers", "list", "--url", at, "--json").json}
        assert found["h:7:living"]["alive"] is True
        assert found["h:8:silent"]["alive"] is False
        assert found["h:7:living"]["kinds"] == ["a", "b"]
        assert found["h:7:living"]["leads_since"] is None
        listed = run("workers", "list", "--url", at).out
        assert "h:7:living  alive   3/10" in listed
        assert "gpu=a100" in listed
        assert (found["h:7:living"]["labels"], found["h:8:silent"]["labels"]) == ({"gpu": "a100"}, {})
        kept.lead("h:7:living", lease=60)
        found = {worker["owner"]: worker for worker in run("workers", "list", "--url", at, "--json").json}
        assert found["h:7:living"]["epoch"] == 1
        assert found["h:7:living"]["leads_since"].endswith("Z")
        assert (found["h:8:silent"]["leads_since"], found["h:8:silent"]["epoch"]) == (None, None)
        assert re.search(r"h:7:living +alive +3/10 +\d+s ago, epoch 1 ", run("workers", "list", "--url", at).out)
        assert "10m ago" in listed
        assert kept.forget_silent_workers() == 0  # for a day they are of interest
        assert kept.forget_silent_workers(300) == 1


class TestUpkeep:
    def test_prune_deletes_only_what_ended_long_ago(self, run: Run, at: str, kept: Store) -> None:
        live = put(kept, kind="live").id
        done = put(kept).id
        kept.complete(claim_one(kept))
        assert run("prune", "--older-than", "7d", "--url", at).out == "0 jobs deleted.\n"
        assert run("prune", "--older-than", "0s", "--url", at, "--json").json == {"deleted": 1}
        assert set(kept.states_of([live, done])) == {live}

    def test_prune_takes_a_state_a_queue_and_a_count(self, run: Run, at: str, kept: Store) -> None:
        for queue in ("a", "a", "a", "b"):
            put(kept, queue=queue)
            kept.complete(claim_one(kept))
        assert run("prune", "--keep", "1", "--queue", "a", "--url", at).out == "2 jobs deleted.\n"
        assert run("prune", "--older-than", "0s", "--state", "failed", "--url", at).out == "0 jobs deleted.\n"
        assert run("prune", "--older-than", "0s", "--state", "succeeded", "--url", at).out == "2 jobs deleted.\n"
        refused = run("prune", "--older-than", "0s", "--state", "ready", "--url", at)
        assert refused.code == 1
        assert "Only final jobs are pruned" in refused.err
        assert run("prune", "--url", at).code == 2

    def test_prune_wants_a_unit(self, run: Run, at: str) -> None:
        for text in ("7", "a week", "-1d", ""):
            ended = run("prune", "--older-than", text, "--url", at)
            assert ended.code == 2
            assert "duration" in ended.err

    def test_migrating_twice_does_nothing_the_second_time(self, run: Run, at: str) -> None:
        ended = run("migrate", "--url", at)
        assert ended.code == 0
        assert ended.out.startswith("Nothing to do")

    def test_migrate_creates_the_file_that_looking_does_not(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "new.db"
        looked = run("jobs", "list", "--url", f"sqlite:///{file}")
        assert looked.code == 1
        assert "fencepost migrate" in looked.err
        assert not file.exists()
        assert run("migrate", "--url", f"sqlite:///{file}", "--json").json["changed"] is True
        assert run("jobs", "list", "--url", f"sqlite:///{file}").code == 0


class TestWhichDatabase:
    def test_the_environment_names_it(self, run: Run, at: str, kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        made = put(kept).id
        monkeypatch.setenv("FENCEPOST_URL", at)
        assert ids(run("jobs", "list").out) == [made]

    def test_an_app_names_it_whatever_the_environment_says(
        self, run: Run, tasks: str, kept: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = put(kept).id
        monkeypatch.setenv("FENCEPOST_URL", "sqlite:///elsewhere.db")
        assert ids(run("jobs", "list", "--app", tasks).out) == [made]

    def test_many_built_jobs_are_listed_to_the_last(self, run: Run, at: str, kept: Store) -> None:
        kept.enqueue([new() for _ in range(120)])
        assert len(run("jobs", "list", "--url", at, "--limit", "1000", "--json").json) == 120
