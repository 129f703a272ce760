#!/usr/bin/env bash
# Runs the tests that need a GPU, from build/gpu (scripts/gpu_pack.sh makes it):
#   scripts/gpu_test.sh --part PART [--out FOLDER]
#     ops       every CUDA op against its CPU form, with the card's own kernels and with those of sm_70
#     golden    the miniature model and the demo checkpoints against reference outputs
#     sanitize  memory and race checks of the ops on small shapes (compute-sanitizer)
#     full      the whole model at full size with random weights: decode, verify window, prefill
#     bench     each op beside what the card can do, measured in the same run
#     multi     collectives, with as many cards as there are
# Each part takes less than eight minutes. With --out the output of each program also goes to a file.
set -uo pipefail
cd "$(dirname "$0")/.."
part= out=
while [ $# -gt 0 ]; do
  case $1 in
    --part) part=${2:-}; shift 2 ;;
    --out) out=${2:-}; shift 2 ;;
    *) sed -n 2,10p "$0" | sed 's/^# //'; exit 2 ;;
  esac
done
bin=$PWD/build/gpu/bin
[ -d "$bin" ] || { echo "there is no build/gpu: run scripts/gpu_pack.sh first" >&2; exit 2; }
export LD_LIBRARY_PATH=$PWD/build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || exit 1

failed=()
run() {  # NAME COMMAND ...
  local name=$1; shift
  echo "== $name"
  if [ -n "$out" ]; then "$@" 2>&1 | tee "$out/$name.txt"; else "$@"; fi
  local rc=${PIPESTATUS[0]}
  [ "$rc" = 0 ] || { echo "$name: exit status $rc"; failed+=("$name"); }
}

case $part in
  ops)
    for test in "$bin"/cuda_*_test_gpu; do
      name=$(basename "$test" _gpu)
      run "$name" "$test" --gtest_brief=1
      run "$name-sm_70" env QUARTET_GPU_IMAGE=sm_70 "$test" --gtest_brief=1
    done ;;
  golden)
    run cuda_model_golden "$bin/cuda_model_golden_gpu" --gtest_brief=1
    run demo_golden "$bin/demo_golden_gpu" --gtest_brief=1 '--gtest_filter=*Tp1*:*LogProb*' ;;
  sanitize)
    for tool in memcheck racecheck; do
      for test in "$bin"/cuda_*_test_gpu; do
        # Looking for a kernel in one image after the other is an API error that means nothing.
        run "$(basename "$test" _gpu)-$tool" env QUARTET_TEST_SHAPES=small compute-sanitizer --tool $tool \
          --report-api-errors no --error-exitcode 1 --print-limit 5 "$test" --gtest_brief=1
      done
    done ;;
  bench)
    for bench in "$bin"/cuda_*_bench; do run "$(basename "$bench")" "$bench"; done ;;
  full)
    run full_size "$bin/quartet-full-size-bench" --model models/glm-5.3-flash ;;
  multi)
    cards=$(nvidia-smi -L | wc -l)
    run in_process "$bin/gpu_collectives" --in-process --ranks 4 --iterations 1000000
    if [ "$cards" -ge 2 ]; then
      run all_reduce "$bin/cuda_all_reduce_bench" "$cards"
      run stress "$bin/gpu_collectives" --ranks "$cards" --iterations 1000000 --form peer --delay-ns 1000
      run killed "$bin/gpu_collectives" --ranks "$cards" --fault kill --iterations 8000
    else
      run one_card "$bin/gpu_collectives" --ranks 2 --one-device --iterations 80 --form peer
    fi ;;
  *) sed -n 2,10p "$0" | sed 's/^# //'; exit 2 ;;
esac
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "passed: $part"
