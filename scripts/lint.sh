#!/usr/bin/env bash
# Runs clang-tidy on the sources of the library, the demos, the tests and the benchmarks, and on the headers of the
# project that they include. The checks in .clang-tidy are errors. Does not require a CUDA compiler: without one, the
# script lists the sources for CUDA devices and does not check them. Configures build/lint. Arguments: files to check, one
# by one, instead of all.
#
# With the argument --without-tests, the script leaves out the tests and the benchmarks. These are more than two thirds of
# what it reads. With --part 2/3, it checks only the second third of what is left.
#
# Most of the time is for the headers. So clang-tidy checks sources together if the build compiles them together. With the
# argument --alone, clang then reads the sources of the library one by one, without these checks, and g++ compiles the public
# headers for LibTorch one by one. This shows whether each includes what it uses, and takes several minutes more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
find_clang_tidy
alone=no
tests=yes
part=1
parts=1
while [[ ${1:-} == --* ]]; do
  case "$1" in
    --alone) alone=yes ;;
    --without-tests) tests=no ;;
    --part)
      [[ ${2:-} =~ ^([1-9])/([1-9])$ ]] || fail "--part: expected a part such as 2/3"
      part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
      shift
      ;;
    *) fail "unknown option $1 (see the head of scripts/lint.sh)" ;;
  esac
  shift
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/log
cmake --preset release -B build/lint >"$log" 2>&1 || { cat "$log" >&2 && exit 1; }
PYTHONDONTWRITEBYTECODE=1 python3 scripts/lib/lint_units.py . build/lint "$folder" "$@"

# tidy LIST CHECKS: runs clang-tidy on the files in the list, as many at a time as there are cores. Tests and benchmarks
# multiply and divide small constants. So the checks for overflow and for lost remainders run only on the other files.
code=0
: >"$log"
of_small_numbers=-bugprone-implicit-widening-of-multiplication-result,-bugprone-integer-division
in_part() { awk -v part="$part" -v parts="$parts" 'NR % parts == part % parts'; }
tidy_some() {
  xargs -d '\n' -r -n 1 -P "$(nproc)" \
    "$clang_tidy" -p "$folder" --config-file="$PWD/.clang-tidy" --quiet --checks="$1" >>"$log" 2>&1 || code=1
}
tidy() {
  local list=$folder/$1.txt
  tidy_some "$2" < <(grep -vE '/(tests|bench)/' "$list" | in_part)
  [ "$tests" = no ] || tidy_some "$2,$of_small_numbers" < <(grep -E '/(tests|bench)/' "$list" | in_part)
}
# Together with the headers of demos, this check takes longer than all others.
slow=performance-unnecessary-value-param
tidy library -bugprone-suspicious-include  # the files that combine sources include them
tidy together "-$slow,-bugprone-suspicious-include"
tidy single ""
if [ "$alone" = yes ]; then
  xargs -d '\n' -r -n 1 -P "$(nproc)" bash -c <"$folder/alone.txt" >>"$log" 2>&1 || code=1
  if ninja -C build/lint -t query syncrun_torch_headers >/dev/null 2>&1; then
    ninja --quiet -C build/lint syncrun_torch_headers >>"$log" 2>&1 || code=1
  fi
fi
# clang-tidy also prints how many findings it has left out. These lines are removed.
grep -vE '^[0-9]+ warnings? (generated|treated as errors?)\.?$' "$log" || true
[ "$code" = 0 ] || exit 1
echo "no findings"
