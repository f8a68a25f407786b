"""Rows as a readable table and as CSV."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from comparison.summary import Row

HEADING = (
    f"{'ranks':>5} {'bytes':>10} {'place':>5}  {'library':<20} {'first_us':>11} {'median_us':>11} "
    f"{'[95 % interval]':>23} "
    f"{'p99_us':>11} {'ringfold/it':>11} {'it/best':>8} {'it/limit':>8}"
)


def table(rows: Iterable[Row]) -> str:
    lines = [HEADING]
    case = None
    for row in rows:
        this = (row.ranks, row.bytes, row.placement)
        # The case is printed only in its first line.
        start = f"{row.ranks:>5} {row.bytes:>10} {row.placement:>5}" if this != case else " " * 22
        if case is not None and this[:2] != case[:2]:
            lines.append("")
        case = this
        lines.append(f"{start}  {row.library:<20} {figures(row)}".rstrip())
    return "\n".join(lines)


def figures(row: Row) -> str:
    if row.median_us is None:
        return row.failure
    between = f"[{row.low_us:.2f}, {row.high_us:.2f}]"
    best = f"{digits(row.best_ratio)}{'*' if row.library == row.best_peer else ' '}"
    times = f"{row.first_us:>11.2f} {row.median_us:>11.2f} {between:>23} {row.p99_us:>11.2f}"
    ratios = f"{digits(row.ringfold_ratio):>11} {best:>8} {digits(row.limit_ratio):>8}"
    return f"{times} {ratios}  {row.failure}"


def digits(ratio: float | None) -> str:
    """Return three significant digits, at any magnitude."""
    return "" if ratio is None else f"{ratio:#.3g}" if ratio < 100 else f"{ratio:.0f}"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
