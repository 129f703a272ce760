#!/usr/bin/env bash
# Registers and spills of the sm_70 kernels as ptxas 12.9 compiles them for a real V100 (later versions no longer know it):
#   tools/sm70_registers.sh PTXAS FOLDER_OF_PTX
# PTXAS comes with CUDA 12.9 or in the wheel nvidia-cuda-nvcc-cu12 12.9.86; the folder is
# build/cuda/kernels/cuda/quartet_cuda_images.
set -euo pipefail
[ $# = 2 ] || { sed -n 2,5p "$0" | sed 's/^# //'; exit 2; }
ptxas=$1 folder=$2
"$ptxas" --version | sed -n 's/.*release.*V/sm_70 kernels, ptxas /p'
echo "bytes a thread: stack, spill stores, spill loads; bytes a block: static shared memory"
for ptx in "$folder"/*.sm_70.ptx; do
  echo "source $(basename "$ptx" .sm_70.ptx)"
  "$ptxas" -arch=sm_70 -v "$ptx" -o /dev/null 2>&1
done | awk '
  function before(word,  text) {  # the number in front of the word
    if (!match($0, "[0-9]+ " word)) return 0
    text = substr($0, RSTART, RLENGTH)
    return text + 0
  }
  /^source / { source = $2 }
  /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
  /bytes stack frame/ {
    stack = before("bytes stack"); stores = before("bytes spill stores"); loads = before("bytes spill loads")
  }
  /Used [0-9]+ registers/ {
    if (count++ == 0) printf "\n%-15s %-31s %9s %5s %6s %5s %6s\n", "source", "kernel", "registers", "stack", "stores", "loads", "shared"
    printf "%-15s %-31s %9d %5d %6d %5d %6d\n", source, kernel, before("registers"), stack, stores, loads, before("bytes smem")
    spilling += stores + loads > 0
  }
  END { printf "\n%d kernels, %d of them spill\n", count, spilling; exit count == 0 }'
