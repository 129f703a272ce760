#!/usr/bin/env bash
# Builds with AddressSanitizer and UndefinedBehaviorSanitizer (preset asan), then with
# ThreadSanitizer (preset tsan), and runs the unit and integration tests of each.
#   scripts/sanitize.sh [asan] [tsan]
# Suppressions for third-party libraries, with their reasons, are in scripts/sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
presets=("$@")
[ ${#presets[@]} -gt 0 ] || presets=(asan tsan)
for preset in "${presets[@]}"; do
  case $preset in
    asan | tsan) ;;
    *) sed -n 2,5p "$0" | sed 's/^# //'; exit 2 ;;
  esac
done

scripts/install_packages.sh build
supp=$PWD/scripts/sanitizers
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export LSAN_OPTIONS=suppressions=$supp/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:suppressions=$supp/ubsan.supp
# Debian's libraries are not instrumented: what they synchronise among themselves cannot be judged.
export TSAN_OPTIONS=suppressions=$supp/tsan.supp:ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:history_size=4
mkdir -p build
failed=()
for preset in "${presets[@]}"; do
  echo "== $preset"
  cmake --preset "$preset" -DQUARTET_PRECOMPILED=ON >"build/configure-$preset.log" ||
    { cat "build/configure-$preset.log"; exit 1; }
  NINJA_STATUS='[%f of %t] ' ninja -C "build/$preset" -j "$(nproc)"
  run=(ctest --preset "$preset" -j "$(nproc)" -L 'unit|integration')
  # ThreadSanitizer of this compiler cannot live with as much address randomisation as new kernels
  # have.
  if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    run=(setarch "$(uname -m)" -R "${run[@]}")
  fi
  "${run[@]}" || failed+=("$preset")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "passed: ${presets[*]}"
