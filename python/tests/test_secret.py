"""Secrets: which of them are refused, and that no text contains one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ringfold

MARKER = "MARKER-of-a-secret"
WATCHDOG_S = 120.0


def refusal(secret: Any, error: type[BaseException] = ringfold.RingfoldError) -> str:
    """Return every text of the exception that a failed join with this secret raises."""
    with pytest.raises(error) as caught:
        ringfold.init(
            rank=1, world_size=2, address="127.0.0.1:9", secret=secret, connect_timeout=0.2
        )
    shown: list[str] = []
    found: BaseException | None = caught.value
    while found is not None:
        shown += [str(found), repr(found), repr(vars(found))]
        found = found.__cause__ or found.__context__
    return "\n".join(shown)


@pytest.mark.parametrize(("secret", "word"), [("", "empty"), (" \n\t ", "empty"), ("x", "guessed")])
def test_secrets_that_prove_nothing_are_refused(secret: str, word: str) -> None:
    assert word in refusal(secret)


@pytest.mark.parametrize("secret", [f"\0{MARKER}", f"{MARKER}\udcff", f"{MARKER}é" * 5000])
def test_no_error_has_the_secret_in_any_encoding(secret: str) -> None:
    assert MARKER not in refusal(secret)


@pytest.mark.parametrize("secret", [MARKER.encode(), [MARKER], {MARKER: 1}, 5])
def test_no_error_has_a_secret_of_a_wrong_type(secret: Any) -> None:
    said = refusal(secret, TypeError)
    assert "secret" in said and MARKER not in said


PROGRAM = """
import ringfold
try:
    ringfold.init(rank=1, world_size=2, address="127.0.0.1:9", connect_timeout=0.2)
except ringfold.RingfoldError as error:
    print(error)
"""


def said(program: str = PROGRAM, **variables: str | bytes) -> str:
    """Return the output of a program with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RINGFOLD_DEBUG": "TRACE", **variables},
        capture_output=True,
        timeout=WATCHDOG_S,
        check=True,
    )
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize(("secret", "word"), [(b"  ", "is empty"), (b"x", "can be guessed")])
def test_variables_that_prove_nothing_are_refused(secret: bytes, word: str) -> None:
    text = said(RINGFOLD_SECRET=secret)
    assert "RINGFOLD_SECRET " in text and word in text, text


def test_a_secret_that_is_no_text_is_not_left_out(tmp_path: Path) -> None:
    text = said(RINGFOLD_SECRET=f"{MARKER}".encode() + b"\xff")
    assert "RINGFOLD_SECRET is not valid UTF-8" in text and MARKER not in text
    # A file may contain any bytes.
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    for content, word in [(b" \n", "is empty"), (b"x\n", "can be guessed")]:
        file.write_bytes(content)
        assert word in said(RINGFOLD_SECRET_FILE=str(file))
    file.write_bytes(MARKER.encode() + b"\xff\0\n")
    text = said(RINGFOLD_SECRET_FILE=str(file))
    assert "cannot reach rank 0" in text and MARKER not in text
    # The secret itself in place of a path; it may be longer than any path.
    for wrong in (MARKER, f"/{MARKER}" * 1000):
        text = said(RINGFOLD_SECRET_FILE=wrong)
        assert "takes a path" in text and MARKER not in text, text
