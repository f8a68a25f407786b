"""Names and namespaces: host names that resolve differently, and containers on one host."""

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

WATCHDOG_S = 120.0

NETWORK = """
set -e
ip link set lo up
ip link add veth0 type veth peer name veth1
ip addr add 10.77.0.1/24 dev veth0
ip addr add fd77::1/64 dev veth0 nodad
ip link set veth0 up
ip link set veth1 up
ip neigh add fd77::99 lladdr 02:00:00:00:00:99 dev veth0 nud permanent
"""
"""A network of one host with one interface. Packets to fd77::99 are lost."""

SUM = """
import sys
import numpy as np
import ringfold
try:
    limit = float(sys.argv[1])
    with ringfold.init(connect_timeout=limit, timeout=60) as comm:
        total = comm.all_reduce(np.full(70_000, comm.rank + 1.0))
        small = comm.all_reduce(np.full(2, comm.rank + 1.0))
    print("sum", total[-1], small[0], flush=True)
except ringfold.RingfoldError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""

Ranks = Callable[..., list[str]]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Return a function that runs ranks in their own network and returns their outputs."""
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces")

    def run(
        address: str,
        hosts: list[str],
        inside: tuple[str, ...] = ("", ""),
        limit_s: float = 60,
        numbers: tuple[int, ...] = (0, 1),
        secret: str | None = None,
    ) -> list[str]:
        """Run a rank for each of `numbers`, with its own `/etc/hosts` and in its namespaces."""
        script = NETWORK
        for number in numbers:
            names = tmp_path / f"hosts{number}"
            names.write_text(f"127.0.0.1 localhost\n{hosts[number]}\n")
            program = shlex.join([sys.executable, "-c", SUM, str(limit_s)])
            mounted = f"mount --bind {names} /etc/hosts; exec {inside[number]} {program}"
            script += (
                f"RINGFOLD_RANK={number} unshare -m sh -c {shlex.quote(mounted)} "
                f">{tmp_path}/said{number} 2>&1 &\n"
            )
        subprocess.run(
            ["unshare", "-n", "-m", "sh", "-c", script + "wait\n"],
            env={
                **os.environ,
                "RINGFOLD_WORLD_SIZE": "2",
                "RINGFOLD_ADDR": address,
                "RINGFOLD_SECRET": uuid.uuid4().hex if secret is None else secret,
            },
            timeout=WATCHDOG_S,
            check=True,
        )
        return [(tmp_path / f"said{number}").read_text() for number in numbers]

    return run


def test_a_name_that_is_loopback_at_rank_0_is_served_at_its_interfaces(ranks: Ranks) -> None:
    # Debian maps a host's own name to 127.0.1.1; all other hosts know its real address.
    said = ranks("node-a:47001", ["127.0.1.1 node-a", "10.77.0.1 node-a"])
    assert said == ["sum 3.0 3.0\n"] * 2


def test_an_address_without_a_server_does_not_hold_up_the_next(ranks: Ranks) -> None:
    # A connection attempt to the first address lasts until its deadline.
    name = "fd77::99 node-a\n10.77.0.1 node-a"
    said = ranks("node-a:47002", ["10.77.0.1 node-a", name], limit_s=25)
    assert said == ["sum 3.0 3.0\n"] * 2


def test_the_error_says_why_rank_0_was_not_reached(ranks: Ranks) -> None:
    hosts = ["", "10.77.0.1 node-a"]
    (said,) = ranks("node-a:47003", hosts, limit_s=1.5, numbers=(1,))
    assert "Connection refused" in said and "looking up" not in said, said


def test_a_name_may_have_an_address_twice_and_one_that_is_nowhere(ranks: Ranks) -> None:
    hosts = "10.77.0.1 node-a\n10.77.0.1 node-a.cluster node-a\nfd88::1 node-a"
    assert ranks("node-a:47005", [hosts] * 2) == ["sum 3.0 3.0\n"] * 2


PROCESSES = "unshare -p -f --mount-proc"


@pytest.mark.parametrize("inside", [(PROCESSES, PROCESSES), ("", PROCESSES), (PROCESSES, "")])
@pytest.mark.parametrize("secret", ["known to both", ""])
def test_ranks_in_process_namespaces_of_their_own_meet_at_loopback(
    ranks: Ranks, inside: tuple[str, str], secret: str
) -> None:
    said = ranks("127.0.0.1:47004", ["", ""], inside, secret=secret)
    assert said == ["sum 3.0 3.0\n"] * 2
