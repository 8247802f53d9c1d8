#!/usr/bin/env bash
# Runs the tests of a program in one process. In builds with a sanitizer, ctest starts each program in this way: the start of
# such a process takes longer than most tests. Does not run:
# - tests with four or more workers. A sanitizer checks each process separately, and three workers have uneven shares, as
#   more have.
# - tests with two workers, where a suite has the same tests with three.
# - what the patterns of GoogleTest exclude.
#
# usage: sanitized.sh PROGRAM [PATTERN...]
set -euo pipefail -o noglob
program=$1
shift

# Suites are lines without spaces at the beginning, and end with a dot.
with_three=$("$program" --gtest_list_tests |
  awk '/^[^ ]+\.$/ { suite = $1 } suite ~ /^Workers\// && $1 ~ /\/3$/ { print suite "*/2" }' | sort -u)
left_out=("$@" Workers/*/{4,5,6,7,8,9})
[ -z "$with_three" ] || mapfile -t -O "${#left_out[@]}" left_out <<<"$with_three"
exec "$program" --gtest_filter="-$(IFS=:; echo "${left_out[*]}")"
