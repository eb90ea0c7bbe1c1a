#!/usr/bin/env bash
# Users over redis-cli and leeward, against a cluster without users: users.sh LEEWARD ADDRESS HOST PORT PORT PORT
# ADDRESS is the native address of the first node. Leaves the user root; its password is in the file $USERS_PASSWORD.
# With TLS, if REDIS_TLS_CA is the file of the authority.
set -euo pipefail
leeward=$1 address=$2 host=$3
shift 3
ports=("$@")
secret=${USERS_PASSWORD:?the file for the password of root}
redis-cli() { command redis-cli ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} -h "$host" "$@"; }

# check EXPECTED COMMAND...: what a command prints.
check() {
    local expected=$1 found
    shift
    found=$("$@" 2>&1) || true
    if [ "$found" != "$expected" ]; then
        printf '%s\n  printed  %q\n  expected %q\n' "$*" "$found" "$expected" >&2
        exit 1
    fi
}

# The change is in force at every node within a second.
until_refused() {
    local port attempt
    for port in "${ports[@]}"; do
        for attempt in $(seq 1 50); do
            [ "$(redis-cli -p "$port" get users:a)" = "NOAUTH Authentication required." ] && continue 2
            sleep 0.1
        done
        echo "port $port lets everybody in" >&2
        exit 1
    done
}

export LEEWARD_CONNECT=$address
check OK redis-cli -p "${ports[0]}" set users:a 1
"$leeward" user add root --generate --grant all | tail -n 1 >"$secret"
until_refused
export LEEWARD_USER=root LEEWARD_PASSWORD_FILE=$secret
"$leeward" user add shop --generate --grant read,write@default:users: | tail -n 1 >"$secret.shop"
sleep 1
for port in "${ports[@]}"; do
    check 1 env REDISCLI_AUTH="$(cat "$secret")" bash -c 'command redis-cli "$@"' - \
        ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} -h "$host" -p "$port" --user root get users:a
    check 1 env REDISCLI_AUTH="$(cat "$secret.shop")" bash -c 'command redis-cli "$@"' - \
        ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} -h "$host" -p "$port" --user shop -3 get users:a
    check "NOPERM this user has no permissions to access one of the keys used as arguments" \
        env REDISCLI_AUTH="$(cat "$secret.shop")" bash -c 'command redis-cli "$@"' - \
        ${REDIS_TLS_CA:+--tls --cacert "$REDIS_TLS_CA"} -h "$host" -p "$port" --user shop get other
done
check 1 "$leeward" get users:a
check 1 env LEEWARD_USER=shop LEEWARD_PASSWORD_FILE="$secret.shop" "$leeward" get users:a
"$leeward" user remove shop >/dev/null
sleep 1
found=$(env LEEWARD_USER=shop LEEWARD_PASSWORD_FILE="$secret.shop" "$leeward" get users:a 2>&1) && exit 1
grep -q 'the user is unknown or disabled' <<<"$found" || { echo "$found" >&2; exit 1; }
"$leeward" del users:a >/dev/null
echo "users: redis-cli and leeward passed"
