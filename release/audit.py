"""Audits wheels before they are published: `python release/audit.py WHEEL...`.

The audit covers what a user's `pip install` relies on: the wheel runs on the systems that its name
promises (auditwheel lists the library symbols that it needs), an index accepts its metadata
(twine), and it contains the whole package and nothing else. Prints the findings, and exits with 1
if there is a defect. Needs auditwheel (and its pyelftools) and twine.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]

GLIBC_MAX = (2, 28)
"""The newest glibc that a wheel may need."""

BYTES_MAX = 20 << 20
"""Maximum size of a wheel, a few times the usual. A larger one contains something by mistake."""

FIELDS = {
    "Name": "ringfold",
    "License-Expression": "Apache-2.0",
    "License-File": "LICENSE",
    "Description-Content-Type": r"text/markdown.*",
    "Requires-Python": r">=3\.11",
    "Summary": r".{20,}",
    "Keywords": r".+",
}
"""Fields of the metadata, and the patterns that they match."""

LIBRARY = "ringfold/_native.abi3.so"

CLASSIFIERS = (
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Rust",
    "Typing :: Typed",
)

ENTRY_POINTS = """
[console_scripts]
ringfold=ringfold.__main__:main
[torch.backends]
ringfold=ringfold.torch:_autoload
[torch.distributed.backends]
ringfold=ringfold.torch:register_backend
"""


def said(*words: str | Path) -> tuple[int, str]:
    """Run a tool of this environment; return its exit status, and its output on one line."""
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def platform(wheel: Path) -> Iterator[str]:
    """Yield the defects in the systems that the wheel's name promises."""
    named = re.fullmatch(
        r"ringfold-(.+)-cp311-abi3-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl", wheel.name
    )
    if not named:
        yield f"not the name of a manylinux wheel for Python 3.11 and later: {wheel.name}"
        return
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    if named[1] != version:
        yield f"version {named[1]} differs from {version} in Cargo.toml"
    status, text = said("auditwheel", "show", wheel)
    needs = re.search(r'platform tag: "(?:manylinux_(\d+)_(\d+)_(\w+))"', text)
    if status or not needs:
        yield f"auditwheel: {text}"
    elif (int(needs[1]), int(needs[2])) > GLIBC_MAX or needs[3] != named[4]:
        yield f"it needs manylinux_{needs[1]}_{needs[2]}_{needs[3]}: {text}"
    elif (int(named[2]), int(named[3])) < (int(needs[1]), int(needs[2])):
        yield f"its name promises an older system than {needs[0]}"


def contents(wheel: ZipFile, names: set[str]) -> Iterator[str]:
    """Yield files that are missing from the wheel or do not belong in it."""
    listed = subprocess.run(
        [
            "git",
            "-C",
            ROOT,
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "python/ringfold",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    package = {name.removeprefix("python/") for name in listed.stdout.splitlines()}
    due = package | {LIBRARY}
    there = {name for name in names if ".dist-info/" not in name}
    if due != there:
        yield f"missing: {sorted(due - there)}; not of the package: {sorted(there - due)}"
    if "ringfold/py.typed" not in there:
        yield "no py.typed: type checkers would ignore its types"
    licences = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    if [wheel.read(name) for name in licences] != [(ROOT / "LICENSE").read_bytes()]:
        yield "it does not contain the licence"


def metadata(wheel: ZipFile, names: set[str]) -> Iterator[str]:
    """Yield the defects of the wheel's metadata."""

    def text(ending: str) -> str:
        return "".join(
            wheel.read(name).decode() for name in names if name.endswith(f".dist-info/{ending}")
        )

    fields: Message = Parser().parsestr(text("METADATA"))
    for field, due in FIELDS.items():
        if not re.fullmatch(due, found := str(fields[field])):
            yield f"{field} is {found!r}, and should match {due!r}"
    classifiers = fields.get_all("Classifier", [])
    yield from (f"no classifier {due!r}" for due in CLASSIFIERS if due not in classifiers)
    if fields.get_all("Requires-Dist"):
        yield f"it depends on {fields.get_all('Requires-Dist')}"
    lines = (line.replace(" ", "") for line in text("entry_points.txt").splitlines())
    if sorted(filter(None, lines)) != sorted(ENTRY_POINTS.replace(" ", "").split()):
        yield f"its entry points are {text('entry_points.txt')!r}"


def unwinder(library: bytes) -> Iterator[str]:
    """Yield the defects in how the library unwinds stacks: `unwinder.c` has the rule."""
    dynamic = ELFFile(BytesIO(library)).get_section_by_name(".dynamic")
    if not isinstance(dynamic, DynamicSection):
        yield "its library is not dynamic"
        return
    needed = [str(getattr(tag, "needed", "")) for tag in dynamic.iter_tags("DT_NEEDED")]
    if "libgcc_s.so.1" not in needed:
        yield f"it does not unwind with libgcc_s, but needs {needed}: daemon threads would crash"


def problems(wheel: Path) -> Iterator[str]:
    """Yield all defects of a wheel."""
    yield from platform(wheel)
    status, text = said("twine", "check", "--strict", wheel)
    if status:
        yield f"twine: {text}"
    if wheel.stat().st_size > BYTES_MAX:
        yield f"{wheel.stat().st_size} bytes, more than the limit of {BYTES_MAX}"
    with ZipFile(wheel) as opened:
        names = set(opened.namelist())
        yield from contents(opened, names)
        yield from metadata(opened, names)
        if LIBRARY in names:
            yield from unwinder(opened.read(LIBRARY))


def main() -> int:
    """Audit the wheels that the command line names; return the exit status."""
    wheels = [Path(word) for word in sys.argv[1:]]
    if not wheels or not all(wheel.is_file() for wheel in wheels):
        print("usage: release/audit.py WHEEL...; no such wheel" if wheels else __doc__)
        return 2
    found = {wheel: list(problems(wheel)) for wheel in wheels}
    for wheel, wrong in found.items():
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, {'WRONG' if wrong else 'sound'}")
        print("".join(f"  {line}\n" for line in wrong), end="")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
