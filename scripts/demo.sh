#!/usr/bin/env bash
# Installs what is missing (Debian 12, Ubuntu 24.04), builds, and trains on the digits. Uses all GPUs, or CPU workers if
# there is no GPU. Passes its options to the demo:
#   scripts/demo.sh --epochs 5
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

install_missing compiler cmake ninja boost spdlog cli11 zlib openblas
without_tests
configure_options+=(-DSYNCRUN_DEMOS=ON)
choose_gpus
configure_and_build release demo
say "Running bin/syncrun bin/syncrun-mnist $*"
cd "$root/build/release"
exec bin/syncrun bin/syncrun-mnist "$@"
