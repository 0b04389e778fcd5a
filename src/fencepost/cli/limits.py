"""`fencepost limits`: buckets, semaphores, and what keys are held to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fencepost.app import App
from fencepost.cli.options import AppOption, JsonOption, UrlOption
from fencepost.cli.output import Column, count, line, table, write_json
from fencepost.cli.targets import opened
from fencepost.store import Limit

__all__ = ["limits"]

limits = typer.Typer(no_args_is_help=True, help="Look at limits, and change them while jobs run.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The resource.", show_default=False)]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)]
RateOption = Annotated[float, typer.Option("--rate", metavar="N", help="Tokens a second.", show_default=False)]
BurstOption = Annotated[int, typer.Option("--burst", metavar="N", help="How many tokens it holds.")]


@limits.command("list")
def list_limits(url: UrlOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List what is declared: buckets, semaphores, and what keys are held to.

    FREE is what could be had at this moment, WAITING how many jobs wait for it.

    \b
    Example:
      fencepost limits list --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        found = target.limits.list()
    if as_json:
        write_json(found)
        return
    table(
        [Column("KIND"), Column("NAME", least=12, yields=1), Column("LIMIT"), Column("FREE"), Column("WAITING")],
        [(one.kind, one.name, _said(one), f"{one.free:,}", f"{one.waiting:,}") for one in found],
        empty="No limits are declared.",
    )


@limits.command("set-bucket")
def set_bucket(
    name: NameArgument,
    rate: RateOption,
    burst: BurstOption = 1,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token bucket, or change it.

    Jobs that name it in resources= take tokens to start. What was spent stays spent.

    \b
    Example:
      fencepost limits set-bucket api --rate 50 --burst 100 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        target.limits.set_bucket(name, rate=rate, burst=burst)
        _show(target, "bucket", name, as_json=as_json)


@limits.command("set-semaphore")
def set_semaphore(
    name: NameArgument,
    capacity: Annotated[int, typer.Option("--capacity", metavar="N", help="How much there is.", show_default=False)],
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a semaphore, or change it.

    Running jobs that name it in resources= hold at most its capacity together. Lowering it stops nobody.

    \b
    Example:
      fencepost limits set-semaphore gpu --capacity 8 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        target.limits.set_semaphore(name, capacity=capacity)
        _show(target, "semaphore", name, as_json=as_json)


@limits.command("set-rate")
def set_rate(
    key: KeyArgument,
    rate: RateOption,
    burst: BurstOption = 1,
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold a rate key to this, whatever its jobs say.

    \b
    Example:
      fencepost limits set-rate customer-7 --rate 5 --burst 10 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        target.limits.set_rate(key, rate=rate, burst=burst)
        _show(target, "rate", key, as_json=as_json)


@limits.command("set-concurrency")
def set_concurrency(
    key: KeyArgument,
    slots: Annotated[int, typer.Option("--slots", metavar="N", help="How many run at a time.", show_default=False)],
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a concurrency key so many slots, whatever its jobs say.

    \b
    Example:
      fencepost limits set-concurrency user-7 --slots 1 --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        target.limits.set_concurrency(key, slots=slots)
        _show(target, "concurrency", key, as_json=as_json)


@limits.command()
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The resource, or the key.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="resource (a bucket or semaphore), rate or concurrency.")
    ] = "resource",
    url: UrlOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a limit that was declared.

    What jobs say of a rate or concurrency key counts again; who needs a resource that is gone waits until it is back.
    Exit code 1 if it is not there.

    \b
    Example:
      fencepost limits delete api --url sqlite:///jobs.db
    """
    with opened(url, app) as target:
        deleted = target.limits.delete(name, kind=kind)
    if as_json:
        write_json({"name": name, "kind": kind, "deleted": deleted})
    else:
        line(f"{name} is deleted." if deleted else f"No {kind} {name!r} is declared.")
    if not deleted:
        raise typer.Exit(1)


def _show(target: App, kind: str, name: str, *, as_json: bool) -> None:
    (one,) = [found for found in target.limits.list() if (found.kind, found.name) == (kind, name)]
    if as_json:
        write_json(one)
    else:
        line(f"{kind} {name}: {_said(one)}, {one.free:,} free, {count(one.waiting, 'job')} waiting.")


def _said(one: Limit) -> str:
    values: dict[str, Any] = {"rate": one.rate, "burst": one.burst, "capacity": one.capacity}
    if one.kind == "concurrency":
        values = {"slots": one.capacity}
    return ", ".join(f"{name} {value:,g}" for name, value in values.items() if value is not None)
