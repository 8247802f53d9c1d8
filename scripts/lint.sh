#!/usr/bin/env bash
# Runs clang-tidy, with the list in .clang-tidy as errors, over the sources of the library, the demos, the tests and the
# benchmarks, and over the headers of the project that they include. Needs no CUDA compiler: without one, sources for CUDA
# devices are left out, and named. Configures build/release, unless it is there. Arguments: files to look at, one by one,
# instead of all.
#
# Most of the time is that of the headers. Sources that the build compiles together are therefore looked at together, but for
# one check that would look at all of them for each function. Sources of the library are looked at for that one by one, which
# also shows whether each includes what it uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-tidy-16 >/dev/null || {
  echo "error: clang-tidy-16 is not installed (package clang-tidy-16)" >&2
  exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/log
# Also where it is configured already: as the CMake files are now.
if [ -f build/release/CMakeCache.txt ]; then
  cmake -S . -B build/release >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
else
  cmake --preset release >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
fi
PYTHONDONTWRITEBYTECODE=1 python3 scripts/lib/lint_units.py . build/release "$folder" "$@"

# tidy LIST CHECKS: over what the list names, as many at a time as there are cores. Tests and benchmarks multiply and divide
# small numbers that are written down: what could overflow, or lose a remainder, is looked for in the rest.
code=0
: >"$log"
of_small_numbers=-bugprone-implicit-widening-of-multiplication-result,-bugprone-integer-division
tidy_some() {
  xargs -d '\n' -r -n 1 -P "$(nproc)" \
    clang-tidy-16 -p "$folder" --config-file="$PWD/.clang-tidy" --quiet --checks="$1" >>"$log" 2>&1 || code=1
}
tidy() {
  local list=$folder/$1.txt
  tidy_some "$2" < <(grep -vE '/(tests|bench)/' "$list")
  tidy_some "$2,$of_small_numbers" < <(grep -E '/(tests|bench)/' "$list")
}
slow_together=performance-unnecessary-value-param
tidy together "-$slow_together,-bugprone-suspicious-include"  # what is made to compile them together includes sources
tidy alone "-*,$slow_together"
tidy single ""
# Beside the findings it counts those that it left out.
grep -vE '^[0-9]+ warnings? (generated|treated as errors?)\.?$' "$log" || true
[ "$code" = 0 ] || exit 1
echo "no findings"
