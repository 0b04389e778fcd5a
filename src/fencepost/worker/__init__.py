"""The worker: one process that claims jobs, runs their handlers and settles them.

    claimer ──claims──▶ executors (event loop, threads, processes) ──outcomes──▶ settler
       ▲                        │ every running attempt stands on the board │
       └──── free slots ────────┴────────▶ heartbeat, watchdog ◀────────────┘

One thread or loop a file; `worker.py` puts them together. They share the board and nothing else.
"""

from fencepost.worker.worker import Worker

__all__ = ["Worker"]
