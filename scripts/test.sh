#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. The last lines are CTest's
# summary, and the exit code says whether all passed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 0 ] || { sed -n 2,3p "$0" | sed 's/^# //'; exit 2; }

scripts/install_packages.sh build test
scripts/make_venv.sh
cmake --preset cpu -DQUARTET_TESTS=ON >build/configure.log || { cat build/configure.log; exit 1; }
NINJA_STATUS='[%f of %t] ' ninja -C build/cpu -j "$(nproc)"
exec ctest --preset cpu -j "$(nproc)"
