#!/usr/bin/env bash
# `threadmq rocketmq verify` against a real RocketMQ server behind a network that goes half-open three times, and whose
# proxy is frozen, or killed and started again. One JSON line a run, marked with the fault.
#   benches/verify_real_rocketmq.sh [FAULT...]      half-open | freeze | kill      (default: all three)
# RATE, SECONDS_EACH, SEND_TIMEOUT, DOWN (seconds frozen or dead) and TYPE (normal, fifo, delay) can be set; TOOL and
# NETWORK name programs that are built already: threadmq with the features cli and rocketmq, and testkit_network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/threadmq-target}
RATE=${RATE:-100} SECONDS_EACH=${SECONDS_EACH:-90} SEND_TIMEOUT=${SEND_TIMEOUT:-5s} DOWN=${DOWN:-20} TYPE=${TYPE:-normal}
server=$PWD/tests/servers/rocketmq
if [ -z "${TOOL:-}" ] || [ -z "${NETWORK:-}" ]; then
  cargo build --locked --release --features cli,rocketmq --bin threadmq --example testkit_network
fi
tool=${TOOL:-$CARGO_TARGET_DIR/release/threadmq} network=${NETWORK:-$CARGO_TARGET_DIR/release/examples/testkit_network}

free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
port=$(free_port) front=$(free_port)
dir=$(mktemp -d)
mkfifo "$dir/commands"
# shellcheck disable=SC2329 # the trap calls it
clean_up() { "$server" stop --dir "$dir/server" || true; kill "${network_pid:-}" 2> /dev/null || true; rm -rf "$dir"; }
trap clean_up EXIT

# Routes name the port that the client asked for: that of the network.
"$network" "127.0.0.1:$front" "127.0.0.1:$port" < "$dir/commands" > /dev/null & network_pid=$!
exec 3> "$dir/commands"
"$server" start --dir "$dir/server" --port "$port" > /dev/null

orderly=()
if [ "$TYPE" = fifo ]; then orderly=(--fifo); fi
failed=0
for words in "${@:-half-open freeze kill}"; do for fault in $words; do
  "$server" topic create "$fault" --type "${TYPE^^}" --dir "$dir/server" > /dev/null
  "$server" group create "$fault" "${orderly[@]+"${orderly[@]}"}" --dir "$dir/server" > /dev/null
  sleep 3
  "$tool" rocketmq verify --endpoint "127.0.0.1:$front" --topic "$fault" --group "$fault" --type "$TYPE" --rate "$RATE" \
    --seconds "$SECONDS_EACH" --send-timeout "$SEND_TIMEOUT" --json > "$dir/out" & verify=$!
  # The reader's first poll takes five of these.
  sleep 18
  case $fault in
    freeze) "$server" freeze proxy1 --dir "$dir/server"; sleep "$DOWN"; "$server" thaw proxy1 --dir "$dir/server" ;;
    kill)
      "$server" kill proxy1 --dir "$dir/server"
      sleep "$DOWN"
      "$server" start proxy1 --dir "$dir/server" > /dev/null
      ;;
    half-open) for _ in 1 2 3; do echo half-open >&3; sleep 20; done ;;
  esac
  status=0; wait "$verify" || status=$?
  echo "{\"fault\":\"$fault\",\"type\":\"$TYPE\",\"exit\":$status,$(tail -n 1 "$dir/out" | cut -c2-)"
  [ "$status" = 0 ] || failed=1
done; done
exit "$failed"
