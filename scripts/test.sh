#!/usr/bin/env bash
# Installs what is missing (Debian 12, Ubuntu 24.04), builds, and runs every test. Passes options -DNAME=VALUE to cmake, and
# its other options to ctest:
#   scripts/test.sh -DSYNCRUN_CUDA=OFF -L unit
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

for_ctest=()
for option in "$@"; do
  if [[ $option == -D*=* ]]; then configure_options+=("$option"); else for_ctest+=("$option"); fi
done

install_missing
choose_gpus
[[ " ${configure_options[*]} " == *" -DSYNCRUN_CUDA=OFF "* ]] || bring_cudnn_frontend
configure_and_build release all all_verify_interface_header_sets
run_tests release "${for_ctest[@]}"
