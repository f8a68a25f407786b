"""Run the `ringfold` command that the package installs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WATCHDOG_S = 120.0

COMMAND = [sys.executable, "-m", "ringfold"]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command line that ends without a signal."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )


def test_the_package_installs_it() -> None:
    script = Path(sys.executable).with_name("ringfold")
    if not script.exists():
        pytest.skip("the package is not installed by pip beside this Python")
    ended = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=WATCHDOG_S, check=True
    )
    assert ended.stdout == run("--version").stdout
    assert ended.stdout.startswith("ringfold ")


def test_ranks_are_measured(tmp_path: Path) -> None:
    """The command starts its ranks with the same Python."""
    file = tmp_path / "perf.json"
    ended = run("perf", "--ranks", "2", "-b", "8", "-e", "64", "-n", "5", "--json", file)
    assert ended.returncode == 0, ended.stderr
    assert "Out of bounds values : 0 OK" in ended.stdout
    document = json.loads(file.read_text())
    assert document["args"][:2] == ["ringfold", "perf"] and "--launched" not in document["args"]


def test_mistakes_and_failures_have_the_statuses_of_the_command() -> None:
    typo = run("prf")
    assert typo.returncode == 2 and "perf" in typo.stderr and not typo.stdout
    program = "import os, sys; sys.exit(5 * (os.environ['RINGFOLD_RANK'] == '1'))"
    assert run("run", "--ranks", "2", "--", sys.executable, "-c", program).returncode == 5
    missing = run("run", "--ranks", "2", "--", "/nowhere/program")
    assert missing.returncode == 127 and "/nowhere/program" in missing.stderr


def test_ctrl_c_ends_all_ranks() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    words = ["run", "--ranks", "2", "--", sys.executable, "-c", program]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            # The pid follows the rank's label.
            ranks = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=WATCHDOG_S)
        finally:
            # The ranks die with the launcher.
            job.kill()
    assert job.returncode == 128 + signal.SIGINT
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


def test_the_log_of_a_small_job_fits_a_screen() -> None:
    """`INFO` has a few lines a rank, and one for each kind of call."""
    program = (
        "import numpy, ringfold\n"
        "with ringfold.init() as comm:\n"
        "    for count in (2, 1000, 1_000_000): comm.all_reduce(numpy.ones(count))\n"
    )
    ended = subprocess.run(
        [*COMMAND, "run", "--ranks", "2", "--", sys.executable, "-c", program],
        env={**os.environ, "RINGFOLD_DEBUG": "INFO"},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=True,
    )
    lines = (ended.stdout + ended.stderr).splitlines()
    assert sum("choice: " in line for line in lines) == 3, ended.stderr
    assert len(lines) <= 10, ended.stderr
    # Names of hosts have different lengths.
    assert all(len(line.replace(os.uname().nodename, "host")) <= 120 for line in lines), lines
