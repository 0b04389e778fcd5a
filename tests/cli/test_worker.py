"""`fencepost worker` in a process of its own, on every database."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

from fencepost import State
from fencepost.store import Store
from tests.cli.conftest import Start
from tests.jobs import put


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


def test_a_burst_runs_what_there_is_and_ends_with_0(tasks: str, start: Start, kept: Store) -> None:
    made = [put(kept, kind="send", arguments=f'{{"user_id": {number}}}').id for number in range(20)]
    made.append(put(kept, kind="burn", arguments='{"n": 10}').id)
    failing = put(kept, kind="crash", arguments='{"text": "[red]no\\u001b[31m"}', max_attempts=1).id
    code, out, err = ended(start("worker", tasks, "--burst", "--processes", "1", "--lease", "10s"))
    assert (code, out) == (0, "")
    assert set(kept.states_of(made).values()) == {State.SUCCEEDED}
    assert kept.states_of([failing]) == {failing: State.FAILED}
    assert "running 0, done 21, failed 1, lost 0" in err
    assert f"Job {failing} (crash) failed for good at attempt 1 of 1: Traceback" in err
    assert "RuntimeError: [red]no\\x1b[31m" in err
    assert kept.list_workers() == []


def test_json_logs_are_one_object_a_line(tasks: str, start: Start, kept: Store) -> None:
    made = put(kept, kind="crash", arguments='{"text": "no"}', max_attempts=1).id
    code, _, err = ended(start("worker", tasks, "--burst", "--log-format", "json"))
    records = [json.loads(line) for line in err.splitlines()]
    assert code == 0
    assert all({"ts", "level", "logger", "message"} <= record.keys() for record in records)
    (failed,) = [record for record in records if record.get("job_id") == made]
    assert (failed["kind"], failed["attempt"]) == ("crash", 1)
    assert (records[-1]["succeeded"], records[-1]["failed"], records[-1]["lost"]) == (0, 1, 0)


def test_quiet_says_nothing_while_all_goes_well(tasks: str, start: Start, kept: Store) -> None:
    put(kept, kind="send", arguments='{"user_id": 1}')
    assert ended(start("worker", tasks, "--burst", "--quiet")) == (0, "", "")


def test_what_needs_labels_runs_where_they_were_named(tasks: str, start: Start, kept: Store) -> None:
    mine = put(kept, kind="send", labels='{"gpu":"a100"}', arguments='{"user_id": 1}').id
    other = put(kept, kind="send", labels='{"gpu":"h100"}', arguments='{"user_id": 1}').id
    assert ended(start("worker", tasks, "--burst", "--label", "gpu=a100", "--label", "zone=eu"))[0] == 0
    assert kept.states_of([mine, other]) == {mine: State.SUCCEEDED, other: State.READY}


def test_only_the_queues_that_were_named_are_served(tasks: str, start: Start, kept: Store) -> None:
    mine = put(kept, kind="send", queue="a", arguments='{"user_id": 1}').id
    other = put(kept, kind="send", queue="b", arguments='{"user_id": 1}').id
    assert ended(start("worker", tasks, "--burst", "--queue", "a", "--queue", "c"))[0] == 0
    assert kept.states_of([mine, other]) == {mine: State.SUCCEEDED, other: State.READY}


def test_sigterm_is_a_clean_stop(tasks: str, start: Start, kept: Store) -> None:
    process = start("worker", tasks, "--log-format", "json")
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    assert "serves burn, crash, send" in first["message"]
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 0
    assert "stopped" in err
    assert kept.list_workers() == []


def test_on_a_terminal_one_line_is_kept_up_to_date(project: Path, tasks: str, kept: Store) -> None:
    made = put(kept, kind="send", arguments='{"user_id": 1}').id
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fencepost.cli", "worker", tasks, "--queue", "mail", "--queue", "default"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=project,
        env=environment,
    )
    os.close(slave)
    seen = b""
    try:
        while b"done 1" not in seen and select.select([master], [], [], 60)[0]:
            seen += os.read(master, 4096)
        process.send_signal(signal.SIGINT)
        while select.select([master], [], [], 60)[0]:
            try:
                more = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            seen += more
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert kept.states_of([made]) == {made: State.SUCCEEDED}
    text = seen.decode()
    assert "jobs/s" in text
    assert "mail, default" in text
    assert "\x1b[2K" in text  # the line was written anew in its place
