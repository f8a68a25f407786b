#!/usr/bin/env python3
"""The hosts in the guest of rdma_vm.sh, and `ringfold perf` on several of them.

    bench/rdma_vm.sh bench/rdma_hosts.py --ranks 4 -- -b 8 -e 1M --transport rdma
    bench/rdma_vm.sh bench/rdma_hosts.py --ranks 2 --run PROGRAM ARGUMENT...

Hosts have consecutive ranks: of 4 ranks on 2 hosts, 0 and 1 are on host 0. RINGFOLD_RANK,
RINGFOLD_WORLD_SIZE and RINGFOLD_ADDR describe the job to each rank, and RINGFOLD_IB_HCA its host's
device. Rank 0's output is printed.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from lab import Lab, command, job

COMMAND = Path(__file__).resolve().parents[1] / "target/release/ringfold"
NAMESPACES = Path("/run/netns")
# Bridge of each cable: RDMA's and TCP's.
BRIDGES = {"plug": "wire", "lan": "lan"}
# Soft-RoCE sometimes loses a packet's turn, and then waits for this timeout: 67 ms.
IB_TIMEOUT = "14"


def hosts_here() -> int:
    """Return the number of hosts in the guest; 0 outside a guest."""
    names = [path.name for path in NAMESPACES.glob("h*")]
    return sum(re.fullmatch(r"h\d+", name) is not None for name in names)


class RdmaHosts(Lab):
    """Some of the guest's hosts, which remain afterwards."""

    def __init__(self, hosts: int, first: int = 0, ib_timeout: str = IB_TIMEOUT) -> None:
        super().__init__(hosts)
        self.first, self.ib_timeout = first, ib_timeout
        self.hosts = [f"h{first + number}" for number in range(hosts)]

    def build(self) -> None:
        """Check that the hosts exist."""
        if self.first + len(self.hosts) > (found := hosts_here()):
            sys.exit(
                f"{len(self.hosts)} hosts from host {self.first} on are needed, and there are "
                f"{found}: run this in bench/rdma_vm.sh, with RDMA_VM_HOSTS"
            )

    def delete(self) -> None:
        """Keep the hosts, without faults."""
        if self.first + len(self.hosts) <= hosts_here():
            self.mend()

    def address(self, number: int) -> str:
        """Return the address of a host for TCP."""
        return f"10.77.1.{self.first + number + 1}"

    def variables(self, number: int) -> dict[str, str]:
        """Return the variables for the ranks of a host."""
        return {
            "RINGFOLD_IB_HCA": f"=rxe{self.first + number}",
            "RINGFOLD_IB_TIMEOUT": self.ib_timeout,
        }

    def plug(self, number: int, is_in: bool, cables: tuple[str, ...] = ("plug", "lan")) -> None:
        """Connect or disconnect a host's cables: RDMA's (`plug`), TCP's (`lan`), or both."""
        for cable in cables:
            where = ("master", BRIDGES[cable]) if is_in else ("nomaster",)
            command("ip", "link", "set", f"{cable}{self.first + number}", *where)

    def light(self, number: int, is_on: bool) -> None:
        """Switch the light of a host's RDMA port on or off; the port notices it."""
        command("ip", "link", "set", f"plug{self.first + number}", "up" if is_on else "down")

    def power(self, is_on: bool) -> None:
        """Connect or disconnect all cables of these hosts; the bridge also serves other hosts."""
        for number in range(len(self.hosts)):
            self.plug(number, is_on)

    def lose(self, number: int, is_sent: bool) -> None:
        """Drop all packets that a host sends, or all that are sent to it, on both cables."""
        name = self.first + number
        device = (f"wire{name}", "eth0") if is_sent else (f"plug{name}", f"lan{name}")
        where = ("-n", self.hosts[number]) if is_sent else ()
        loss = ("root", "netem", "loss", "100%")
        command("tc", "qdisc", "replace", "dev", device[0], *loss)
        command("tc", *where, "qdisc", "replace", "dev", device[1], *loss)

    def mend(self) -> None:
        """Undo all faults."""
        for number, host in enumerate(self.hosts):
            name = self.first + number
            self.light(number, True)
            self.plug(number, True)
            for words in (
                ("-n", host, "eth0"),
                (f"plug{name}",),
                (f"lan{name}",),
                (f"wire{name}",),
            ):
                *where, device = words
                line = ["tc", *where, "qdisc", "delete", "dev", device, "root"]
                # Fails if the device has no such rule.
                subprocess.run(line, capture_output=True, check=False)
            command("ip", "-n", host, "neighbour", "flush", "all")


def started(lab: RdmaHosts, words: list[str], ranks: int) -> list[subprocess.Popen[str]]:
    """Start a job's ranks, in blocks on the hosts; only rank 0's output is kept."""
    processes = []
    address = f"{lab.address(0)}:29400"
    for rank, variables in enumerate(job(ranks)):
        host = rank * len(lab.hosts) // ranks
        variables = {**variables, "RINGFOLD_ADDR": address, **lab.variables(host)}
        processes.append(
            subprocess.Popen(
                ["on-host", lab.hosts[host][1:], *words],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def output_of(lab: RdmaHosts, words: list[str], ranks: int, limit_s: float) -> str:
    """Run a program as ranks on the hosts; return rank 0's output, or exit with all errors."""
    processes, output, complaints = started(lab, words, ranks), "", []
    try:
        for rank, process in enumerate(processes):
            out, complaint = process.communicate(timeout=limit_s)
            output = output or out or ""
            if process.returncode:
                complaints.append(f"rank {rank} ended with {process.returncode}: {complaint}")
    except subprocess.TimeoutExpired:
        complaints.append(f"not ended after {limit_s:g} s")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if complaints:
        sys.exit(f"{' '.join(words)}\n{output}" + "\n".join(complaints))
    return output


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--ranks", type=int, default=2)
    flags.add_argument("--hosts", type=int, default=2)
    flags.add_argument("--limit", type=float, default=300.0, metavar="SECONDS")
    flags.add_argument("--run", action="store_true", help="the words are a program with arguments")
    flags.add_argument("words", nargs="*", help="the arguments of `ringfold perf`")
    options = flags.parse_args()
    if options.ranks < options.hosts or options.hosts < 1:
        sys.exit("--ranks must be at least --hosts, and these at least 1")
    words = options.words if options.run else [str(COMMAND), "perf", *options.words]
    with RdmaHosts(options.hosts) as lab:
        print(output_of(lab, words, options.ranks, options.limit), end="")


if __name__ == "__main__":
    main()
