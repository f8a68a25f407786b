"""`.ci/rust_tests.py` runs programs of Rust tests, and the Python module reuses their build."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / ".ci"
WATCHDOG_S = 120.0

PASSING = """
echo "test a ... ok"
echo "test b ... ignored, deep: takes minutes"
"""
FAILING = """
echo "test a ... ok"
echo "test c ... FAILED"
printf '\\nfailures:\\n\\n---- c stdout ----\\nthe sum is wrong\\n'
exit 101
"""
HANGING = """
case "$*" in
*--ignored*) ;;
*--list*) printf 'a: test\\nd: test\\n' ;;
*) echo "test a ... ok"; exec sleep 3600 ;;
esac
"""


def run(folder: Path, silence_s: float, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run these programs; a program may be silent for `silence_s` at most."""
    messages = []
    for name, text in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}")
        program.chmod(0o755)
        message = {
            "executable": str(program),
            "profile": {"test": True},
            "manifest_path": str(folder / "Cargo.toml"),
            "target": {"name": name, "kind": ["test"]},
        }
        messages.append(json.dumps(message) + "\n")
    (folder / "messages").write_text("".join(messages))
    code = (
        "import rust_tests, sys; "
        f"rust_tests.SILENCE_S = {silence_s}; sys.exit(rust_tests.main())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder / "messages")],
        env=os.environ | {"PYTHONPATH": str(RUNNER), "CHECK_LOGS": str(folder / "logs")},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )


def test_all_programs_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, WATCHDOG_S, faults=PASSING, exact=PASSING, lanes=PASSING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("3 passed, 0 failed, 3 ignored in 3 programs\n")


def test_a_failure_is_shown_and_the_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, WATCHDOG_S, faults=FAILING, exact=PASSING)
    assert done.returncode == 1
    assert "== faults: exit status 101" in done.stdout
    assert "the sum is wrong" in done.stdout
    assert done.stdout.endswith("2 passed, 1 failed, 1 ignored in 2 programs\n")


def test_a_hang_is_ended_and_its_tests_are_named(tmp_path: Path) -> None:
    done = run(tmp_path, 0.2, exact=HANGING)
    assert done.returncode == 1
    assert "those that had not: d\n" in done.stdout


def test_programs_without_tests_are_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, WATCHDOG_S, exact="").returncode == 1


def features(*selection: str) -> dict[str, set[str]]:
    """Return the features of each package that these options of cargo select."""
    listed = subprocess.run(
        ["cargo", "tree", "--format", "{p}|{f}", "--prefix", "none", *selection],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
        timeout=WATCHDOG_S,
    ).stdout
    found: dict[str, set[str]] = {}
    for line in listed.splitlines():
        package, _, enabled = line.removesuffix(" (*)").partition("|")
        found.setdefault(package, set()).add(enabled)
    return found


def test_the_python_module_is_built_of_what_the_tests_have_compiled() -> None:
    """Other features of a dependency would compile it and all its dependents a second time."""
    tests = features("--workspace", "--edges", "normal,build,dev")
    module = features("--package", "ringfold-py", "--edges", "normal,build")
    again = {name: enabled for name, enabled in module.items() if not enabled <= tests[name]}
    assert not again, f"features that the tests do not have: {again}"
