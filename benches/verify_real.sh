#!/usr/bin/env bash
# `threadmq pulsar verify` against a real Pulsar server that is frozen, killed and restarted, or behind a network
# that goes half-open three times; with batching on and off. One JSON line a run, marked with the fault.
#   benches/verify_real.sh [FAULT...]      freeze | kill | half-open      (default: all three)
# RATE, SECONDS_EACH, SEND_TIMEOUT and DOWN (seconds frozen or dead) can be set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/threadmq-target}
RATE=${RATE:-2000} SECONDS_EACH=${SECONDS_EACH:-60} SEND_TIMEOUT=${SEND_TIMEOUT:-5s} DOWN=${DOWN:-20}
server=$PWD/tests/servers/pulsar
cargo build --locked --release --features cli --bin threadmq --example testkit_network
tool=$CARGO_TARGET_DIR/release/threadmq network=$CARGO_TARGET_DIR/release/examples/testkit_network

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
port=$(free_port) http=$(free_port) front=$(free_port)
dir=$(mktemp -d)
mkfifo "$dir/commands"
# shellcheck disable=SC2329 # the trap calls it
clean_up() { "$server" stop --dir "$dir/server" || true; kill "${network_pid:-}" 2> /dev/null || true; rm -rf "$dir"; }
trap clean_up EXIT

"$network" "127.0.0.1:$front" "127.0.0.1:$port" < "$dir/commands" > /dev/null & network_pid=$!
exec 3> "$dir/commands"
"$server" start --dir "$dir/server" --port "$port" --http "$http" --advertise "$front" > /dev/null

failed=0
for words in "${@:-freeze kill half-open}"; do for fault in $words; do for batching in on off; do
  "$tool" pulsar verify --url "pulsar://127.0.0.1:$front" --rate "$RATE" --seconds "$SECONDS_EACH" \
    --send-timeout "$SEND_TIMEOUT" --batching "$batching" --json > "$dir/out" & verify=$!
  sleep 8
  case $fault in
    freeze) "$server" freeze --dir "$dir/server"; sleep "$DOWN"; "$server" thaw --dir "$dir/server" ;;
    kill) "$server" kill --dir "$dir/server"; sleep "$DOWN"; "$server" start --dir "$dir/server" > /dev/null ;;
    half-open) for _ in 1 2 3; do echo half-open >&3; sleep 16; done ;;
  esac
  status=0; wait "$verify" || status=$?
  echo "{\"fault\":\"$fault\",\"batching\":\"$batching\",\"exit\":$status,$(tail -n 1 "$dir/out" | cut -c2-)"
  [ "$status" = 0 ] || failed=1
done; done; done
exit "$failed"
