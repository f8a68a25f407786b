"""Ways to start ranks: each MPI by its own launcher, other programs directly.

Ranks run on this host or on the hosts of a lab. On this host, the libraries' defaults apply.
Between hosts, each library is configured as its manual recommends for TCP; bench/README.md has the
reasons.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import lab
from comparison import machine
from comparison.processes import Program

# The lab's network, as passed to MPIs.
NETWORK = f"{lab.address(-1)}/24"
# Lets ranks that wait for UCC give up their cores.
LIBRARY_YIELD = {"LIBRARY_YIELD": "1"}


@dataclass(frozen=True)
class Launch:
    """Arguments and variables for an MPI's launcher."""

    # Arguments of `mpirun`: always, if ranks outnumber cores, and if ranks are bound.
    flags: tuple[str, ...] = ()
    crowd_flags: tuple[str, ...] = ()
    pin_flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    crowd_variables: Mapping[str, str] = field(default_factory=dict)
    pin_variables: Mapping[str, str] = field(default_factory=dict)

    def program(self, mpirun: Sequence[object], words: Sequence[object], job: "Job") -> Program:
        """Return the launcher's command for a program with this job's ranks."""
        crowd = job.ranks > machine.cores()
        flags = [
            *self.flags,
            *(self.crowd_flags if crowd else ()),
            *(self.pin_flags if job.pin else ()),
        ]
        variables = {
            **self.variables,
            **(self.crowd_variables if crowd else {}),
            **(self.pin_variables if job.pin else {}),
        }
        return Program([*mpirun, *flags, "-n", job.ranks, *words], variables)


@dataclass(frozen=True)
class Job:
    """The ranks to start."""

    ranks: int
    # Whether each rank has its own core.
    pin: bool = False
    # Hosts, with equal numbers of consecutive ranks; empty if all ranks are on this host.
    hosts: tuple[str, ...] = ()

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // max(len(self.hosts), 1)

    def host(self, rank: int) -> str:
        return self.hosts[rank // self.ranks_per_host]

    def slots(self) -> str:
        """Return the hosts with their numbers of ranks, in the launchers' format."""
        return ",".join(f"{host}:{self.ranks_per_host}" for host in self.hosts)


def mpi(peer: str, venv: Path, words: Sequence[object], job: Job) -> Program:
    """Return the command of a program on an MPI."""
    mpirun: list[object] = [venv / "bin" / "mpirun"]
    if not job.hosts:
        return launches(venv)[peer].program(mpirun, words, job)
    # The launcher runs on the first host, because the others connect to it.
    mpirun = [lab.ENTER, job.hosts[0], *mpirun]
    return launches_between_hosts(venv, job)[peer].program(mpirun, words, job)


def separately(
    words: Sequence[object], variables: Sequence[Mapping[str, str]], job: Job
) -> list[Program]:
    """Return a program for each rank of a job between hosts, with its variables."""
    return [Program([lab.ENTER, job.host(rank), *words], own) for rank, own in enumerate(variables)]


def torch_variables(ranks: int) -> list[dict[str, str]]:
    """Return the variables of each rank of torch.distributed."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": lab.address(0),
        "MASTER_PORT": str(lab.PORT),
        "GLOO_SOCKET_IFNAME": lab.DEVICE,
    }
    return [{**shared, "RANK": str(rank)} for rank in range(ranks)]


def as_root() -> tuple[str, ...]:
    return ("--allow-run-as-root",) if os.getuid() == 0 else ()


def impi_variables(venv: Path) -> dict[str, str]:
    return {
        "I_MPI_ROOT": str(venv),
        "LD_LIBRARY_PATH": str(venv / "lib"),
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
    }


def launches(venv: Path) -> dict[str, Launch]:
    """Return how each peer is launched on this host.

    Unless pinned, the defaults apply: Intel MPI always binds, Open MPI binds a rank to a core,
    MPICH never binds.
    """
    impi = Launch(
        variables={**impi_variables(venv), "I_MPI_FABRICS": "shm"},
        pin_variables={
            "I_MPI_PIN": "1",
            "I_MPI_PIN_DOMAIN": "core",
            "I_MPI_PIN_ORDER": "spread",
        },
    )
    return {
        "openmpi": Launch(
            flags=as_root(),
            # Only if ranks outnumber cores, because it also disables binding.
            crowd_flags=("--oversubscribe",),
            pin_flags=("--bind-to", "core"),
        ),
        "mpich": Launch(pin_flags=("-bind-to", "core")),
        "impi": impi,
        "oneccl": replace(
            impi, variables={**impi.variables, "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}
        ),
        "ucc": replace(impi, crowd_variables=LIBRARY_YIELD),
    }


def launches_between_hosts(venv: Path, job: Job) -> dict[str, Launch]:
    """Return how each peer is launched between hosts.

    No peer binds ranks: to the launchers, the hosts are different machines, so they would bind
    ranks of all hosts to the same cores.
    """
    local = ",sm" if job.ranks_per_host > 1 else ""
    enter = str(lab.ENTER)
    impi = Launch(
        flags=("-ppn", str(job.ranks_per_host), "-hosts", ",".join(job.hosts)),
        variables={
            **impi_variables(venv),
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC": enter,
            "I_MPI_FABRICS": "shm:ofi",
            "I_MPI_OFI_PROVIDER": "tcp",
            "FI_PROVIDER": "tcp",
            "FI_PROVIDER_PATH": str(venv / "lib"),
            "FI_TCP_IFACE": lab.DEVICE,
            "I_MPI_PIN": "0",
        },
        crowd_variables={"I_MPI_WAIT_MODE": "1"},
    )
    return {
        "openmpi": Launch(
            flags=(
                *as_root(),
                "--oversubscribe",
                *("--host", job.slots(), "--bind-to", "none"),
                *("--prtemca", "plm_ssh_agent", enter, "--prtemca", "prte_if_include", NETWORK),
                *("--mca", "pml", "ob1", "--mca", "btl", f"tcp,self{local}"),
                *("--mca", "btl_tcp_if_include", NETWORK, "-x", "PATH"),
            ),
            crowd_flags=("--mca", "mpi_yield_when_idle", "1"),
            variables={"PATH": f"{venv / 'bin'}:{os.environ['PATH']}"},
        ),
        "mpich": Launch(
            flags=(
                *("-hosts", job.slots(), "-launcher", "ssh", "-launcher-exec", enter),
                *("-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", lab.DEVICE),
            ),
            crowd_flags=(
                *("-genv", "MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
                *("-genv", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "1"),
            ),
        ),
        "impi": impi,
        "ucc": replace(
            impi,
            variables={
                **impi.variables,
                "UCX_TLS": "tcp,self",
                "UCX_NET_DEVICES": lab.DEVICE,
            },
            crowd_variables=LIBRARY_YIELD,
        ),
    }
