#!/usr/bin/env bash
# Runs the tests that need a GPU, from build/gpu.tar.xz (scripts/gpu_pack.sh makes it):
#   scripts/gpu_test.sh --part PART [--out FOLDER]
#     ops       every CUDA op against its CPU form, with the card's own kernels and with those of sm_70
#     golden    the miniature model (1, 2 and 4 processes) and the demo checkpoints against reference outputs
#     cluster   the demo checkpoints served by 1, 2 and 4 processes on one card: texts, hashes of 500 steps
#     sanitize  memory and race checks of the ops on small shapes (compute-sanitizer)
#     full      the whole model at full size with random weights: memory, decode, verify window, prefill
#     memory    what one of four ranks takes at full size, beside the plan
#     load      a checkpoint of 26 GiB from the disk into the card (root, 64 GiB of disk)
#     bench     each op beside what the card can do, measured in the same run
#     multi     collectives, and with two cards or more the miniature model and the demo checkpoint over them, 10,000 steps
# QUARTET_TEST_SEED=N draws other random inputs for the ops. Each part takes less than eight minutes. With --out the
# output of each program also goes to a file.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n 2,14p "$0" | sed 's/^# //'; exit 2; }
part= out=
while [ $# -gt 0 ]; do
  case $1 in
    --part) part=${2:-}; shift 2 ;;
    --out) out=${2:-}; shift 2 ;;
    *) usage ;;
  esac
done
bin=$PWD/build/gpu/bin
if [ ! -d "$bin" ]; then
  [ -f build/gpu.tar.xz ] || { echo "there is no build/gpu.tar.xz: run scripts/gpu_pack.sh first" >&2; exit 2; }
  tar -C build -xJf build/gpu.tar.xz || exit 2
fi
export LD_LIBRARY_PATH=$PWD/build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || exit 1
cards=$(nvidia-smi -L | wc -l)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

failed=()
judge() {  # NAME EXIT_STATUS
  [ "$2" = 0 ] || { echo "$1: exit status $2"; failed+=("$1"); }
}
run() {  # NAME COMMAND ...
  local name=$1; shift
  echo "== $name"
  if [ -n "$out" ]; then "$@" 2>&1 | tee "$out/$name.txt"; else "$@"; fi
  judge "$name" "${PIPESTATUS[0]}"
}

# Programs that measure nothing run at the same time: most of theirs is work of the CPU (oracles, the driver's
# compiler, the tools).
started=()
start() {  # NAME COMMAND ...
  local name=$1; shift
  started+=("$name")
  { local begin=$SECONDS rc=0
    "$@" || rc=$?
    echo "$((SECONDS - begin)) s"
    exit "$rc"; } >"$scratch/$name.txt" 2>&1 &
  pids[${#started[@]}]=$!
}
finish() {
  local i name
  for i in "${!started[@]}"; do
    name=${started[$i]}
    wait "${pids[$((i + 1))]}"
    local rc=$?
    echo "== $name"
    cat "$scratch/$name.txt"
    [ -z "$out" ] || cp "$scratch/$name.txt" "$out/"
    judge "$name" "$rc"
  done
}
declare -a pids

cluster() {  # NAME ARGUMENTS ...
  local name=$1; shift
  run "$name" tests/integration/gpu_cluster.py "$@"
}

case $part in
  ops)
    for test in "$bin"/cuda_*_test_gpu; do
      name=$(basename "$test" _gpu)
      start "$name" "$test" --gtest_brief=1
      start "$name-sm_70" env QUARTET_GPU_IMAGE=sm_70 "$test" --gtest_brief=1
    done
    finish ;;
  golden)
    run cuda_model_golden "$bin/cuda_model_golden_gpu" --gtest_brief=1
    run demo_golden "$bin/demo_golden_gpu" --gtest_brief=1 '--gtest_filter=*Tp1*:*LogProb*:*NearTie*' ;;
  cluster)
    for ranks in 1 2 4; do
      cluster "texts-$ranks" texts --ranks $ranks --streams 16
      cluster "texts-standard-layout-$ranks" texts --ranks $ranks --streams 16 --model quartet-demo-exl3-std
    done
    cluster steps-4 steps --ranks 4 --count 500 ;;
  sanitize)
    for tool in memcheck racecheck; do
      for test in "$bin"/cuda_*_test_gpu; do
        # Looking for a kernel in one image after the other is an API error that means nothing.
        start "$(basename "$test" _gpu)-$tool" env QUARTET_TEST_SHAPES=small compute-sanitizer --tool $tool \
          --report-api-errors no --error-exitcode 1 --print-limit 5 "$test" --gtest_brief=1
      done
    done
    finish ;;
  bench)
    for bench in "$bin"/cuda_*_bench; do
      # What is between cards is in part multi.
      [ "$bench" = "$bin/cuda_all_reduce_bench" ] || run "$(basename "$bench")" "$bench"
    done ;;
  full)
    run full_size "$bin/quartet-full-size-bench" --model models/glm-5.3-flash ;;
  memory)
    run memory "$bin/quartet-full-size-bench" --model models/glm-5.3-flash --memory-only --ranks 4 --seqs 4 \
      --max-context 131072 --prefill 4096 ;;
  load)
    run write tools/full_size_headers.py "$scratch/checkpoint" --layers 10 --fill
    run load "$bin/quartet-load-bench" --model "$scratch/checkpoint" ;;
  multi)
    run in_process "$bin/gpu_collectives" --in-process --ranks 4 --iterations 1000000
    if [ "$cards" -ge 2 ]; then
      run all_reduce "$bin/cuda_all_reduce_bench" "$cards"
      run stress "$bin/gpu_collectives" --ranks "$cards" --iterations 1000000 --form peer --delay-ns 1000
      run killed "$bin/gpu_collectives" --ranks "$cards" --fault kill --iterations 8000
      for ranks in 2 4; do
        [ "$ranks" -le "$cards" ] || continue
        for form in peer nccl; do
          cluster "texts-$ranks-$form" texts --ranks "$ranks" --collectives $form
          run "golden-$ranks-$form" env QUARTET_COLLECTIVES=$form "$bin/cuda_model_golden_gpu" --gtest_brief=1 \
            "--gtest_filter=*Tp${ranks}_*"
        done
      done
      cluster steps-2 steps --ranks 2 --count 10000
    else
      run one_card "$bin/gpu_collectives" --ranks 2 --one-device --iterations 80 --form peer
    fi ;;
  *) usage ;;
esac
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "passed: $part"
