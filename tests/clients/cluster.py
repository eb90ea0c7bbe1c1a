"""redis-py in cluster mode, while primaries move and a node is killed: cluster.py HOST PORT DIRECTORY

cluster.sh has what the files in DIRECTORY mean.
"""

import os
import sys
import time

import redis
from redis.cluster import RedisCluster

KEYS = [f"py:{number}" for number in range(48)]


def basics(r):
    """What works without a kill: each answer has one right value. The number of checks."""
    for key in KEYS:
        r.set(key, 0)
    assert sorted(r.scan_iter(match="py:*")) == sorted(key.encode() for key in KEYS), "each key once"
    assert r.mget_nonatomic(KEYS) == [b"0"] * len(KEYS)
    assert r.mset({"py:{tag}a": "1", "py:{tag}b": "2"})
    assert r.mget("py:{tag}a", "py:{tag}b") == [b"1", b"2"]
    assert r.delete("py:{tag}a", "py:{tag}b") == 2
    slots = r.cluster_slots(target_nodes=r.get_default_node())
    assert sum(last - first + 1 for first, last in slots) == 16_384
    try:
        r.execute_command("MGET", "py:0", "py:1")
    except (redis.ResponseError, redis.exceptions.RedisClusterException) as error:
        assert "slot" in str(error).lower(), error
    else:
        raise AssertionError("keys of two slots are answered")
    with r.pipeline() as pipe:
        for key in KEYS:
            pipe.get(key)
        assert pipe.execute() == [b"0"] * len(KEYS)
    return 8


def main():
    host, port, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    there = lambda name: os.path.exists(os.path.join(directory, name))
    r = RedisCluster(host=host, port=port)
    checks, errors, number = basics(r), 0, 0
    open(os.path.join(directory, "ready-redis-py"), "w").close()
    last = False
    while not last:
        # The last round begins when all is over.
        last = there("stop")
        number += 1
        for key in KEYS:
            begun = time.monotonic()
            while True:
                try:
                    r.set(key, number)
                    found = r.get(key)
                    break
                except (redis.RedisError, OSError) as error:
                    assert there("killed"), f"{key}: {error!r} while no node is dead"
                    assert time.monotonic() - begun < 30, f"{key}: {error!r} for 30 s"
                    errors += 1
                    time.sleep(0.05)
            assert found == str(number).encode(), f"{key}: found {found}, wrote {number}"
            checks += 1
    print(f"redis-py in cluster mode: {checks} checks passed, {errors} errors after the kill")


main()
