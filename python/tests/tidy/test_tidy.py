"""The repository's form: the order of its layers, the size of its parts, its vocabulary.

Justified exceptions are counted here, and their number must not grow.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rust_imports import Crate, between_siblings, circles, functions

ROOT = Path(__file__).parents[3]

CRATES_WITHOUT_CIRCLES = [
    "ringfold",
    "ringfold-c",
    "ringfold-cli",
    "ringfold-nccl-tuner",
    "ringfold-py",
    "ringfold-softverbs",
    "ringfold-tuner-host",
]
"""Crates in which no files and no folders import each other."""

CIRCULAR_IMPORTS = {"ringfold": {("lane/staging", "lane/one_shot/area")}}
"""Permitted: the lane's pipeline is to be replaced."""

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
UNWANTED_WORDS = re.compile(
    r"how-manieth|\bnobody\b|\bwhoever\b|is told|are told|can be gone|same weather|unawaited"
    r"|\bmends\b|two moods|is no end\b",
    re.IGNORECASE,
)
"""Words specific to this project, for which the field has other words."""

UNWANTED_WORDS_MAX = 6
"""Permitted: names of the system's unprivileged account, and the pattern above."""
WIDE_LINES_MAX = 4
"""Lines of a table printed by `ringfold schedule`, as its test expects it."""

TYPE = re.compile(
    r"^(?:[ ]*(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait)"
    r"|(?:pub(?:\([^)]*\))? )?type) ([A-Z]\w*)"
    r'|^[ ]+([A-Z]\w*), "[^"]*" \{$',
    re.MULTILINE,
)
"""The definition of a type in Rust; the last form is that of the macros `named` of `types.rs`."""

TYPES_LEFT_OUT = re.compile(
    r"crates/(?:ringfold-softcuda/|ringfold/src/(?:lane|device|tune/devices)\b"
    r"|ringfold/src/simulate/(?:devices|program|staged|scenario)\.rs"
    r"|ringfold/src/simulate/network/(?:lanes|streams|device_links)\.rs)"
)
"""Sources whose types may share names: the lane's pipeline is to be replaced, with what simulates,
prices and imitates it."""


def tracked(*endings: str) -> list[str]:
    """Return the repository's own files with these endings."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    )
    files = (name for name in listed.stdout.split("\0") if name.endswith(endings))
    return sorted(name for name in files if (ROOT / name).exists())


@cache
def text(name: str) -> str:
    """Return the contents of a file."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def imports(name: str) -> dict[str, set[str]]:
    """Return the imports of each file of a crate."""
    crate = Crate(ROOT / "crates" / name / "src")
    return {
        crate.file(module): {crate.file(target) for target in targets}
        for module, targets in crate.imports().items()
    }


@cache
def layers() -> dict[str, int]:
    """Return the layer of each module in ARCHITECTURE.md, counted from the top."""
    block = re.search(r"^```layers\n(.*?)^```", text("ARCHITECTURE.md"), re.DOTALL | re.MULTILINE)
    assert block, "ARCHITECTURE.md has no block ```layers"
    return {
        module: height
        for height, line in enumerate(block[1].splitlines())
        for module in line.split()
    }


def layered(file: str) -> str:
    """Return the name in ARCHITECTURE.md's layers that covers a file."""
    name = file.split("/")[0]
    assert name in layers(), f"crates/ringfold/src/{name}: not in the layers of ARCHITECTURE.md"
    return name


def test_imports_run_one_way() -> None:
    """No module of the core imports a module in a higher layer, or another one in its own."""
    upward: dict[str, list[str]] = {}
    for file, targets in imports("ringfold").items():
        for target in targets:
            if "lib" in (file, target):
                continue
            above, below = layered(file), layered(target)
            if above != below and layers()[above] >= layers()[below]:
                upward.setdefault(f"{above} -> {below}", []).append(f"{file} imports {target}")
    assert not upward, f"imports against the layers of ARCHITECTURE.md: {upward}"


@pytest.mark.parametrize("crate", CRATES_WITHOUT_CIRCLES)
def test_modules_have_no_circles(crate: str) -> None:
    """No files, and no folders at any depth, import each other."""
    permitted = CIRCULAR_IMPORTS.get(crate, set())
    for file, target in permitted:
        assert target in imports(crate)[file], f"{file} no longer imports {target}"
    arrows = {
        file: {target for target in targets if (file, target) not in permitted}
        for file, targets in imports(crate).items()
    }
    found = circles(between_siblings(arrows))
    assert not found, f"modules that import each other: {found}"


def test_files_are_short() -> None:
    """No file of code is too long to keep in mind."""
    long = {
        name: lines
        for name in tracked(".rs", ".py", ".pyi", ".c", ".sh")
        if (lines := text(name).count("\n")) > FILE_LINES_MAX
    }
    assert not long, f"more than {FILE_LINES_MAX} lines: {long}"


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield the functions of a Python source, with their numbers of lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_fit_a_screen() -> None:
    """Every function can be read at a glance."""
    long = {
        f"{name}:{function}": lines
        for name in tracked(".rs", ".py")
        for function, lines in (
            functions(text(name)) if name.endswith(".rs") else python_functions(text(name))
        )
        if lines > FUNCTION_LINES_MAX
    }
    assert not long, f"more than {FUNCTION_LINES_MAX} lines: {long}"


def lines_of_prose(name: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file; for Markdown, without tables and program output."""
    is_output = False
    for number, line in enumerate(text(name).splitlines(), 1):
        if name.endswith(".md") and line.startswith("```"):
            is_output = line == "```text"
        if not (is_output or name.endswith(".md") and line.lstrip().startswith("|")):
            yield number, line


def test_a_name_of_a_test_file_is_given_once() -> None:
    """`check.sh --deep` collects the tests of all folders in one run of pytest."""
    names = [Path(path).name for path in tracked(".py") if "/test_" in path]
    assert sorted(names) == sorted(set(names))


def test_lines_fit_beside_each_other() -> None:
    """Two versions of a file fit side by side on a screen; tables and URLs excepted."""
    wide = [
        f"{name}:{number}"
        for name in tracked(".rs", ".py", ".md")
        for number, line in lines_of_prose(name)
        if len(line) > COLUMNS_MAX and "://" not in line
    ]
    assert len(wide) <= WIDE_LINES_MAX, f"{len(wide)} lines over {COLUMNS_MAX} columns: {wide}"


def test_words_are_the_fields() -> None:
    """Comments, documents and messages use the words of the field."""
    found = [
        f"{name}:{number}"
        for name in tracked(".rs", ".py", ".pyi", ".md", ".toml", ".sh")
        if name != Path(__file__).relative_to(ROOT).as_posix()
        for number, line in enumerate(text(name).splitlines(), 1)
        if UNWANTED_WORDS.search(line)
    ]
    assert len(found) <= UNWANTED_WORDS_MAX, f"{len(found)} lines: {found}"


def test_a_type_name_is_defined_once() -> None:
    """A type's name says which type of its crate it is, without its module."""
    defined: dict[str, list[str]] = {}
    for name in tracked(".rs"):
        crate = re.match(r"crates/([^/]+)/src/", name)
        if crate and not TYPES_LEFT_OUT.match(name):
            for found in TYPE.finditer(text(name)):
                defined.setdefault(f"{crate[1]}: {found[1] or found[2]}", []).append(name)
    shared = {type_name: files for type_name, files in defined.items() if len(files) > 1}
    assert not shared, f"types that share a name: {shared}"
