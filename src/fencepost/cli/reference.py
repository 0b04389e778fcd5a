"""The reference page of the command line, made from the commands' own help.

python -m fencepost.cli.reference > docs/cli.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from fencepost.cli.main import cli

__all__ = ["commands", "reference"]

_HEAD = """\
<!-- Made by `python -m fencepost.cli.reference > docs/cli.md`. A test compares it with the commands' help. -->

# The command line

Commands that look at a database share three options:

"""
_SHARED = ("url", "app", "as_json")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of commands, by the words that call it, in the order of the help."""
    yield from _walk("fencepost", get_command(cli))


def reference() -> str:
    """The page."""
    sections: list[str] = []
    shared: dict[str, Any] = {}
    for words, command in commands():
        parts = [f"{_head(words, command)}\n"]
        parts += [_paragraph(paragraph) for paragraph in inspect.cleandoc(command.help or "").split("\n\n")]
        own = [parameter for parameter in command.params if parameter.name not in (*_SHARED, "help")]
        common = {parameter.name: parameter for parameter in command.params if parameter.name in _SHARED}
        shared |= common
        listed = "".join(_entry(parameter) for parameter in own)
        if common:
            listed += f"- {', '.join(f'`{_names(parameter)}`' for parameter in common.values())}: as above.\n"
        sections.append("\n".join([*parts, listed] if listed else parts))
    return _HEAD + "\n".join(["".join(_entry(parameter) for parameter in shared.values()), *sections])


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{words} {name}", inner)


def _head(words: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return f"## {words}"
    arguments = [_metavar(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    return f"### {' '.join([words, *arguments])}"


def _paragraph(text: str) -> str:
    if not text.startswith("\b"):
        return f"{' '.join(text.split())}\n"
    _, _, *lines = text.split("\n")
    return f"```sh\n{inspect.cleandoc(chr(10).join(lines))}\n```\n"


def _entry(parameter: Any) -> str:
    return f"- `{_names(parameter)}`: {' '.join((parameter.help or '').split())}{_default(parameter)}\n"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    names = ", ".join(parameter.opts)
    return names if parameter.is_flag else f"{names} {_metavar(parameter)}"


def _metavar(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    optional = parameter.param_type_name == "argument" and not parameter.required
    return f"[{name}]" if optional else name


def _default(parameter: Any) -> str:
    if parameter.param_type_name == "option" and parameter.required:
        return " Required."
    shown, default = parameter.show_default, parameter.default
    if isinstance(shown, str):
        return f" Default: {shown}."
    if not shown or isinstance(default, bool) or not isinstance(default, (int, float, str)):
        return ""
    return f" Default: {default.value if isinstance(default, Enum) else default}."


if __name__ == "__main__":
    sys.stdout.write(reference())
