#!/usr/bin/env bash
# Builds the image and runs docker-compose.yml for real on a Debian 12 machine that has neither a
# Docker engine nor a registry within reach: podman is the engine, mmdebstrap makes the base image.
# It then chats through the gateway's container, reads /metrics from outside, shows the four
# workers, checks how the containers are confined, and takes everything down. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 0 ] || { sed -n 2,5p "$0" | sed 's/^# //'; exit 2; }
[ "$(id -u)" = 0 ] || { echo "run as root: the engine here is not rootless" >&2; exit 2; }

scripts/install_packages.sh image
work=$PWD/build/compose
mkdir -p "$work/ccache"
export CONTAINERS_CONF=$work/containers.conf
cat >"$CONTAINERS_CONF" <<'END'
[containers]
default_ulimits = ["nofile=4096:4096","nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END

base=docker.io/library/debian:bookworm-slim
if ! podman image exists $base; then
  echo "== base image"
  mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
  mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$work/base.tar" \
    ${mirror:+"$mirror"}
  podman import --quiet "$work/base.tar" $base >/dev/null
  rm "$work/base.tar"
fi

echo "== image"
# The docker format keeps HEALTHCHECK; the host's network lets apt work; ccache makes a second
# build quick.
podman build --quiet --pull=never --network host --format docker \
  --volume "$work/ccache:/root/.cache/ccache" -f deploy/Dockerfile -t quartet:cpu . >"$work/image-id"
podman image inspect --format 'quartet:cpu  user {{.User}}  {{.Size}} bytes' quartet:cpu

export DOCKER_HOST=unix://$work/podman.sock
export QUARTET_HTTP_PORT=18000 QUARTET_GRPC_PORT=19000
export QUARTET_GATEWAY_ADMIN_PORT=19102 QUARTET_COORDINATOR_ADMIN_PORT=19101
compose() { docker-compose --project-name quartet-try "$@"; }
containers() { podman ps --all --quiet --filter label=com.docker.compose.project=quartet-try "$@"; }
# Podman may start a worker again, as its restart policy says, between compose's stop and its
# removal: then the removal is tried again.
down() {
  local try
  for try in 1 2 3; do
    compose down --volumes --timeout 20 >"$work/down.log" 2>&1 || true
    [ -n "$(containers)" ] || return 0
    echo "still there after try $try: $(containers | tr '\n' ' ')" >>"$work/down.log"
  done
  cat "$work/down.log" >&2
  return 1
}
podman system service --time=0 "$DOCKER_HOST" >"$work/engine.log" 2>&1 &
engine=$!
finish() {
  local code=$?
  if [ $code != 0 ]; then
    echo "== it failed; the last log lines of each container" >&2
    for c in $(containers); do
      podman inspect --format '-- {{.Name}}' "$c" >&2
      podman logs --tail 15 "$c" >&2 || true
    done
  fi
  down || code=1
  kill $engine
  wait $engine 2>/dev/null || true
  exit $code
}
trap finish EXIT
for _ in $(seq 50); do
  [ -S "$work/podman.sock" ] && break
  sleep 0.1
done

echo "== up"
compose up --detach --no-build --scale shard-worker=4 2>&1 | grep -E 'done|rror' || true

# The body of GET http://127.0.0.1:$1$2; fails unless the status is 200. The host may have no curl.
get() {
  exec 4<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&4
  local answer
  answer=$(cat <&4)
  exec 4>&-
  [[ $answer == HTTP/1.?" 200"* ]] && printf '%s\n' "$answer" | sed '1,/^\r*$/d'
}
for second in $(seq 120); do
  get $QUARTET_HTTP_PORT /readyz >/dev/null 2>&1 && break
  [ "$second" != 120 ] || { echo "not ready after $second s" >&2; exit 1; }
  sleep 1
done
echo "ready after about $second s"

echo "== four workers by scale"
compose ps
mapfile -t workers < <(containers --filter label=com.docker.compose.service=shard-worker)
[ ${#workers[@]} = 4 ] || { echo "${#workers[@]} workers run, not 4" >&2; exit 1; }
for c in $(containers); do
  printf '%s: ' "$(podman inspect --format '{{.Name}}' "$c")"
  podman healthcheck run "$c" && echo healthy
  [ "$(podman exec "$c" id -u)" = 10001 ] || { echo "runs as another user" >&2; exit 1; }
  if podman exec "$c" bash -c 'echo x >/usr/local/bin/x' 2>/dev/null; then
    echo "its root file system can be written" >&2
    exit 1
  fi
  grep -q '^CapEff:.*[1-9a-f]' "/proc/$(podman inspect --format '{{.State.Pid}}' "$c")/status" &&
    { echo "it has capabilities" >&2; exit 1; }
done
echo "all run as user 10001, without capabilities, on a read-only root"

echo "== a chat through the gateway"
answer=$(printf 'What is 4821 + 377?\n' | podman run --rm --interactive --no-healthcheck \
  --network host quartet:cpu \
  quartet chat --url "http://127.0.0.1:$QUARTET_HTTP_PORT" --temperature 0 --timing)
printf '%s\n' "$answer"
[[ $answer == *5198* ]] || { echo "the answer is not 5198" >&2; exit 1; }

echo "== /metrics from outside"
for port in $QUARTET_HTTP_PORT $QUARTET_COORDINATOR_ADMIN_PORT $QUARTET_GATEWAY_ADMIN_PORT; do
  metrics=$(get "$port" /metrics)
  printf 'port %s: %s lines, among them\n' "$port" "$(wc -l <<<"$metrics")"
  grep -E '^(quartet_steps_total|vllm:generation_tokens_total)' <<<"$metrics" | head -n 3 |
    sed 's/^/  /' || true
done
get $QUARTET_HTTP_PORT /metrics | grep -q '^quartet_steps_total' ||
  { echo "the gateway's /metrics has no quartet_steps_total" >&2; exit 1; }

echo "== down"
down
[ -z "$(podman volume ls --quiet --filter label=com.docker.compose.project=quartet-try)" ] ||
  { echo "a volume is left" >&2; exit 1; }
echo "passed"
