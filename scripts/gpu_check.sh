#!/usr/bin/env bash
# Everything that wants GPUs, on a machine that has some: builds with what is installed, runs the tests labelled gpu with
# every count of GPUs (1, 2, 4 and 8 as far as present), then the benchmarks beside their comparators. The table comes
# last, its figures are also in build/cuda/bench_gpu.json. Clocks, NCCL's variables and the rest stay as they are. Tests for
# fewer GPUs than there are run side by side, each group of GPUs with its part of them: --groups 1 has one group only.
#
#   scripts/gpu_check.sh [--tests-only | --bench-only] [--quick] [--jobs N] [--devices 1,2] [--groups N]
#                        [--sanitizer] [-- options of bench/run_gpu.py]
#
# --sanitizer runs the tests under compute-sanitizer. CUDA_ARCHITECTURES is what to compile for (default: 90).
# Exit code: 0, 1 if something failed, 2 where there is no GPU or an option is wrong.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# As Syncrun counts them: by the driver's device files and CUDA_VISIBLE_DEVICES.
present_gpus() {
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/bench" python3 -c 'import run_gpu; print(run_gpu.present_gpus())'
}

# The counts to run with, one per line.
counts_of() {
  local present=$1 count
  for count in 1 2 4 8; do
    if [ "$count" -le "$present" ]; then echo "$count"; fi
  done
}

with_tests=ON
with_bench=ON
sanitizer=
most_groups=8
counts=()
bench_options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tests-only) with_bench=OFF ;;
    --bench-only) with_tests=OFF ;;
    --quick) bench_options+=(--quick) ;;
    --sanitizer) sanitizer=compute-sanitizer ;;
    --jobs)
      [ $# -gt 1 ] || refuse "--jobs: value missing"
      jobs=$2
      shift
      ;;
    --devices)
      [ $# -gt 1 ] || refuse "--devices: value missing"
      IFS=, read -r -a counts <<<"$2"
      shift
      ;;
    --groups)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || refuse "--groups: expected a number from 1"
      most_groups=$2
      shift
      ;;
    --)
      shift
      bench_options+=("$@")
      break
      ;;
    *) refuse "unknown option $1 (see the head of scripts/gpu_check.sh)" ;;
  esac
  shift
done
[ "$with_tests$with_bench" != OFFOFF ] || refuse "--tests-only and --bench-only leave nothing to do"
[ -z "$sanitizer" ] || command -v "$sanitizer" >/dev/null || refuse "compute-sanitizer is not on PATH (it is part of CUDA)"

present=$(present_gpus)
if [ "$present" = 0 ]; then
  say "No GPU: nothing was built, tested or measured" >&2
  refuse "there is no GPU on this machine (no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it)"
fi
[ "${#counts[@]}" -gt 0 ] || mapfile -t counts < <(counts_of "$present")
for count in "${counts[@]}"; do
  [[ $count =~ ^[1-9][0-9]*$ ]] || refuse "--devices: expected counts such as 1,2, got $count"
  [ "$count" -le "$present" ] || refuse "--devices: got $count, but $present GPUs are visible"
done
say "$present GPUs are visible; running with ${counts[*]}"

configure_options=("-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-90}"
  "-DSYNCRUN_TESTS=$with_tests" "-DSYNCRUN_BENCH=$with_bench")
bring_cudnn_frontend
configure_and_build cuda

# The GPUs that programs started now would see, as CUDA_VISIBLE_DEVICES names them, one per line.
visible_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else seq 0 $((present - 1)); fi
}

# run_group COUNT GROUP GROUPS: every GROUPS-th test, from the GROUP-th on, on GPUs of their own. ctest keeps its log in the
# folder that it runs in: one for each group.
run_group() {
  local count=$1 group=$2 groups=$3 folder gpus
  folder="$root/build/cuda/gpus-$group"
  gpus=$(visible_gpus | sed -n "$(((group - 1) * count + 1)),$((group * count))p" | paste -s -d ,)
  mkdir -p "$folder"
  echo 'subdirs("..")' >"$folder/CTestTestfile.cmake"
  CUDA_VISIBLE_DEVICES=$gpus jobs=1 run_tests "cuda/gpus-$group" -L gpu -I "$group,,$groups"
}

# run_groups COUNT GROUPS: at once; what each says is shown when all are done.
run_groups() {
  local count=$1 groups=$2 group code=0 processes=()
  for group in $(seq "$groups"); do
    run_group "$count" "$group" "$groups" >"$root/build/cuda/tests-$count-$group.log" 2>&1 &
    processes+=($!)
  done
  for group in $(seq "$groups"); do
    wait "${processes[group - 1]}" || code=1
    say "Group $group of $groups"
    cat "$root/build/cuda/tests-$count-$group.log"
  done
  return "$code"
}

# run_gpu_tests COUNT: one test at a time on a group of GPUs, since each wants its GPUs for itself.
run_gpu_tests() {
  local count=$1 logs="$root/build/cuda/sanitizer-$1" groups=$((present / $1))
  if [ "$groups" -gt "$most_groups" ]; then groups=$most_groups; fi
  export SYNCRUN_TEST_GPUS=$count
  say "Tests on $count GPUs"
  if [ -z "$sanitizer" ]; then
    if [ "$groups" -gt 1 ]; then
      run_groups "$count" "$groups"
    else
      jobs=1 run_tests cuda -L gpu
    fi
    return
  fi
  rm -rf "$logs"
  mkdir -p "$logs"
  # ctest and masters make no CUDA call, which by itself is no error. The sanitizer's exit code is that of the outermost
  # process: what it found in workers is in the logs. Errors that a library returns are no finding: NCCL asks for kernels
  # that it does not have, and some tests provoke them. Tests that read an illegal address on purpose are left out.
  "$sanitizer" --target-processes all --require-cuda-init=no --report-api-errors no --log-file "$logs/%p.log" \
    ctest --test-dir "$root/build/cuda" --output-on-failure --no-label-summary --no-tests=error -j 1 -L gpu \
    -E AnIllegalAddress || return 1
  if ! grep -q 'ERROR SUMMARY' -r "$logs"; then
    say "compute-sanitizer has seen no CUDA program: its logs in $logs say nothing" >&2
    return 1
  fi
  if grep -h 'ERROR SUMMARY' -r "$logs" | grep -qv 'ERROR SUMMARY: 0 errors'; then
    grep -r -B 30 'ERROR SUMMARY: [1-9]' "$logs" >&2 || true
    say "compute-sanitizer found errors: see $logs" >&2
    return 1
  fi
}

failed=()
if [ "$with_tests" = ON ]; then
  for count in "${counts[@]}"; do
    code=0
    # Not `if` on the function itself: within it, `set -e` would not hold in the function.
    set +e
    (set -e; run_gpu_tests "$count")
    code=$?
    set -e
    [ "$code" = 0 ] || failed+=("tests on $count GPUs")
  done
  if [ "${#failed[@]}" = 0 ]; then
    say "Tests passed on ${counts[*]} GPUs"
  else
    for step in "${failed[@]}"; do say "Failed: $step"; done
  fi
fi

if [ "$with_bench" = ON ]; then
  say "Benchmarks"
  counts_text=$(IFS=,; printf '%s' "${counts[*]}")
  python3 "$root/bench/run_gpu.py" "$root/build/cuda" --devices "$counts_text" "${bench_options[@]}" ||
    failed+=(benchmarks)
fi
[ "${#failed[@]}" = 0 ] || exit 1
