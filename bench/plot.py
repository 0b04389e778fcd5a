"""A plot as an SVG file, drawn by hand: it needs no library, and any browser shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["save_shares"]

_WIDTH, _HEIGHT, _MARGIN = 720, 320, 48
_FONT = 'font-family="sans-serif" font-size="12"'
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")


def save_shares(path: Path, windows: Sequence[Counter[str]], weights: Mapping[str, float]) -> None:
    """Draw the share of each tenant in each window of claims, and as a dashed line the share of its weight.

    Args:
        path: the file to write.
        windows: how many jobs of each tenant were claimed, window by window.
        weights: of the tenants; their order is that of the legend.
    """
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for percent in range(0, 101, 20):
        height = _y(percent / 100)
        lines.append(f'<line x1="{_MARGIN}" x2="{_WIDTH - 150}" y1="{height:g}" y2="{height:g}" stroke="#ddd"/>')
        lines.append(f'<text x="8" y="{height + 4:g}">{percent} %</text>')
    total = sum(weights.values())
    for place, (tenant, weight) in enumerate(weights.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        shares = [window[tenant] / max(1, sum(window.values())) for window in windows]
        points = " ".join(f"{_x(number, len(shares)):.1f},{_y(share):.1f}" for number, share in enumerate(shares))
        wanted = _y(weight / total)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - 150}" y1="{wanted:g}" y2="{wanted:g}" stroke="{colour}" '
            'stroke-dasharray="4 4"/>'
        )
        lines.append(f'<text x="{_WIDTH - 140}" y="{60 + 20 * place}" fill="{colour}">{tenant}: {weight:g}</text>')
    lines.append(f'<text x="{_MARGIN}" y="{_HEIGHT - 12}">windows of claims, in order</text>')
    lines.append("</svg>")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _x(number: int, count: int) -> float:
    return _MARGIN + number * (_WIDTH - 150 - _MARGIN) / max(1, count - 1)


def _y(share: float) -> float:
    return 20 + (1 - share) * (_HEIGHT - 70)
