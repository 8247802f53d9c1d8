#!/usr/bin/env bash
# Installs what is missing (Debian 12, Ubuntu 24.04), builds the library, and runs its tests. With --all, also builds the
# demos and the benchmarks, and runs every test: also those of the demos, of LibTorch, on several hosts, and of the project.
# Passes options -DNAME=VALUE to cmake, and its other options to ctest:
#   scripts/test.sh --all -DSYNCRUN_CUDA=OFF -L unit
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

# A folder of a build keeps its options, and that of a demo has no tests.
configure_options=(-DSYNCRUN_TESTS=ON -DSYNCRUN_FAULT_TESTS=ON -DSYNCRUN_BENCH=ON -DSYNCRUN_DEMOS=ON -DSYNCRUN_TORCH=AUTO)
for_ctest=()
all=
for option in "$@"; do
  case "$option" in
    --all) all=yes ;;
    -D*=*) configure_options+=("$option") ;;
    *) for_ctest+=("$option") ;;
  esac
done

choose_gpus
if [ -z "$all" ]; then
  install_missing compiler cmake ninja python3 boost spdlog cli11 googletest libdw hwloc
  configure_and_build release syncrun_command library_tests
  run_tests release/tests/library "${for_ctest[@]}"
  exit
fi
install_missing
[[ " ${configure_options[*]} " == *" -DSYNCRUN_CUDA=OFF "* ]] || bring_cudnn_frontend
configure_and_build release all all_verify_interface_header_sets
run_tests release "${for_ctest[@]}"
