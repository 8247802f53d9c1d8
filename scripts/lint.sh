#!/usr/bin/env bash
# Runs clang-tidy, with the list in .clang-tidy as errors, over the library's own sources (and the headers they
# include). Needs build/release configured (scripts/test.sh does it). Arguments: files to check instead of all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tidy=$(command -v clang-tidy-16) || {
  echo "error: clang-tidy-16 is not installed (package clang-tidy-16)" >&2
  exit 1
}
database=build/release/compile_commands.json
[ -f "$database" ] || { echo "error: no $database: run 'cmake --preset release' first" >&2; exit 1; }

if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -d '' -t files < <(git -c safe.directory="$PWD" ls-files -z -- 'common/*.cpp' 'worker/*.cpp' 'launcher/*.cpp')
fi
# A file the build does not know would be checked with the wrong flags, and pass for the wrong reason.
for file in "${files[@]}"; do
  grep -qF "\"file\": \"$PWD/$file\"" "$database" || {
    echo "error: $file is not in $database: not part of the build, or the build folder is stale" >&2
    exit 1
  }
done

# Some are compiled for a test, too, and there with a precompiled header of g++'s, which clang-tidy cannot read: it goes
# without, as for the library.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -E 's#(-Winvalid-pch )?-include [^ ]*/cmake_pch\.hxx##' "$database" >"$folder/compile_commands.json"

log=$folder/log
code=0
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tidy" -p "$folder" --quiet >"$log" 2>&1 || code=$?
# Beside the findings it counts those that it left out.
grep -vE '^[0-9]+ warnings? (generated|treated as errors?)\.?$' "$log" || true
[ "$code" = 0 ] || exit 1
echo "${#files[@]} files have no findings"
