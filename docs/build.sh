#!/usr/bin/env bash
# Builds the documentation as a site in target/site: strictly, and with all links checked.
# `docs/build.sh --serve` shows it at http://127.0.0.1:8000 while pages are edited.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/site-venv
site=target/site

# The tools, which need the network once: docs/site/requirements.txt pins them.
if ! cmp -s docs/site/requirements.txt "$venv/requirements.txt"; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r docs/site/requirements.txt
    cp docs/site/requirements.txt "$venv/requirements.txt"
fi

export PYTHONPATH=docs/site NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true
[ "${1:-}" != --serve ] || exec "$venv/bin/python" -m mkdocs serve

RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
"$venv/bin/python" -m mkdocs build --quiet --strict --site-dir "$site"
mkdir -p "$site/api"
cp -r target/doc "$site/api/rust"
"$venv/bin/python" docs/site/check.py "$site"
