"""Evaluates the blocks of `bench/torch_ranks.py`: Python's overhead, and communication's cost."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.summary import Case, Times, interval, ratio

PLACEMENT = "in"


def blocks(output: str) -> list[dict[str, Any]]:
    """Return the lines of JSON in mixed output."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def add(
    taken: dict[tuple[str, Case], Times], ranks: int, lines: Iterable[Mapping[str, Any]]
) -> None:
    """Add blocks of calls to times by library and case; a block is a round."""
    for line in lines:
        times = taken.setdefault((line["library"], Case(ranks, line["bytes"], PLACEMENT)), Times())
        if not times.rounds_us:
            times.first_us.append(line["times_us"][0])
        times.rounds_us.append(line["times_us"])


@dataclass(frozen=True)
class Overhead:
    """Time of `dist.all_reduce` beyond the core's call of the same size in the same processes."""

    ranks: int
    bytes: int
    torch_us: float
    native_us: float
    # Median difference of neighbouring blocks, and its 95 % confidence interval.
    overhead_us: float
    low_us: float
    high_us: float


def overheads(taken: Mapping[tuple[str, Case], Times]) -> list[Overhead]:
    """Return the overhead of every case with both calls.

    Blocks are compared with their neighbours, because the machine's state changes over time.
    """
    found = []
    for case in sorted(
        {case for name, case in taken if name == "native"}
        & {case for name, case in taken if name == "ringfold"}
    ):
        through, native = taken["ringfold", case], taken["native", case]
        pairs = zip(through.rounds_us, native.rounds_us, strict=True)
        differences = sorted(
            statistics.median(one) - statistics.median(other) for one, other in pairs
        )
        low, high = interval(differences)
        torch_us, native_us = (statistics.median(times.all_us()) for times in (through, native))
        found.append(
            Overhead(
                case.ranks,
                case.bytes,
                torch_us,
                native_us,
                statistics.median(differences),
                low,
                high,
            )
        )
    return found


@dataclass(frozen=True)
class Steps:
    """A step of training, in milliseconds: medians of all steps, the fastest and slowest block."""

    way: str
    steps: int
    step_ms: float
    quickest_ms: float
    slowest_ms: float
    # Time beyond the step of one rank working alone, and its ratio to gloo's.
    communication_ms: float
    of_gloo: float | None
    # The same, beyond a step without communication while the other ranks also work.
    beyond_apart_ms: float
    of_gloo_beyond_apart: float | None


def steps(lines: Sequence[Mapping[str, Any]]) -> list[Steps]:
    """Return a row for each kind of step."""
    by_way: dict[str, list[list[float]]] = {}
    for line in lines:
        by_way.setdefault(line["way"], []).append([us / 1e3 for us in line["times_us"]])
    step_ms = {
        way: statistics.median(ms for block in found for ms in block)
        for way, found in by_way.items()
    }
    alone, apart, gloo = step_ms["alone"], step_ms["apart"], step_ms["gloo"]
    rows = []
    for way, found in by_way.items():
        medians = [statistics.median(block) for block in found]
        beyond, beyond_apart = step_ms[way] - alone, step_ms[way] - apart
        rows.append(
            Steps(
                way=way,
                steps=sum(map(len, found)),
                step_ms=round(step_ms[way], 3),
                quickest_ms=round(min(medians), 3),
                slowest_ms=round(max(medians), 3),
                communication_ms=round(beyond, 3),
                of_gloo=ratio(beyond, gloo - alone),
                beyond_apart_ms=round(beyond_apart, 3),
                of_gloo_beyond_apart=ratio(beyond_apart, gloo - apart),
            )
        )
    return rows
