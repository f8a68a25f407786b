#!/usr/bin/env python3
"""Compares ringfold with its peers on this host, interleaved in one run. bench/README.md has the
method.

    bench/peers.py                            # all_reduce, 2 ranks, 8 B to 64 MiB, all peers
    bench/peers.py --ranks 4,8 --max 16M --peers impi,openmpi
    bench/peers.py --collective all_gather --sizes 8,64K,16M
    bench/peers.py --preset table --pin
    bench/peers.py --baseline ../before/target/release/ringfold --peers ''   # two builds

Peers are installed from PyPI into bench/.venvs on the first run, one environment each. ringfold is
the release build. The table has medians with a 95 % interval, and ratios of medians: ringfold's
time divided by the library's (below 1, ringfold is faster), the library's by the best peer's (*
marks that peer), and the library's by the memory limit. The same rows are written to
bench/results/DATE-MACHINE/ as CSV and as curves in SVG.
"""

import argparse
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparison import libraries, machine, report
from comparison.collectives import COLLECTIVES, bytes_of
from comparison.measure import Plan, Taken, measure
from comparison.memory import Memory
from comparison.presets import PRESETS, Preset
from comparison.processes import become_reaper
from comparison.summary import Comparison, Row

INTERRUPTED_STATUS = 130


def names(text: str) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    if unknown := [name for name in chosen if name not in libraries.PEERS]:
        raise argparse.ArgumentTypeError(
            f"no peer {unknown[0]!r}; there are {', '.join(libraries.PEERS)}"
        )
    return chosen


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def counts(text: str) -> list[int]:
    return [count(word) for word in text.split(",")]


def size(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes(text: str) -> list[int]:
    return [size(word) for word in text.split(",")]


def command(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(
            f"no file {text!r}; name another build's target/release/ringfold"
        )
    return path


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--preset", default="sweep", choices=list(PRESETS), help="defaults of the flags below")
    add("--collective", choices=list(COLLECTIVES), help="(default all_reduce)")
    add("--ranks", type=counts, help="numbers of ranks, separated by commas (default 2)")
    add(
        "--rounds",
        type=count,
        help="how often every library is run (default 3), three times as often up to 64K",
    )
    add("--sizes", type=sizes, help="such as 8,64K,1M; otherwise from --min to --max")
    add("--min", type=size, default="8", help="smallest size (default 8)")
    add("--max", type=size, default="64M", help="largest size (default 64M)")
    add("--factor", type=count, default=8, help="between sizes (default 8)")
    add(
        "--peers",
        type=names,
        help=f"of {', '.join(libraries.PEERS)} (default impi,openmpi,mpich,gloo); '' is none",
    )
    add(
        "--baseline",
        type=command,
        metavar="COMMAND",
        help="another build of ringfold, measured alternately with this one",
    )
    add(
        "--pin",
        action="store_true",
        help="bind every library's ranks to cores, instead of each library's default",
    )
    add("--csv", help="file for the rows instead of the one in bench/results; none writes none")
    add("--svg", help="file for the curves likewise")
    return flags


def preset_of(options: argparse.Namespace) -> Preset:
    """The preset, overridden by the flags."""
    given = {
        "collective": COLLECTIVES[options.collective] if options.collective else None,
        "ranks": options.ranks,
        "sizes": [0] if options.collective == "barrier" else options.sizes,
        "rounds": options.rounds,
        "peers": options.peers,
    }
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(PRESETS[options.preset], **values)


def sweep(smallest: int, largest: int, factor: int) -> list[int]:
    chosen = [smallest]
    while factor > 1 and smallest > 0 and chosen[-1] * factor <= largest:
        chosen.append(chosen[-1] * factor)
    return chosen


def compared(preset: Preset, pin: bool, baseline: Path | None) -> list[libraries.Library]:
    """The libraries to compare, in the order of the table's rows."""
    name, ranks = preset.collective.name, max(preset.ranks)
    if pin and (reason := libraries.refusal(name, ranks, *libraries.PIN_FLAGS)):
        sys.exit(f"--pin needs `ringfold perf {' '.join(libraries.PIN_FLAGS)}`, which {reason}")
    chosen: list[libraries.Library] = [libraries.Ringfold("ringfold")]
    if baseline:
        chosen.append(libraries.Ringfold("ringfold-baseline", command=baseline))
    if reason := libraries.refusal(name, ranks, "-R", "1"):
        print(f"ringfold-registered is left out: `ringfold perf -R 1` {reason}", file=sys.stderr)
    else:
        chosen.append(libraries.Ringfold("ringfold-registered", "-R", "1"))
    chosen += [
        libraries.Ringfold(f"ringfold-{algorithm}", "-A", algorithm)
        for algorithm in preset.algorithms
    ]
    return chosen + [libraries.peer(peer) for peer in preset.peers]


def write(rows: list[Row], options: argparse.Namespace, preset: Preset) -> None:
    """Write the rows as CSV and as curves, if requested."""
    what = preset.collective.name if options.preset == "sweep" else options.preset
    stem = (
        f"peers-{what}-{'-'.join(map(str, preset.ranks))}-ranks{'-pinned' if options.pin else ''}"
    )
    default = machine.folder(libraries.BENCH / "results") / stem
    table = Path(options.csv or f"{default}.csv")
    if options.csv != "none":
        report.write_csv(rows, table)
        print(f"rows: {table}", file=sys.stderr)
    if options.svg != "none" and options.csv != "none":
        curves = Path(options.svg or table.with_suffix(".svg"))
        python = libraries.environment("plot") / "bin" / "python"
        subprocess.run(
            [python, libraries.BENCH / "comparison" / "plot.py", table, curves], check=True
        )
        print(f"curves: {curves}", file=sys.stderr)


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    options = parser().parse_args()
    preset = preset_of(options)
    chosen_sizes = preset.sizes or sweep(options.min, options.max, options.factor)
    become_reaper()
    libraries.build_ringfold()
    chosen = compared(preset, options.pin, options.baseline)
    plan = Plan(
        preset.collective, preset.ranks, chosen_sizes, preset.rounds, options.pin, preset.iterations
    )
    memory, taken = Memory(preset.collective, chosen_sizes), Taken()
    status = 0
    try:
        measure(plan, chosen, memory, taken)
    except KeyboardInterrupt:
        # Results so far are printed, but not written.
        status = INTERRUPTED_STATUS
    comparison = Comparison(
        collective=preset.collective.name,
        pinned=options.pin,
        versions={library.name: library.version for library in chosen},
        peers=frozenset(library.name for library in chosen if library.is_peer),
        limits_us=memory.limits_us(case for _, case in taken),
    )
    rows = comparison.rows(taken)
    print(
        "compared:", ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    )
    print(report.table(rows))
    print("\n".join(memory.lines()))
    if status == 0:
        write(rows, options, preset)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_STATUS)
