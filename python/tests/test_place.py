"""Detection of a process' rank from the variables of several launchers, in real processes."""

import os
import shlex
import subprocess
import sys
import uuid

import pytest

WATCHDOG_S = 120.0

# Prefixes of variables to remove: those of the launcher that may have started the tests.
LAUNCHERS = ("RINGFOLD_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PET_", "MASTER_", "LOCAL_", "MPI_")

JOIN = """
import os
import numpy as np
import ringfold
try:
    with ringfold.init(connect_timeout=60, timeout=60) as comm:
        mean = comm.all_reduce(np.array([comm.rank], np.float32), "avg")
        print("rank", comm.rank, "of", comm.world_size, "mean", mean[0], flush=True)
except ringfold.RingfoldError as error:
    print(error, flush=True)
"""

PLACE = """
from ringfold import _native
try:
    place, _ = _native.launch()
    print(place[4], place[0], place[1])
except Exception as error:
    print(error)
"""


def environment(variables: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHERS) and name not in ("RANK", "WORLD_SIZE")
    }
    return {**kept, **dict(pair.split("=", 1) for pair in variables.split())}


def start(program: str, variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(program: str, *variables: str) -> list[str]:
    """Return the outputs of processes with these variables, which run at the same time."""
    processes = [start(program, one) for one in variables]
    try:
        return [process.communicate(timeout=WATCHDOG_S)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()


# The daemons of an MPI, one a node, are tasks of a Slurm step; ranks inherit their variables.
DAEMON = "SLURM_PROCID={node} SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_JOB_ID=7"
HYDRA = "PMI_RANK={rank} PMI_SIZE=4 MPI_LOCALRANKID={local} MPI_LOCALNRANKS=2"
OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=4 "
    "OMPI_COMM_WORLD_LOCAL_RANK={local} OMPI_COMM_WORLD_LOCAL_SIZE=2"
)


@pytest.mark.parametrize("mpi", [HYDRA, OPEN_MPI])
def test_ranks_that_an_mpi_starts_in_a_slurm_job_are_one_job(mpi: str) -> None:
    meeting = f"RINGFOLD_ADDR=unix:@ringfold-test-{uuid.uuid4().hex}"
    places = [
        f"{mpi} {DAEMON} {meeting}".format(rank=rank, node=rank // 2, local=rank % 2)
        for rank in range(4)
    ]
    assert said(JOIN, *places) == [f"rank {rank} of 4 mean 1.5" for rank in range(4)]


def test_the_launcher_nearer_to_the_process_is_the_one_that_started_it() -> None:
    pmi, slurm = "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0", "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"
    program = shlex.join([sys.executable, "-c", PLACE])
    for outer, inner, place in [(slurm, pmi, "PMI 0 1"), (pmi, slurm, "Slurm 1 2")]:
        done = subprocess.run(
            # With a shell in between, as in scripts.
            ["sh", "-c", f"env {inner} sh -c {shlex.quote(program + '; true')}; true"],
            env=environment(f"{outer} RINGFOLD_ADDR=unix:@ringfold-test-place"),
            capture_output=True,
            text=True,
            timeout=WATCHDOG_S,
        )
        assert done.stdout.strip() == place, done


def test_a_launcher_inside_a_rank_does_not_give_all_its_processes_that_rank() -> None:
    mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2"
    program = shlex.join([sys.executable, "-c", PLACE])
    done = subprocess.run(
        ["sh", "-c", f"env {mpi} {program}; true"],
        env=environment("RINGFOLD_RANK=0 RINGFOLD_WORLD_SIZE=1"),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert "RINGFOLD_RANK=0" in done.stdout and "OMPI_COMM_WORLD_RANK=1" in done.stdout, done
