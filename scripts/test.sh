#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test; where nvcc is, the CUDA programs
# are built too (tests that need a GPU are run by scripts/gpu_test.sh). The last lines are CTest's
# summary, and the exit code says whether all passed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 0 ] || { sed -n 2,4p "$0" | sed 's/^# //'; exit 2; }

preset=cpu
groups=(build test)
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  preset=cuda
  groups+=(cuda)
fi
scripts/install_packages.sh "${groups[@]}"
scripts/make_venv.sh
cmake --preset $preset -DQUARTET_TESTS=ON -DQUARTET_PRECOMPILED=ON >build/configure.log || { cat build/configure.log; exit 1; }
NINJA_STATUS='[%f of %t] ' ninja -C build/$preset -j "$(nproc)"
exec ctest --preset $preset -j "$(nproc)"
