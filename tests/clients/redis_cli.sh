#!/usr/bin/env bash
# redis-cli against any node of a cluster: redis_cli.sh HOST PORT [PORT ...]
# With TLS, if REDIS_TLS_CA is the file of the authority.
set -euo pipefail
redis-cli() { command redis-cli ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} "$@"; }
host=$1
shift
ports=("$@")
checks=0

# check PORT EXPECTED ARGUMENT...: what redis-cli prints for a command.
check() {
    local port=$1 expected=$2 found
    shift 2
    found=$(redis-cli -h "$host" -p "$port" "$@" 2>&1)
    if [ "$found" != "$expected" ]; then
        printf 'redis-cli %s\n  printed  %q\n  expected %q\n' "$*" "$found" "$expected" >&2
        exit 1
    fi
    checks=$((checks + 1))
}

# has PATTERN COMMAND...: a line that a command prints. What it prints is read to its end before it is looked through:
# a reader that leaves at the first match kills a command that still writes.
has() {
    local pattern=$1 found
    shift
    found=$("$@" 2>&1)
    if ! grep -q -- "$pattern" <<<"$found"; then
        printf '%s\n  printed  %q\n  expected a line with %q\n' "$*" "$found" "$pattern" >&2
        exit 1
    fi
    checks=$((checks + 1))
}

first=${ports[0]}
last=${ports[${#ports[@]} - 1]}
check "$first" OK set cli:hello world
for port in "${ports[@]}"; do
    check "$port" world get cli:hello
    check "$port" PONG ping
done
check "$last" $'cli:hello\nworld' krange cli: cli:z
check "$last" $'cli:hello' kprefix cli: keys
check "$first" $'cli:hello' --scan --pattern 'cli:*'
check "$first" 1 incr cli:n
check "$last" 2 incr cli:n
check "$first" "(integer) 3" --no-raw incr cli:n
check "$first" "(nil)" --no-raw get cli:none
check "$first" "(nil)" -3 --no-raw get cli:none
check "$first" $'1) 1) "cli:hello"\n   2) "world"' -3 --no-raw krange cli:h cli:i
check "$first" "ERR unknown command 'NOPE', with args beginning with: 'a' " NOPE a
check "$first" save config get save
check "$first" 2 wait 0 0
check "$first" "a value with spaces" -x echo <<<"a value with spaces"

# A pipeline from a file, in the protocol and in lines.
has 'errors: 0, replies: 3' redis-cli -h "$host" -p "$first" --pipe < <(printf 'SET cli:a 1\r\nINCR cli:a\r\nGET cli:a\r\n')
found=$(printf 'SET cli:b 1\nGET cli:b\nDEL cli:b\n' | redis-cli -h "$host" -p "$last")
[ "$found" = $'OK\n1\n1' ] || { echo "commands from standard input: $found" >&2; exit 1; }

# A refused transaction leaves everything as it was, and the connection too.
found=$(printf 'SET cli:t 1\nMULTI\nINCR cli:t\nDEL cli:t\nEXEC\nGET cli:t\nDEL cli:t\n' | redis-cli -h "$host" -p "$first" 2>&1)
refused="ERR MULTI is not supported: Leeward has no transactions. What follows is refused up to EXEC or DISCARD"
between="ERR not executed: MULTI was refused, and neither EXEC nor DISCARD has come since"
aborted="EXECABORT Transaction discarded because of previous errors."
[ "$(grep -v '^$' <<<"$found")" = $'OK\n'"$refused"$'\n'"$between"$'\n'"$between"$'\n'"$aborted"$'\n1\n1' ] ||
    { echo "a refused transaction: $found" >&2; exit 1; }
checks=$((checks + 1))

# What redis-cli asks for when it is interactive.
has '^krange$' redis-cli -h "$host" -p "$first" command docs
has '^leeward_version:' redis-cli -h "$host" -p "$first" info server
check "$first" 3 del cli:hello cli:n cli:a
echo "redis-cli: $((checks + 1)) checks passed"
