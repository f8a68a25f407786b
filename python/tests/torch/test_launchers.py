"""Jobs started by launchers: `bootstrap_env`, and the remains of a failed attempt.

torchrun and `ringfold run` start real jobs. For other launchers, the tests set the variables that
the launchers set.
"""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import launching
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringfold
from ringfold.torch import bootstrap_env

HERE = Path(__file__)
WATCHDOG_S = 600.0
RESTARTS = 2
# The variables that `env://` reads, and others that define a process' place.
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# `{}` stands for the rank.
VARIABLES = {
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "{}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    # MPICH and Intel MPI.
    "PMI": {"PMI_RANK": "{}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{}", "MPI_LOCALNRANKS": "2"},
    "Slurm": {
        "SLURM_PROCID": "{}",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "{}",
        "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "node1",
    },
    "MVAPICH": {
        "MV2_COMM_WORLD_RANK": "{}",
        "MV2_COMM_WORLD_SIZE": "2",
        "MV2_COMM_WORLD_LOCAL_RANK": "{}",
        "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "Kubernetes": {
        "JOB_COMPLETION_INDEX": "{}",
        "RINGFOLD_WORLD_SIZE": "2",
        "RINGFOLD_ADDR": "unix:@ringfold-{job}",
    },
    # Variables set by hand, and by Kubernetes' PyTorchJob.
    "torchrun": {
        "RANK": "{}",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "{port}",
    },
}


def train(steps: int) -> list[float]:
    """Train on each rank's own data; return the sums of all ranks' weights."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    mine = model.module.weight.detach().sum().reshape(1)
    sums = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, mine)
    return [float(each) for each in sums]


def have_only_variables_of(launcher: str | None, job: str, port: int) -> None:
    rank = os.environ["RANK"]
    for name in list(os.environ):
        if name in NAMES or name.startswith("RINGFOLD_"):
            del os.environ[name]
    for name, value in VARIABLES[launcher].items() if launcher else ():
        os.environ[name] = (
            value.replace("{}", rank).replace("{job}", job).replace("{port}", str(port))
        )


def be_launched(launcher: str | None, job: str, port: int) -> Any:
    """Run the whole program of a rank twice: a process may destroy its groups and make new ones."""
    have_only_variables_of(launcher, job, port)
    places, trained = [], []
    for _ in range(2):
        places.append(tuple(bootstrap_env()))
        dist.init_process_group("ringfold")
        trained.append(train(3))
        dist.destroy_process_group()
    return places, {name: os.environ[name] for name in NAMES}, trained


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("launcher", VARIABLES)
def test_every_launchers_ranks_find_each_other(ranks: Any, launcher: str, tmp_path: Path) -> None:
    found = ranks(
        be_launched,
        2,
        None,
        launcher=launcher,
        job=tmp_path.name + str(os.getpid()),
        port=free_port(),
    )
    for rank, (places, environment, trained) in enumerate(found.results()):
        assert [place[:4] for place in places] == [(rank, 2, rank, 2)] * 2
        assert places[0][4] == launcher
        assert [environment[name] for name in NAMES[:5]] == [
            str(rank),
            "2",
            str(rank),
            "2",
            "127.0.0.1",
        ]
        assert environment["MASTER_PORT"] == found.result(0)[1]["MASTER_PORT"]
        assert all(first == second for first, second in trained)


def test_without_a_launcher_a_process_is_a_job_of_one(ranks: Any) -> None:
    places, environment, trained = ranks(
        be_launched, 1, None, launcher=None, job="", port=0
    ).result(0)
    assert places[0] == (0, 1, 0, 1, "no launcher") and places[1][:4] == places[0][:4]
    assert [environment[name] for name in NAMES[:5]] == ["0", "1", "0", "1", "127.0.0.1"]
    assert len(trained[0]) == 1


def be_launched_on_another_device(job: str) -> Any:
    """Run a rank of a program whose tensors are on another device by default."""
    have_only_variables_of("PMI", job, 0)
    torch.set_default_device("meta")
    place = bootstrap_env()
    dist.init_process_group("ringfold")
    dist.barrier()
    return place.rank, place.world_size


def test_the_default_device_does_not_keep_ranks_apart(ranks: Any, tmp_path: Path) -> None:
    found = ranks(
        be_launched_on_another_device, 2, None, job=tmp_path.name + str(os.getpid())
    ).results()
    assert found == [(0, 2), (1, 2)]


def run(command: list[str], program: str, folder: Path) -> str:
    """Return the output of a launcher and its ranks, which run one of `PROGRAMS`."""
    arguments = [sys.executable, "-W", "ignore", str(HERE), program, str(folder)]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | launching.importable()
    status, log = launching.finish([*command, *arguments], WATCHDOG_S, env=variables)
    assert status == 0, log
    return log


def torchrun(*options: str) -> list[str]:
    """Return a command of torchrun for a program whose name does not end in `.py`."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--no-python",
        *options,
    ]


