# Functions that the scripts share: they find and install what is missing, build and test. Scripts source this file. If
# nothing is missing, it does not use the network.

# Ctrl-C ends the script when the program that runs at that moment has ended, even if that program ends normally.
trap 'exit 130' INT

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
jobs=$(nproc)
configure_options=()  # for cmake, in addition to a preset

say() { printf '== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the packages of Debian and Ubuntu for a name that missing() prints.
package_of() {
  case "$1" in
    compiler) echo g++ ;;
    cmake) echo cmake ;;
    ninja) echo ninja-build ;;
    python3) echo python3 ;;
    boost) echo libboost-dev ;;
    spdlog) echo libspdlog-dev ;;
    cli11) echo libcli11-dev ;;
    googletest) echo libgtest-dev libgmock-dev ;;
    benchmark) echo libbenchmark-dev ;;
    zlib) echo zlib1g-dev ;;
    libdw) echo libdw-dev ;;
    hwloc) echo libhwloc-dev ;;
    openblas) echo libopenblas-dev ;;
    onednn) echo libdnnl-dev ;;
    pillow) echo python3-pil ;;
    turbojpeg) echo libturbojpeg0-dev ;;
    libarchive) echo libarchive-dev ;;
    json) echo nlohmann-json3-dev ;;
    toml) echo libtomlplusplus-dev ;;
    libtorch) echo libtorch-dev ;;
    *) echo "$1" ;;
  esac
}

# Prints a line `required <name>` or `optional <name>` for everything that the build would not find. With names, looks
# for these only.
missing() {
  local folder=$root/.cache/probe tool
  rm -rf "$folder"
  mkdir -p "$folder"
  for tool in g++:compiler cmake:cmake ninja:ninja python3:python3; do
    command -v "${tool%%:*}" >/dev/null || echo "required ${tool##*:}"
  done >"$folder/tools"
  if grep -qE 'compiler|cmake|ninja' "$folder/tools"; then
    # Without these tools, the script cannot check for libraries. It then assumes that all are missing.
    sed -nE 's/^report\((\w+ \w+) .*/\1/p' "$root/scripts/lib/probe/CMakeLists.txt" >"$folder/libraries"
  elif cmake -G Ninja -S "$root/scripts/lib/probe" -B "$folder" >"$folder/log" 2>&1; then
    sed -n 's/^missing //p' "$folder/log" >"$folder/libraries"
  else
    cat "$folder/log" >&2
    fail "cmake cannot configure an empty project (see above)"
  fi
  # Debian has a package of LibTorch. Ubuntu 24.04 has none.
  sort -u "$folder/tools" "$folder/libraries" | grep -E " ($(tr ' ' '|' <<<"${*:-\w+}"))\$" |
    if grep -qx 'ID=debian' /etc/os-release; then cat; else grep -vx 'optional libtorch'; fi || true
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Runs apt-get. On a terminal, its output is shown. Elsewhere, it would be a thousand lines, so only those about the
# download are, and the last lines if it fails.
apt_get() {
  mkdir -p "$root/.cache"
  local log=$root/.cache/apt.log command=(as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get "$@")
  if [ -t 1 ]; then
    "${command[@]}" </dev/null
  elif ! "${command[@]}" </dev/null 2>&1 | tee "$log" | sed -un '/^Need to get\|^Fetched/p'; then
    tail -n 15 "$log" >&2
    return 1
  fi
}

# Installs packages. Fails if that is not possible, and says why.
apt_install() {
  local why=
  command -v apt-get >/dev/null || why="there is no apt-get"
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || why="you are not root, and there is no sudo"
  if [ -n "$why" ]; then
    say "Cannot install packages: $why"
    return 1
  fi
  mkdir -p "$root/.cache"
  apt_get update --error-on=any -o Acquire::Retries=1 -o Acquire::http::Timeout=20 ||
    say "apt-get cannot update its lists of packages: is there a network? The old lists may still be good enough"
  apt_get install -y --no-install-recommends "$@"
}

packages_for() {
  local kind name
  while read -r kind name; do
    package_of "$name"
  done | tr ' ' '\n' | sort -u | tr '\n' ' '
}

# install_missing [NAME...]: installs what the build would not find, or what of these names it would not find.
install_missing() {
  local lines packages
  lines=$(missing "$@")
  if [ -z "$lines" ]; then
    say "Everything the build needs is installed"
    return
  fi
  packages=$(packages_for <<<"$lines")
  say "Installing $packages"
  # shellcheck disable=SC2086 # one word per package
  if apt_install $packages; then return; fi

  bring_cli11
  lines=$(missing "$@")
  if grep -q '^required' <<<"$lines"; then
    fail "these packages could not be installed (see above), and the build requires them.
Install them, then start this script again. As root: apt-get install $(grep '^required' <<<"$lines" | packages_for)"
  fi
  [ -z "$lines" ] || say "Going on without $(packages_for <<<"$lines")"
}

# Fetches the headers of CLI11, which the demos require, if they are not installed. Unpacks them from the distribution's
# package, which does not require root. Without these headers, the demos are not built.
bring_cli11() {
  local folder=$root/.cache/cli11 unpacked
  if [ -n "${CLI11_ROOT:-}" ] || [ -f "$folder/include/CLI/CLI.hpp" ]; then return; fi
  if [ -f /usr/include/CLI/CLI.hpp ] || [ -f /usr/local/include/CLI/CLI.hpp ]; then return; fi
  say "Fetching the headers of CLI11"
  mkdir -p "$folder"
  unpacked=$(mktemp -d)
  if (cd "$unpacked" && apt-get download -q libcli11-dev && dpkg -x libcli11-dev_*.deb .) >"$root/.cache/cli11.log" 2>&1 </dev/null; then
    cp -r "$unpacked/usr/include" "$folder"
  else
    say "Going on without CLI11 (apt-get could not bring it): the demos are not built"
  fi
  rm -rf "$unpacked"
}

# Fetches the headers of cudnn-frontend from PyPI if there is a CUDA compiler. No distribution has them. syncrun-resnet
# requires them for CUDA devices. Without them, it supports only CPU devices.
bring_cudnn_frontend() {
  if [ -n "${CUDNN_FRONTEND_ROOT:-}" ] || ! command -v nvcc >/dev/null; then return; fi
  if [ -f /usr/include/cudnn_frontend.h ] || [ -f /usr/local/include/cudnn_frontend.h ]; then return; fi
  local folder=$root/.cache/cudnn-frontend
  mkdir -p "$root/.cache"
  if [ ! -f "$folder/include/cudnn_frontend.h" ]; then
    say "Fetching the headers of cudnn-frontend"
    if ! python3 -m pip install -q --no-deps --retries 1 --timeout 20 --target "$folder" nvidia-cudnn-frontend==1.32.0 >"$root/.cache/pip.log" 2>&1; then
      say "Going on without cudnn-frontend (pip could not bring it)"
      return
    fi
  fi
  export CUDNN_FRONTEND_ROOT=$folder
}

# Sets `clang_tidy` to the program, and fetches it from PyPI if it is not there. This version takes a third of the time of
# clang-tidy 16 from Debian 12, which does as well if pip cannot bring it.
find_clang_tidy() {
  local version=23.1.4 folder
  folder=$root/.cache/clang-tidy-$version
  clang_tidy=$folder/clang_tidy/data/bin/clang-tidy
  if [ ! -x "$clang_tidy" ]; then
    say "Fetching clang-tidy $version"
    mkdir -p "$root/.cache"
    python3 -m pip install -q --no-deps --retries 1 --timeout 20 --target "$folder" "clang-tidy==$version" \
      >"$root/.cache/pip.log" 2>&1 || clang_tidy=$(command -v clang-tidy-16) ||
      fail "pip cannot bring clang-tidy $version, and clang-tidy-16 is not installed (package clang-tidy-16)"
  fi
}

# Chooses the GPUs to compile for, in a build that stays on this machine: those of this machine. If it has none, it cannot
# run the code for GPUs, which takes more time to compile than all the rest. A folder of a build keeps its options, so this
# function always sets the option. An option of the user has precedence.
choose_gpus() {
  local found
  [[ " ${configure_options[*]-} " != *" -DSYNCRUN_CUDA="* ]] || return 0
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*' | sort -u |
    paste -s -d ';') || true
  if command -v nvcc >/dev/null && { [ -n "$found" ] || compgen -G '/dev/nvidia[0-9]*' >/dev/null; }; then
    configure_options=(-DSYNCRUN_CUDA=AUTO "-DCMAKE_CUDA_ARCHITECTURES=${found:-80}" "${configure_options[@]}")
    return
  fi
  configure_options+=(-DSYNCRUN_CUDA=OFF)
  if command -v nvcc >/dev/null; then
    say "This machine has no GPU, so the code for GPUs is not compiled (cmake -DSYNCRUN_CUDA=ON compiles it)"
  fi
}

