"""`release/audit.py` finds the defects of a wheel."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
WATCHDOG_S = 120

pytestmark = pytest.mark.deep


def audited(wheel: Path) -> subprocess.CompletedProcess[str]:
    """Run the audit on a wheel."""
    return subprocess.run(
        [sys.executable, ROOT / "release/audit.py", wheel],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )


@pytest.fixture
def wheel() -> Path:
    """The wheel built by `check.sh --deep`, which audits it in a stage of its own."""
    built = list((ROOT / "target/manylinux").glob("ringfold-*-manylinux_2_28_*.whl"))
    if not built:
        pytest.skip("no wheel is built; release/wheel.sh does that")
    return built[0]


def test_a_name_that_promises_an_older_system_is_found(wheel: Path, tmp_path: Path) -> None:
    renamed = tmp_path / wheel.name.replace("manylinux_2_28", "manylinux_2_17")
    renamed.write_bytes(wheel.read_bytes())
    done = audited(renamed)
    assert done.returncode == 1 and "older system" in done.stdout, done.stdout + done.stderr


def test_what_is_missing_or_stray_is_found(wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    with ZipFile(wheel) as whole, ZipFile(changed, "w") as other:
        for entry in whole.infolist():
            if not entry.filename.endswith(("py.typed", "LICENSE")):
                other.writestr(entry, whole.read(entry))
        other.writestr("ringfold/notes.txt", "")
    done = audited(changed)
    assert done.returncode == 1, done.stdout + done.stderr
    for what in ("no py.typed", "ringfold/notes.txt", "does not contain the licence"):
        assert what in done.stdout, done.stdout


def test_an_unwinder_of_its_own_is_found(wheel: Path, tmp_path: Path) -> None:
    changed = tmp_path / wheel.name
    with ZipFile(wheel) as whole, ZipFile(changed, "w") as other:
        for entry in whole.infolist():
            data = whole.read(entry)
            other.writestr(entry, data.replace(b"libgcc_s.so.1\0", b"libother.so.1\0"))
    done = audited(changed)
    assert done.returncode == 1 and "unwind" in done.stdout, done.stdout + done.stderr


def test_no_wheel_is_no_sound_wheel(tmp_path: Path) -> None:
    assert audited(tmp_path / "ringfold-0.1.0.whl").returncode == 2
