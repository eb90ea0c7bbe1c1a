#!/usr/bin/env bash
# Starts three nodes, runs the Redis clients of CI against them, and stops the nodes.
#
#   PYTHON    a Python with redis-py        default python3
#   LEEWARD   the binary                    default target/debug/leeward
#   PORT      first port of the nodes       default 17379
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
leeward=${LEEWARD:-$here/../../target/debug/leeward}
port=${PORT:-17379}
scratch=$(mktemp -d)

"$leeward" dev --nodes 3 --data "$scratch/data" --base-port "$port" >"$scratch/dev.log" 2>&1 &
nodes=$!

finish() {
    local status=$?
    kill "$nodes" 2>/dev/null || true
    wait "$nodes" 2>/dev/null || true
    if [ "$status" != 0 ]; then
        echo "--- a step ended with status $status" >&2
        echo "--- what the nodes said" >&2
        tail -n 50 "$scratch/dev.log" "$scratch"/data/node-*/log >&2 || true
    fi
    rm -rf "$scratch"
}
trap finish EXIT

# A node is ready when its admin port says so (it has joined the cluster and serves its regions) and it has seen both
# backups of every region come in sync.
ready() {
    local admin=$1 answer
    exec 3<>"/dev/tcp/127.0.0.1/$admin" || return 1
    printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    read -r answer <&3 || true
    exec 3>&-
    [[ $answer == *" 200 "* ]] && [ "$(redis-cli -p $((admin - 200)) wait 0 0)" = 2 ]
}

for node in 0 1 2; do
    for attempt in $(seq 1 300); do
        if ready $((port + 200 + node)) 2>/dev/null; then break; fi
        kill -0 "$nodes" 2>/dev/null || { echo "the nodes did not start" >&2; exit 1; }
        [ "$attempt" != 300 ] || { echo "node $((node + 1)) was not ready within 30 s" >&2; exit 1; }
        sleep 0.1
    done
done

bash "$here/redis_cli.sh" 127.0.0.1 "$port" $((port + 1)) $((port + 2))
"$python" "$here/check.py" 127.0.0.1 "$port" $((port + 1)) $((port + 2))
bash "$here/redis_benchmark.sh" 127.0.0.1 "$port"
echo "all Redis clients passed"
