"""Train with torchft while a replica is killed and restarted.

    python examples/clients/torchft_train.py

The script starts torchft's lighthouse and two replicas, which average gradients with ringfold.
After some common steps, it kills one replica, and the other continues alone. Then it restarts the
first replica, which receives the weights. Both replicas end with the same weights.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchft
import torchft.process_group
from torchft.coordination import LighthouseServer

from ringfold.torch import RingfoldProcessGroup

KILL_AFTER, TOGETHER_AGAIN = 5, 5
WATCHDOG_S = 120.0


class ProcessGroupRingfold(torchft.process_group.ProcessGroupWrapper):
    """Replicas that communicate through ringfold."""

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        return RingfoldProcessGroup(store, rank, world_size, self._timeout)

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        """Return the name in torchft's messages."""
        return "torchft-ringfold"


def replica(name: str, folder: Path) -> None:
    """Train until both replicas have made enough steps after the fault; write the weights."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(int(name))  # different weights on each replica: torchft must send them
    network = torch.nn.Linear(8, 1)
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.05)
    manager = torchft.Manager(
        pg=ProcessGroupRingfold(timeout=timedelta(seconds=30)),
        load_state_dict=lambda state: network.load_state_dict(state["model"]),
        state_dict=lambda: {"model": network.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"replica{name}_",
        timeout=timedelta(seconds=30),
    )
    model = torchft.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, optimizer)
    together, wish = 0, torch.zeros(1)
    while wish.item() == 0:
        optimizer.zero_grad()
        inputs = torch.randn(16, 8)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        # A sum over the replicas, so that both end after the same step.
        wish = torch.tensor([float(together >= TOGETHER_AGAIN)])
        manager.allreduce(wish).wait()
        optimizer.step()
        count = manager.num_participants()
        with (folder / f"steps{name}").open("a") as steps:
            steps.write(f"{manager.current_step()} {count}\n")
        if (folder / "killed").exists():
            together = together + 1 if count == 2 else 0
        time.sleep(0.05)
    torch.save(network.state_dict(), folder / f"weights{name}")
    manager.shutdown()


def start(name: str, folder: Path, lighthouse: str) -> subprocess.Popen[bytes]:
    """Start a replica in its own process."""
    return subprocess.Popen(
        [sys.executable, __file__, name, str(folder)],
        env=os.environ | {"TORCHFT_LIGHTHOUSE": lighthouse, "OMP_NUM_THREADS": "1"},
    )


def wait_for(text: str, file: Path, count: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until `count` lines of a file end with `text`."""
    deadline = time.monotonic() + WATCHDOG_S
    while not file.exists() or sum(
        line.endswith(text) for line in file.read_text().splitlines()
    ) < count:
        if time.monotonic() > deadline or any(each.poll() is not None for each in processes):
            raise SystemExit(f"{file.name} never has {count} lines that end in {text!r}")
        time.sleep(0.02)


def main() -> None:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        survivor, other = (start(each, folder, lighthouse.address()) for each in "01")
        try:
            wait_for(" 2", folder / "steps0", KILL_AFTER, [survivor, other])
            other.send_signal(signal.SIGKILL)
            other.wait()
            wait_for(" 1", folder / "steps0", 1, [survivor])
            (folder / "killed").touch()
            other = start("1", folder, lighthouse.address())
            if survivor.wait(WATCHDOG_S) or other.wait(WATCHDOG_S):
                raise SystemExit("a replica failed")
            one, two = (torch.load(folder / f"weights{each}") for each in "01")
            same = all(torch.equal(one[key], two[key]) for key in one)
            alone = (folder / "steps0").read_text().count(" 1\n")
            words = f"{alone} steps alone, the same weights at the end: {same}"
            print(f"ringfold, 2 replicas: {words}", flush=True)
        finally:
            for each in (survivor, other):
                each.kill()
            lighthouse.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        replica(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