def launcher_command(name: str) -> list[str]:
    """Return the command with which an installed launcher starts two ranks on this machine."""
    if name == "torchrun":
        return torchrun("--standalone")
    if name == "ringfold run":
        return [launching.ringfold(), "run", "--ranks", "2", "--"]
    return launching.mpirun(2)


@pytest.mark.parametrize(
    "name", ["torchrun", "ringfold run", pytest.param("mpirun", marks=pytest.mark.deep)]
)
def test_a_launcher_starts_training(name: str, tmp_path: Path) -> None:
    run(launcher_command(name), "train", tmp_path)
    for rank in range(2):
        place, trained = json.loads((tmp_path / f"result{rank}").read_text())
        assert place[:4] == [rank, 2, rank, 2]
        assert trained[0] == trained[1]


def test_nothing_is_left_of_attempts_that_a_death_ended(tmp_path: Path) -> None:
    log = run(
        torchrun("--standalone", "--max-restarts", str(RESTARTS), "--monitor-interval", "0.1"),
        "die",
        tmp_path,
    )
    records = [json.loads(file.read_text()) for file in tmp_path.glob("attempt*")]
    assert len(records) == 2 * (RESTARTS + 1)
    assert (tmp_path / "errors").read_text().splitlines() == ["PeerFailedError 1"] * RESTARTS, log
    left = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    assert any(record["names"] for record in records)
    for record in records:
        assert not Path(f"/proc/{record['pid']}").exists()
        assert not set(record["names"]) & set(left)
        assert not [
            name for name in record["names"] if name.startswith("/") and Path(name).exists()
        ]


def belongings() -> list[str]:
    """Return this process' traces that others could see: named sockets, files in shared memory."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            # The descriptor of the listing itself.
            continue
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    mapped = re.findall(r"(/dev/shm/.*)", Path("/proc/self/maps").read_text())
    return [
        *(fields[7] for fields in sockets if len(fields) > 7 and f"socket:[{fields[6]}]" in links),
        *(
            link
            for link in {*links, *mapped}
            if link.startswith("/dev/shm/") and not link.endswith("(deleted)")
        ),
    ]


def start_and_train(folder: Path) -> None:
    place = bootstrap_env()
    dist.init_process_group("ringfold")
    (folder / f"result{place.rank}").write_text(json.dumps([place, train(3)]))
    dist.destroy_process_group()


def die(folder: Path) -> None:
    """Kill rank 1 in all attempts except the last; the other ranks print their errors."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("ringfold")
    train(3)
    rank = dist.get_rank()
    record = {"pid": os.getpid(), "names": belongings()}
    (folder / f"attempt{attempt}-{rank}").write_text(json.dumps(record))
    # torchrun ends all ranks when it sees the death, perhaps before the ranks see it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    if attempt < RESTARTS:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except ringfold.PeerFailedError as error:
            with (folder / "errors").open("a") as errors:
                errors.write(f"PeerFailedError {error.rank}\n")
            raise
    dist.destroy_process_group()


PROGRAMS = {"train": start_and_train, "die": die}

if __name__ == "__main__":
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
