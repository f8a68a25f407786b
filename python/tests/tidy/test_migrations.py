"""The names of ringfold in the tables of the migration guides exist."""

import re

import pytest
from test_reference import described
from test_tidy import ROOT, text

PAGES = ["from-gloo", "from-horovod", "from-mpi4py"]
CELL = re.compile(r"`([^`]+)`")
NAME = re.compile(r"\b(comm|work|ringfold(?:\.\w+)*)\.(\w+)")
CALL = re.compile(r"\bcomm\.(\w+)\(([^)]*)\)")
VARIABLE = re.compile(r"\bRINGFOLD_\w+")
HELD = re.compile(r"\b(?:def|class) (\w+)|^(\w+) = |^    \"(\w+)\",$|import (\w+)$", re.MULTILINE)


def cells(page: str) -> list[str]:
    """Return the code in the right column of a page's tables."""
    rows = [
        line.strip("|").split("|")
        for line in text(f"docs/guides/{page}.md").splitlines()
        if line.startswith("|")
    ]
    return [code for row in rows if len(row) == 2 for code in CELL.findall(row[1])]


def methods(kind: str) -> dict[str, str]:
    """Return the methods of a class by name, each with its source up to the next method."""
    files = {"comm": ["communicator.py", "objects.py"], "work": ["_native.pyi"]}[kind]
    found: dict[str, str] = {}
    for file in files:
        source = text(f"python/ringfold/{file}")
        if kind == "work":
            source = source.split("\nclass Work:")[1].split("\n@final")[0]
        parts = re.split(r"\n    def (\w+)", source)
        found.update(zip(parts[1::2], parts[2::2], strict=True))
    return found


def names_of(package: str) -> set[str]:
    """Return the names that a package or module provides."""
    path = ROOT / "python" / package.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inside = [file.stem for file in path.parent.glob("*.py")]
    inside += [each.name for each in path.parent.iterdir() if each.is_dir()]
    given = {name for names in HELD.findall(path.read_text()) for name in names if name}
    return given | set(described(path)) | (set(inside) if path.stem == "__init__" else set())


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_tables_of_moving_exist(page: str) -> None:
    wrong, known = [], text("docs/reference/env.md")
    for code in cells(page):
        for owner, name in NAME.findall(code):
            there = methods(owner) if owner in ("comm", "work") else names_of(owner)
            wrong += [f"{owner}.{name}"] if name not in there else []
        wrong += [name for name in VARIABLE.findall(code) if f"`{name}`" not in known]
    assert not wrong, f"docs/guides/{page}.md names {wrong}, which do not exist"


def test_arguments_in_the_tables_of_moving_exist() -> None:
    wrong = []
    for code in cells("from-mpi4py"):
        for name, arguments in CALL.findall(code):
            source = methods("comm").get(name, "")
            used = re.findall(r"\b(\w+)=", arguments)
            wrong += [f"{name}({word}=)" for word in used if f" {word}:" not in source]
    assert not wrong, wrong
