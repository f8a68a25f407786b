#!/usr/bin/env python3
"""Compares ringfold with its peers, interleaved in one run. bench/README.md has the method.

    bench/peers.py                            # all_reduce, 2 ranks, 8 B to 64 MiB, all peers
    bench/peers.py --ranks 4,8 --max 16M --peers impi,openmpi
    bench/peers.py --collective all_gather --sizes 8,64K,16M
    bench/peers.py --preset table --pin
    bench/peers.py --peers vllm,deepspeed,oneccl,mlx --torch .venv/bin/python
    bench/peers.py --baseline ../before/target/release/ringfold --peers ''   # two builds
    bench/peers.py --hosts 2                  # all_reduce over TCP between network namespaces
    bench/peers.py --hosts 2 --ranks-per-host 4 --congestion cubic,bbr
    bench/peers.py --hosts 2 --ranks-per-host 2 --rate 1000 --sizes 16M   # cables of 1 Gbit/s

Peers are installed from PyPI into bench/.venvs on the first run, with an environment for each.
ringfold is the release build. On one host, the table has medians with a 95 % interval, and ratios
of medians: ringfold's time divided by the library's (below 1, ringfold is faster), the library's by
the best peer's (* marks that peer), and the library's by the memory limit. Between hosts, the table
is Markdown: the median and the fastest and slowest round of each library, ringfold's time divided
by that of the best peer (in bold), and ringfold's share of the rate of a bare exchange and of a
shaped line. Rows are written to bench/results/DATE-MACHINE/ as CSV, and on one host as curves in
SVG.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparison import catalogue, frameworks, libraries, machine, markdown, report
from comparison.collectives import COLLECTIVES, bytes_of
from comparison.hosts import Hosts
from comparison.measure import Plan, Taken, measure
from comparison.memory import Memory
from comparison.presets import PRESETS, Preset
from comparison.processes import become_reaper
from comparison.summary import Comparison, Row, Setting
from lab import KERNEL_CONGESTION, Lab

INTERRUPTED_STATUS = 130
# Between hosts, starts take longer than the calls, so runs are short.
HOSTS_BUDGET_MS = 300
HOSTS_LIMIT_S = 20
# Burst of a shaped cable. With room for less than two of TCP's largest segments of 64 KiB, the
# token bucket would pass only two thirds of its rate.
BURST = "128kb"


def names(text: str) -> list[str]:
    chosen = [name for name in text.split(",") if name]
    if unknown := [name for name in chosen if name not in catalogue.PEERS]:
        raise argparse.ArgumentTypeError(
            f"no peer {unknown[0]!r}; there are {', '.join(catalogue.PEERS)}"
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
    # A link is kept, because the Python of an environment finds the environment by its own path.
    path = Path(text).absolute()
    if not path.is_file():
        raise argparse.ArgumentTypeError(
            f"no file {text!r}; name a build's target/release/ringfold, or a Python"
        )
    return path


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add(
        "--preset",
        choices=list(PRESETS),
        help="defaults of the flags below (default sweep; with --hosts, hosts)",
    )
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
    add("--factor", type=count, default=8, help="factor between sizes (default 8)")
    add(
        "--peers",
        type=names,
        help=f"of {', '.join(catalogue.PEERS)} (default impi,openmpi,mpich,gloo); '' is none",
    )
    add(
        "--baseline",
        type=command,
        metavar="COMMAND",
        help="another build of ringfold, measured alternately with this one",
    )
    add(
        "--torch",
        type=command,
        metavar="PYTHON",
        help="measure ringfold's torch backend, too, in a Python with torch and this tree's wheel",
    )
    add(
        "--pin",
        action="store_true",
        help="bind every library's ranks to cores, instead of each library's default",
    )
    add("--no-build", action="store_true", help="measure target/release/ringfold as it is")
    add("--venvs", type=Path, default=libraries.VENVS, help="folder of the peers' environments")
    add("--hosts", type=count, help="network namespaces to spread the ranks over (needs root)")
    add("--ranks-per-host", type=count, default=1, help="with --hosts, in place of --ranks")
    add(
        "--congestion",
        type=lambda text: text.split(","),
        default=[KERNEL_CONGESTION.read_text().strip()],
        help="the hosts' default congestion control, such as cubic,bbr for each in turn (default "
        "the kernel's)",
    )
    add("--rate", type=float, metavar="MBIT", help="limit each host's cable, in both directions")
    add(
        "--limit",
        type=count,
        metavar="SECONDS",
        help="time limit of each library's run of a size (default 60; with --hosts, 20)",
    )
    add("--csv", help="file for the rows instead of the one in bench/results; none writes none")
    add("--svg", help="file for the curves likewise; with --hosts, there are none by default")
    return flags


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options if they are compatible; exit otherwise."""
    if options.hosts and options.ranks:
        sys.exit("--ranks applies to a single host; with --hosts, use --ranks-per-host")
    if options.hosts and options.hosts < 2:
        sys.exit("--hosts needs at least 2; without it, all ranks are on this host")
    if options.hosts and os.geteuid() != 0:
        sys.exit("--hosts needs root, to create network namespaces")
    if options.hosts and options.pin:
        sys.exit(
            "--pin applies to a single host; launchers would bind all hosts' ranks to the same "
            "cores"
        )
    if options.hosts and (wrong := set(options.peers or ()) & set(catalogue.WITHIN_HOST)):
        sys.exit(f"{', '.join(sorted(wrong))} are measured on a single host; leave out --hosts")
    if options.rate is not None and not (options.hosts and options.rate > 0):
        sys.exit("--rate limits cables; it needs --hosts, and a number of Mbit/s above 0")
    return options


