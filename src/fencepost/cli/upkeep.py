"""`fencepost migrate` and `fencepost prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from fencepost.cli.options import AppOption, JsonOption, UrlOption, age
from fencepost.cli.output import count, line, write_json
from fencepost.cli.targets import opened

__all__ = ["migrate", "prune"]


def migrate(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Create or upgrade the tables.

    It may be repeated, and run by several processes at once. Workers need not be stopped first.

    \b
    Example:
      fencepost migrate --url postgresql://jobs@localhost/jobs
    """
    with opened(url, app, may_create=True) as target:
        before = target.store.schema_status()
        changed = target.migrate()
    if as_json:
        write_json({"changed": changed, "before": before.found, "version": before.wanted})
    elif changed:
        line(f"The tables are of version {before.wanted} now (before: {before.found or 'none'}).")
    else:
        line(f"Nothing to do: the tables are of version {before.wanted}.")


def prune(
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", parser=age, metavar="DURATION", help="Ended longer ago than this: 12h, 7d."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=0, help="Keep the newest N of each queue and state at most."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only these: succeeded, failed, cancelled, skipped; may be repeated. Default: all four.",
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue. Default: all.")
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs that ended long ago.

    Only final ones (succeeded, failed, cancelled, skipped) go, in short transactions. Live jobs are never touched.
    Give --older-than, --keep or both: then a job goes if it is too old or if there are enough newer ones.

    \b
    Example:
      fencepost prune --older-than 7d --keep 10000 --state succeeded --url sqlite:///jobs.db
    """
    if older_than is None and keep is None:
        raise typer.BadParameter("Say what goes: --older-than 7d, --keep 10000, or both.")
    with opened(url, app) as target:
        deleted = target.prune(older_than, state=state, queue=queue, keep=keep)
    if as_json:
        write_json({"deleted": deleted})
    else:
        line(f"{count(deleted, 'job')} deleted.")
