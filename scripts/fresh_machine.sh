#!/usr/bin/env bash
# Runs commands of README.md, as they are written there, on fresh machines: minimal roots of Debian 12, with the current
# commit and nothing that it requires. Prints how long each step took, and how much it downloaded. Parts:
#   demo      the first command, as root, then again, and then a program against what it has built
#   gpt       the command of the GPT demo, as a user with sudo
#   project   "In a CMake project", as root
#   package   "Install", as root: makes the packages there, installs them, and trains on the digits
#   packages  makes the packages twice here, in two folders, and compares them. Then installs them on machines without a
#             compiler, as root: trains on the digits, builds programs, and removes everything
#   test      the command for the tests, as a user with sudo. Runs only those with the label `unit`
#   blas      the first command where there is only the reference BLAS, as a user with sudo
#   stops     what scripts do after Ctrl-C, without a network, and without root
# The roots take their packages from where this machine takes its own. The script requires root and Debian 12, and leaves
# nothing behind, also after Ctrl-C.
#
# usage: scripts/fresh_machine.sh [PART...]   (default: all parts)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"
readme=$root/README.md

# Everything runs in a second process, in namespaces of its own. With it, its mounts and processes end.
if [ "${1-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || fail "scripts/fresh_machine.sh requires root: it makes a root of Debian and mounts in it"
  { command -v mmdebstrap && command -v pkill; } >/dev/null || apt_install mmdebstrap procps ||
    fail "cannot install mmdebstrap and procps"
  folder=$(mktemp -d)
  process=
  end() {
    # When the first process in the namespace has ended, no other is left.
    [ -z "$process" ] || pkill -KILL -P "$process" || true
    wait
    rm -rf --one-file-system "$folder"
  }
  trap end EXIT
  trap 'exit 143' TERM
  env --default-signal=INT unshare --mount --pid --mount-proc --fork --kill-child "$0" --inside "$folder" "$@" &
  process=$!
  code=0
  wait "$process" || code=$?
  process=
  exit "$code"
fi
folder=$2
shift 2
machine=$folder/machine  # the root of the machine that the functions use
summary=()

# Prints where this machine takes the packages of Debian 12 from.
sources() {
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    grep ' bookworm'
}

make_base() {
  # Git clones a folder of another user only if a configuration allows it.
  printf '[safe]\n\tdirectory = *\n' >"$folder/gitconfig"
  export GIT_CONFIG_GLOBAL=$folder/gitconfig
  sources >"$folder/sources.list" || { apt_get update && sources >"$folder/sources.list"; } ||
    fail "apt-get has no source of Debian 12 (bookworm), which the roots require"
  apt-config dump | grep -E '^Acquire::(https?::|Check-)' >"$folder/apt.conf" || true
  mmdebstrap --quiet --variant=minbase --aptopt="$folder/apt.conf" bookworm "$folder/base" "$folder/sources.list"
}

# in_machine USER FOLDER COMMAND: runs a command of a shell in a folder of the machine. `around` runs it.
around=()
in_machine() {
  local path=/usr/local/bin:/usr/bin:/bin
  [ "$1" != root ] || path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  # shellcheck disable=SC2016 # the inner shell expands
  "${around[@]}" unshare --mount bash -euc '
    cd "$1"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs dev/shm
    exec chroot --userspec="$2" . /usr/bin/env -i HOME="$3" PATH="$4" TERM=dumb bash -c "cd $5 && $6"' \
    in_machine "$machine" "$1" "/$1" "$path" "$2" "$3"
}

# new_machine NAME: makes a machine with the current commit in /syncrun, which belongs to the user `user`.
new_machine() {
  rm -rf --one-file-system "$machine"
  cp -a "$folder/base" "$machine"
  in_machine root / 'useradd --create-home --home-dir /user user'
  git clone --quiet --depth 1 "file://$root" "$machine/syncrun"
  in_machine root / 'chown -R user:user /syncrun'
  summary+=("$1")
}

# Installs packages on the machine, and then forgets the lists of packages, which a new machine does not have.
prepare() {
  in_machine root / "apt-get update && apt-get install -y --no-install-recommends $*" >"$folder/log" 2>&1 ||
    { cat "$folder/log" && return 1; }
  rm -rf "$machine"/var/lib/apt/lists/* "$machine"/var/cache/apt/archives/*.deb
}

sudo_for_user() {
  prepare sudo "$@"
  echo 'user ALL=(ALL) NOPASSWD: ALL' >"$machine/etc/sudoers.d/user"
}

# expect NAME COMMAND...: runs a command that has to succeed, and keeps its output in $folder/log. A line that begins with
# == begins a step. Such lines are shown, and the time of the step goes to the summary.
expect() {
  local line step='' begin=$SECONDS
  say "$1"
  shift
  while IFS= read -r line; do
    [ -z "$step" ] || summary+=("  $((SECONDS - begin)) s: $step")
    step=${line#== } begin=$SECONDS
    [[ $line == 'exit code '* ]] || say "$step"
  done < <(set +e; "$@" 2>&1 | tee "$folder/log" | grep -a --line-buffered '^== '; echo "exit code ${PIPESTATUS[0]}")
  [ "$step" = 'exit code 0' ] || { tail -n 40 "$folder/log" && fail "the command failed"; }
  summary+=("  downloaded: $(awk '/^Fetched / { n += $2 * ($3 == "kB" ? 1e-3 : $3 == "MB" ? 1 : 1e3) }
    END { printf "%.0f MB", n }' "$folder/log")")
}

# has TEXT / has_not TEXT: what the output of the last command contains.
has() { grep -qF -- "$1" "$folder/log" || { cat "$folder/log" && fail "expected in the output: $1"; }; }
has_not() { ! grep -F -- "$1" "$folder/log" || fail "did not expect this in the output"; }

# Prints the first line of README.md that begins so.
command_of_readme() { grep -m 1 "^$1" "$readme" || fail "README.md has no command $1"; }

# project_block N: prints the N-th block of commands of "In a CMake project", each after a line that begins with ==.
project_block() {
  awk -v n="$1" '/^## /{ inside = /In a CMake project/ } /^```/{ block = $0 == "```sh" && inside && ++count == n; next }
    block' "$readme" | sed -e 's|\<PREFIX\>|$HOME/prefix|g' -e "s/.*/echo '== &'\n&\n[ \$? = 0 ] || exit/" | grep . ||
    fail 'README.md has no such block in "In a CMake project"'
}

# The first program of README.md against the installed package, as README.md builds and runs it.
build_project() {
  mkdir "$machine/project"
  cp "$root/tests/project/stranger/CMakeLists.txt" "$machine/project"
  cp "$root/docs/samples/squares.cpp" "$machine/project/main.cpp"
  expect "A project of a user" in_machine root /project "$(project_block 2)"
  grep -qx 204 "$folder/log" || { cat "$folder/log" && fail "expected the sum of the squares, 204"; }
}

part_demo() {
  new_machine "demo, as root"
  local command
  command=$(command_of_readme scripts/demo.sh)
  expect "The first command" in_machine root /syncrun "$command"
  has 'test accuracy: 9'
  expect "The first command again" in_machine root /syncrun "$command"
  has 'Everything the build needs is installed'
  in_machine root /syncrun 'cmake --install build/release --prefix ~/prefix' >"$folder/log"
  build_project
}

part_gpt() {
  new_machine "gpt, as a user with sudo"
  sudo_for_user
  expect "The GPT demo" in_machine user /syncrun "$(command_of_readme scripts/gpt.sh)"
  has 'bits per byte'
}

part_project() {
  new_machine "project, as root"
  expect "Building Syncrun" in_machine root /syncrun "$(project_block 1)"
  build_project
}

# packages_of FOLDER OPTION...: makes the packages of the current commit, from a clone in a folder.
packages_of() {
  local folder=$1
  shift
  git clone --quiet "file://$root" "$folder"
  expect "Making packages in $folder" "$folder/scripts/package.sh" -DSYNCRUN_CUDA=OFF "$@"
}

# install_block: prints the commands of "Install", each in three lines. The first one makes the packages.
install_block() {
  awk '/^## /{ inside = $0 == "## Install" } /^```/{ block = $0 == "```sh" && inside; next } block' "$readme" |
    sed -e "s/.*/echo '== &'\n&\n[ \$? = 0 ] || exit/" | grep . ||
    fail 'README.md has no block of commands in "Install"'
}

# list_files FILE: writes the names of all files of the machine, except those that apt-get and dpkg write for every
# package, and those in folders for temporary files.
list_files() {
  (cd "$machine" && find . -xdev -regextype egrep \
    -regex '\./(syncrun|root|proc|dev|tmp|run|var/(cache|log|lib/apt|lib/dpkg/.*-old))' -prune -o -print) | sort >"$1"
}

part_package() {
  new_machine "package, as root"
  expect "Install" in_machine root /syncrun "$(install_block)"
  has 'test accuracy: 9'
}

part_packages() {
  summary+=("packages, twice")
  packages_of "$folder/first"
  # Without LibTorch, whose part takes long. It must not change the other packages.
  packages_of "$folder/second_folder" -DSYNCRUN_TORCH=OFF
  local file
  for file in "$folder"/second_folder/build/packages/*.{deb,tar.gz}; do
    cmp "$file" "$folder/first/build/packages/$(basename "$file")" || fail "two builds of $(basename "$file") differ"
  done

  mkdir "$folder/archive"
  tar -xzf "$folder"/first/build/packages/syncrun-*.tar.gz -C "$folder/archive" --strip-components=1
  expect "Configuring the archive of the sources" cmake -S "$folder/archive" -B "$folder/archive/build" -G Ninja \
    -DSYNCRUN_CUDA=OFF -DSYNCRUN_TORCH=OFF

  new_machine "packages, as root, without a compiler"
  mkdir -p "$machine/syncrun/build"
  cp -r "$folder/first/build/packages" "$machine/syncrun/build"
  # Their time depends on the network.
  in_machine root /syncrun 'apt-get update && apt-get install -y --download-only ./build/packages/*.deb' \
    >"$folder/log" 2>&1 || { cat "$folder/log" && fail "the dependencies of the packages cannot be downloaded"; }
  list_files "$folder/before"
  expect "The packages and the digits" in_machine root /syncrun "$(install_block | tail -n +4)"
  has 'test accuracy: 9'
  in_machine root / 'syncrun help nodes' >"$folder/log"
  has 'More: /usr/share/doc/syncrun/docs/nodes.md'
  expect "The installed doctor" in_machine root / 'syncrun doctor'
  has 'all_reduce of 1 MiB'
  in_machine root /usr/share 'zcat man/man1/syncrun.1.gz | head -n 1 && cat bash-completion/completions/syncrun \
    zsh/vendor-completions/_syncrun fish/vendor_completions.d/syncrun.fish' >"$folder/log"
  has '.TH SYNCRUN'
  in_machine root / 'mkdir /tmp/syncrun && echo "timeout = 77" >/tmp/syncrun/config
    XDG_CONFIG_HOME=/tmp syncrun config && rm -r /tmp/syncrun' >"$folder/log"
  has 'timeout = "77"'
  ! in_machine root / 'syncrun --bind-to core syncrun-mnist' >"$folder/log" 2>&1 || fail "hwloc should be missing"
  has 'install it (libhwloc15)'
  in_machine root / 'dpkg --verify &&
    ! find /usr -xdev -path "*syncrun*" -print0 | xargs -0 dpkg -S 2>&1 >/dev/null | grep .'
  expect "Removing them" in_machine root / 'apt-get purge -y --auto-remove "syncrun*"'
  list_files "$folder/after"
  diff "$folder/before" "$folder/after" || fail "files are left after the packages were removed"

  # The packages of MPI and LibTorch stay in part when nothing requires them any more, because others recommend them.
  expect "All packages" in_machine root /syncrun 'apt-get install -y --no-install-recommends ./build/packages/*.deb'
  in_machine root / 'syncrun -n 2 syncrun-mnist --epochs 1 && ldconfig -p' >"$folder/log"
  has 'libsyncrun.so.0.1'
  if compgen -G "$folder/first/build/packages/syncrun-torch-demos_*.deb" >"$folder/log"; then
    in_machine root / 'syncrun -n 2 syncrun-gpt --n-embd 16 --block-size 16 --batch-size 2 --max-iters 1 \
      --max-new-tokens 1' >"$folder/log"
    has 'held-out loss'
  fi
  expect "Removing them too" in_machine root / 'apt-get purge -y "syncrun*"'
  in_machine root / 'ldconfig -p; find / -xdev -name "*syncrun*" ! -path "/syncrun*" ! -path "/var/cache/*"' >"$folder/log"
  has_not syncrun

  new_machine "packages, programs of a user"
  prepare g++ cmake ninja-build pkgconf
  mkdir "$machine/packages"
  cp "$folder"/first/build/packages/syncrun{,-dev}_*.deb "$machine/packages"
  in_machine root /packages 'apt-get install -y --no-install-recommends ./*.deb' >"$folder/log" 2>&1 ||
    { cat "$folder/log" && fail "the packages cannot be installed"; }
  cp -r "$root/tests/project/stranger" "$machine/project"
  expect "A project of a user, with CMake" in_machine root /project \
    'cmake -S . -B build -G Ninja && cmake --build build && syncrun -n 3 build/stranger'
  has '3 workers, 500 rows, ranks 0 1 2'
  expect "A program of a user, with pkg-config" in_machine root /project \
    'g++ main.cpp -o program $(pkg-config --cflags --libs syncrun) && syncrun -n 2 ./program'
  has '2 workers, 500 rows, ranks 0 1'
}

part_blas() {
  new_machine "blas, as a user with sudo and the reference BLAS"
  sudo_for_user liblapack-dev
  expect "The first command" in_machine user /syncrun "$(command_of_readme scripts/demo.sh)"
  has 'test accuracy: 9'
  in_machine user /syncrun 'readlink -f $(ldd build/release/bin/syncrun-mnist | grep -o "/[^ ]*blas[^ ]*")' \
    >"$folder/log"
  has openblas
}

part_test() {
  new_machine "test, as a user with sudo"
  sudo_for_user
  local command
  command=$(command_of_readme scripts/test.sh)
  expect "The tests" in_machine user /syncrun "${command%%#*} -L unit"
  has '100% tests passed'
}

# refused USER: starts the demo, which must fail.
refused() {
  ! in_machine "$1" /syncrun scripts/demo.sh >"$folder/log" 2>&1 || fail "expected scripts/demo.sh to fail"
  has 'these packages could not be installed'
}

# interrupted COMMAND: starts the demo on a terminal, with an apt-get that waits in this command and, like the real one,
# ends normally after Ctrl-C. Then presses Ctrl-C.
interrupted() {
  local code=0
  printf '#!/bin/sh\n[ "$1" = %s ] || exit 0\ntrap "exit 100" INT\ntouch /tmp/waits\nsleep 60 & wait\n' "$1" \
    >"$machine/usr/local/bin/apt-get"
  chmod +x "$machine/usr/local/bin/apt-get"
  rm -f "$machine/tmp/waits"
  {
    timeout 60 bash -c 'until [ -e "$0" ]; do sleep 0.1; done' "$machine/tmp/waits"
    printf '\003'
    sleep 2
  } | in_machine root /syncrun 'PATH=/usr/local/bin:$PATH script -qefc scripts/demo.sh /dev/null' >"$folder/log" ||
    code=$?
  [ "$code" = 130 ] || fail "Ctrl-C during apt-get $1: expected exit code 130, got $code"
  has Installing
  has_not 'Going on'
  has_not 'could not be installed'
}

part_stops() {
  new_machine "stops"
  around=(unshare --net)
  refused root
  has 'is there a network?'
  around=()
  refused user
  has 'you are not root, and there is no sudo'
  interrupted update
  interrupted install
}

# The CPU time so far of what has ended.
cpu_s() { awk -v ticks="$(getconf CLK_TCK)" '{ printf "%d", ($16 + $17) / ticks }' /proc/$$/stat; }

parts=()
for argument in "$@"; do
  case "$argument" in
    demo | gpt | project | package | packages | test | blas | stops) parts+=("$argument") ;;
    *) fail "expected a part out of demo, gpt, project, package, packages, test, blas and stops, got $argument" ;;
  esac
done
[ "${#parts[@]}" -gt 0 ] || parts=(stops package packages project demo blas gpt test)
begin=$SECONDS
say "Making a minimal root of Debian 12"
make_base
say "It took $((SECONDS - begin)) s"
for part in "${parts[@]}"; do
  begin=$SECONDS cpu_begin=$(cpu_s)
  say "Part $part"
  "part_$part"
  summary+=("  $((SECONDS - begin)) s in all, $(($(cpu_s) - cpu_begin)) s of CPU time")
done
printf '%s\n' "${summary[@]}"
