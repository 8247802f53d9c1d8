#!/usr/bin/env bash
# Makes the reference site in build/site, or in the folder that you name: all pages, and all names of the public
# headers. It needs no server: open index.html. Broken links and public names without a comment are errors. Installs
# Doxygen, and fetches Sphinx from PyPI into .cache, if they are not there. Exit code 77: there is no error so far, but
# pip cannot bring Sphinx.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/setup.sh
[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: scripts/site.sh [FOLDER]"
site=$(realpath -m "${1:-build/site}")
# Only an earlier site is replaced.
[ ! -e "$site" ] || [ -f "$site/.buildinfo" ] || fail "$site exists, and is not a site: name another folder"

command -v doxygen >/dev/null || apt_install doxygen || fail "doxygen is not installed (package doxygen)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
say "Reading the pages and the headers"
python3 docs/site/stage.py . "$folder/pages" || fail "the site has errors (see above)"

packages=$root/.cache/sphinx-$(sha256sum docs/site/requirements.txt | cut -c 1-12)
if [ ! -f "$packages/complete" ]; then
  say "Fetching Sphinx"
  mkdir -p "$root/.cache"
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip || true
  if ! python3 -m pip install -q --retries 1 --timeout 20 --upgrade --target "$packages" \
    -r docs/site/requirements.txt >"$root/.cache/pip.log" 2>&1; then
    cat "$root/.cache/pip.log" >&2
    say "pip cannot bring Sphinx (see above), so there are no pages"
    exit 77
  fi
  touch "$packages/complete"
fi

say "Making $site"
rm -rf "$site"
PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1 python3 -m sphinx --quiet --fail-on-warning --keep-going \
  --jobs "$jobs" -c docs/site -d "$folder/cache" "$folder/pages" "$site"
say "Open $site/index.html"
