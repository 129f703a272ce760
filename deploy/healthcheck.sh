#!/bin/bash
# Succeeds when this container's service says that it is ready. Only bash: the image has no curl.
set -euo pipefail
exec 3<>"/dev/tcp/127.0.0.1/${QUARTET_LISTEN_ADMIN##*:}"
printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
answer=$(cat <&3)
printf '%s\n' "${answer##*$'\n'$'\r'$'\n'}"
[[ $answer == "HTTP/1.1 200"* ]]
