"""What a person sees of the demo: a live picture on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fencepost.store import QueueCounts

__all__ = ["Display"]

_LINE_SECONDS = 2.0
_BAR_WIDTH = 50


class Display:
    """Prints what happens, and shows how far it is.

    Args:
        out: where.
        total: how many jobs there will be.
    """

    def __init__(self, out: Console, total: int) -> None:
        self._out = out
        self._total = total
        self._started = time.monotonic()
        self._live = Live(console=out, refresh_per_second=8, transient=True) if out.is_terminal else None
        self._line_at = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def happened(self, what: str, style: str = "") -> None:
        """Say that something happened."""
        self._out.print(Text.assemble((f"{self._elapsed():5.1f} s  ", "dim"), (what, style)), soft_wrap=True)

    def progress(self, counts: QueueCounts, workers: str) -> None:
        """Show where the jobs stand; on no terminal, every other second."""
        done = self._total - counts.ready - counts.scheduled - counts.running
        where = (
            f"{done} of {self._total} done, {counts.running} running, {counts.ready} ready, "
            f"{counts.scheduled} scheduled"
        )
        if self._live is not None:
            bar = Table.grid()  # on a line of its own
            bar.add_row(ProgressBar(total=self._total, completed=done, width=min(_BAR_WIDTH, self._out.width)))
            text = Text.assemble((f"{self._elapsed():5.1f} s  ", "dim"), where, "\n         ", (workers, "dim"))
            self._live.update(Group(bar, text))
        elif time.monotonic() - self._line_at >= _LINE_SECONDS:
            self._line_at = time.monotonic()
            self.happened(where)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
