#!/usr/bin/env bash
# django-redis 7.0.0 (redis-py 8.1.0, Django 5.2.19) against redis-server 7.0.15 of Debian 12.
#
# A user of Redis may do everything but scripts: ACL SETUSER app on >pw ~* &* +@all -@scripting.
# Expected: cache.incr fails with NOPERM, or falls back to INCRBY, which is atomic. Guessed before the run, from its
# source: it loses some.
# Seen: cache.incr takes every error reply of EVAL for "the value is no integer" and goes on with GET and SET, so
# increments of several threads are lost in silence: no error is raised, and the counter ends below their number.
# With scripts allowed, the same work loses none.
#
# Output of 2026-11-28:
#   with scripts: 800 of 800, EVAL refused 0 times, SET 1 times
#   without scripts: 313 of 800, EVAL refused 800 times, SET 801 times
set -euo pipefail
work=$(mktemp -d)
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"

python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check django-redis==7.0.0 redis==8.1.0 Django==5.2.19
redis=$(command -v redis-server || true)
if [ -z "$redis" ]; then
    for package in redis-tools liblzf1 libjemalloc2; do
        apt-get download -qq "$package" 2>/dev/null
        dpkg -x "$package"_*.deb debian
    done
    # Debian's redis-server is this program under another name.
    redis=$work/redis-server
    cp debian/usr/bin/redis-check-rdb "$redis"
    export LD_LIBRARY_PATH=$(dirname "$(find debian -name 'liblzf.so.1' | head -n 1)")
fi
"$redis" --version | grep -q 'v=7\.0\.15' || { echo "another redis-server than 7.0.15" >&2; exit 1; }
"$redis" --unixsocket "$work/socket" --port 0 --save "" --daemonize no >"$work/log" 2>&1 &
server=$!

cat >incr.py <<'P'
import threading, time
import django, redis
from django.conf import settings

socket = "unix://%s?db=0" % __import__("os").path.abspath("socket")
admin = redis.Redis.from_url(socket)
for _ in range(100):
    try:
        admin.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.05)
settings.configure(CACHES={"default": {
    "BACKEND": "django_redis.cache.RedisCache",
    "LOCATION": "unix://app:pw@%s?db=0" % __import__("os").path.abspath("socket"),
}})
django.setup()
from django.core.cache import cache

THREADS, TIMES = 8, 100
lost = {}
for name, scripts in (("with scripts", "+@scripting"), ("without scripts", "-@scripting")):
    admin.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", scripts)
    admin.config_resetstat()
    errors = []
    def work():
        try:
            for _ in range(TIMES):
                cache.incr("counter")
        except Exception as error:
            errors.append(error)
    cache.set("counter", 0, None)
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    stats = admin.info("commandstats")
    refused = stats.get("cmdstat_eval", {}).get("rejected_calls", 0)
    sets = stats.get("cmdstat_set", {}).get("calls", 0)
    value = cache.get("counter")
    print(f"{name}: {value} of {THREADS * TIMES}, EVAL refused {refused} times, SET {sets} times", *errors[:1])
    lost[name] = (THREADS * TIMES - value, len(errors), refused, sets)
assert lost["with scripts"] == (0, 0, 0, 1), lost
few, errors, refused, sets = lost["without scripts"]
assert few > 0 and errors == 0 and refused == THREADS * TIMES and sets == THREADS * TIMES + 1, lost
P
python/bin/python incr.py
