#!/usr/bin/env bash
# A client of the gateway with grpcurl: text as it comes, a refusal with its details, a deadline.
#
# `client.sh [HOST:PORT [PROMPT]]`. GRPCURL names the command, if it has another name. PACELINE_CA names
# a PEM file of authorities and turns TLS on, PACELINE_TOKEN holds an access token.
set -uo pipefail

address=${1:-127.0.0.1:50051}
text=${2:-Name three rivers in Europe.}
grpcurl=${GRPCURL:-grpcurl}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
access=(-plaintext)
[[ -n ${PACELINE_CA:-} ]] && access=(-cacert "$PACELINE_CA")
[[ -n ${PACELINE_TOKEN:-} ]] && access+=(-H "authorization: Bearer $PACELINE_TOKEN")
# As a string of JSON.
text=${text//\\/\\\\}
text=${text//\"/\\\"}
text=${text//$'\n'/\\n}
text=${text//$'\r'/\\r}
text=${text//$'\t'/\\t}
prompt="{\"chat\": {\"messages\": [{\"role\": \"user\", \"content\": \"$text\"}]}}"

# call METHOD JSON [FLAG...]: one call; an object per answer, a status as text.
call() {
  "$grpcurl" "${access[@]}" -import-path "$root/protos" -proto paceline/v1/gateway.proto \
    -import-path "$root/clients" -proto error_details.proto -d "$2" "${@:3}" \
    "$address" "paceline.v1.GatewayService/$1" 2>&1
}

# refused STATUS METHOD JSON [FLAG...]: one call that is to end with this status.
refused() {
  local printed
  printed=$(call "${@:2}")
  printf '%s\n' "$printed"
  grep -qx "  Code: $1" <<<"$printed" && return
  echo "$2 did not end with $1" >&2
  return 1
}

# Streams one generation.
call Generate "{\"prompt\": $prompt, \"sampling\": {\"temperature\": 0}, \"max_tokens\": 32}" \
  -max-time 60 || exit 1

# Asks for something that cannot be: the status says what and why.
refused InvalidArgument Complete "{\"generation\": {\"prompt\": $prompt, \"sampling\": {\"temperature\": -1}}}" \
  -max-time 60 || exit 1

# Lets a deadline pass: both tiers stop working on it, and what came before it is valid.
refused DeadlineExceeded Generate \
  "{\"prompt\": $prompt, \"sampling\": {\"temperature\": 0, \"ignore_eos\": true}}" \
  -max-time 0.5 || exit 1
