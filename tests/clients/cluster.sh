#!/usr/bin/env bash
# Redis clients in cluster mode, while primaries move and after a node is killed:
#
#   cluster.sh LEEWARD ADDRESS SCRATCH PYTHON PID PORT PORT PORT
#
# ADDRESS is the native one of a node that lives on, PID the process of the node at the first PORT, which is killed. Database 0 of all
# nodes must be the table `carts`, which this creates. SCRATCH has what run.sh fetches and builds. Each client writes and reads all of
# its keys, again and again:
#
#   ready-CLIENT    the client has begun
#   killed          from now on, errors of a client are counted, before they end it
#   stop            each client does one more round, in which every key must be served within 30 s
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
leeward=$1 address=$2 scratch=$3 python=$4 pid=$5
shift 5
ports=("$@")
directory=$(mktemp -d)
clients=()

finish() {
    local client
    for client in "${clients[@]}"; do kill "$client" 2>/dev/null || true; done
    rm -rf "$directory"
}
trap finish EXIT

# Waits until the command succeeds.
await() {
    local end=$((SECONDS + 30))
    until "$@"; do
        alive
        [ "$SECONDS" -lt "$end" ] || { echo "not within 30 s: $*" >&2; exit 1; }
        sleep 0.1
    done
}

# Ends the run if a client has failed.
alive() {
    local client
    for client in "${clients[@]}"; do
        kill -0 "$client" 2>/dev/null || { wait "$client" || true; echo "a client has ended" >&2; exit 1; }
    done
}

# How many operations the nodes have forwarded.
forwarded() {
    local port
    for port in "${ports[@]}"; do redis-cli -p "$port" info leeward | tr -d '\r' | sed -n 's/^forwarded://p'; done |
        awk '{ sum += $1 } END { print sum }'
}

# Whether, for a second, clients went to the primaries by themselves.
is_direct() {
    local before after
    before=$(forwarded)
    sleep 1
    after=$(forwarded)
    [ "$before" = "$after" ]
}

is_ready() {
    local client
    for client in redis-py go-redis jedis lettuce node-redis ioredis; do [ -e "$directory/ready-$client" ] || return 1; done
}

"$leeward" table create carts --partition slots --tokens 6 --connect "$address" >/dev/null
for port in "${ports[@]}"; do [ "$(redis-cli -p "$port" cluster slots | grep -c .)" -gt 6 ]; done
# A client that is not in cluster mode is forwarded in database 1, and redis-cli follows redirections with -c.
for port in "${ports[@]}"; do
    [ "$(redis-cli -p "$port" -n 1 mset foo 1 bar 2 hello 3)" = OK ]
    [ "$(redis-cli -p "$port" -n 1 mget foo bar hello | tr '\n' ' ')" = "1 2 3 " ]
    [ "$(redis-cli -c -p "$port" get foo)$(redis-cli -c -p "$port" get bar)$(redis-cli -c -p "$port" get hello)" = 123 ]
done

# Native clients find the keys too, and go through them in order.
[ "$("$leeward" get foo --table carts --connect "$address")" = 1 ]
[ "$("$leeward" scan --table carts --connect "$address" | awk '{ print $1 }' | tr '\n' ' ')" = "bar foo hello " ]

"$python" "$here/cluster.py" 127.0.0.1 "${ports[1]}" "$directory" & clients+=($!)
"$scratch/go-cluster" "127.0.0.1:${ports[1]}" "$directory" & clients+=($!)
for library in node-redis ioredis; do
    node "$scratch/node/cluster.mjs" "$library" 127.0.0.1 "${ports[0]}" "$directory" & clients+=($!)
done
for library in jedis lettuce; do
    java -cp "$scratch/java/target/dependency/*" "$scratch/java/Cluster.java" "$library" 127.0.0.1 "${ports[2]}" "$directory" &
    clients+=($!)
done
await is_ready
await is_direct
echo "clients in cluster mode went to the primaries by themselves"

# Each region of the table, and the server that follows its primary.
moves() {
    "$python" - "http://127.0.0.1:$((ports[0] + 200))/status" <<'END'
import json, sys, urllib.request
for region in json.load(urllib.request.urlopen(sys.argv[1]))["map"]["regions"]:
    if region["table"] == "carts":
        print(region["region"], region["primary"] % 3 + 1)
END
}

moved=0
for turn in 1 2; do
    while read -r region server; do
        "$leeward" move --connect "$address" --region "$region" --primary "$server" >"$directory/move" 2>&1 ||
            { cat "$directory/move" >&2; exit 1; }
        moved=$((moved + 1))
        alive
    done < <(moves)
done
[ "$moved" = 12 ]
await is_direct
echo "they did so again after $moved moves"

touch "$directory/killed"
kill -9 "$pid"
sleep 3
touch "$directory/stop"
for client in "${clients[@]}"; do wait "$client"; done
clients=()
