"""Test the plugin with the real libnccl.so of torch's package, as far as possible without a GPU."""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("nccl_program.py")
WATCHDOG_S = 300

RULES = """\
allreduce,0,65536,tree,ll,-1,1,8
allreduce,0,65536,ring,simple,3,1,8
allreduce,65537,-1,ring,ll128,2,-1,-1
"""
TREE, RING = 0, 1
LL, LL128, SIMPLE = 0, 1, 2
# By size of call: the table entries set to 0, and the channels.
ANSWERS = {
    "small": [[[TREE, LL]], 0],
    "large": [[[RING, LL128]], 2],
    "without": [[[RING, SIMPLE]], 3],
    "other": [[], 0],
}


@functools.cache
def libnccl() -> Path:
    """Return the path of the NCCL library: that in TEST_LIBNCCL, or that of torch's package."""
    if named := os.environ.get("TEST_LIBNCCL"):
        return Path(named)
    package = importlib.util.find_spec("nvidia")
    for folder in package.submodule_search_locations or [] if package else []:
        library = Path(folder, "nccl", "lib", "libnccl.so.2")
        if library.exists():
            return library
    pytest.skip("no package of nvidia-nccl here; torch for CUDA brings it")


def plugin() -> Path:
    """Return the path of the plugin, which cargo builds beside the Rust tests."""
    library = ROOT / "target/debug/deps/libringfold_nccl_tuner.so"
    if not library.exists():
        pytest.skip("the plugin is not built; `cargo test --no-run` does that")
    return library


def debugger(*commands: str) -> str:
    """Return gdb's output from the library's debugging information; empty without it."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return ""
    words = [f"--eval-command={command}" for command in commands]
    return subprocess.run(
        [gdb, "-nx", "-batch", *words, libnccl()],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    ).stdout


@functools.cache
def members() -> dict[str, int]:
    """Return the byte offsets of members of NCCL's structures; empty if unknown."""
    plain = [
        "nRanks",
        "nNodes",
        "localRanks",
        "maxLocalRanks",
        "nChannels",
        "maxThreads",
        "threadThresholds",
    ]
    plain += ["latencies", "bandwidths", "tuner", "tunerContext"]
    said = debugger(
        *[f"print/d (long)&((struct ncclComm*)0)->{name}" for name in plain],
        "ptype /o struct ncclTaskColl",
    )
    found = {
        name: int(byte)
        for name, byte in zip(
            plain, re.findall(r"^\$\d+ = (\d+)$", said, re.MULTILINE), strict=False
        )
    }
    # The other members are separate bytes, whether or not they are declared as bit fields.
    for byte, name in re.findall(r"/\* +(\d+)(?:: 0)? +\| +\d+ \*/ .*?(\w+)(?: : 8)?;", said):
        if name in ("func", "count", "algorithm", "protocol", "nMaxChannels"):
            found[name] = int(byte)
    return found if len(found) == len(plain) + 5 else {}


def run(folder: Path, **variables: str) -> tuple[dict[str, Any], str]:
    """Run the program; return its report, and NCCL's log."""
    (folder / "nccl_tuner.conf").write_text(RULES)
    log = folder / "log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NCCL_", "RINGFOLD_"))
    }
    # Limits NCCL to this machine's loopback interface.
    environment |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": str(log),
    }
    environment |= {"NCCL_SOCKET_IFNAME": "lo", **variables}
    done = subprocess.run(
        [sys.executable, PROGRAM, libnccl(), plugin(), json.dumps(members())],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=WATCHDOG_S,
    )
    text = log.read_text() if log.exists() else ""
    assert done.returncode == 0, text
    report = json.loads(done.stdout)
    if report["missing"]:
        pytest.skip(f"NCCL {report['version']} does not name {', '.join(report['missing'])}")
    return report, text


