"""Which database or app a command is about."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import typer

from fencepost.app import App
from fencepost.errors import ConfigurationError
from fencepost.store.database import parse_url
from fencepost.store.dialects import dialect_for

__all__ = ["load_app", "opened"]

_PATIENCE_SECONDS = 5.0  # somebody waits at the terminal


@contextmanager
def opened(url: str | None, app: str | None, *, may_create: bool = False) -> Iterator[App]:
    """The app that an operator's command works on, closed at the end.

    Args:
        url: of --url.
        app: of --app. With neither, FENCEPOST_URL is asked.
        may_create: whether a database file that is not there may be made.

    Raises:
        typer.BadParameter: no database was named, or two.
        ConfigurationError: it is not there.
    """
    if url is not None and app is not None:
        raise typer.BadParameter("Give --url or --app, not both: each names the database.")
    if app is not None:
        target = load_app(app)
    else:
        url = url or os.environ.get("FENCEPOST_URL")
        if not url:
            raise typer.BadParameter(
                "Name the database: --url sqlite:///jobs.db, or FENCEPOST_URL in the environment, or --app tasks:app."
            )
        parsed = parse_url(url)
        if not may_create:
            dialect_for(parsed).refuse_absent(parsed)
        target = App(parsed, migrate=False)
    if target.store.database.in_memory:
        target.store.database.dialect.refuse_absent(target.store.database.url)
    target.store.database.patience = _PATIENCE_SECONDS
    try:
        yield target
    finally:
        target.close()


def load_app(where: str) -> App:
    """Import an `App` by `module:attribute`. The current directory comes first in the search, as for a script.

    Raises:
        typer.BadParameter: not of that form.
        ConfigurationError: no such module, an error in it, no such attribute, or not an App.
    """
    module_name, colon, attribute = where.partition(":")
    if not (module_name and colon and attribute) or "/" in module_name or module_name.endswith(".py"):
        raise typer.BadParameter(
            f"APP is module:attribute, for example tasks:app for the `app` in tasks.py; not {where}"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _find(_import(module_name, here), attribute)


def _import(name: str, here: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"There is no module {error.name}, neither in {here} nor among the installed packages. Start from the "
                "folder that it is in, or install it."
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # the module is a stranger's
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> ConfigurationError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    # The deepest line that is in the project; a library's own depths tell its user little.
    own = [frame for frame in frames if frame.filename.startswith(str(Path.cwd()))] or frames
    where = f"{own[-1].filename}, line {own[-1].lineno}" if own else name
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    return ConfigurationError(
        f"The module {name} is there, but importing it fails: {type(error).__name__}: {error} ({where}). "
        "See all of it with --debug."
    )


def _find(module: ModuleType, attribute: str) -> App:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ConfigurationError(f"{module.__name__} has no attribute {attribute}.{_apps_of(module)}") from error
    if not isinstance(found, App):
        raise ConfigurationError(
            f"{module.__name__}:{attribute} is a {type(found).__name__}, not a fencepost.App.{_apps_of(module)}"
        )
    return found


def _apps_of(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
    return f" Did you mean {' or '.join(names)}?" if names else " It holds no fencepost.App."
