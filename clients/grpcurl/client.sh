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
prompt="{\"chat\": {\"messages\": [{\"role\": \"user\", \"content\": \"$text\"}]}}"

# call METHOD JSON [FLAG...]: one call; an object per answer, a status as text.
call() {
  "$grpcurl" "${access[@]}" -import-path "$root/protos" -proto paceline/v1/gateway.proto \
    -import-path "$root/clients" -proto error_details.proto -d "$2" "${@:3}" \
    "$address" "paceline.v1.GatewayService/$1" 2>&1
}

# Streams one generation.
call Generate "{\"prompt\": $prompt, \"sampling\": {\"temperature\": 0}, \"max_tokens\": 32}" \
  -max-time 60

# Asks for something that cannot be: the status says what and why. This one is to fail.
call Complete "{\"generation\": {\"prompt\": $prompt, \"sampling\": {\"temperature\": -1}}}" \
  -max-time 60 && exit 1

# Lets a deadline pass: both tiers stop working on it, and what came before it is valid.
call Generate "{\"prompt\": $prompt, \"sampling\": {\"temperature\": 0, \"ignore_eos\": true}}" \
  -max-time 0.5 && exit 1
exit 0
