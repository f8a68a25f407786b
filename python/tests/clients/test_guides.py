"""Run the commands in docs/guides that are marked as tested, exactly as written.

All commands of a page run in one shell and one folder. Python blocks that begin with a file name
are files of that folder.
"""

import importlib.util
import os
import re
import subprocess
import textwrap
from pathlib import Path

import launching
import pytest

ROOT = Path(__file__).parents[3]
GUIDES = ROOT / "docs" / "guides"
WATCHDOG_S = 300.0
PACKAGES = {"ray": "ray"}
"""Package that a page's commands need, if it is not torch."""
FENCE = re.compile(
    r"^(?P<indent> *)(?P<tested><!-- tested -->\n *)?```(?P<kind>\w+)\n(?P<body>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")


def blocks(page: Path) -> list[tuple[str, bool, str]]:
    """Return each block of a page: its kind, whether it is tested, and its text."""
    return [
        (found["kind"], found["tested"] is not None, textwrap.dedent(found["body"]))
        for found in FENCE.finditer(page.read_text())
    ]


def marked(page: Path) -> list[str]:
    return [body for kind, is_tested, body in blocks(page) if kind == "sh" and is_tested]


def write_files(page: Path, folder: Path) -> None:
    """Write the programs and manifests of a page."""
    for kind, _, body in blocks(page):
        name = FILE.match(body)
        if name is not None and kind in ("python", "yaml"):
            (folder / name[1]).write_text(body)


PAGES = sorted(GUIDES.glob("*.md"))


@pytest.mark.deep
@pytest.mark.parametrize(
    "page", [page for page in PAGES if marked(page)], ids=lambda page: page.stem
)
def test_the_commands_of_a_guide_work(page: Path, tmp_path: Path) -> None:
    package = PACKAGES.get(page.stem, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package `{package}` is not installed")
    names = launching.named_programs(tmp_path, launching.ringfold())
    folder = tmp_path / "work"
    folder.mkdir()
    write_files(page, folder)
    status, text = launching.finish(
        ["bash", "-euxc", "\n".join(marked(page))],
        WATCHDOG_S,
        cwd=folder,
        env=os.environ | {"PATH": f"{names}:{os.environ['PATH']}"},
    )
    assert status == 0, text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_guide_shows_has_no_errors_of_syntax(page: Path) -> None:
    for kind, _, body in blocks(page):
        if kind == "python" and "..." not in body:
            compile(body, f"{page.name}: {body.splitlines()[0]}", "exec")
        if kind == "sh":
            subprocess.run(["bash", "-n"], input=body, text=True, check=True, timeout=WATCHDOG_S)
