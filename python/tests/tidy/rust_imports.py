"""Find the imports between the files of a Rust crate, from their text.

An import counts for the file that defines the item, even through another module's `pub use`. A `pub
use` alone does not count as an import. Code under `#[cfg(test)]` is not read.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Strings, characters and comments, which must not be read as code. Lifetimes do not match.
_OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<h>#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|[^'\\])'""",
    re.DOTALL,
)
_TEST_FILE = re.compile(
    r"(^|/)(tests?|conformance|suite|testing|skipped|\w+_(tests?|fuzz))(\.rs|/)"
)
_PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
_VISIBILITY = re.compile(r"\bpub\(in [^)]*\)")
_USE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
_ITEM = re.compile(
    r"\b(?:fn|struct|enum|trait|type|const|static|union|macro_rules!)\s+(?:mut\s+)?(\w+)"
)

Arrow = tuple[Path, str]


def without_text(source: str) -> str:
    """Blank the source's strings, characters and comments; line numbers stay the same."""
    return _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)


def closing(code: str, opening: int) -> int:
    """Return the position after the brace that closes the one at `opening`."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.end()
    return len(code)


def _end_of_item(code: str, begin: int) -> int:
    found = re.compile(r"[;{]").search(code, begin)
    if found is None:
        return len(code)
    if found.group() == ";" or code[begin : found.start()].lstrip().startswith(("use", "pub use")):
        return code.index(";", begin) + 1
    return closing(code, found.start())


def without_tests(code: str) -> str:
    """Blank every item under a `cfg` of tests."""
    attribute = re.compile(r"#!?\[cfg\((?:test\b|(?:all|any)\([^\]]*\btest\b)[^\]]*\]")
    while found := attribute.search(code):
        end = len(code) if found.group()[1] == "!" else _end_of_item(code, found.end())
        blank = re.sub(r"[^\n]", " ", code[found.start() : end])
        code = code[: found.start()] + blank + code[end:]
    return code


def _leaves(tree: str) -> Iterator[tuple[list[str], str]]:
    """Yield each path of a `use` tree, with its local name."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, name = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::")]
        yield parts, name.strip() or parts[-1]
        return
    prefix, _, rest = tree.partition("{")
    before = [part.strip() for part in prefix.split("::") if part.strip()]
    depth, piece = 0, ""
    for character in [*rest[: rest.rindex("}")], ","]:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            if piece.strip():
                for inner, name in _leaves(piece):
                    if inner == ["self"]:
                        yield before, name if name != "self" else before[-1]
                    else:
                        yield before + inner, name
            piece = ""
        else:
            piece += character


class Crate:
    """The product files of the crate with sources in `root`, and their imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = {
            self._module(file): _VISIBILITY.sub(
                "pub(crate)", without_tests(without_text(file.read_text()))
            )
            for file in sorted(root.rglob("*.rs"))
            if not _TEST_FILE.search(file.relative_to(root).as_posix())
        }
        self.names = {module: self._defined(code) for module, code in self.code.items()}
        self.faces = {module: self._handed_on(module) for module in self.code}

    def file(self, module: tuple[str, ...]) -> str:
        """Return the module's path below `root`, without `.rs`."""
        folder = (self.root.joinpath(*module)).is_dir()
        return "/".join(module) + ("/mod" if folder and module else "") if module else "lib"

    def imports(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """Return the modules that each module imports."""
        arrows: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for module, code in self.code.items():
            used = code
            paths: list[list[str]] = []
            for use in _USE.finditer(code):
                used = used.replace(use.group(), " ")
                if use["public"] is None or "(" in use["public"]:
                    paths.extend(path for path, _ in _leaves(use["tree"]))
            paths.extend(match.group().split("::") for match in _PATH.finditer(used))
            # A module may name its children without `self::`.
            children = {child[-1] for child in self.code if child[:-1] == module and child}
            if children:
                relative = re.compile(rf"(?<![:\w])({'|'.join(sorted(children))})::\w+(?:::\w+)*")
                inline = (match.group().split("::") for match in relative.finditer(used))
                paths.extend(["self", *path] for path in inline)
                paths = [["self", *path] if path[0] in children else path for path in paths]
            found = (self._resolved(module, path) for path in paths)
            arrows[module] = {target for target in found if target and target != module}
        return arrows

    def _module(self, file: Path) -> tuple[str, ...]:
        parts = file.relative_to(self.root).with_suffix("").parts
        return () if parts in (("lib",), ("main",)) else parts[:-1] if parts[-1] == "mod" else parts

    @staticmethod
    def _defined(code: str) -> set[str]:
        return set(_ITEM.findall(code))

    def _handed_on(self, module: tuple[str, ...]) -> dict[str, list[str]]:
        """Return the names that the module imports, public or not, with their paths."""
        found: dict[str, list[str]] = {}
        for use in _USE.finditer(self.code[module]):
            for path, name in _leaves(use["tree"]):
                found[name] = path
        return found

    def _resolved(
        self, module: tuple[str, ...], path: list[str], depth: int = 0
    ) -> tuple[str, ...] | None:
        """Return the module whose file defines the path's item; None if it is not in the crate."""
        place, rest = module, list(path)
        if rest[0] not in ("crate", "super", "self"):
            child = (*module, rest[0])
            if child not in self.code:
                return None
        while rest and rest[0] in ("crate", "super", "self"):
            place = () if rest[0] == "crate" else place[:-1] if rest[0] == "super" else place
            rest.pop(0)
        while rest and (*place, rest[0]) in self.code:
            place = (*place, rest.pop(0))
        if place not in self.code:
            return None
        if rest and rest[0] not in self.names[place] and depth < 8:
            onward = self.faces[place].get(rest[0])
            if onward and onward != path:
                return self._resolved(place, onward + rest[1:], depth + 1)
        return place


def between_siblings(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports between the files and folders of one folder, for all folders.

    An import counts in the innermost folder that has both ends.
    """
    found: dict[str, set[str]] = {}
    for file, targets in arrows.items():
        for target in targets - {file}:
            ends = file.split("/"), target.split("/")
            depth = next(at for at, (one, other) in enumerate(zip(*ends)) if one != other)
            source, sink = ("/".join(end[: depth + 1]) for end in ends)
            found.setdefault(source, set()).add(sink)
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or not (Tarjan, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = low[file] = len(number)
        stack.append(file)
        for target in sorted(arrows.get(file, ())):
            if target not in number:
                visit(target)
            if target in stack:
                low[file] = min(low[file], low[target])
        if low[file] == number[file]:
            at = stack.index(file)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for file in sorted(arrows):
        if file not in number:
            visit(file)
    return found


def functions(source: str) -> Iterable[tuple[str, int]]:
    """Yield the functions of a Rust source, with their numbers of lines."""
    code = without_text(source)
    for head in re.finditer(r"\bfn\s+(\w+)", code):
        body = re.compile(r"[{;]").search(code, head.end())
        # `;` is also part of an array's type, as in `[u8; 4]`.
        while (
            body
            and body.group() == ";"
            and code[head.end() : body.start()].count("[")
            > code[head.end() : body.start()].count("]")
        ):
            body = re.compile(r"[{;]").search(code, body.end())
        if body and body.group() == "{":
            yield head[1], code.count("\n", head.start(), closing(code, body.start())) + 1
