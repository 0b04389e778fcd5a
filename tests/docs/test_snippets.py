"""The snippets that people copy run as they stand."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide.md", "docs/schedules.md", "docs/workflows.md")


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


PREPARED_TABLES = """
with app.store.transaction() as prepared:
    for table in ("users (name TEXT)", "accounts (id INTEGER, balance INTEGER)"):
        prepared.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {table}")
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    first, *rest = snippets(page)
    (tmp_path / "tasks.py").write_text("\n".join([first, PREPARED_TABLES, *rest]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "tasks.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if page == "README.md":
        assert "Hello, Ada" in done.stdout


def test_every_name_on_the_internals_page_can_be_imported() -> None:
    names = re.findall(r"`(fencepost(?:\.\w+)+)`", (ROOT / "docs/internals.md").read_text())
    assert len(names) > 10
    for name in names:
        module = name
        attributes: list[str] = []
        while True:
            try:
                found: object = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, attribute = module.rpartition(".")
                attributes.insert(0, attribute)
        for attribute in attributes:
            found = getattr(found, attribute)


def test_every_page_that_a_page_links_to_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
