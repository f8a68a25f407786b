#!/usr/bin/env python3
"""Measures `ringfold perf` over RDMA, interleaved with the devices themselves and with MPIs.

    bench/rdma.py
    bench/rdma.py --sizes 8,64K --ranks 2 --transport rdma,tcp --peers mpich
    RDMA_VM_MEMORY=4096 bench/rdma_vm.sh bench/rdma.py    # with the peers that are built

The comparison is with the devices' own rate and latency, and with MPIs over the same devices.
Outside the guest of rdma_vm.sh, this program installs and builds the peers (root, apt-get), and
starts the guest. In the guest, it measures target/release/ringfold as it is. For each size, a round
measures ib_write_lat (to 64 KiB), ib_write_bw in both directions, and all_reduce with each
transport and number of ranks on two hosts. Then it measures each peer's all_reduce of all sizes in
one start. Libraries measure out of place, as bench/peers.py does: the input is rewritten before
each call, and then all ranks wait for each other. Up to 64 KiB, two ranks also call in a row
without either. At the smallest sizes, these calls are compared with rdma_exchange.c, in which two
processes only write to each other at the same time: no all_reduce does less.
The table has the median over rounds, the fastest and the slowest; the ratio to the devices', of a
small all_reduce of two ranks to ib_write_lat, and of a large one to the time in which both
directions carry its bytes; and ringfold's time divided by each peer's. Rows are written to
bench/results/DATE-MACHINE/rdma.csv.
The emulated machine shows the work per message, not the speed of a real device.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import rdma_guest
from comparison import machine
from comparison.collectives import bytes_of
from comparison.libraries import BUILT
from comparison.processes import Failed, become_reaper
from rdma_hosts import COMMAND, RdmaHosts, hosts_here, output_of
from rdma_peers import PEERS, Peer

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = "8,4K,64K,1M,4M,16M"
# Largest size for the latency program; larger messages are measured by the rate.
LATENCY_BYTES_MAX = 64 << 10
LATENCY_TRIES = 5
# Largest message for the rate: soft-RoCE may never finish 64 MiB in both directions.
MESSAGE_BYTES_MAX = 1 << 20
EXCHANGE = BUILT / "rdma_exchange"
EXCHANGE_BYTES_MAX = 200
# Iterations transfer about this many bytes, within limits.
BYTES, ITERATIONS = 8 << 20, (2, 300)
# perftest requires at least 5.
TESTS_MIN = 5
LIMIT_S = 120.0
# Time limit of a peer's run of all sizes, and time for the calls of one size.
PEER_LIMIT_S, PEER_BUDGET_MS = 240.0, 500
COLUMNS = ("round", "program", "ranks", "bytes", "median_us")

Key = tuple[str, int, int]


def iterations(size: int) -> int:
    return min(max(BYTES // size, ITERATIONS[0]), ITERATIONS[1])


def perftest(lab: RdmaHosts, program: str, size: int, *flags: str) -> list[float]:
    """Return the numbers in the result line of a program of perftest."""
    count = max(iterations(size), TESTS_MIN)
    words = [program, "-F", "-s", str(size), "-n", str(count), *flags]
    server = subprocess.Popen(
        ["on-host", "0", *words, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(50):
            client = subprocess.run(
                ["on-host", "1", *words, "-d", "rxe1", lab.address(0)],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            if client.returncode == 0:
                break
            # The server is not listening yet.
            time.sleep(0.1)
        else:
            sys.exit(f"{' '.join(words)}: {client.stdout}{client.stderr}")
        server.wait(LIMIT_S)
    finally:
        server.kill()
        server.wait()
    lines = client.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("#bytes"))
    return [float(word) for word in lines[at + 1].split()]


def latency_us(lab: RdmaHosts, size: int) -> float:
    """Return the typical one-way time of a write."""
    for _ in range(LATENCY_TRIES):
        # Infinite if the program could not determine the length of a cycle.
        if math.isfinite(us := perftest(lab, "ib_write_lat", size)[4]):
            return us
    sys.exit("ib_write_lat cannot measure times; is the machine busy with something else?")


def exchange_us(size: int) -> float:
    """Return the typical time in which two devices write to each other."""
    words = [str(EXCHANGE), "rxe0", "rxe1", str(size), str(iterations(size))]
    return float(subprocess.check_output(words, text=True, timeout=LIMIT_S))


def both_ways_us(lab: RdmaHosts, size: int) -> float:
    """Return the time of `size` bytes in each direction among many; the rate covers both."""
    average_mib = perftest(lab, "ib_write_bw", min(size, MESSAGE_BYTES_MAX), "-b")[3]
    return 2 * size / (average_mib * (1 << 20)) * 1e6


def all_reduce_us(
    lab: RdmaHosts, transport: str, ranks: int, size: int, *, in_a_row: bool = False
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [str(COMMAND), "perf", "all_reduce", "--transport", transport, "-J", str(report)]
        words += ["-b", str(size), "-e", str(size), "-n", str(iterations(size)), "-c", "0"]
        # In a row, if one rank waits less, the other waits longer: their mean counts.
        words += ["-w", "20", "-z", "0", "-a", "1"] if in_a_row else ["-w", "0", "--rewrite"]
        output_of(lab, [*words, "-I", "1"], ranks, LIMIT_S)
        (row,) = json.loads(report.read_text())["results"]
    return float(statistics.median(row["out_of_place_per_iter"]["times_us"]))


def one_round(lab: RdmaHosts, options: argparse.Namespace) -> dict[Key, float]:
    """Run every program once."""
    found: dict[Key, float] = {}
    for size in options.sizes:
        if size <= LATENCY_BYTES_MAX:
            found["ib_write_lat", 2, size] = latency_us(lab, size)
            if size <= EXCHANGE_BYTES_MAX and EXCHANGE.exists():
                found[EXCHANGE.name, 2, size] = exchange_us(size)
        found["ib_write_bw -b", 2, size] = both_ways_us(lab, size)
        for ranks in options.ranks:
            for transport in options.transport:
                us = all_reduce_us(lab, transport, ranks, size)
                found[f"ringfold {transport}", ranks, size] = us
                if ranks == 2 and size <= LATENCY_BYTES_MAX:
                    us = all_reduce_us(lab, transport, ranks, size, in_a_row=True)
                    found[f"ringfold {transport} in a row", ranks, size] = us
        print(f"{size} B measured", file=sys.stderr, flush=True)
    for peer in list(options.peers):
        try:
            times = peer.all_reduce_us(options.sizes, ITERATIONS[1], PEER_BUDGET_MS, PEER_LIMIT_S)
        except Failed as failure:
            print(f"{peer.row} is left out: it {failure}", file=sys.stderr, flush=True)
            options.peers.remove(peer)
            continue
        found |= {(peer.row, 2, size): us for size, us in times.items()}
        print(f"{peer.row} measured", file=sys.stderr, flush=True)
    return found


def table(taken: dict[Key, list[float]], transport: str = "auto") -> str:
    """Return the table: medians, fastest and slowest, ratios to the devices, ringfold to peers."""
    middle = {key: statistics.median(times) for key, times in taken.items()}
    head = f"{'program':<22} {'ranks':>5} {'bytes':>9} {'us':>11}  fastest to slowest"
    lines = [f"{head}   of device  ringfold/it"]
    rows = {peer.row for peer in PEERS.values()}
    for (program, ranks, size), times in sorted(taken.items(), key=lambda item: item[0][::-1]):
        us = middle[program, ranks, size]
        limit = middle.get(("ib_write_lat", 2, size)) or middle["ib_write_bw -b", 2, size]
        is_device = program.startswith("ib_")
        like = {EXCHANGE.name: f"ringfold {transport} in a row"}
        like |= dict.fromkeys(rows, f"ringfold {transport}")
        own = middle.get((like[program], ranks, size)) if program in like else None
        columns = ("" if is_device else f"{us / limit:.2f}", f"{own / us:.2f}" if own else "")
        spread = f"{min(times):.1f} to {max(times):.1f}"
        line = f"{program:<22} {ranks:>5} {size:>9} {us:>11.1f}  {spread:<21}"
        lines.append(f"{line}{columns[0]:>9}{columns[1]:>13}".rstrip())
    return "\n".join(lines)


def peers_of(text: str | None) -> list[Peer]:
    """Return the named peers; by default all."""
    names = list(PEERS) if text is None else [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        sys.exit(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return [PEERS[name] for name in names]


def start_guest(peers: list[Peer], arguments: list[str]) -> None:
    """Build rdma_exchange.c, prepare the peers, and continue in the guest."""
    rdma_guest.build_with_verbs(EXCHANGE.name, EXCHANGE.name)
    for peer in peers:
        if reason := peer.prepare():
            print(f"{peer.row} is left out: {reason}", file=sys.stderr)
    rdma_guest.start("rdma.py", arguments)


def write(taken: dict[Key, list[float]], path: Path) -> None:
    """Write each round's rows as CSV."""
    os.makedirs(path.parent, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key, times in taken.items():
            writer.writerows((number, *key, round(us, 1)) for number, us in enumerate(times))
    print(f"rows: {path}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--sizes", default=SIZES, help="separated by commas (default %(default)s)")
    add("--ranks", default="2,4", help="numbers of ranks (default %(default)s)")
    add("--rounds", type=int, default=3)
    add(
        "--transport",
        default="auto",
        help="ringfold's transports, such as rdma,tcp (default %(default)s: RDMA between hosts, "
        "shared memory within)",
    )
    add(
        "--peers",
        help=f"some of {', '.join(PEERS)} (default: all that can be installed); '' is none",
    )
    add(
        "--csv",
        type=rdma_guest.kept,
        help="file for the rows, below the repository, instead of the one in bench/results; none "
        "writes none",
    )
    return flags


def main() -> None:
    options = parser().parse_args()
    options.peers = peers_of(options.peers)
    if hosts_here() == 0:
        start_guest(options.peers, sys.argv[1:])
    options.sizes = [bytes_of(word) for word in options.sizes.split(",")]
    options.ranks = [int(word) for word in options.ranks.split(",")]
    options.transport = options.transport.split(",")
    for peer in [peer for peer in options.peers if not peer.is_there()]:
        print(
            f"{peer.row} is left out: not built; run this program outside the guest",
            file=sys.stderr,
        )
        options.peers.remove(peer)
    become_reaper()
    taken: dict[Key, list[float]] = defaultdict(list)
    with RdmaHosts(2) as lab:
        for _ in range(options.rounds):
            for key, us in one_round(lab, options).items():
                taken[key].append(us)
    print(table(taken, options.transport[0]))
    if options.csv != "none":
        write(taken, Path(options.csv or machine.folder(RESULTS) / "rdma.csv"))


if __name__ == "__main__":
    main()
