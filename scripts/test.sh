#!/usr/bin/env bash
# Installs what is missing (Debian 12, Ubuntu 24.04), builds, and runs every test. Passes its options to ctest:
#   scripts/test.sh -L unit
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

install_missing
bring_cudnn_frontend
choose_cuda_architectures
configure_and_build release all all_verify_interface_header_sets
run_tests release "$@"
