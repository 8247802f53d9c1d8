#!/usr/bin/env bash
# Runs everything that requires GPUs. Builds with what is installed, runs the tests labelled gpu, and then runs the
# benchmarks and the programs they are compared with. Tests for a number of GPUs run with 1, 2, 4 and 8, as far as the
# machine has that many. The script prints the table of results last, and writes the figures to
# build/cuda/bench_gpu.json. It does not change clocks, NCCL's variables or other settings. If a test requires only some
# of the GPUs, the GPUs are divided into groups, and each group runs a part of these tests at the same time. With
# --groups 1, one test runs after the other.
#
#   scripts/gpu_check.sh [--tests-only | --bench-only] [--quick] [--jobs N] [--devices 1,2] [--groups N]
#                        [--steps NAME,NAME] [--tests-per-gpu N] [--sanitizer] [--no-build]
#                        [-- options of bench/run_gpu.py]
#
# --steps runs only these steps of the tests, for a machine that is lent for minutes: devices (tests for a number of
# GPUs), kernels, four, libtorch and others. The steps of several runs together are the whole check.
# --tests-per-gpu runs several tests on each GPU at the same time (default: 1), because starting takes longer than
# computing. Tests that fail then run once more, one after the other.
# --no-build takes the programs in build/cuda as they are. With it, GPUs are not occupied during a build: build on a
# machine without GPUs, and copy the folder to the same path.
# --sanitizer runs the tests under compute-sanitizer. The variable CUDA_ARCHITECTURES lists the architectures to compile
# for (default: 90). If python3 has PyTorch, its LibTorch is used, and the tests and benchmarks of models of LibTorch run
# too, also those of CPU devices.
# Exit code: 0 on success, 1 if something failed, 2 if there is no GPU or an option is wrong.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Counts GPUs as Syncrun does, by the driver's device files and CUDA_VISIBLE_DEVICES.
present_gpus() {
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/bench" python3 -c 'import run_gpu; print(run_gpu.present_gpus())'
}

# Prints the numbers of GPUs to run with, one per line.
counts_of() {
  local present=$1 count
  for count in 1 2 4 8; do
    if [ "$count" -le "$present" ]; then echo "$count"; fi
  done
}

with_tests=ON
with_bench=ON
sanitizer=
with_build=ON
most_groups=8
all_steps=devices,kernels,four,libtorch,others
steps=$all_steps
tests_per_gpu=1
counts=()
bench_options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tests-only) with_bench=OFF ;;
    --bench-only) with_tests=OFF ;;
    --quick) bench_options+=(--quick) ;;
    --sanitizer) sanitizer=compute-sanitizer ;;
    --no-build) with_build=OFF ;;
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
    --steps)
      [[ ${2:-} =~ ^[a-z]+(,[a-z]+)*$ ]] || refuse "--steps: expected names out of $all_steps"
      steps=$2
      shift
      ;;
    --tests-per-gpu)
      [[ ${2:-} =~ ^[1-9]$ ]] || refuse "--tests-per-gpu: expected a number from 1 to 9"
      tests_per_gpu=$2
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
for step in ${steps//,/ }; do
  [[ ,$all_steps, == *,$step,* ]] || refuse "--steps: expected names out of $all_steps, got $step"
done
[ -z "$sanitizer" ] || command -v "$sanitizer" >/dev/null || refuse "compute-sanitizer is not on PATH (it is part of CUDA)"

present=$(present_gpus)
if [ "$present" = 0 ]; then
  say "No GPU: nothing was built, tested or measured" >&2
  refuse "there is no GPU on this machine (no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it)"
fi
[ "${#counts[@]}" -gt 0 ] || mapfile -t counts < <(counts_of "$present")
for count in "${counts[@]}"; do
  [[ $count =~ ^[1248]$ ]] || refuse "--devices: expected counts out of 1,2,4,8, got $count"
  [ "$count" -le "$present" ] || refuse "--devices: got $count, but $present GPUs are visible"
done
say "$present GPUs are visible; running with ${counts[*]}"

if [ "$with_build" = OFF ] && [ ! -f "$root/build/cuda/CTestTestfile.cmake" ]; then
  refuse "--no-build: build/cuda has no build with tests"
fi

configure_options=("-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-90}"
  "-DSYNCRUN_TESTS=$with_tests" "-DSYNCRUN_BENCH=$with_bench")
# The LibTorch of an installed PyTorch is a LibTorch for CUDA.
torch_dir=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)' 2>/dev/null || true)
if [ -n "$torch_dir" ]; then configure_options+=("-DSYNCRUN_TORCH=ON" "-DTorch_DIR=$torch_dir/Torch"); fi
if [ "$with_build" = ON ]; then
  bring_cudnn_frontend
  bring_cli11
  configure_and_build cuda
fi

# Prints the GPUs that programs see now, one per line, with their names in CUDA_VISIBLE_DEVICES.
visible_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else seq 0 $((present - 1)); fi
}

# run_group SIZE SETS GROUP GROUPS CTEST-OPTION...: runs every GROUPS-th test, beginning with the GROUP-th, on one of the
# SETS sets of SIZE GPUs. ctest writes its log to the folder in which it runs, so each group has a folder of its own.
run_group() {
  local size=$1 sets=$2 group=$3 groups=$4 gpus set
  shift 4
  set=$(((group - 1) % sets))
  gpus=$(visible_gpus | sed -n "$((set * size + 1)),$(((set + 1) * size))p" | paste -s -d ,)
  mkdir -p "$root/build/cuda/gpus-$group"
  echo 'subdirs("..")' >"$root/build/cuda/gpus-$group/CTestTestfile.cmake"
  CUDA_VISIBLE_DEVICES=$gpus jobs=1 run_tests "cuda/gpus-$group" -I "$group,,$groups" "$@"
}

