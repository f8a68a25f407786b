"""The MPIs that bench/rdma.py compares with, over the devices of the guest of rdma_vm.sh.

Both are Debian's, because those on PyPI have no verbs, and both use UCX (`rc_v`). Each of the two
devices has one rank. To their launcher, the ranks are processes of one host, so shared memory is
switched off, and the devices' own counters must show that they sent the data. Connections within a
host would also use the device, so there are only two ranks.

No alternative works in the guest: libfabric's `verbs` needs the kernel's rdma_ucm, and Open MPI's
`openib` needs rdmacm, without which Debian's is built.
"""

import os
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rdma_guest
from comparison.collectives import FLOAT_BYTES
from comparison.libraries import BUILT
from comparison.processes import Failed, Program, output_of_first

RANKS = 2
# Largest data packet of the devices.
PACKET_BYTES = 4096
SENT = "/sys/class/infiniband/rxe{}/ports/1/hw_counters/sent_pkts"
VARIABLES = {
    # No shared memory. Datagrams (ud_v) still set up the connections.
    "UCX_TLS": "rc_v,self",
    # Otherwise UCX drops soft-RoCE's datagrams as if they had another address, and fails with
    # "unhandled timeout error" after 30 s.
    "UCX_UD_ETH_DGID_CHECK": "n",
}
# Selects each rank's device; both launchers set the rank in a variable.
ENTER = 'UCX_NET_DEVICES="rxe${PMI_RANK:-$OMPI_COMM_WORLD_RANK}:1" exec "$0" "$@"'


@dataclass(frozen=True)
class Peer:
    name: str
    packages: tuple[str, ...]
    # Without binding, both ranks may poll on one processor, and a call takes several ticks.
    flags: tuple[str, ...]

    @property
    def row(self) -> str:
        """The program's name in tables."""
        return f"{self.name} ucx"

    @property
    def program(self) -> Path:
        return BUILT / f"collectives-{self.name}-verbs"

    def prepare(self) -> str:
        """Install and build the peer, outside the guest; return the reason if that fails."""
        if reason := rdma_guest.refusal(self.packages):
            return reason
        rdma_guest.built(self.program.name, f"mpicc.{self.name}", "collectives_mpi.c")
        return ""

    def is_there(self) -> bool:
        return self.program.exists() and shutil.which(f"mpirun.{self.name}") is not None

    def launched(self, words: Sequence[object]) -> Program:
        """Return the launcher's command."""
        command = [f"mpirun.{self.name}", *self.flags, "-n", RANKS, "sh", "-c", ENTER, *words]
        return Program(command, VARIABLES)

    def all_reduce_us(
        self, sizes: Sequence[int], iterations: int, budget_ms: int, limit_s: float
    ) -> dict[int, float]:
        """Return the median time of out-of-place all-reduces, by size, all in one start."""
        counts = ",".join(str(size // FLOAT_BYTES) for size in sizes)
        words = [self.program, "all_reduce", counts, iterations, budget_ms, "out"]
        before = sent_packets()
        output = output_of_first([self.launched(words)], limit_s)
        times = times_in(output, sizes)
        packets = sum(len(times[size]) * packets_of(size) for size in sizes)
        sent = [after - start for start, after in zip(before, sent_packets(), strict=True)]
        if min(sent) < packets:
            raise Failed(f"the devices sent {sent} packets, not the {packets} of its data")
        return {size: statistics.median(calls[1:]) for size, calls in times.items()}


def packets_of(size: int) -> int:
    """Return the minimum number of packets that each host sends in an all-reduce of two."""
    return -(-size // PACKET_BYTES)


def sent_packets() -> list[int]:
    """Return the number of packets that each device has sent so far."""
    return [int(Path(SENT.format(host)).read_text()) for host in range(RANKS)]


def times_in(output: str, sizes: Sequence[int]) -> dict[int, list[float]]:
    """Return the times of the first call and the others, by size, from mixed output."""
    lines = [line.split() for line in output.splitlines()]
    found = [[float(word) for word in words[1:]] for words in lines if words[:1] == ["out"]]
    if len(found) != len(sizes):
        raise Failed(f"printed {len(found)} lines of times for {len(sizes)} sizes")
    return dict(zip(sizes, found, strict=True))


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "openmpi",
            (*rdma_guest.COMPILER, "openmpi-bin", "libopenmpi-dev"),
            (
                *(("--allow-run-as-root",) if os.geteuid() == 0 else ()),
                *("--bind-to", "core", "--mca", "pml", "ucx", "--mca", "osc", "ucx"),
                *("--mca", "btl", "self"),
            ),
        ),
        Peer(
            "mpich",
            (*rdma_guest.COMPILER, "mpich", "libmpich-dev"),
            ("-bind-to", "core", "-genv", "MPIR_CVAR_NOLOCAL", "1"),
        ),
    )
}
