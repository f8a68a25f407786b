#!/usr/bin/env bash
# Installs ringfold for C: see usage.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
    cat <<END
usage: install.sh [--prefix FOLDER] [--library FILE]

Builds libringfold.so and installs it with ringfold.h and ringfold.pc (for pkg-config) in lib,
include and lib/pkgconfig below a folder. DESTDIR stands before it, as in other packages.

  --prefix FOLDER   [default: /usr/local]
  --library FILE    a library that cargo has built, instead of building it
END
}

prefix=/usr/local library=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        usage
        exit
        ;;
    --prefix | --library)
        [ -n "${2:-}" ] || {
            echo "install.sh: $1 needs a value; see install.sh --help" >&2
            exit 2
        }
        case $1 in
        --prefix) prefix=$2 ;;
        --library) library=$2 ;;
        esac
        shift
        ;;
    *)
        echo "install.sh: no option $1; see install.sh --help" >&2
        exit 2
        ;;
    esac
    shift
done

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
if [ -z "$library" ]; then
    # What is shipped: small, and as quick as can be.
    cargo build --manifest-path "$here/Cargo.toml" --profile dist
    library=${CARGO_TARGET_DIR:-$here/../../target}/dist/libringfold_c.so
fi

target=${DESTDIR:-}$prefix
install -d "$target/lib/pkgconfig" "$target/include"
install -m 755 "$library" "$target/lib/libringfold.so.$version"
ln -sf "libringfold.so.$version" "$target/lib/libringfold.so.0"
ln -sf libringfold.so.0 "$target/lib/libringfold.so"
install -m 644 "$here/include/ringfold.h" "$target/include/ringfold.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/ringfold.pc.in" \
    >"$target/lib/pkgconfig/ringfold.pc"
echo "installed ringfold $version in $target"
