#!/usr/bin/env bash
# Runs the tests of a program in one process. In builds with a sanitizer, ctest starts each test program in this way: the
# start of such a process takes longer than most tests. Tests that the patterns exclude do not run.
#
# A sanitizer checks each process separately, so a few numbers of workers stand for all. Tests in suites `Workers/...` run
# with one worker, and with three where their suite has three, else with the most up to four. With three, shares are uneven.
#
# Tests that repeat the same many times, to see whether memory grows, do not run either: the address sanitizer reports leaks.
#
# usage: sanitized.sh PROGRAM [PATTERN...]   (patterns of GoogleTest)
set -euo pipefail -o noglob
program=$1
shift

# Prints a pattern for each suite and number of workers to leave out. Lines that begin without a space are suites, which end
# with a dot. The others are tests, and those in these suites end with a number of workers.
numbers_to_leave_out() {
  awk '
    /^[^ ]/ { suite = $1 }
    suite ~ /^Workers\// && $1 ~ /\/[0-9]+$/ {
      number = $1
      sub(/.*\//, "", number)
      if (number == 3 || number == 4) most[suite] = most[suite] == 3 ? 3 : number
      found[suite "*/" number] = suite
    }
    END {
      for (pattern in found) {
        number = pattern
        sub(/.*\//, "", number)
        if (number > 4 || number > 1 && found[pattern] in most && number != most[found[pattern]]) print pattern
      }
    }'
}
left_out=('*.LeaveNothingInTheMaster*' '*.DoNotGrowMemory*' "$@")
# `$( )` waits for its processes, and `< <( )` would not: after `exec`, the program would have a child that it did not start.
numbers=$("$program" --gtest_list_tests | numbers_to_leave_out)
[ -z "$numbers" ] || mapfile -t -O "${#left_out[@]}" left_out <<<"$numbers"
exec "$program" --gtest_filter="-$(IFS=:; echo "${left_out[*]}")"
