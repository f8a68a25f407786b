"""Rows of several hosts as Markdown: a line per size, a column per library."""

from collections.abc import Iterable, Mapping, Sequence

from comparison.report import digits
from comparison.summary import Row, ratio

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
# Libraries that are not peers: this build, another build, and the exchange without a library.
OWN, BASELINE, BARE = "ringfold", "ringfold-baseline", "bare"
NONE = "–"

# Rows of one size by library.
Line = Mapping[str, Row]


def tables(rows: Sequence[Row]) -> str:
    """Return a table for each congestion control, followed by the failures."""
    texts = []
    congestions = list(dict.fromkeys(row.congestion for row in rows))
    for congestion in congestions:
        chosen = [row for row in rows if row.congestion == congestion]
        other = [row for row in rows if row.congestion == congestions[0] != congestion]
        texts.append(f"{title(chosen)}\n\n{table(chosen, other)}")
    if failures := [failure(row) for row in rows if row.failure]:
        texts.append("\n".join(failures))
    return "\n\n".join(texts)


def title(rows: Sequence[Row]) -> str:
    first = rows[0]
    hosts = f"{first.hosts} hosts × {number(first.ranks // first.hosts, 'rank')}"
    line = f"cables of {first.rate_mbit:g} Mbit/s" if first.rate_mbit else "unshaped"
    rounds = number(max(row.rounds for row in rows), "round")
    return (
        f"**{hosts}, {first.collective}, {first.congestion}, {line}**:\n"
        f"median µs [fastest, slowest of {rounds}], commit `{first.commit}`"
    )


def number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def table(rows: Sequence[Row], other: Sequence[Row]) -> str:
    """Return the table of one congestion control; `other` has the rows of the first one."""
    names = list(dict.fromkeys(row.library for row in rows))
    lines = [line for _, line in by_case(rows)]
    columns = {name: [cell(line.get(name)) for line in lines] for name in names}
    columns |= ratios(lines, dict(by_case(other)))
    places = {row.placement for row in rows}
    heads = [
        size_text(first.bytes) + (f" {first.placement}" if len(places) > 1 else "")
        for first in (next(iter(line.values())) for line in lines)
    ]
    cells = [["bytes", *columns], *zip(heads, *columns.values(), strict=True)]
    rule = "|".join(["---", *("---:" for _ in columns)])
    head, *body = (f"| {' | '.join(line)} |" for line in cells)
    return "\n".join([head, f"|{rule}|", *body])


def by_case(rows: Iterable[Row]) -> list[tuple[tuple[int, str], Line]]:
    """Group the rows by size and placement, in their order, then by library."""
    found: dict[tuple[int, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.bytes, row.placement), {})[row.library] = row
    return list(found.items())


def ratios(lines: Sequence[Line], others: Mapping[tuple[int, str], Line]) -> dict[str, list[str]]:
    """Return the columns that compare ringfold, if they have any values."""
    compared: dict[str, list[float | None]] = {}
    (congestion,) = {row.congestion for line in others.values() for row in line.values()} or {""}
    for line in lines:
        own = line.get(OWN)
        other = others.get((own.bytes, own.placement), {}).get(OWN) if own else None
        for head, value in (
            ("ringfold / best peer", own.best_ratio if own else None),
            ("ringfold / baseline", line[BASELINE].ringfold_ratio if BASELINE in line else None),
            (f"ringfold / under {congestion}", divided(own, other)),
            ("rate / bare rate", divided(line.get(BARE), own)),
            ("rate / line rate", inverse(own.limit_ratio) if own else None),
        ):
            compared.setdefault(head, []).append(value)
    return {
        head: [digits(value) or NONE for value in values]
        for head, values in compared.items()
        if any(value is not None for value in values)
    }


def divided(one: Row | None, other: Row | None) -> float | None:
    return ratio(one.median_us, other.median_us) if one and other else None


def inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def cell(row: Row | None) -> str:
    """Return a median and the range of the rounds' medians; the best peer's median is bold."""
    if row is None or row.median_us is None:
        return NONE
    text = microseconds(row.median_us)
    between = [microseconds(us) for us in (row.quickest_round_us, row.slowest_round_us) if us]
    text = f"**{text}**" if row.library == row.best_peer else text
    return f"{text} [{', '.join(between)}]"


def microseconds(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def size_text(size: int) -> str:
    for unit, text in UNITS:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def failure(row: Row) -> str:
    return f"* {row.library}, {size_text(row.bytes)}, {row.congestion}: {row.failure}"
