#!/usr/bin/env bash
# Builds the libFuzzer programs of tests/fuzz with AddressSanitizer and UBSan, and runs each from its kept corpus:
#   scripts/fuzz.sh [--seconds N] [--jobs N] [--seed N] [--keep] [TARGET ...]
#     --seconds N   how long each program runs (30)
#     --jobs N      how many run at the same time (one for each core)
#     --seed N      of what is tried (another one each time)
#     --keep        packs what was found, made as small as it covers the same, into tests/fuzz/corpora
# Without names all run. A finding is printed with the input that shows it, and the exit status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n 2,8p "$0" | sed 's/^# //'; exit 2; }
seconds=30 jobs=$(nproc) seed=0 keep= targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?}; shift 2 ;;
    --jobs) jobs=${2:?}; shift 2 ;;
    --seed) seed=${2:?}; shift 2 ;;
    --keep) keep=yes; shift ;;
    -*) usage ;;
    *) targets+=("$1"); shift ;;
  esac
done
known() { for source in tests/fuzz/*.cc; do basename "$source" .cc; done; }
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(known)
for target in "${targets[@]}"; do
  [ -f "tests/fuzz/$target.cc" ] || { echo "there is no target $target; there are:" $(known) >&2; exit 2; }
done

build=build/fuzz
if [ -z "${QUARTET_FUZZ_PREBUILT:-}" ]; then
  scripts/install_packages.sh build fuzz
  mkdir -p build
  cmake --preset fuzz >build/configure-fuzz.log || { cat build/configure-fuzz.log; exit 1; }
  NINJA_STATUS='[%f of %t] ' ninja -C $build -j "$(nproc)" "${targets[@]/#/fuzz_}"
fi
supp=$PWD/scripts/sanitizers
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=0
export LSAN_OPTIONS=suppressions=$supp/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:suppressions=$supp/ubsan.supp

fuzz_one() {  # TARGET
  local target=$1 corpus=$build/corpus/$1 log=$build/log/$1.txt kept=tests/fuzz/corpora/$1.tar.xz status=0
  mkdir -p "$corpus" $build/log $build/findings
  [ ! -f "$kept" ] || tar -C "$corpus" -xJf "$kept"
  # One input may take 20 s (with sanitizers, on cores that others use) and 2 GiB; more is a finding too.
  $build/bin/fuzz_"$target" "$corpus" -max_total_time="$seconds" -timeout=20 -seed="$seed" -rss_limit_mb=2048 -max_len=16384 \
    -print_final_stats=1 -artifact_prefix=$build/findings/"$target"- >"$log" 2>&1 || status=$?
  local runs rate edges
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  edges=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)
  printf '%-24s %12s %10s %8s %8s  %s\n' "$target" "${runs:--}" "${rate:--}" "${edges:--}" \
    "$(find "$corpus" -type f | wc -l)" "$([ $status = 0 ] && echo passed || echo "FAILED ($status), $log")"
  [ $status = 0 ] || { tail -n 30 "$log" >&2; return 1; }
}
export -f fuzz_one
export seconds seed build
printf '%-24s %12s %10s %8s %8s  %s\n' target runs 'runs/s' edges corpus "result after $seconds s"
failed=
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one {}' || failed=yes

# Inputs by size with numbers for names: the hashes that libFuzzer gives them would be most of the file.
pack() {  # FOLDER FILE
  local number=0 name
  mkdir "$1.numbered"
  while read -r _ name; do
    mv "$1/$name" "$1.numbered/$(printf %04d $number)"
    number=$((number + 1))
  done < <(find "$1" -type f -printf '%s %f\n' | sort -k1n -k2)
  tar -C "$1.numbered" --sort=name --owner=0 --group=0 --mode=644 --mtime=@0 -c . | xz -9e >"$2"
}

if [ -n "$keep" ]; then
  mkdir -p tests/fuzz/corpora
  for target in "${targets[@]}"; do
    small=$build/small/$target
    rm -rf "$small" "$small.numbered"
    mkdir -p "$small"
    $build/bin/fuzz_"$target" -merge=1 -max_len=512 "$small" $build/corpus/"$target" >$build/log/merge-"$target".txt 2>&1
    pack "$small" tests/fuzz/corpora/"$target".tar.xz
  done
  du -sh tests/fuzz/corpora
fi
if [ -n "$failed" ]; then
  echo "findings are in $build/findings"
  exit 1
fi
echo "passed: ${#targets[@]} targets"
