"""`check.sh` reports skipped tests, failures and progress, and ends all its processes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCHDOG_S = 120.0

# Stands in for cargo, and for a cargo test that must skip.
CARGO = """#!/bin/sh
echo "crate::a_test: no such hardware" >> "$TEST_SKIPS"
echo "crate::a_test: no such hardware" >> "$TEST_SKIPS"
[ -z "$RINGFOLD_REQUIRE_ALL" ] || echo "RINGFOLD_REQUIRE_ALL reached the tests"
"""

# Fails if its arguments contain the value of `FAILS`.
FAILING_CARGO = """#!/bin/sh
echo "cargo $*"
case "$*" in *"$FAILS"*) exit 3 ;; esac
"""

SKIPPING = """
import pytest

def test_that_skips():
    pytest.skip("no such library")

@pytest.mark.skipif(True, reason="not on a Sunday")
def test_that_is_marked():
    pass
"""


# Starts a process in a session of its own, and waits.
WAITING_CARGO = """#!/bin/sh
setsid sleep 3600 &
echo "started $! and $$"
exec sleep 3600
"""


def command(
    folder: Path, cargo: str, variables: dict[str, str], *stages: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs these stages with this `cargo`, and its environment."""
    program = folder / "cargo"
    program.write_text(cargo)
    program.chmod(0o755)
    chosen = [word for stage in stages for word in ("--only", stage)]
    path = f"{folder}:{os.environ['PATH']}"
    # Separate logs, so that those of the check that runs this test stay.
    logs = {"CHECK_LOGS": str(folder / "logs"), "PATH": path}
    return ["bash", str(ROOT / "check.sh"), *chosen], os.environ | variables | logs


def check(
    folder: Path, cargo: str, variables: dict[str, str], *stages: str
) -> subprocess.CompletedProcess[str]:
    """Run these stages with this `cargo`."""
    words, environment = command(folder, cargo, variables, *stages)
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S
    )


@pytest.mark.parametrize(("require_all", "status"), [(None, 0), ("1", 1)])
def test_a_skip_is_listed_and_fails_where_all_is_required(
    require_all: str | None, status: int, tmp_path: Path
) -> None:
    done = check(tmp_path, CARGO, {"RINGFOLD_REQUIRE_ALL": require_all or ""}, "format")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("crate::a_test: no such hardware") == 1, done.stdout
    assert "reached the tests" not in done.stdout
    assert ("all passed" in done.stdout) == (status == 0)
    assert ("does not allow" in done.stderr) == (status == 1)


@pytest.mark.parametrize(
    ("fails", "stage"), [("--target-dir", "loom tests"), ("test --doc", "doctests")]
)
def test_a_failure_names_its_stage_and_shows_its_output(
    fails: str, stage: str, tmp_path: Path
) -> None:
    done = check(tmp_path, FAILING_CARGO, {"FAILS": fails}, "loom tests", "doctests")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"FAILED in: {stage}\n" in done.stderr
    assert re.search(f"^cargo .*{fails}", done.stdout, re.M), done.stdout
    assert "all passed" not in done.stdout


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """Processes that left the process group end, too."""
    words, environment = command(tmp_path, WAITING_CARGO, {}, "format")
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        log = tmp_path / "logs/format.log"
        deadline = time.monotonic() + WATCHDOG_S
        while not (log.exists() and (found := re.search(r"(\d+) and (\d+)\n", log.read_text()))):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 130
    assert "ended by SIGINT, in: format" in errors
    left = [number for number in found.groups() if Path("/proc", number).exists()]
    assert not left, f"still there: {left}"


def test_it_says_what_runs(tmp_path: Path) -> None:
    """Progress lines name the stage, its time so far, and its current output."""
    _, environment = command(tmp_path, WAITING_CARGO, {"PYTHONPATH": str(ROOT / ".ci")}, "format")
    program = (
        "import stages; stages.SIGN_OF_LIFE_S = dict.fromkeys([True, False], 0.1); stages.main()"
    )
    words = [sys.executable, "-c", program, "--only", "format"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        signs = (re.match(r" *0:\d\d \.\. format, \d+ s: started", line) for line in process.stdout)
        assert any(signs)
        process.send_signal(signal.SIGTERM)
        process.wait(WATCHDOG_S)


def test_skips_of_pytest_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").symlink_to(ROOT / "python/tests/conftest.py")
    (tmp_path / "test_it.py").write_text(SKIPPING)
    skips = tmp_path / "skips"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--quiet",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        env={**os.environ, "TEST_SKIPS": str(skips)},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert done.returncode == 0, done.stdout
    assert sorted(skips.read_text().splitlines()) == [
        "test_it.py::test_that_is_marked: not on a Sunday",
        "test_it.py::test_that_skips: no such library",
    ]
