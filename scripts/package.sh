#!/usr/bin/env bash
# Makes the packages of Debian 12 or Ubuntu 24.04, for the system on which it runs, and an archive of the sources.
# Installs what is missing. The packages are in build/packages. Parts for CUDA, MPI and LibTorch are made if what they
# require is there, and an option of CMake leaves one out:
#   scripts/package.sh -DSYNCRUN_TORCH=OFF
# Two runs on one commit give the same bytes if the same packages are installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

install_missing compiler cmake ninja boost spdlog cli11 zlib openblas onednn libdw hwloc toml
[[ " $* " == *" -DSYNCRUN_CUDA=OFF "* ]] || bring_cudnn_frontend
# With these, cpack finds the dependencies of packages.
{ command -v dpkg-shlibdeps && command -v file; } >/dev/null ||
  { say "Installing dpkg-dev file" && apt_install dpkg-dev file; } || fail "cannot install dpkg-dev and file"

# Calls git about this folder, which may belong to another user. Fails in an archive of the sources.
git_here() { [ -e "$root/.git" ] && git -c safe.directory="$root" -C "$root" "$@" 2>/dev/null; }

# Times in the packages are that of the commit. In an archive of the sources, all files have this time.
SOURCE_DATE_EPOCH=$(git_here log -1 --format=%ct || stat -c %Y "$root/CMakeLists.txt")
export SOURCE_DATE_EPOCH
umask 022
tree=$root/build/packages/tree
mkdir -p "$tree"
rm -f "$root"/build/packages/*.deb "$root"/build/packages/*.tar.gz

say "Configuring build/packages/tree"
(cd "$root" && cmake --fresh --preset release -B "$tree" -DCMAKE_INSTALL_PREFIX=/usr -DSYNCRUN_PACKAGES=ON \
  -DSYNCRUN_TESTS=OFF -DSYNCRUN_BENCH=OFF -DSYNCRUN_DEMOS=ON "$@") >"$tree/configure.log" 2>&1 ||
  { cat "$tree/configure.log" >&2 && fail "configuring failed"; }
say "Building with $jobs jobs"
cmake --build "$tree" -j "$jobs" --target packaged >"$tree/build.log" 2>&1 ||
  { cat "$tree/build.log" >&2 && fail "building failed"; }
say "Packing"
(cd "$tree" && cpack -B "$root/build/packages/cpack") >"$tree/pack.log" 2>&1 ||
  { cat "$tree/pack.log" >&2 && fail "cpack failed"; }
mv "$root"/build/packages/cpack/*.deb "$root/build/packages"
rm -rf "$root/build/packages/cpack"

if git_here rev-parse --verify --quiet HEAD >/dev/null; then
  version=$(sed -nE 's/^project\(Syncrun VERSION ([0-9.]+) .*/\1/p' "$root/CMakeLists.txt")
  git_here archive --format=tar.gz --prefix="syncrun-$version/" -o "$root/build/packages/syncrun-$version.tar.gz" HEAD
  [ -z "$(git_here status --porcelain)" ] ||
    say "The folder differs from its last commit. The packages contain the changes, and the archive does not"
fi
(cd "$root/build/packages" && find . -maxdepth 1 -type f -printf '%f  %k KiB\n' | sort)