def preset_of(options: argparse.Namespace) -> Preset:
    """Return the preset, overridden by the flags."""
    given = {
        "collective": COLLECTIVES[options.collective] if options.collective else None,
        "ranks": [options.hosts * options.ranks_per_host] if options.hosts else options.ranks,
        "sizes": [0] if options.collective == "barrier" else options.sizes,
        "rounds": options.rounds,
        "peers": options.peers,
    }
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen = options.preset or ("hosts" if options.hosts else "sweep")
    return replace(PRESETS[chosen], **values)


def sweep(smallest: int, largest: int, factor: int) -> list[int]:
    chosen = [smallest]
    while factor > 1 and smallest > 0 and chosen[-1] * factor <= largest:
        chosen.append(chosen[-1] * factor)
    return chosen


def compared(preset: Preset, options: argparse.Namespace) -> list[libraries.Library]:
    """Return the libraries to compare, in the order of the table's rows."""
    name, ranks, pin = preset.collective.name, max(preset.ranks), options.pin
    if pin and (reason := libraries.refusal(name, ranks, *libraries.PIN_FLAGS)):
        sys.exit(f"--pin needs `ringfold perf {' '.join(libraries.PIN_FLAGS)}`, which {reason}")
    chosen: list[libraries.Library] = [libraries.Ringfold("ringfold")]
    if options.baseline:
        chosen.append(libraries.Ringfold("ringfold-baseline", command=options.baseline))
    if options.hosts:
        pass
    elif reason := libraries.refusal(name, ranks, "-R", "1"):
        print(f"ringfold-registered is left out: `ringfold perf -R 1` {reason}", file=sys.stderr)
    else:
        chosen.append(libraries.Ringfold("ringfold-registered", "-R", "1"))
    chosen += [
        libraries.Ringfold(f"ringfold-{algorithm}", "-A", algorithm)
        for algorithm in preset.algorithms
    ]
    if options.torch:
        chosen.append(frameworks.RingfoldTorch(options.torch))
    for peer in preset.peers:
        if reason := catalogue.absence(peer, options.venvs):
            print(f"{peer} is left out: {reason}", file=sys.stderr)
        else:
            chosen.append(catalogue.peer(peer, options.venvs))
    # With more than two hosts, an exchange between two is not the limit.
    return [*chosen, libraries.Bare()] if options.hosts == 2 else chosen


