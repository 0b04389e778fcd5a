"""What is told when something is wrong: one line on stderr, and the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost.cli import targets
from fencepost.store import Store
from tests.cli.conftest import Ended, Run


def assert_one_line(ended: Ended) -> None:
    assert ended.code == 1
    assert not ended.out
    assert ended.err.startswith("fencepost: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err


class TestTheApp:
    @pytest.mark.parametrize("where", ["tasks", ":app", "tasks:", "tasks.py:app", "src/tasks:app"])
    def test_another_form_than_module_attribute_is_a_usage_error(self, run: Run, project: Path, where: str) -> None:
        ended = run("worker", where)
        assert ended.code == 2
        assert "module:attribute" in ended.err

    def test_a_missing_module_is_told_apart(self, run: Run, project: Path) -> None:
        ended = run("worker", "no_such_module_here:app")
        assert_one_line(ended)
        assert "There is no module no_such_module_here" in ended.err
        assert str(project) in ended.err

    def test_a_missing_package_of_a_dotted_module_is_named(self, run: Run, project: Path) -> None:
        assert "There is no module no_package." not in run("worker", "no_package.tasks:app").err
        assert "There is no module no_package," in run("worker", "no_package.tasks:app").err

    def test_a_module_that_lacks_another_is_there(self, run: Run, project: Path) -> None:
        (project / "lacking.py").write_text("import os\nimport no_such_library\n")
        ended = run("worker", "lacking:app")
        assert_one_line(ended)
        assert "lacking is there, but importing it fails: ModuleNotFoundError" in ended.err
        assert "no_such_library" in ended.err
        assert "lacking.py, line 2" in ended.err

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero"),
            ("def broken(:\n", "SyntaxError"),
            ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
            ("import fencepost\napp = fencepost.App('oracle://x')\n", "ConfigurationError"),
        ],
    )
    def test_an_error_inside_the_module_is_told_with_its_place(
        self, run: Run, project: Path, text: str, said: str
    ) -> None:
        (project / "faulty.py").write_text(text)
        ended = run("worker", "faulty:app")
        assert_one_line(ended)
        assert said in ended.err
        assert "faulty.py, line" in ended.err

    def test_a_missing_attribute_is_told_with_the_apps_there_are(self, run: Run, project: Path) -> None:
        (project / "named.py").write_text("import fencepost\nqueue = fencepost.App('sqlite://')\n")
        ended = run("worker", "named:app")
        assert_one_line(ended)
        assert "named has no attribute app. Did you mean named:queue?" in ended.err

    def test_what_is_no_app_is_told_so(self, run: Run, project: Path) -> None:
        (project / "other.py").write_text("app = 7\n")
        ended = run("jobs", "enqueue", "other:app", "k")
        assert_one_line(ended)
        assert "other:app is a int, not a fencepost.App. It holds no fencepost.App." in ended.err

    def test_an_app_without_handlers_has_no_worker(self, run: Run, project: Path) -> None:
        (project / "bare.py").write_text("import fencepost\napp = fencepost.App('sqlite:///bare.db')\n")
        ended = run("worker", "bare:app")
        assert_one_line(ended)
        assert "no handlers" in ended.err

    def test_a_worker_refuses_jobs_in_memory(self, run: Run, project: Path) -> None:
        (project / "memory.py").write_text(
            "import fencepost\napp = fencepost.App('sqlite://')\n@app.job\ndef f() -> None: ...\n"
        )
        ended = run("worker", "memory:app")
        assert_one_line(ended)
        assert "in memory" in ended.err


class TestTheDatabase:
    def test_no_database_is_a_usage_error_that_names_the_ways(self, run: Run) -> None:
        ended = run("jobs", "list")
        assert ended.code == 2
        for way in ("--url", "FENCEPOST_URL", "--app"):
            assert way in ended.err

    def test_two_databases_are_a_usage_error(self, run: Run) -> None:
        assert run("jobs", "list", "--url", "sqlite:///a.db", "--app", "a:b").code == 2

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("nonsense", "not a database URL"),
            ("oracle://host/db", "does not work on 'oracle'"),
            ("sqlite://", "seen by its own process alone"),
            ("sqlite:///no/such/folder/jobs.db", "There is no database file"),
        ],
    )
    def test_a_url_that_cannot_work_is_told_in_one_line(self, run: Run, project: Path, url: str, said: str) -> None:
        ended = run("jobs", "list", "--url", url)
        assert_one_line(ended)
        assert said in ended.err
        assert list(project.iterdir()) == []

    def test_tables_that_are_not_there_are_told_with_the_remedy(self, run: Run, project: Path) -> None:
        (project / "empty.db").touch()
        ended = run("queues", "list", "--url", "sqlite:///empty.db")
        assert_one_line(ended)
        assert "fencepost migrate" in ended.err

    @pytest.mark.parametrize(
        "url", ["postgresql://nobody:secret@127.0.0.1:1/jobs", "mysql://nobody:secret@127.0.0.1:1/jobs"]
    )
    def test_a_server_that_does_not_answer_is_told_without_the_password(
        self, run: Run, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(targets, "_PATIENCE_SECONDS", 0.0)
        ended = run("jobs", "list", "--url", url)
        assert_one_line(ended)
        assert "127.0.0.1:1" in ended.err
        assert "secret" not in ended.err

    def test_a_file_that_is_no_database_is_told_in_one_line(self, run: Run, project: Path) -> None:
        (project / "letter.db").write_text("Dear reader, " * 1000)
        ended = run("jobs", "list", "--url", "sqlite:///letter.db")
        assert_one_line(ended)
        assert "not a database" in ended.err


class TestTheRest:
    def test_a_traceback_is_shown_when_asked_for(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = run("--debug", "jobs", "list", "--url", "nonsense")
        assert asked.code == 1
        assert "Traceback" in asked.err
        monkeypatch.setenv("FENCEPOST_DEBUG", "1")
        assert "Traceback" in run("jobs", "list", "--url", "nonsense").err

    def test_what_nobody_expected_is_one_line_too(self, run: Run, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def explode(_app: object, **_filters: object) -> None:
            raise TypeError("two\nlines")

        monkeypatch.setattr(fencepost.app.Jobs, "list", explode)
        ended = run("jobs", "list", "--url", at)
        assert_one_line(ended)
        assert "unexpected TypeError: two lines" in ended.err

    def test_the_version_is_printed(self, run: Run) -> None:
        assert run("--version").out == f"fencepost {fencepost.__version__}\n"

    def test_an_unknown_command_is_a_usage_error(self, run: Run) -> None:
        assert run("jbos").code == 2
        assert run("jobs", "lits").code == 2
        assert run("jobs", "list", "--nope").code == 2


class TestTheProcess:
    """What only a process of its own shows, on SQLite alone: none of it depends on the database."""

    @pytest.mark.parametrize("database_name", ["sqlite"], indirect=True)
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_output_that_cannot_be_written_is_one_line_and_what_was_done_stands(
        self, tasks: str, kept: Store, project: Path, unbuffered: str
    ) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "fencepost.cli", "jobs", "enqueue", tasks, "send", '{"user_id": 1}'],
                stdout=full,
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
                text=True,
                timeout=60,
            )
        assert_one_line(Ended(done.returncode, "", done.stderr))
        assert "the output could not be written: No space left on device" in done.stderr
        assert len(kept.list_jobs()) == 1

    def test_an_interrupt_while_the_app_is_imported_is_one_line(self, run: Run, project: Path) -> None:
        (project / "slow.py").write_text("raise KeyboardInterrupt\n")
        ended = run("worker", "slow:app")
        assert (ended.code, ended.out, ended.err) == (130, "", "fencepost: interrupted\n")

    def test_an_interrupt_while_fencepost_itself_is_imported_is_one_line(self, project: Path) -> None:
        """The first import that it makes sends the signal, whatever the machine's speed."""
        interrupting = (
            "import os, signal, sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'sqlalchemy':\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupting())\n"
            "import fencepost_command\n"
            "sys.exit(fencepost_command.main())\n"
        )
        done = subprocess.run([sys.executable, "-c", interrupting], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "fencepost: interrupted\n")
