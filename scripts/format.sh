#!/usr/bin/env bash
# Formats every C++ file that git tracks; with --check, changes nothing and fails if a file is not formatted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=$(command -v clang-format-16) || {
  echo "error: clang-format-16 is not installed (package clang-format-16): other versions format differently" >&2
  exit 1
}
mapfile -d '' -t files < <(git -c safe.directory="$PWD" ls-files -z -- '*.cpp' '*.hpp' '*.cu' '*.cuh')
[ "${#files[@]}" -gt 0 ] || { echo "error: git knows no C++ file here" >&2; exit 1; }

case "${1-}" in
  --check) "$formatter" --dry-run --Werror "${files[@]}" && echo "${#files[@]} files are formatted" ;;
  '') "$formatter" -i "${files[@]}" ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
