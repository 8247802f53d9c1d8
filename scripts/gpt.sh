#!/usr/bin/env bash
# Installs what is missing (Debian 12), builds, and trains a small language model on a text, with a worker on each CPU
# core. Passes its options to the demo:
#   scripts/gpt.sh --size mini
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

install_missing compiler cmake ninja python3 boost spdlog cli11 zlib openblas json libtorch
without_tests
configure_options+=(-DSYNCRUN_DEMOS=ON)
choose_gpus
configure_options+=(-DSYNCRUN_TORCH=ON)  # an error if there is no LibTorch
configure_and_build release syncrun_command syncrun_gpt
say "Running bin/syncrun -n cpu bin/syncrun-gpt $*"
cd "$root/build/release"
exec bin/syncrun -n cpu bin/syncrun-gpt "$@"
