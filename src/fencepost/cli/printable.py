"""Text from strangers (payloads, errors, names), made safe for a terminal."""

from __future__ import annotations

import re

__all__ = ["one_line", "printable"]

# Control characters, which move the cursor, set titles or worse; marks that reorder what is read; tags; and what is
# no character at all. https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """The text with every unsafe character written as its escape: \\x1b, \\u202e.

    Args:
        text: anything.
        keeps_lines: whether line ends stay (and tabs become spaces), for text of several lines.
    """
    if keeps_lines:
        return "\n".join(_escaped(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))
    return _escaped(text)


def one_line(text: str) -> str:
    """The text in one line: line ends and runs of spaces become one space, the rest as `printable`."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: _escape(ord(match.group())), text)


def _escape(code: int) -> str:
    if code == 0x0A:
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
