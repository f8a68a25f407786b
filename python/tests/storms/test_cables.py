"""The judge of the storm of cables, and the script of the virtual machine in which it runs."""

import subprocess

import cables
import numpy as np
import pytest
from cables import GUARD, Memory, Trial
from harness import ROOT, Ending, Wrong

SCRIPT = ROOT / "bench/rdma_vm.sh"


def outcome(kind: str, *told: tuple[str, tuple[int, ...]]) -> list[str]:
    """Judge a fault at rank 2 of four ranks on two hosts."""
    trial = Trial((0, 0, 1, 1), kind, 2, (), (0.0,))
    return cables.judged(trial, [Ending(rank, *one) for rank, one in enumerate(told)])


def test_survivors_name_the_rank_that_died_and_sides_name_each_other() -> None:
    failed, late = ("PeerFailedError", (2,)), ("RingfoldTimeoutError", (2,))
    assert not outcome("kill", failed, failed, ("killed", ()), failed)
    assert outcome("kill", failed, failed, ("killed", ()), ("PeerFailedError", (0,)))
    assert outcome("kill", failed, failed, ("killed", ()), ("hang", ()))
    assert not outcome("freeze", late, late, ("PeerFailedError", (0,)), late)
    assert outcome("freeze", late, ("RingfoldTimeoutError", (1,)), ("PeerFailedError", (0,)), late)
    other = ("PeerFailedError", (1,))
    assert not outcome("cut", failed, failed, other, other)
    assert outcome("cut", failed, failed, other, failed)
    assert not outcome("wire", failed, failed, failed, failed)
    assert outcome("wire", failed, failed, failed, ("ok", ()))


@pytest.mark.parametrize("place", [GUARD - 1, GUARD, GUARD + 10])
def test_an_element_written_late_or_around_a_buffer_is_seen(place: int) -> None:
    memory = Memory(np.empty(10 + 2 * GUARD, "float32"), 10)
    memory.inside[:] = 1
    memory.check_guards("here")
    memory.take_back()
    memory.check_quiet("here")
    memory.whole[place] = 5
    with pytest.raises(Wrong):
        memory.check_quiet("here")
    if place != GUARD:
        with pytest.raises(Wrong):
            memory.check_guards("here")


def test_what_a_machine_cannot_run_differs_from_a_wrong_request() -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "RDMA_VM_MEMORY": "1000000000"}
    check = subprocess.run(
        [SCRIPT, "--check"], capture_output=True, text=True, env=environment, check=False
    )
    assert check.returncode == 77, check
    assert check.stderr.startswith("rdma_vm.sh: ")
    bad = subprocess.run(
        [SCRIPT, "true"],
        capture_output=True,
        text=True,
        env={**environment, "RDMA_VM_HOSTS": "two"},
        check=False,
    )
    assert bad.returncode == 125 and "two" in bad.stderr, bad