def test_nccl_loads_the_plugin_and_gets_the_rules_answers(tmp_path: Path) -> None:
    report, log = run(tmp_path, NCCL_TUNER_PLUGIN=str(plugin()))
    assert report["codes"] == [0, 0]
    assert report["load"] == report["unload"] == 0
    assert report["name"] == "ringfold"
    assert report["loaded"] == {"codes": [0] * 6, "answers": ANSWERS, "keeps_constants": True}
    for line in [
        f"TUNER/Plugin: Using ringfold (v{max(report['versions'])})",
        f"Successfully loaded external tuner plugin {plugin()}",
        "ringfold tuner: 3 rules from nccl_tuner.conf",
        "ringfold tuner: all_reduce of 1048576 bytes by ring/ll128, 2 channels, by "
        "`allreduce,65537,",
        "TUNER/Plugin: Closing tuner: 'ringfold'",
    ]:
        assert line in log, log


def test_nccl_chooses_what_the_rules_say(tmp_path: Path) -> None:
    report, log = run(tmp_path, NCCL_TUNER_PLUGIN=str(plugin()))
    if "chosen" not in report:
        pytest.skip(
            "no gdb here, no debugging information, or another way of choosing in this libnccl.so"
        )
    without, chosen = report["chosen_without"], report["chosen"]
    assert without == {
        "small": [0, TREE, LL, 1],
        "large": [0, RING, SIMPLE, 16],
        "other": [0, RING, SIMPLE, 16],
    }, log
    # A call keeps its channels if it has no rule, or if its rule does not set them.
    assert chosen == {
        "small": [0, TREE, LL, 1],
        "large": [0, RING, LL128, 2],
        "other": without["other"],
    }, log


def test_nccls_own_translation_of_older_versions_gives_the_same(tmp_path: Path) -> None:
    report, log = run(tmp_path, NCCL_TUNER_PLUGIN=str(plugin()))
    for version, answered in report["versions"].items():
        expected = {"codes": [0] * 6, "answers": ANSWERS, "keeps_constants": True}
        if version == "2":
            # Version 2 has no costs, so the plugin cannot see that NCCL has no tree for this call.
            expected["answers"] = {**ANSWERS, "without": [[], 0]}
        assert answered == expected, version
        assert f"TUNER/Plugin: Using ringfold (v{version})" in log


def test_nccl_finds_it_by_its_short_name(tmp_path: Path) -> None:
    (tmp_path / "libnccl-tuner-ringfold.so").symlink_to(plugin())
    report, log = run(tmp_path, NCCL_TUNER_PLUGIN="ringfold", LD_LIBRARY_PATH=str(tmp_path))
    assert report["load"] == 0
    assert report["loaded"]["answers"] == ANSWERS
    assert "Successfully loaded external tuner plugin" in log


def test_structures_are_laid_out_as_nccls(tmp_path: Path) -> None:
    report, _ = run(tmp_path, NCCL_TUNER_PLUGIN=str(plugin()))
    # Latencies: seven algorithms by three protocols, once alone and for three kinds of links.
    # Bandwidths: five kinds, for four generations and three scales.
    assert report["constants_bytes"] == 8 * (4 * 7 * 3 + 5 * 4 * 3)
    shown = debugger(
        "ptype /o ncclTuner_v5_t", "ptype /o ncclTunerConstants_v5_t", "ptype /o ncclTuner_v2_t"
    )
    if "total size" not in shown:
        pytest.skip("no gdb here, or no debugging information in this libnccl.so")
    found = re.findall(r"/\* +(\d+) +\| +(\d+) \*/ .*?(\w+)\)?(?:\(|\[|;)", shown.replace("(*", ""))
    assert [(name, int(offset), int(size)) for offset, size, name in found] == [
        ("name", 0, 8),
        ("init", 8, 8),
        ("getCollInfo", 16, 8),
        ("finalize", 24, 8),
        ("baseLatencies", 0, 168),
        ("hwLatencies", 168, 504),
        ("llMaxBws", 672, 96),
        ("perChMaxRingLL128Bws", 768, 96),
        ("perChMaxTreeLL128Bws", 864, 96),
        ("perChMaxTreeBws", 960, 96),
        ("perChMaxNVLSTreeBws", 1056, 96),
        ("name", 0, 8),
        ("init", 8, 8),
        ("getCollInfo", 16, 8),
        ("destroy", 24, 8),
    ]
