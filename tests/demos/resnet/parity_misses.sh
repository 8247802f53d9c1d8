#!/usr/bin/env bash
# Runs resnet_parity with references of which one is wrong. It must say which distance is too large, and fail.
#   parity_misses.sh RESNET_PARITY REFERENCES
set -euo pipefail
parity=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$2/resnet18" "$2/resnet50" "$folder"
# Changes the last byte of the last logit, which belongs to its exponent.
printf '\x7e' | dd of="$folder/resnet18/logits.npy" bs=1 seek="$(($(stat -c %s "$folder/resnet18/logits.npy") - 1))" \
  conv=notrunc status=none

code=0
said=$("$parity" --device cpu --workers 1 --references "$folder") || code=$?
[ "$code" = 1 ] || { echo "expected exit code 1, got $code" >&2; exit 1; }
misses=$(grep MISSED <<<"$said")
case "$misses" in
  *$'\n'*) echo "expected one miss, got: $misses" >&2; exit 1 ;;
  "small resnet18, float32: logits "*) ;;
  *) echo "expected a miss of resnet18's logits, got: $misses" >&2; exit 1 ;;
esac
"$parity" --device tpu 2>/dev/null && { echo "expected bad options to be refused" >&2; exit 1; }
exit 0
