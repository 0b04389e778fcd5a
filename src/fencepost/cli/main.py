"""The `fencepost` command: its tree, its exit codes, and what becomes of errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from sqlalchemy import exc
from typer.core import TyperGroup
from typer.main import get_command

import fencepost
from fencepost.cli.demo import demo
from fencepost.cli.doctor import doctor
from fencepost.cli.jobs import jobs
from fencepost.cli.limits import limits
from fencepost.cli.occurrences import occurrences
from fencepost.cli.output import problem
from fencepost.cli.queues import queues
from fencepost.cli.schedules import schedules
from fencepost.cli.upkeep import migrate, prune
from fencepost.cli.worker import worker
from fencepost.cli.workers import workers
from fencepost.errors import FencepostError

__all__ = ["cli", "main"]


class _Commands(TyperGroup):
    """Says what is wrong with an option's value without the name of the library that found it out."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


cli = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_INTERRUPTED = 130
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""How the writing of output fails; SQLite's own errors of this kind come as the database's."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fencepost {fencepost.__version__}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error. So does FENCEPOST_DEBUG=1.")
    ] = False,
) -> None:
    """Durable background jobs on the database you already have: SQLite, PostgreSQL, MariaDB or MySQL.

    Exit codes: 0 all went well; 1 something is wrong, is not there, or was refused; 2 the command was not understood;
    130 interrupted.

    \b
    Example:
      fencepost demo
    """


cli.command()(worker)
cli.command()(demo)
cli.add_typer(jobs, name="jobs")
cli.add_typer(schedules, name="schedules")
cli.add_typer(occurrences, name="occurrences")
cli.add_typer(queues, name="queues")
cli.add_typer(limits, name="limits")
cli.add_typer(workers, name="workers")
cli.command()(migrate)
cli.command()(prune)
cli.command()(doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. What fencepost raises on purpose becomes one line on stderr.

    Args:
        arguments: without the program's name; default: those of this process.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character is no reason to fail.
            with contextlib.suppress(io.UnsupportedOperation):
                stream.reconfigure(errors="backslashreplace")
    code = _run(given)
    if code == _INTERRUPTED:  # Typer says it by the code alone
        problem("interrupted")
    return code if _is_written() else 1


def _run(given: list[str]) -> int:
    try:
        get_command(cli)(given, prog_name="fencepost")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (FencepostError, exc.SQLAlchemyError) as error:
        _report(str(error.orig) if isinstance(error, exc.DBAPIError) else str(error), given)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line instead of a traceback
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            if _is_written():  # nothing is left in a buffer, which would have said it
                _say_unwritten(error)
        else:
            _report(f"unexpected {type(error).__name__}: {error} (a traceback: fencepost --debug ...)", given)
    return 1


def _is_written() -> bool:
    """Whether all that was printed has reached its file or pipe; if not, that is said."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _say_unwritten(error)
        # What is left in the buffer would be tried once more at the exit, and fail with a traceback.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _say_unwritten(error: OSError) -> None:
    if error.errno != errno.EPIPE:  # a reader that has seen enough is no error to tell of
        problem(f"the output could not be written: {error.strerror}. What the command did before that stands.")


def _report(text: str, arguments: Sequence[str]) -> None:
    if os.environ.get("FENCEPOST_DEBUG") or "--debug" in arguments:
        traceback.print_exc()
    problem(text)
