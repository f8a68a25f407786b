#!/usr/bin/env python3
"""The hosts in the guest of rdma_vm.sh, and `ringfold perf` on several of them.

    bench/rdma_vm.sh bench/rdma_hosts.py --ranks 4 -- -b 8 -e 1M --transport rdma
    bench/rdma_vm.sh bench/rdma_hosts.py --ranks 2 --run PROGRAM ARGUMENT...

Ranks are dealt out in blocks: of 4 ranks on 2 hosts, 0 and 1 are on host 0. Each finds its job in
RINGFOLD_RANK, RINGFOLD_WORLD_SIZE and RINGFOLD_ADDR, and its host's device in RINGFOLD_IB_HCA.
Rank 0's output is printed.
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
# The bridge of the RDMA devices and that of TCP.
BRIDGES = {"plug": "wire", "lan": "lan"}
# Soft-RoCE now and then loses a packet's turn, and waits for this: 67 ms.
IB_TIMEOUT = "14"


def hosts_here() -> int:
    """The hosts of the guest; 0 outside of one."""
    names = [path.name for path in NAMESPACES.glob("h*")]
    return sum(re.fullmatch(r"h\d+", name) is not None for name in names)


class RdmaHosts(Lab):
    """Some of the guest's hosts, which stay when this ends."""

    def __init__(self, hosts: int, first: int = 0, ib_timeout: str = IB_TIMEOUT) -> None:
        super().__init__(hosts)
        self.first, self.ib_timeout = first, ib_timeout
        self.hosts = [f"h{first + number}" for number in range(hosts)]

    def build(self) -> None:
        """Check that the hosts are there."""
        if self.first + len(self.hosts) > (found := hosts_here()):
            sys.exit(
                f"{len(self.hosts)} hosts from host {self.first} on are needed, and there are "
                f"{found}: run this in bench/rdma_vm.sh, with RDMA_VM_HOSTS"
            )

    def delete(self) -> None:
        """Leave the hosts, without faults."""
        if self.first + len(self.hosts) <= hosts_here():
            self.mend()

    def address(self, number: int) -> str:
        """The address of a host for TCP."""
        return f"10.77.1.{self.first + number + 1}"

    def variables(self, number: int) -> dict[str, str]:
        """What the ranks of a host need to know."""
        return {
            "RINGFOLD_IB_HCA": f"=rxe{self.first + number}",
            "RINGFOLD_IB_TIMEOUT": self.ib_timeout,
        }

    def plug(self, number: int, is_in: bool, cables: tuple[str, ...] = ("plug", "lan")) -> None:
        """Put a host's cables in, or pull them: RDMA's (`plug`), TCP's (`lan`), or both."""
        for cable in cables:
            where = ("master", BRIDGES[cable]) if is_in else ("nomaster",)
            command("ip", "link", "set", f"{cable}{self.first + number}", *where)

    def light(self, number: int, is_on: bool) -> None:
        """Take the light from a host's RDMA port, which notices it, or give it back."""
        command("ip", "link", "set", f"plug{self.first + number}", "up" if is_on else "down")

    def power(self, is_on: bool) -> None:
        """Pull all cables of these hosts, or put them in; the bridge has others, too."""
        for number in range(len(self.hosts)):
            self.plug(number, is_on)

    def lose(self, number: int, is_sent: bool) -> None:
        """Lose what a host sends, or what is sent to it, over both cables."""
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
                # It fails where there is none.
                subprocess.run(line, capture_output=True, check=False)
            command("ip", "-n", host, "neighbour", "flush", "all")


def started(lab: RdmaHosts, words: list[str], ranks: int) -> list[subprocess.Popen[str]]:
    """A job's ranks, in blocks on the hosts; only rank 0's output is kept."""
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
    """Run a program as ranks on the hosts; return rank 0's output, or exit with all complaints."""
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
