#!/usr/bin/env bash
# Translates texts with one JSON call, and then the first one as server-sent events; one answer a line.
#
#   client.sh URL TEXT [TEXT ...]
#
# HMC_TOKEN: the server's token. HMC_CA: PEM file of the authorities that signed its certificate. Needs curl and jq.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: client.sh URL TEXT [TEXT ...]" >&2
  exit 2
fi
url=$1
shift

# --retry sends a call again after 408, 429, 500, 502, 503 and 504, and waits as long as Retry-After says.
options=(--silent --show-error --fail-with-body --max-time 30 --retry 4 --retry-max-time 30)
options+=(-H 'Content-Type: application/json' -H 'X-Timeout-Ms: 30000')
[ -z "${HMC_CA:-}" ] || options+=(--cacert "$HMC_CA")
# The token goes through a file descriptor: arguments can be seen by other users.
token() { [ -z "${HMC_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$HMC_TOKEN"; }

jq -nc '{texts: $ARGS.positional}' --args "$@" |
  curl "${options[@]}" --config <(token) --data-binary @- "$url/v1/translate" |
  jq -r '.translations[]? | "call\t\(.text)"' # the error of an attempt that was sent again has none

# Each event is a line `data: JSON`: a piece of the translation; the last one has it whole.
jq -nc '{text: $ARGS.positional[0]}' --args "$@" |
  curl "${options[@]}" --no-buffer -H 'Accept: text/event-stream' --config <(token) --data-binary @- "$url/v1/tokens" |
  sed -nu 's/^data: //p' |
  jq -r 'if .code then error("\(.code): \(.message)") else select(.done) | "stream\t\(.done.translations[0].text)" end'
