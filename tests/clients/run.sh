#!/usr/bin/env bash
# Starts three nodes, runs the Redis clients of CI against them, and stops the nodes.
#
#   PYTHON    a Python with redis-py        default python3
#   LEEWARD   the binary                    default target/debug/leeward
#   PORT      first port of the nodes       default 17379
#
# Needs redis-cli, redis-benchmark, redis-server, curl, promtool, go, node, npm, mvn and java besides. What it fetches and builds is in a temporary directory.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
leeward=${LEEWARD:-$here/../../target/debug/leeward}
port=${PORT:-17379}
scratch=$(mktemp -d)

nodes="" redis=""

stop() {
    [ -n "$nodes" ] || return 0
    kill "$nodes" 2>/dev/null || true
    wait "$nodes" 2>/dev/null || true
    nodes=""
}

finish() {
    local status=$?
    stop
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
    if [ "$status" != 0 ]; then
        echo "--- a step ended with status $status" >&2
        echo "--- what the nodes said" >&2
        tail -n 50 "$scratch"/*.log "$scratch"/*/node-*/log >&2 || true
    fi
    rm -rf "$scratch"
}
trap finish EXIT

# Starts three nodes, and waits until every region is served and each node has seen its backups come in sync.
start() {
    local name=$1 node attempt
    shift
    "$leeward" dev --nodes 3 --data "$scratch/$name" --base-port "$port" "$@" >"$scratch/$name.log" 2>&1 &
    nodes=$!
    for node in 0 1 2; do
        for attempt in $(seq 1 300); do
            if is_ready "$name" $((port + node)); then break; fi
            kill -0 "$nodes" 2>/dev/null || { echo "the nodes did not start" >&2; exit 1; }
            [ "$attempt" != 300 ] || { echo "node $((node + 1)) was not ready within 30 s" >&2; exit 1; }
            sleep 0.1
        done
    done
}

is_ready() {
    local name=$1 port=$2
    grep -qs 'Ctrl-C stops' "$scratch/$name.log" || return 1
    [ "$(printf 'select default\nwait 0 0\n' |
        redis-cli ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} -p "$port" 2>/dev/null | tail -n 1)" = 2 ]
}

# Fetches go-redis, node-redis, ioredis, jedis, lettuce and Redisson.
fetch() {
    (cd "$here/go" && go build -o "$scratch/go-check" . && go build -o "$scratch/go-cluster" ./cluster)
    cp -r "$here/node" "$here/java" "$scratch"
    (cd "$scratch/node" && npm install --silent --no-audit --no-fund)
    (cd "$scratch/java" && mvn --quiet --batch-mode dependency:copy-dependencies)
}

check() {
    bash "$here/redis_cli.sh" 127.0.0.1 "$port" $((port + 1)) $((port + 2))
    others
    bash "$here/redis_benchmark.sh" 127.0.0.1 "$port"
}

others() {
    "$python" "$here/check.py" 127.0.0.1 "$port" $((port + 1)) $((port + 2))
    "$scratch/go-check" "127.0.0.1:$port"
    node "$scratch/node/check.mjs" 127.0.0.1 $((port + 1))
    java -cp "$scratch/java/target/dependency/*" "$scratch/java/Check.java" 127.0.0.1 $((port + 2))
    java -cp "$scratch/java/target/dependency/*" "$scratch/java/Scripts.java" 127.0.0.1 "$port"
}

fetch
start plain
check
bash "$here/metrics.sh" 127.0.0.1 $((port + 200)) $((port + 201)) $((port + 202))
stop

start slots --set redis_table=carts
pid=$(sed -n 's/^  node 1: .*pid //p' "$scratch/slots.log")
bash "$here/cluster.sh" "$leeward" "127.0.0.1:$((port + 101))" "$scratch" "$python" "$pid" \
    "$port" $((port + 1)) $((port + 2))
stop

export REDIS_TLS_CA=$scratch/encrypted/certs/ca.crt
start encrypted --tls
check

export USERS_PASSWORD=$scratch/password
bash "$here/users.sh" "$leeward" "leeward+tls://127.0.0.1:$((port + 100))?ca=$REDIS_TLS_CA" 127.0.0.1 \
    "$port" $((port + 1)) $((port + 2))
REDIS_USER=root REDIS_PASSWORD=$(cat "$USERS_PASSWORD") others
redis-server --port $((port + 50)) --bind 127.0.0.1 --save "" --dir "$scratch" >"$scratch/redis.log" 2>&1 &
redis=$!
sleep 1
"$python" "$here/options.py" $((port + 50)) 127.0.0.1 "$port" "$(cat "$USERS_PASSWORD")"
"$python" "$here/acl.py" $((port + 50)) 127.0.0.1 "$port" "$(cat "$USERS_PASSWORD")"
kill "$redis"
redis=""
echo "all Redis clients passed, in cluster mode, without and with TLS, and with users"
