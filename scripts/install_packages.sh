#!/usr/bin/env bash
# Installs the Debian packages of the named groups of packages.txt, such as
#   scripts/install_packages.sh build test
# Says nothing and does nothing when all of them are there. Needs root, or sudo.
set -euo pipefail
cd "$(dirname "$0")"
[ $# -ge 1 ] || { sed -n 2,4p "$0" | sed 's/^# //'; exit 2; }

mapfile -t wanted < <(awk -v groups=" $* " \
  '!/^#/ && NF == 2 && index(groups, " " $1 " ") { print $2 }' packages.txt | sort -u)
[ ${#wanted[@]} -gt 0 ] || { echo "packages.txt has no group named $*" >&2; exit 2; }
missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These Debian packages are missing, and this user is not root and has no sudo:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} Debian packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >>"$log" 2>&1 </dev/null; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 40 "$log" >&2
  echo "The installation failed (missing: ${missing[*]})" >&2
  exit 1
fi
