#!/usr/bin/env python3
"""Compares ringfold with its peers on this host, all of them interleaved in one run.

    bench/peers.py                                        # all_reduce, 2 ranks, against all peers
    bench/peers.py --ranks 4,8 --max 16M --peers impi,openmpi
    bench/peers.py --collective all_gather --sizes 8,64K,16M

Each round runs every library over all sizes, each time another one first; up to 64 KiB a round is three runs. Before
each call every rank stores to each cache line of its input and meets the others in a barrier, both untimed; an
iteration's time is the slowest rank's. Sizes are those of `ringfold perf`. Reported are the median over all rounds'
iterations, a 95 % interval of it (order statistics), the 99th percentile, the ratio of medians ringfold / library, and
the ratio library / best peer of that size (* marks that peer).

Peers come from PyPI into bench/.venvs, one environment each, on the first run. ringfold is the release build.
"""

import argparse
import signal
import sys
from pathlib import Path

from comparison import libraries, report
from comparison.collectives import COLLECTIVES, bytes_of
from comparison.measure import Plan, measure
from comparison.processes import become_reaper
from comparison.summary import Comparison


def names(text: str) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    if unknown := [name for name in chosen if name not in libraries.PEERS]:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; there are {', '.join(libraries.PEERS)}")
    return chosen


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def sizes(text: str) -> list[int]:
    return [bytes_of(word) for word in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", default="all_reduce", choices=list(COLLECTIVES))
    parser.add_argument("--ranks", type=numbers, default=[2], help="numbers of ranks, with commas between them (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="(default 3)")
    parser.add_argument("--sizes", type=sizes, help="such as 8,64K,1M; otherwise from --min to --max")
    parser.add_argument("--min", type=bytes_of, default="8", help="smallest size (default 8)")
    parser.add_argument("--max", type=bytes_of, default="64M", help="largest size (default 64M)")
    parser.add_argument("--factor", type=int, default=8, help="between sizes (default 8)")
    parser.add_argument("--peers", type=names, default="impi,openmpi,mpich,gloo", help="(default impi,openmpi,mpich,gloo)")
    parser.add_argument("--csv", type=Path, help="where the rows go as CSV, too")
    return parser.parse_args()


def sizes_of(options: argparse.Namespace) -> list[int]:
    if options.collective == "barrier":
        return [0]
    chosen: list[int] = options.sizes or [options.min]
    while not options.sizes and chosen[-1] * options.factor <= options.max:
        chosen.append(chosen[-1] * options.factor)
    return sorted(chosen)


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, interrupted)
    options = arguments()
    become_reaper()
    libraries.build_ringfold()
    compared: list[libraries.Library] = [libraries.Ringfold("ringfold"), *map(libraries.peer, options.peers)]
    plan = Plan(COLLECTIVES[options.collective], options.ranks, sizes_of(options), options.rounds, pin=False)
    taken = measure(plan, compared)
    comparison = Comparison(
        collective=options.collective,
        pinned=plan.pin,
        versions={library.name: library.version for library in compared},
        peers=frozenset(library.name for library in compared if library.is_peer),
        limits_us={},
    )
    rows = comparison.rows(taken)
    print(report.table(rows))
    if options.csv:
        report.write_csv(rows, options.csv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
