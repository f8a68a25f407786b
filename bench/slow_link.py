#!/usr/bin/env python3
"""All-reduce between hosts one of which has a slow link: the ring, and the weighted direct way that relieves it.

    bench/slow_link.py                                  # 4 hosts, one link at a quarter of 400 Mbit/s, 8 MiB
    bench/slow_link.py --rate 200 --factor 2 --bytes 4M --rounds 5

Hosts are network namespaces on one bridge, with a token bucket (tc's tbf) at both ends of every cable. The rates are low
enough that no processor matters. It needs the rights to make namespaces (root), `ip` and `tc`. A round runs each way once, and every
round begins with another, so that what disturbs the machine disturbs all. `ringfold sim` says what each way should take.
"""

import argparse
import csv
import io
import os
import secrets
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
# The bytes on the wire for each byte that TCP carries in a full frame: 1500 of IP (and 14 of Ethernet, which tbf counts) for
# 1448 of payload.
WIRE = 1514 / 1448


@dataclass(frozen=True)
class Way:
    """One way of carrying out the call."""

    name: str
    arguments: tuple[str, ...]


class Lab:
    """Namespaces on a bridge, deleted at the end."""

    def __init__(self, hosts: int) -> None:
        stem = f"ringfold-lab-{os.getpid()}-slow"
        self.switch = f"{stem}-switch"
        self.hosts = [f"{stem}-{host}" for host in range(hosts)]

    def __enter__(self) -> "Lab":
        try:
            self.build()
        except BaseException:
            self.delete()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def build(self) -> None:
        """Makes hosts and cables."""
        command("ip", "netns", "add", self.switch)
        command("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        command("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            command("ip", "netns", "add", host)
            cable = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host]
            command("ip", "-n", self.switch, *cable)
            command("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            command("ip", "-n", host, "address", "add", f"{address(number)}/24", "dev", "eth0")
            command("ip", "-n", host, "link", "set", "eth0", "up")
            command("ip", "-n", host, "link", "set", "lo", "up")

    def shape(self, number: int, mbit: float) -> None:
        """Limits both directions of a host's cable."""
        for namespace, device in [(self.hosts[number], "eth0"), (self.switch, f"port{number}")]:
            limits = ["rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms"]
            command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits)

    def delete(self) -> None:
        """Takes everything away."""
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def address(number: int) -> str:
    """The address of a host."""
    return f"10.77.1.{number + 1}"


def command(*words: str) -> None:
    """Runs a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def perf(lab: Lab, program: Path, arguments: list[str]) -> list[dict[str, str]]:
    """`ringfold perf` with a rank on each host; the rows of its CSV."""
    secret = secrets.token_hex(16)
    ranks = []
    for rank, host in enumerate(lab.hosts):
        environment = {
            "PATH": os.environ["PATH"],
            "RINGFOLD_RANK": str(rank),
            "RINGFOLD_WORLD_SIZE": str(len(lab.hosts)),
            "RINGFOLD_ADDR": f"{address(0)}:29400",
            "RINGFOLD_SECRET": secret,
            "RINGFOLD_TIMEOUT_MS": "60000",
        }
        words = ["ip", "netns", "exec", host, str(program), "perf", *arguments, "--csv", "-"]
        ranks.append(
            subprocess.Popen(
                words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    output = ""
    try:
        for rank, process in enumerate(ranks):
            out, complaint = process.communicate(timeout=SECONDS_MAX)
            if process.returncode:
                sys.exit(f"rank {rank} of perf {' '.join(arguments)}: {complaint.strip()}")
            output = output or out
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    lines = output.splitlines()
    while lines and not lines[0].startswith("collective,"):
        lines.pop(0)
    return list(csv.DictReader(io.StringIO("\n".join(lines))))


def simulated_us(program: Path, options: argparse.Namespace, way: Way) -> float:
    """What `ringfold sim` says that a way takes, with the payload's part of the rate as bandwidth."""
    words = [str(program), "sim", "--ranks", str(options.hosts), "--bytes", options.bytes]
    words += ["--alpha", options.alpha, "--bandwidth", f"{options.rate / WIRE:.3f}Mbit/s"]
    words += ["--slow-link", f"rank={options.slow},factor={options.factor}", *way.arguments, "--csv", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    return float(row["time_us"])


def main() -> None:
    """Measures, prints a table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--slow", type=int, default=2, help="the host with the slow link")
    parser.add_argument("--rate", type=float, default=400.0, help="Mbit/s of the others")
    parser.add_argument("--factor", type=float, default=4.0, help="how many times as slow")
    parser.add_argument("--bytes", default="8M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--ways", help="some of ring, direct, tuner, weighted, weighted-auto")
    parser.add_argument("--alpha", default="100us", help="latency for the simulator")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    each = ",".join("0" if host == options.slow else "1" for host in range(options.hosts))
    ways = [
        Way("ring", ("--algorithm", "ring")),
        Way("direct", ("--algorithm", "direct")),
        Way("tuner", ()),
        Way("weighted", ("--weights", each)),
        Way("weighted-auto", ("--weights", "auto")),
    ]
    if options.ways:
        ways = [way for way in ways if way.name in options.ways.split(",")]
    sizes = ["-b", options.bytes, "-e", options.bytes, "-n", str(options.iterations), "-w", "0", "-c", "1"]
    medians: dict[tuple[str, str], list[float]] = {}
    rows: list[dict[str, str]] = []
    with Lab(options.hosts) as lab:
        for host in range(options.hosts):
            lab.shape(host, options.rate / (options.factor if host == options.slow else 1))
        for turn in range(options.rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                for row in perf(lab, options.program, ["all_reduce", *sizes, *way.arguments]):
                    if row["wrong"] != "0":
                        sys.exit(f"{way.name}: {row['wrong']} wrong elements")
                    rows.append({"way": way.name, "round": str(turn), **row})
                    place = "in" if row["in_place"] in ("1", "true") else "out"
                    medians.setdefault((way.name, place), []).append(float(row["median_us"]))
    print(f"{'way':>14} {'place':>5} {'median_ms':>10} {'of ring':>8} {'simulated_ms':>13} {'of it':>6}")
    simulated = {way.name: simulated_us(options.program, options, way) for way in ways}
    for (name, place), times in sorted(medians.items(), key=lambda item: (item[0][1], item[0][0])):
        median = statistics.median(times)
        ring = statistics.median(medians.get(("ring", place), [float("nan")]))
        should = simulated[name]
        print(
            f"{name:>14} {place:>5} {median / 1e3:>10.1f} {median / ring:>8.3f} {should / 1e3:>13.1f} {median / should:>6.3f}"
        )
    for row in rows:
        row["simulated_us"] = f"{simulated[row['way']]:.3f}"
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            setting = {
                "rate_mbit": str(options.rate),
                "slow": str(options.slow),
                "factor": str(options.factor),
            }
            writer = csv.DictWriter(file, [*setting, *rows[0]])
            writer.writeheader()
            writer.writerows({**setting, **row} for row in rows)


if __name__ == "__main__":
    main()
