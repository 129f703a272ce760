#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds, starts a cluster of gateway,
# coordinator and four shard workers on this machine, asks the demo model a question, and stops.
#   scripts/quickstart.sh           asks, prints the answer and its timing, stops everything
#   scripts/quickstart.sh --keep    leaves the cluster up on http://127.0.0.1:8000
set -euo pipefail
cd "$(dirname "$0")/.."
keep=0
case "${1:-}" in
  "") ;;
  --keep) keep=1 ;;
  *) sed -n 2,5p "$0" | sed 's/^# //'; exit 2 ;;
esac

scripts/install_packages.sh build
mkdir -p build
if [ ! -f build/cpu/build.ninja ]; then
  cmake --preset cpu -DQUARTET_PRECOMPILED=ON >build/configure.log || { cat build/configure.log; exit 1; }
fi
NINJA_STATUS='[%f of %t] ' ninja -C build/cpu -j "$(nproc)" \
  quartet quartet-gateway quartet-coordinator quartet-shard-worker

model=models/quartet-demo-exl3
question="What is 4821 + 377?"
listen=127.0.0.1:0
[ $keep = 0 ] || listen=127.0.0.1:8000
log=build/quickstart.log
: >$log  # Before the start: what an earlier run wrote must not be read as this one's.
setsid build/cpu/bin/quartet serve --model $model --tensor-parallel-size 4 --device cpu \
  --listen-http $listen >>$log 2>&1 </dev/null &
cluster=$!
stop() {
  kill -TERM $cluster 2>/dev/null || true
  wait $cluster || { echo "the cluster did not stop cleanly:"; tail -n 20 $log; exit 1; }
}
trap 'kill -TERM $cluster 2>/dev/null || true' EXIT

echo
url=
exec 3< <(exec tail -n +1 -f --pid=$cluster $log)
while IFS= read -r line <&3; do
  case "$line" in
    "HTTP  "*) url=${line#HTTP  } ;;
    "Ctrl-C stops it."*) break ;;
  esac
  printf '%s\n' "$line"
done
if [ -z "$url" ]; then
  wait $cluster || true
  trap - EXIT
  exit 1
fi

echo "Question: $question"
printf '%s\n' "$question" | build/cpu/bin/quartet chat --url "$url" --temperature 0 --timing
echo
if [ $keep = 0 ]; then
  stop
  trap - EXIT
  echo "Stopped. With --keep the cluster stays up."
  exit 0
fi
trap - EXIT
cat <<END
The cluster is up (process $cluster, log in $log); ask it:

  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$(basename $model)", "messages": [{"role": "user", "content": "$question"}]}'

or talk to it: build/cpu/bin/quartet chat --url $url
Stop it with: kill $cluster
END
