"""The storms as tests, for `check.sh --deep`; their tables are printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STORMS = [
    *(
        (name, transport)
        for name in ("kills", "stops", "lanes", "torch_programs")
        for transport in ("shm", "tcp", "hosts")
    ),
    *(("differs", transport) for transport in ("shm", "tcp")),
    ("scribbles", "shm"),
    *((name, "hosts") for name in ("mixes", "descriptors", "outages")),
]


@pytest.mark.deep
@pytest.mark.parametrize(("name", "transport"), STORMS)
def test_no_promise_is_broken_in_a_storm(
    name: str, transport: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if transport == "hosts" and os.geteuid() != 0:
        pytest.skip("to make network namespaces takes root")
    program = Path(__file__).with_name(f"{name}.py")
    with capfd.disabled():
        status = subprocess.run(
            [sys.executable, program, "--transport", transport], check=False
        ).returncode
    assert status == 0


@pytest.mark.deep
def test_no_rank_grows_in_half_an_hour(capfd: pytest.CaptureFixture[str]) -> None:
    program = Path(__file__).with_name("soak.py")
    with capfd.disabled():
        status = subprocess.run([sys.executable, program], check=False).returncode
    assert status == 0