@contextmanager
def hosts_of(options: argparse.Namespace) -> Iterator[Hosts | None]:
    """Make the hosts, and delete them at the end."""
    if not options.hosts:
        yield None
        return
    with Lab(options.hosts) as lab:
        for host in range(options.hosts if options.rate else 0):
            lab.shape(host, options.rate, BURST)
        yield Hosts(lab, options.congestion, options.rate)


def plan_of(preset: Preset, options: argparse.Namespace, hosts: Hosts | None) -> Plan:
    chosen_sizes = preset.sizes or sweep(options.min, options.max, options.factor)
    plan = Plan(
        preset.collective, preset.ranks, chosen_sizes, preset.rounds, options.pin, preset.iterations
    )
    if hosts:
        plan = replace(plan, hosts=hosts, budget_ms=HOSTS_BUDGET_MS, limit_s=HOSTS_LIMIT_S)
    return replace(plan, limit_s=options.limit) if options.limit else plan


def write(rows: list[Row], options: argparse.Namespace, preset: Preset) -> None:
    """Write the rows as CSV and as curves, if requested."""
    table = Path(options.csv or machine.folder(libraries.BENCH / "results") / name(options, preset))
    if options.csv != "none":
        report.write_csv(rows, table)
        print(f"rows: {table}", file=sys.stderr)
    svg = options.svg or ("none" if options.hosts else table.with_suffix(".svg"))
    if svg != "none" and options.csv != "none":
        python = libraries.environment(options.venvs, "plot") / "bin" / "python"
        subprocess.run([python, libraries.BENCH / "comparison" / "plot.py", table, svg], check=True)
        print(f"curves: {svg}", file=sys.stderr)


def name(options: argparse.Namespace, preset: Preset) -> str:
    """Return the name of the file of rows."""
    what = options.preset if options.preset not in (None, "sweep") else preset.collective.name
    pinned = "-pinned" if options.pin else ""
    if options.hosts:
        shaped = f"-{options.rate:g}-mbit" if options.rate else ""
        ranks = f"{options.hosts}-hosts-{options.ranks_per_host}-ranks-each"
        return f"peers-{what}-{ranks}-{'-'.join(options.congestion)}{shaped}{pinned}.csv"
    return f"peers-{what}-{'-'.join(map(str, preset.ranks))}-ranks{pinned}.csv"


def setting(options: argparse.Namespace) -> Setting:
    """Return where and how this run measures."""
    return Setting(
        hosts=options.hosts or 1,
        rate_mbit=options.rate,
        commit=libraries.ringfold_version(),
        machine=machine.name(),
        kernel=machine.kernel(),
        command=shlex.join(["bench/peers.py", *portable(sys.argv[1:])]),
    )


def portable(words: list[str]) -> list[str]:
    """Return the flags without the environments' folder, which is specific to this machine."""
    at = words.index("--venvs") if "--venvs" in words else len(words)
    return words[:at] + words[at + 2 :]


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    options = checked(parser().parse_args())
    preset = preset_of(options)
    become_reaper()
    if not options.no_build:
        libraries.build_ringfold()
    chosen, taken, where = compared(preset, options), Taken(), setting(options)
    status = 0
    with hosts_of(options) as hosts:
        plan = plan_of(preset, options, hosts)
        memory = None if hosts else Memory(preset.collective, plan.sizes)
        try:
            measure(plan, chosen, memory, taken)
        except KeyboardInterrupt:
            # The results so far are printed, but not written.
            status = INTERRUPTED_STATUS
    limit = hosts or memory
    assert limit
    comparison = Comparison(
        collective=preset.collective.name,
        pinned=options.pin,
        versions={library.name: library.version for library in chosen},
        peers=frozenset(library.name for library in chosen if library.is_peer),
        limits_us=limit.limits_us(case for _, case in taken),
        setting=where,
    )
    rows = comparison.rows(taken)
    print(
        "compared:", ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    )
    print(markdown.tables(rows) if hosts else report.table(rows))
    if memory:
        print("\n".join(memory.lines()))
    if status == 0:
        write(rows, options, preset)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_STATUS)
