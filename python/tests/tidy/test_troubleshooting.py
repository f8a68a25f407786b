"""docs/guides/troubleshooting.md has error texts that exist, and every error of a fault.

Errors of faults are those of joining, the reasons of lost ranks, the texts of the classes of
errors, and every other error of which a fault test knows a piece.
"""

import re
from functools import cache

from test_tidy import text, tracked

PAGE = "docs/guides/troubleshooting.md"
PLACES = re.compile(r"…|failed:|timed out|\[\.\.\.\]|\b[NMKAB]\b|ValueError|KeyboardInterrupt")
"""Placeholders in the page's error texts."""

LETTERS_MIN = 10
"""Shorter pieces of a text are not significant."""

NOT_OURS = (
    "Address already in use",
    "Your assigned backend ringfold is not available",
    "monitored_barrier is only implemented for GLOO backend",
)
"""Texts of the system and of torch."""


LITERAL = r'"((?:[^"\\]|\\.)*)"'
BOOTSTRAP = re.compile(rf"Error::Bootstrap\(\s*(?:format!\(\s*)?{LITERAL}")
ERROR = re.compile(rf"(?:Error::\w+|raise \w+)\(\s*(?:[^\";]*?,\s*)?(?:format!\(\s*|f)?{LITERAL}")
REASON = re.compile(r'(?<!expect\()"(its? [^"\n]*)"')
"""Reasons of lost ranks: the only texts of these parts of the core that begin like this."""

CORE = "crates/ringfold/src/"
REASONS = re.compile(r"(communicator|control/(?!handshake)|lane|transport|error|silence)")
DISPLAYED = {"control/refusal.rs": "Refusal", "error.rs": "Error"}
"""Files of the core, and the types whose `Display` there has the texts of errors."""

FAULT_TESTS = re.compile(
    r"crates/ringfold-cli/tests/faults/|crates/ringfold/(tests|src/control/tests)/|python/tests/"
    r"(storms/|test_(ends|faults|joining|refused|rendezvous|secret|sockets)|"
    r"torch/test_(failures|joining))"
)
ASSERTED = re.compile(r"\S+ \S+ .*\S.{4}")
"""A text in a test that is long enough to tell one error from others: three words or more."""


@cache
def keys() -> list[str]:
    """Return the texts in the first columns of the page's tables."""
    rows = [line.split(" | ")[0] for line in text(PAGE).splitlines() if line.startswith("| `")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def joined(source: str) -> str:
    """Join the texts of a source that are split over several lines."""
    return re.sub(r'\\\n\s*|"\n\s*f?"', "", source)


@cache
def product() -> dict[str, str]:
    """Return the sources of the core and of the package by name, without comments and tests."""
    return {
        name: joined(
            re.sub(r"(?m)^\s*(//|#[^!\[]).*$", "", text(name).partition("\nmod tests {")[0])
        )
        for name in tracked(".rs", ".py")
        if name.startswith((CORE, "python/ringfold/")) and "test" not in name
    }


def asserted() -> list[str]:
    """Return the texts of errors that have a piece in common with a fault test."""
    tests = "\n".join(text(name) for name in tracked(".rs", ".py") if FAULT_TESTS.match(name))
    literals = re.findall(LITERAL, joined(tests))
    pieces = {piece for each in literals for piece in re.split(r"\{[^}]*\}|\\.", each)}
    pieces = {piece for piece in map(str.strip, pieces) if ASSERTED.fullmatch(piece)}
    errors = {each for source in product().values() for each in ERROR.findall(source)}
    return [each for each in errors if any(piece in each for piece in pieces)]


def texts_of_faults() -> list[str]:
    """Return the texts of errors that a fault can produce, with their placeholders."""
    found = asserted()
    for name, source in product().items():
        found += BOOTSTRAP.findall(source)
        name = name.removeprefix(CORE)
        if REASONS.match(name):
            found += REASON.findall(source)
        if shown := DISPLAYED.get(name):
            display = source.partition(f"Display for {shown} ")[2].partition("\n}\n")[0]
            # What an error may end with is no text of its own.
            found += [each for each in re.findall(LITERAL, display) if not each.startswith(" (")]
    return found


@cache
def sources() -> str:
    """Return the product's sources, with texts that are split over lines joined."""
    names = [name for name in tracked(".rs", ".py") if name.startswith(("crates/", "python/ring"))]
    return joined("\n".join(text(name) for name in names))


def test_error_texts_exist() -> None:
    """Every text in the first column is in the source, piece by piece."""
    assert len(keys()) > 20
    missing = [
        piece
        for key in keys()
        if not key.startswith(NOT_OURS)
        for piece in map(str.strip, PLACES.split(key))
        if len(piece) >= LETTERS_MIN and piece.strip("(): ") not in sources()
    ]
    assert not missing, f"{PAGE}: texts that no source has: {missing}"


def test_every_error_of_a_fault_is_on_the_page() -> None:
    """The longest piece of each text, up to its remedy, is in one of the page's keys."""
    texts = texts_of_faults()
    assert len(texts) > 50
    pieces = {max(re.split(r"\{[^}]*\}", each.split(";")[0]), key=len) for each in texts}
    known = " ".join(keys())
    missing = [
        piece
        for piece in sorted(piece.strip("(): ") for piece in pieces)
        if len(piece) >= LETTERS_MIN and piece not in known
    ]
    assert not missing, f"{PAGE} lacks:\n" + "\n".join(missing)


def test_deaths_that_documents_show_are_those_of_the_sources() -> None:
    """Every example of a failed rank has a reason that ringfold reports."""
    found = [
        reason
        for name in tracked(".md")
        if name.startswith("docs/")
        for reason in re.findall(r"rank \d failed: ([^(`]+) \(in", " ".join(text(name).split()))
    ]
    assert found
    missing = [reason for reason in found if reason not in sources()]
    assert not missing, f"reasons that no source has: {missing}"