# For scripts that only run a demo: the tests and the benchmarks require more packages. A folder that has them keeps them.
without_tests() {
  [ -f "$root/build/release/tests/CTestTestfile.cmake" ] || configure_options+=(-DSYNCRUN_TESTS=OFF -DSYNCRUN_BENCH=OFF)
}

# configure_and_build PRESET [TARGET...]: configures and builds in build/PRESET.
configure_and_build() {
  local preset=$1
  shift
  local log="$root/build/$preset/configure.log"
  mkdir -p "$root/build/$preset"
  say "Configuring build/$preset"
  if ! (cd "$root" && cmake --preset "$preset" "${configure_options[@]}") >"$log" 2>&1; then
    cat "$log" >&2
    fail "configuring build/$preset failed"
  fi
  say "Building build/$preset with $jobs jobs"
  local targets=()
  [ $# = 0 ] || targets=(--target "$@")
  # Ninja's status line replaces itself only on a terminal. Elsewhere, Ninja prints a thousand lines, which are useful
  # only if the build fails.
  log="$root/build/$preset/build.log"
  if [ -t 1 ]; then
    cmake --build "$root/build/$preset" -j "$jobs" "${targets[@]}" || fail "building build/$preset failed"
  elif ! cmake --build "$root/build/$preset" -j "$jobs" "${targets[@]}" >"$log" 2>&1; then
    grep -v '^\[[0-9]*/[0-9]*\] [A-Z][a-z]* [^ ]* object' "$log" >&2 || true
    fail "building build/$preset failed"
  fi
}

# run_tests PRESET [CTEST-OPTION...]: runs ctest, and prints its lines. The lines with its count and its time come last,
# even if ctest prints a list of skipped or failed tests after them. Since many tests wait for deadlines, one test more
# runs at a time than there are jobs, and two more in the preset `release`, which has the tests on several nodes. With
# jobs=1, only one runs at a time. PRESET may also be a folder in that of a preset.
run_tests() {
  local preset=$1 at_once=1
  shift
  if [ "$jobs" -gt 1 ]; then
    at_once=$((jobs + 1))
    [ "$preset" != release ] || at_once=$((jobs + 2))
  fi
  say "Testing build/$preset"
  ctest --test-dir "$root/build/$preset" --output-on-failure --no-label-summary --no-tests=error -j "$at_once" "$@" 2>&1 |
    sed -u -E -e '/^[0-9]+% tests passed|^Total Test time/{H;$!d;s/.*//}' -e '${G}'
}
