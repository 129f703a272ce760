#!/usr/bin/env bash
# Builds the CUDA programs and tests here and packs them with the shared libraries that they need
# into build/gpu.tar.xz, to be carried to a machine with a GPU that has neither compilers nor packages:
#   scripts/gpu_pack.sh            # then, there: scripts/gpu_test.sh --part ops
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 0 ] || { sed -n 2,4p "$0" | sed 's/^# //'; exit 2; }

scripts/install_packages.sh build
mkdir -p build
cmake --preset cuda >build/configure-cuda.log || { cat build/configure-cuda.log; exit 1; }
mapfile -t programs < <(ninja -C build/cuda -t targets all | sed -n 's/^bin\/\([^:]*\(_gpu\|cuda[^:]*_bench\|quartet-cuda-ceilings\|gpu_collectives\|quartet-full-size-bench\|quartet-load-bench\)\): .*/\1/p' | sort -u)
programs+=(quartet quartet-coordinator quartet-gateway quartet-shard-worker)
NINJA_STATUS='[%f of %t] ' ninja -C build/cuda "${programs[@]}"

rm -rf build/gpu
mkdir -p build/gpu/bin build/gpu/lib
for program in "${programs[@]}"; do
  strip -o "build/gpu/bin/$program" "build/cuda/bin/$program"
  # The C library comes with the system that the programs run on.
  ldd "build/cuda/bin/$program" | awk '/=> \// { print $3 }' |
    grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libcuda)\.so' |
    xargs -r -I{} cp -Ln {} build/gpu/lib/
done
strip --strip-unneeded build/gpu/lib/*.so* 2>/dev/null || true
# All programs hold the same kernels, so the dictionary spans several of them.
tar -C build -c gpu | xz -T1 --lzma2=preset=1,dict=64MiB >build/gpu.tar.xz
du -sh build/gpu build/gpu.tar.xz