# run_groups SIZE SETS GROUPS CTEST-OPTION...: runs all groups at the same time, and then prints the output of each. If
# groups share GPUs, those with failures run their failed tests again, one group after the other.
run_groups() {
  local size=$1 sets=$2 groups=$3 group code=0 processes=() again=() log=$root/build/cuda/tests-of-group
  shift 3
  for group in $(seq "$groups"); do
    run_group "$size" "$sets" "$group" "$groups" "$@" >"$log-$group.log" 2>&1 &
    processes+=($!)
  done
  for group in $(seq "$groups"); do
    wait "${processes[group - 1]}" || again+=("$group")
    say "Group $group of $groups"
    cat "$log-$group.log"
  done
  [ "$groups" -gt "$sets" ] || [ "${#again[@]}" = 0 ] || return 1
  for group in "${again[@]}"; do
    say "Group $group of $groups: the failed tests again, alone"
    run_group "$size" "$sets" "$group" "$groups" --rerun-failed "$@" || code=1
  done
  return "$code"
}

# run_under_sanitizer NAME CTEST-OPTION...: runs tests under compute-sanitizer, with logs in build/cuda/sanitizer-NAME.
run_under_sanitizer() {
  local logs=$root/build/cuda/sanitizer-$1
  shift
  rm -rf "$logs"
  mkdir -p "$logs"
  # --require-cuda-init=no: ctest and masters make no CUDA call, and that is not an error. The sanitizer's exit code is
  # that of the outermost process, so findings in workers are only in the logs. --report-api-errors no: errors that a
  # library returns are not findings. NCCL asks for kernels that it does not have, and some tests provoke errors.
  "$sanitizer" --target-processes all --require-cuda-init=no --report-api-errors no --log-file "$logs/%p.log" \
    ctest --test-dir "$root/build/cuda" --output-on-failure --no-label-summary --no-tests=error -j 1 "$@" || return 1
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

# run_gpu_tests NAME SIZE ONLY WITHOUT CTEST-OPTION...: runs the tests whose names match ONLY and not WITHOUT. Each
# group of tests runs one test at a time on SIZE GPUs.
run_gpu_tests() {
  local name=$1 size=$2 only=$3 without=$4 sets=$((present / $2)) groups
  shift 4
  if [ "$sets" -gt "$most_groups" ]; then sets=$most_groups; fi
  groups=$((sets * tests_per_gpu))
  if [ -n "$sanitizer" ]; then
    # Tests that read an illegal address on purpose are left out.
    run_under_sanitizer "$name" -L gpu -R "$only" -E "AnIllegalAddress|$without" "$@"
  elif [ "$groups" -gt 1 ]; then
    run_groups "$size" "$sets" "$groups" -L gpu -R "$only" -E "$without" "$@"
  else
    jobs=1 run_tests cuda -L gpu -R "$only" -E "$without" "$@"
  fi
}

# The same without --tests-per-gpu.
one_test_at_a_time() {
  tests_per_gpu=1 run_gpu_tests "$@"
}

# chosen NAME: succeeds if --steps names this step, or is not given.
chosen() {
  [[ ,$steps, == *,$1,* ]]
}

# run_step NAME COMMAND...: adds NAME to `failed` if the command fails. There is no `if` on the command itself, because
# `set -e` would then have no effect in a function.
run_step() {
  local name=$1 code
  shift
  say "Tests $name"
  set +e
  (set -e; "$@")
  code=$?
  set -e
  [ "$code" = 0 ] || failed+=("tests $name")
}

failed=()
untested=
four='^nodes\.FourGpus$|cuda0_cuda1_cuda2_cuda3'  # tests that choose their GPUs, and choose four
if [ "$with_tests" = ON ]; then
  [ "$steps" = "$all_steps" ] || untested="; ran only the steps $steps"
  if chosen devices; then
    for count in "${counts[@]}"; do
      run_step "on $count GPUs" run_gpu_tests "$count" "$count" "^Gpus/.*/$count\$" '^$'
    done
  fi
  if chosen kernels; then
    run_step "of kernels and networks" run_gpu_tests kernels 1 . '^Gpus/' -L one_gpu
  fi
  if [ "$present" -lt 4 ]; then
    untested+="; NOT tested: what requires four GPUs"
  elif chosen four; then
    run_step "that choose four GPUs" one_test_at_a_time four 4 "$four" '^$'
  fi
  if [ ! -x "$root/build/cuda/tests/libtorch/libtorch_models" ]; then
    untested+="; NOT tested: models of LibTorch (build/cuda was built without them)"
  elif chosen libtorch; then
    # Otherwise each of these tests, and each of their workers, has a thread for every core. Such threads spin while
    # they wait, and a test with one worker took six minutes among others on a machine of 64 cores.
    OMP_NUM_THREADS=2 run_step "of models of LibTorch on CPU devices" \
      run_tests cuda -R '^(libtorch\.models|Gpt)' -LE gpu
  fi
  if chosen others; then
    run_step "that choose their GPUs" run_gpu_tests others "$((present < 2 ? 1 : 2))" . "^Gpus/|$four" -LE one_gpu
  fi
  if [ "${#failed[@]}" = 0 ]; then
    say "Tests passed on ${counts[*]} GPUs$untested"
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
