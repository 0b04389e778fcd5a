"""`fencepost queues`: the lanes in which jobs wait."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.cli.options import AppOption, JsonOption, UrlOption
from fencepost.cli.output import Column, count, line, since, table, write_json
from fencepost.cli.targets import opened
from fencepost.store.rows import instant

__all__ = ["queues"]

queues = typer.Typer(no_args_is_help=True, help="Look at queues, pause and resume them.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_default=False)]


@queues.command("list")
def list_queues(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List queues, with what waits and runs.

    A queue is listed while it has live jobs or is paused.

    \b
    Example:
      fencepost queues list --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.store.queue_counts()
        now = instant(target.store.now())
    if as_json:
        write_json(found)
        return
    assert now is not None
    table(
        [
            Column("QUEUE", least=12),
            Column("READY"),
            Column("BLOCKED"),
            Column("SCHEDULED"),
            Column("RUNNING"),
            Column("PAUSED", yields=1),
        ],
        [
            (
                queue.name,
                str(queue.ready),
                str(queue.blocked),
                str(queue.scheduled),
                str(queue.running),
                since(queue.paused_since, now),
            )
            for queue in found
        ],
        empty="No queue has live jobs, and none is paused.",
    )


@queues.command()
def pause(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a queue's jobs wait.

    Nothing in it is claimed until it is resumed. Jobs that run already end as usual.

    \b
    Example:
      fencepost queues pause mail --url sqlite:///jobs.db
    """
    _set(name, url, app, paused=True, as_json=as_json)


@queues.command()
def resume(name: NameArgument, url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Let a paused queue's jobs be claimed again.

    \b
    Example:
      fencepost queues resume mail --url sqlite:///jobs.db
    """
    _set(name, url, app, paused=False, as_json=as_json)


def _set(name: str, url: str | None, app: str | None, *, paused: bool, as_json: bool) -> None:
    with opened(url, app) as target:
        (target.pause_queue if paused else target.resume_queue)(name)
        ready = sum(queue.ready for queue in target.store.queue_counts() if queue.name == name)
    if as_json:
        write_json({"queue": name, "paused": paused, "ready": ready})
    else:
        line(f"{name} is {'paused' if paused else 'not paused'}; {count(ready, 'job')} ready in it.")
