"""`fencepost workers`: who runs jobs."""

from __future__ import annotations

import dataclasses
from datetime import datetime

import typer

from fencepost.cli.options import AppOption, JsonOption, UrlOption
from fencepost.cli.output import Column, since, table, write_json
from fencepost.cli.targets import opened
from fencepost.store import Leader
from fencepost.store.rows import instant

__all__ = ["workers"]

workers = typer.Typer(no_args_is_help=True, help="Look at workers.")


@workers.command("list")
def list_workers(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List workers, as they last reported.

    LEADS says which of them leads the planners, since when and in which epoch. A worker that was killed stays in the
    list for a day, as silent. Its jobs come back by themselves when their leases have run out.

    \b
    Example:
      fencepost workers list --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.store.list_workers()
        leader = target.store.leader()
        now = instant(target.store.now())
    assert now is not None
    alive = [worker.is_alive(now) for worker in found]
    leading = {leader.holder: leader} if leader is not None and leader.is_leading(now) else {}
    if as_json:
        write_json(
            [
                dataclasses.asdict(worker) | {"alive": answer} | _lead(leading.get(worker.owner))
                for worker, answer in zip(found, alive, strict=True)
            ]
        )
        return
    table(
        [
            Column("WORKER"),
            Column("STATE", style=lambda state: "green" if state == "alive" else "bold red"),
            Column("RUNNING"),
            Column("LEADS"),
            Column("SEEN"),
            Column("STARTED", yields=3),
            Column("QUEUES", least=8, yields=1),
            Column("LABELS", least=8, yields=1),
            Column("KINDS", least=16, yields=2),
        ],
        [
            (
                worker.owner,
                "alive" if answer else "silent",
                f"{worker.running}/{worker.concurrency}",
                _leads_since(leading.get(worker.owner), now),
                since(worker.seen_at, now),
                since(worker.started_at, now),
                "all" if worker.queues is None else ", ".join(worker.queues),
                ", ".join(f"{name}={value}" for name, value in sorted(worker.labels.items())),
                ", ".join(worker.kinds),
            )
            for worker, answer in zip(found, alive, strict=True)
        ],
        empty="No worker has reported itself.",
    )


def _lead(leader: Leader | None) -> dict[str, object]:
    return (
        {"leads_since": None, "epoch": None} if leader is None else {"leads_since": leader.since, "epoch": leader.epoch}
    )


def _leads_since(leader: Leader | None, now: datetime) -> str:
    return "" if leader is None else f"{since(leader.since, now)}, epoch {leader.epoch}"
