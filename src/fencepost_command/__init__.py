"""The first step of the `fencepost` command.

It stands outside of the package, whose imports take a moment: whoever presses Ctrl-C meanwhile is told so in a line,
and not with the traceback of an import.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130  # 128 + SIGINT, as a shell has it


def main() -> int:
    """Run the command line of this process. Returns the exit code."""
    try:
        from fencepost.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("fencepost: interrupted\n")
        return _INTERRUPTED
