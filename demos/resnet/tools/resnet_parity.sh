#!/usr/bin/env bash
# Measures how close the results of syncrun-resnet's networks are to those of torchvision's, and the results of N
# devices to those of one. It makes references if torch is installed, and otherwise uses those in the tests. It builds
# what it needs, and prints the measured distances beside the allowed ones. It runs on all GPUs. Without a GPU, or with
# --cpu, it runs on CPU devices, which support float32 only.
#
#   demos/resnet/tools/resnet_parity.sh [--full] [--rows N] [--cpu]
#
# --full adds the whole ResNet-50 at 224 x 224, for N rows (default 8). It requires torch, some GB of memory, and about
# two minutes of a CPU core for each row. The variable PYTHON names the Python that has torch (default: python3, or
# Debian's). The variable CUDA_ARCHITECTURES says which architecture to compile for (default: 90).
# Exit code: 0 on success, 1 if a distance is too large or something failed, 2 if an option is wrong or --full finds no
# torch.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/lib/setup.sh"

refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Prints the first Python that has torch and numpy, or nothing if there is none.
python_with_torch() {
  local python
  for python in "${PYTHON:-python3}" /usr/bin/python3; do
    if "$python" -c 'import numpy, torch' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
}

full=
rows=8
device=
while [ $# -gt 0 ]; do
  case "$1" in
    --full) full=yes ;;
    --cpu) device=cpu ;;
    --rows)
      [ $# -gt 1 ] || refuse "--rows: value missing"
      [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "--rows: expected a number from 1, got $2"
      rows=$2
      shift
      ;;
    *) refuse "unknown option $1 (see the head of demos/resnet/tools/resnet_parity.sh)" ;;
  esac
  shift
done
python=$(python_with_torch)
[ -z "$full" ] || [ -n "$python" ] || refuse "--full wants torch and numpy: install them (Debian and Ubuntu: python3-torch), or name a Python that has them in PYTHON"

present=$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/bench" python3 -c 'import run_gpu; print(run_gpu.present_gpus())')
if [ "$device" = cpu ]; then
  say "On CPU devices, as asked for: float32 only"
elif [ "$present" = 0 ]; then
  say "NO GPU: on CPU devices, in float32 only; nothing is said of CUDA devices and of bfloat16"
  device=cpu
else
  device=cuda
  say "On $present GPUs"
fi

if [ "$device" = cuda ]; then
  preset=cuda
  workers=$((present < 8 ? present : 8))
  configure_options=("-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-90}")
  bring_cudnn_frontend
  bring_cli11
else
  preset=release
  workers=3
  install_missing
fi
configure_and_build "$preset" resnet_parity

references=$root/tests/demos/resnet/references
parity=("$root/build/$preset/tests/demos/resnet/resnet_parity" --device "$device" --workers "$workers")
if [ -n "$python" ]; then
  references=$root/build/$preset/resnet_references
  say "Making references"
  reference=("$python" -B "$root/demos/resnet/tools/resnet_reference.py")
  "${reference[@]}" "$references"
  say "Their networks are of $(cat "$references/resnet18/networks.txt")"
  "${reference[@]}" "$references" --distances
  if [ -n "$full" ]; then
    say "Making the reference of the whole ResNet-50, $rows rows"
    "${reference[@]}" "$references/full" --full --rows "$rows"
    "${reference[@]}" "$references/full" --full --rows "$rows" --distances
    parity+=(--full "$references/full")
  fi
else
  say "No torch: references are those that the tests carry"
fi

code=0
"${parity[@]}" --references "$references" || code=$?
if [ "$code" = 0 ]; then say "Every distance that was measured is allowed"; else say "Failed: see the lines that say MISSED, or the error" >&2; fi
exit "$code"
