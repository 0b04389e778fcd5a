"""Scripts as people write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UNGUARDED = """
import fencepost

app = fencepost.App("sqlite:///jobs.db")

@app.job(executor="process", max_attempts=1)
def crunch(number: int) -> int:
    return number + 1

handle = crunch.enqueue(1)
app.run_worker(burst=True)
print(len(app.jobs.list()), handle.job().state)
print(handle.job().last_error)
"""


def test_a_script_without_a_main_guard_neither_multiplies_nor_hangs(tmp_path: Path) -> None:
    """Each child process imports the script: what it enqueues and works there is refused, and the error says why."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 failed\n")
    assert "if __name__ == '__main__':" in done.stdout
    assert "would do so once more in each" in done.stderr
