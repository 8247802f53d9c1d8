# What the scripts share: finding what is missing, installing it, building. To be sourced; asks for no registry where
# everything is there already.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
jobs=$(nproc)
configure_options=()  # for cmake, beside a preset

say() { printf '== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# The package of Debian and Ubuntu that brings what a probe has missed.
package_of() {
  case "$1" in
    compiler) echo g++ ;;
    cmake) echo cmake ;;
    ninja) echo ninja-build ;;
    python3) echo python3 ;;
    boost) echo libboost-dev ;;
    spdlog) echo libspdlog-dev ;;
    googletest) echo libgtest-dev libgmock-dev ;;
    benchmark) echo libbenchmark-dev ;;
    zlib) echo zlib1g-dev ;;
    libdw) echo libdw-dev ;;
    blas) echo libopenblas-dev ;;
    onednn) echo libdnnl-dev ;;
    pillow) echo python3-pil ;;
    *) echo "$1" ;;
  esac
}

# Lines `required <name>` and `optional <name>` for what the build would not find.
missing() {
  local tool
  for tool in g++:compiler cmake:cmake ninja:ninja python3:python3; do
    command -v "${tool%%:*}" >/dev/null || echo "required ${tool##*:}"
  done
  # Without the tools, nobody can be asked about the libraries.
  if ! command -v g++ >/dev/null || ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
    printf 'required %s\n' boost spdlog googletest
    printf 'optional %s\n' benchmark zlib libdw blas onednn pillow
    return
  fi
  local folder
  folder=$(mktemp -d)
  if ! cmake -G Ninja -S "$root/scripts/lib/probe" -B "$folder" >"$folder/log" 2>&1; then
    cat "$folder/log" >&2
    rm -rf "$folder"
    fail "cmake cannot configure an empty project (see above)"
  fi
  sed -n 's/^missing //p' "$folder/log"
  rm -rf "$folder"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs packages; false where that is not possible.
apt_install() {
  command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || return 1
  local log code=0
  log=$(mktemp)
  # A list of packages that cannot be refreshed may still be good enough.
  as_root apt-get update -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 >"$log" 2>&1 </dev/null || true
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
    >>"$log" 2>&1 </dev/null || code=$?
  [ "$code" = 0 ] || tail -n 15 "$log" >&2
  rm -f "$log"
  return "$code"
}

packages_for() {
  local kind name
  while read -r kind name; do
    package_of "$name"
  done | tr ' ' '\n' | sort -u | tr '\n' ' '
}

install_missing() {
  local lines packages
  lines=$(missing)
  if [ -z "$lines" ]; then
    say "Everything the build needs is installed"
    return
  fi
  packages=$(packages_for <<<"$lines")
  say "Installing $packages"
  # shellcheck disable=SC2086 # one word per package
  if apt_install $packages; then return; fi

  lines=$(missing)
  if grep -q '^required' <<<"$lines"; then
    fail "missing, and apt-get could not bring it: $(sed -n 's/^required //p' <<<"$lines" | tr '\n' ' ')
Install what these packages of Debian and Ubuntu hold, then start again: $(grep '^required' <<<"$lines" | packages_for)"
  fi
  [ -z "$lines" ] || say "Going on without $(sed -n 's/^optional //p' <<<"$lines" | tr '\n' ' ')"
}

# The headers of cudnn-frontend, which syncrun-resnet wants for CUDA devices, where there is a CUDA compiler: no
# distribution has them, PyPI does. Without them, the program is for CPU devices.
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

# For which GPUs to compile, in a build that stays on this machine: those that it has. Where it has none, for the oldest that
# is supported, since what is compiled for it runs on all later ones, too. Each further one would take as long again.
choose_cuda_architectures() {
  local found
  command -v nvcc >/dev/null || return 0
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*' | sort -u |
    paste -s -d ';') || true
  configure_options+=("-DCMAKE_CUDA_ARCHITECTURES=${found:-80}")
}

# configure_and_build PRESET [TARGET...]: into build/PRESET.
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
  # Ninja's status line rewrites itself only on a terminal; elsewhere its thousand lines are noise unless it fails.
  log="$root/build/$preset/build.log"
  if [ -t 1 ]; then
    cmake --build "$root/build/$preset" -j "$jobs" "${targets[@]}" || fail "building build/$preset failed"
  elif ! cmake --build "$root/build/$preset" -j "$jobs" "${targets[@]}" >"$log" 2>&1; then
    grep -v '^\[[0-9]*/[0-9]*\] [A-Z][a-z]* [^ ]* object' "$log" >&2 || true
    fail "building build/$preset failed"
  fi
}

# run_tests PRESET [CTEST-OPTION...]: ctest's own lines; its count and its time last, also where it lists skipped or
# failed tests behind them. One more at a time than there are cores, since many wait for deadlines; but one is one.
run_tests() {
  local preset=$1 at_once=$((jobs > 1 ? jobs + 1 : 1))
  shift
  say "Testing build/$preset"
  ctest --test-dir "$root/build/$preset" --output-on-failure --no-label-summary --no-tests=error -j "$at_once" "$@" 2>&1 |
    sed -u -E -e '/^[0-9]+% tests passed|^Total Test time/{H;$!d;s/.*//}' -e '${G}'
}
