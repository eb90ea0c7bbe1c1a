#!/usr/bin/env bash
# redis-benchmark with its defaults and with a pipeline: redis_benchmark.sh HOST PORT [REQUESTS]
# With TLS, if REDIS_TLS_CA is the file of the authority.
set -euo pipefail
redis-benchmark() { command redis-benchmark ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} "$@"; }
host=$1 port=$2 requests=${3:-20000}

# Prints a line for each test, and fails unless all of them are there and nothing else was said.
run() {
    local tests=$1 expected=$2 output
    shift 2
    output=$(redis-benchmark -h "$host" -p "$port" -t "$tests" -n "$requests" -q "$@" 2>&1 | tr '\r' '\n')
    if grep -iE 'error|warn|could not|lost' <<<"$output" >&2; then
        echo "redis-benchmark $*: it complains" >&2
        exit 1
    fi
    grep 'requests per second' <<<"$output"
    [ "$(grep -c 'requests per second' <<<"$output")" = "$expected" ] || { echo "a test is missing" >&2; exit 1; }
}

echo "redis-benchmark, 50 clients:"
run ping,set,get,incr,mset 6
echo "redis-benchmark, 50 clients, 16 commands in flight each, 100 B, 100,000 keys:"
run set,get,mset 3 -P 16 -d 100 -r 100000
