#!/usr/bin/env bash
# `threadmq rocketmq verify` against a real RocketMQ server, several runs side by side, each through a network of its
# own that goes half-open once, at another phase of the heartbeats. One JSON line a run; the last line is the summary.
#   benches/half_open_rocketmq.sh [RUNS]      (default: 10)
# RATE, SECONDS_EACH and SEND_TIMEOUT can be set; TOOL and NETWORK name programs that are built already: threadmq with
# the features cli and rocketmq, and testkit_network. The idle case: cargo test --test rocketmq half_open -- --ignored
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/threadmq-target}
runs=${1:-10} RATE=${RATE:-100} SECONDS_EACH=${SECONDS_EACH:-90} SEND_TIMEOUT=${SEND_TIMEOUT:-5s}
server=$PWD/tests/servers/rocketmq
if [ -z "${TOOL:-}" ] || [ -z "${NETWORK:-}" ]; then
  cargo build --locked --all-features --bin threadmq --example testkit_network
fi
tool=${TOOL:-$CARGO_TARGET_DIR/debug/threadmq} network=${NETWORK:-$CARGO_TARGET_DIR/debug/examples/testkit_network}

# All at once, so that no two are the same.
free_ports() { python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$1"; }
dir=$(mktemp -d)
clean_up() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2> /dev/null || true
  "$server" kill --dir "$dir/server" || true
  rm -rf "$dir"
}
trap clean_up EXIT

read -r port fronts <<< "$(free_ports "$((runs + 1))")"
read -r -a fronts <<< "$fronts"
"$server" start --dir "$dir/server" --port "$port" > /dev/null
topics=()
for run in $(seq "$runs"); do topics+=("h$run"); done
"$server" topic create "${topics[@]}" --dir "$dir/server" > /dev/null
"$server" group create "${topics[@]}" --dir "$dir/server" > /dev/null
sleep 3

one() { # RUN
  local front=${fronts[$(($1 - 1))]} status=0 out=$dir/out$1
  # Routes name the port that the client asked for: that of the network.
  mkfifo "$dir/commands$1"
  "$network" "127.0.0.1:$front" "127.0.0.1:$port" < "$dir/commands$1" > /dev/null &
  exec 3> "$dir/commands$1"
  sleep 1
  "$tool" rocketmq verify --endpoint "127.0.0.1:$front" --topic "h$1" --group "h$1" --rate "$RATE" \
    --seconds "$SECONDS_EACH" --send-timeout "$SEND_TIMEOUT" --json > "$out" &
  local verify=$!
  # The reader's first poll takes five of these; then a tenth of the heartbeats' period a run.
  sleep "$((30 + $1))"
  echo half-open >&3
  wait "$verify" || status=$?
  echo "{\"fault\":\"half-open\",\"run\":$1,\"exit\":$status,$(tail -n 1 "$out" | cut -c2-)"
}
for run in $(seq "$runs"); do one "$run" > "$dir/line$run" & done
for run in $(seq "$runs"); do while [ ! -s "$dir/line$run" ]; do sleep 1; done; cat "$dir/line$run"; done | tee "$dir/all"
python3 - "$dir/all" << 'PYTHON'
import json, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
times = sorted(run["recovery_ms"] for run in runs)
bad = [run["run"] for run in runs if run["exit"] or run["failed"] or run["recovery_ms"] > 10_000 or run["recoveries"] != 1]
print(json.dumps({"runs": len(runs), "min_ms": times[0], "median_ms": times[len(times) // 2], "max_ms": times[-1], "bad": bad}))
sys.exit(1 if bad else 0)
PYTHON
