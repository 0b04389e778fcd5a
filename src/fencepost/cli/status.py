"""What a worker does, in one line."""

from __future__ import annotations

import time
from collections import deque

from rich.text import Text

from fencepost.cli.printable import one_line
from fencepost.worker import Worker
from fencepost.worker.worker import WorkerFigures

__all__ = ["LiveLine", "summary"]

_WINDOW_SECONDS = 5.0


def summary(figures: WorkerFigures) -> str:
    """The figures in words."""
    return f"running {figures.running:,}, done {figures.succeeded:,}, failed {figures.failed:,}, lost {figures.lost:,}"


class LiveLine:
    """The line that is kept up to date on a terminal.

    Args:
        worker: whose figures.
        queues: which queues it serves; None: all.
    """

    def __init__(self, worker: Worker, queues: list[str] | None) -> None:
        self._worker = worker
        self._queues = "all queues" if not queues else one_line(", ".join(queues))
        self._past: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def render(self) -> Text:
        """The line as of now."""
        figures = self._worker.figures
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"running {figures.running:,}", "bold blue" if figures.running else "")
        text.append(f"  done {figures.succeeded:,}", "green")
        text.append(f"  failed {figures.failed:,}", "bold red" if figures.failed else "")
        text.append(f"  lost {figures.lost:,}", "bold red" if figures.lost else "")
        text.append(f"  {self._rate(figures.settled):,.0f} jobs/s  {self._queues}")
        return text

    def _rate(self, settled: int) -> float:
        """Settlements a second over the last few seconds."""
        now = time.monotonic()
        while len(self._past) > 1 and now - self._past[0][0] > _WINDOW_SECONDS:
            self._past.popleft()
        since, before = self._past[0]
        self._past.append((now, settled))
        return (settled - before) / (now - since) if now > since else 0.0
