#!/usr/bin/env bash
# Runs every fuzz target with libFuzzer, each for some seconds (default 60). The targets start from the corpus in
# tests/fuzz/corpus, which the script does not change, and from inputs that earlier runs found (build/fuzz/found).
# Inputs that fail are stored in build/fuzz/failed. Fix the defect that such an input shows, and add the input to the
# corpus, under a name that describes it.
#
# usage: scripts/fuzz.sh [SECONDS [TARGET...]]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"
cd "$root"

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "expected a number of seconds from 1, got '$seconds'"
shift || true

# libFuzzer is in the package of the runtime libraries, not in the package of the compiler.
has_runtime() { compgen -G '/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; }
if ! command -v clang++-16 >/dev/null || ! has_runtime; then
  apt_install clang-16 libclang-rt-16-dev || fail "cannot install clang-16 and libclang-rt-16-dev"
fi
install_missing
configure_and_build fuzz fuzz

targets=("$@")
if [ "${#targets[@]}" = 0 ]; then
  for program in build/fuzz/tests/fuzz/fuzz_*; do
    [ ! -x "$program" ] || targets+=("${program##*/fuzz_}")
  done
fi
[ "${#targets[@]}" -gt 0 ] || fail "no fuzz target was built"

# run_target TARGET: runs one target. Each has one thread, so as many run at a time as there are cores.
run_target() {
  local target=$1 found=build/fuzz/found/$1 log=build/fuzz/$1.log code=0 runs coverage
  mkdir -p "$found" build/fuzz/failed
  build/fuzz/tests/fuzz/"fuzz_$target" -max_total_time="$seconds" -timeout=10 -max_len=4096 \
    -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1 -artifact_prefix=build/fuzz/failed/"$target"- \
    "$found" tests/fuzz/corpus/"$target" >"$log" 2>&1 || code=$?
  if [ "$code" != 0 ]; then
    echo "error: fuzz.$target failed: $(tail -n 40 "$log")" >&2
    return 1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [ "${runs:-0}" = 0 ]; then
    echo "error: fuzz.$target has run no input in $seconds s" >&2
    return 1
  fi
  coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  say "fuzz.$target: $runs inputs, ${coverage:-cov: ?}"
}
export -f run_target say
export seconds
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'run_target "$1"' run_target ||
  fail "not every target passed (see above)"
say "${#targets[@]} targets, $seconds s each, no failure"
