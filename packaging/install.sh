#!/bin/sh
# Installs Penstock from this folder, after it has compared every file with SHA256SUMS.
#
#     ./install.sh [--prefix FOLDER] [--destdir FOLDER]    /usr/local unless named
#     ./install.sh --uninstall [--prefix FOLDER] [--destdir FOLDER]
#
# PREFIX/share/penstock/installed lists what was installed; --uninstall removes that and nothing else.
set -eu

usage="usage: install.sh [--prefix FOLDER] [--destdir FOLDER] [--uninstall]"
say() { printf 'install: %s\n' "$1"; }
fail() { printf 'install: %s\n' "$1" >&2; exit 1; }

prefix=/usr/local
destdir=
uninstall=
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix) prefix=${2:?"$usage"}; shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --destdir) destdir=${2:?"$usage"}; shift ;;
    --destdir=*) destdir=${1#*=} ;;
    --uninstall) uninstall=yes ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
  shift
done
case "$prefix" in /*) ;; *) fail "--prefix $prefix is not absolute" ;; esac
root=$destdir${prefix%/}
list=$root/share/penstock/installed

remove() {
  [ -f "$list" ] || fail "nothing is installed: $list is missing"
  # The list is one of the files.
  files=$(cat "$list")
  printf '%s\n' "$files" | while IFS= read -r file; do rm -f "$root/$file"; done
  # Folders that are empty now; those of others are not.
  printf '%s\n' "$files" | sed 's|/[^/]*$||' | sort -ru | while IFS= read -r folder; do
    while [ "$folder" != . ] && rmdir "$root/$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
  done
  say "removed from $root"
}

if [ -n "$uninstall" ]; then remove; exit 0; fi

cd "$(dirname "$0")"
[ -f SHA256SUMS ] || fail "SHA256SUMS is missing: unpack the whole archive"
sha256sum --quiet -c SHA256SUMS || fail "a file differs from SHA256SUMS: download the archive again"
mkdir -p "$root" 2>/dev/null && [ -w "$root" ] ||
  fail "$root cannot be written: run this as root, or name a folder of yours with --prefix"

files=$(find bin share -type f | sort)
for file in $files; do
  mkdir -p "$root/$(dirname "$file")"
  # A running program is replaced, not overwritten.
  cp "$file" "$root/$file.new"
  chmod "$([ "$file" = bin/penstock ] && echo 755 || echo 644)" "$root/$file.new"
  mv "$root/$file.new" "$root/$file"
done
printf '%s\nshare/penstock/installed\n' "$files" >"$list"
if [ -z "$destdir" ]; then
  "$root/bin/penstock" -V >/dev/null || fail "$root/bin/penstock does not run on this machine"
fi
say "$root/bin/penstock"
case ":$PATH:" in *":$root/bin:"*) ;; *) say "$root/bin is not on the PATH" ;; esac
