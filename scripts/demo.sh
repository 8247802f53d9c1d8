#!/usr/bin/env bash
# Installs what is missing (Debian 12, Ubuntu 24.04), builds, and trains on the digits on every device: all GPUs where
# there are any, else CPU workers. Options go to the demo:
#   scripts/demo.sh --epochs 5
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

install_missing
choose_cuda_architectures
configure_and_build release demo
say "Running bin/syncrun bin/syncrun-mnist $*"
cd "$root/build/release"
exec bin/syncrun bin/syncrun-mnist "$@"
