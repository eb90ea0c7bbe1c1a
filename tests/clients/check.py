"""Every command through redis-py, in RESP2 and RESP3, on every node: check.py HOST PORT [PORT ...]"""

import os
import sys
import threading

import redis

CHECKS = 0


def connect(host, port, **options):
    """A client; with TLS, if REDIS_TLS_CA is the file of the authority; as REDIS_USER with REDIS_PASSWORD."""
    ca = os.environ.get("REDIS_TLS_CA")
    if ca:
        options.update(ssl=True, ssl_ca_certs=ca)
    user = os.environ.get("REDIS_USER")
    if user:
        options.update(username=user, password=os.environ["REDIS_PASSWORD"])
    return redis.Redis(host, port, **options)


def equal(found, expected):
    global CHECKS
    CHECKS += 1
    assert found == expected, f"found {found!r}, expected {expected!r}"


def refused(says, act):
    global CHECKS
    CHECKS += 1
    try:
        found = act()
    except (redis.ResponseError, redis.AuthenticationError) as error:
        assert says in str(error), f"refused by {error}, expected {says}"
    else:
        raise AssertionError(f"answered {found!r}, expected an error with {says}")


def text(value):
    """Which replies redis-py decodes by itself differs between its versions."""
    return value.decode() if isinstance(value, bytes) else value


def strings(r):
    equal(r.delete("py:a", "py:b", "py:n"), 0)
    equal(r.get("py:a"), None)
    equal(r.set("py:a", "1"), True)
    equal(r.get("py:a"), b"1")
    equal(r.set("py:a", "2", nx=True), None)
    equal(r.set("py:a", "2", xx=True), True)
    equal(r.set("py:a", "3", get=True), b"2")
    equal(r.setnx("py:a", "4"), False)
    equal(r.setnx("py:b", ""), True)
    equal(r.get("py:b"), b"")
    equal(r.strlen("py:a"), 1)
    equal(r.append("py:a", "45"), 3)
    equal(r.getdel("py:a"), b"345")
    equal(r.exists("py:a"), 0)
    equal(r.exists("py:b", "py:b", "py:a"), 2)
    equal(r.type("py:b"), b"string")
    equal(r.type("py:a"), b"none")
    equal(r.mset({"py:a": "x", "py:z": "y"}), True)
    equal(r.mget("py:a", "py:none", "py:z"), [b"x", None, b"y"])
    equal(r.incr("py:n"), 1)
    equal(r.incrby("py:n", 41), 42)
    equal(r.decr("py:n"), 41)
    equal(r.decrby("py:n", 51), -10)
    refused("not an integer", lambda: r.incr("py:a"))
    binary = bytes(range(256)) * 16
    equal(r.set(b"py:\x00\r\n\xff", binary), True)
    equal(r.get(b"py:\x00\r\n\xff"), binary)
    equal(r.delete(b"py:\x00\r\n\xff"), 1)
    equal(r.unlink("py:a", "py:b", "py:n", "py:z", "py:none"), 4)


def ranges(r, protocol):
    keys = [f"py:range:{number:04}" for number in range(2500)]
    pipe = r.pipeline(transaction=False)
    for number, key in enumerate(keys):
        pipe.set(key, number)
    equal(pipe.execute(), [True] * len(keys))
    encoded = [key.encode() for key in keys]
    equal(list(r.scan_iter(match="py:range:*", count=100)), encoded)
    equal(r.keys("py:range:00[01]?"), encoded[:20])
    pairs = [b"py:range:0001", b"1", b"py:range:0002", b"2"]
    expected = pairs if protocol == 2 else [pairs[:2], pairs[2:]]
    equal(r.execute_command("KRANGE", "py:range:0001", "py:range:0003"), expected)
    equal(r.execute_command("KRANGE", "py:range:", "py:range:z", "KEYS"), encoded)
    equal(r.execute_command("KPREFIX", "py:range:", "REV", "LIMIT", 3, "KEYS"), encoded[:-4:-1])
    assert r.dbsize() >= 0
    equal(r.delete(*keys), len(keys))


def connection(r, protocol):
    equal(r.ping(), True)
    equal(r.echo("hey"), b"hey")
    equal(r.execute_command("SELECT", 0), True)
    refused("out of range", lambda: r.execute_command("SELECT", 1))
    assert r.client_id() > 0
    with r.client() as one:
        equal(one.client_setname("check"), True)
        equal(text(one.client_getname()), "check")
        info = one.client_info()
        equal((info["name"], info["resp"], info["lib-name"].split("(")[0]), ("check", str(protocol), "redis-py"))
        assert "check" in [client["name"] for client in r.client_list()]
        if not os.environ.get("REDIS_USER"):
            # It also ends what AUTH has begun.
            one.reset()
    if not os.environ.get("REDIS_USER"):
        refused("without any password configured", lambda: r.execute_command("AUTH", "secret"))
    hello = r.execute_command("HELLO", protocol)
    fields = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2]))
    equal((fields[b"server"], fields[b"proto"]), (b"leeward", protocol))


def server(r):
    info = r.info()
    assert info["redis_version"] and info["leeward_version"] and info["role"] == "master", info
    assert "cmdstat_get" in r.info("commandstats")
    equal(r.config_get("save"), {"save": ""})
    equal(r.config_get("appendonly"), {"appendonly": "yes"})
    assert r.command_count() == len(r.command()) > 30
    equal(r.command()["get"]["arity"], 2)
    assert r.wait(0, 0) >= 0


def expiry(r):
    """Pairs expire; the client's own methods say when, and change it."""
    equal(r.set("py:e", "1", ex=100), True)
    assert 95 < r.ttl("py:e") <= 100
    equal(r.incr("py:e"), 2)
    assert 95_000 < r.pttl("py:e") <= 100_000, "INCR keeps it"
    equal(r.set("py:e", "3", keepttl=True), True)
    assert r.ttl("py:e") > 0
    equal(r.persist("py:e"), True)
    equal(r.ttl("py:e"), -1)
    equal(r.expire("py:e", 100, gt=True), False)
    equal(r.expire("py:e", 100, nx=True), True)
    equal(r.pexpireat("py:e", 1), True)
    equal(r.get("py:e"), None)
    equal(r.ttl("py:e"), -2)


def ranges_deleted(r):
    for n in range(10):
        r.set(f"py:r{n}", "x")
    equal(text(r.execute_command("KDELRANGE", "py:r2", "py:r9")), "OK")
    equal(r.mget([f"py:r{n}" for n in (1, 2, 8, 9)]), [b"x", None, None, b"x"])
    equal(r.delete("py:r0", "py:r1", "py:r9"), 3)


def absent(r):
    """What there is not fails at once, and nothing of a refused transaction is executed."""
    r.mset({"py:a": 100, "py:b": 100})
    pipe = r.pipeline()
    pipe.decrby("py:a", 30)
    pipe.incrby("py:b", 30)
    refused("MULTI is not supported", pipe.execute)
    equal(r.mget("py:a", "py:b"), [b"100", b"100"])
    refused("WATCH is not supported", lambda: r.transaction(lambda pipe: pipe.incr("py:a"), "py:a"))
    refused("EVAL is not supported", lambda: r.eval("return 1", 0))
    refused("EVALSHA is not supported", lambda: r.register_script("return 1")())
    refused("PUBLISH is not supported", lambda: r.publish("py:channel", "x"))
    with r.pubsub() as channel:
        channel.subscribe("py:channel")
        refused("SUBSCRIBE is not supported", lambda: channel.get_message(timeout=10))
    lock = r.lock("py:lock", timeout=60)
    equal(lock.acquire(blocking=False), True)
    token = lock.local.token
    refused("EVALSHA is not supported", lock.release)
    equal(r.execute_command("DELEX", "py:lock", "IFEQ", token), 1)
    with r.client() as one:
        # Without a pipeline, as some clients send a transaction.
        refused("MULTI is not supported", lambda: one.execute_command("MULTI"))
        refused("not executed", lambda: one.set("py:a", 1))
        equal(one.execute_command("DISCARD"), b"OK")
        equal(one.get("py:a"), b"100")
    equal(r.delete("py:a", "py:b"), 2)


def bad_input(r):
    refused("unknown command", lambda: r.execute_command("LPUSH", "a", "b"))
    refused("wrong number of arguments", lambda: r.execute_command("GET"))
    refused("the key is empty", lambda: r.set("", "x"))
    refused("the limit is 4096", lambda: r.set("k" * 4097, "x"))
    refused("the limit is 1048576", lambda: r.set("py:big", "v" * (1024 * 1024 + 1)))
    refused("invalid expire time", lambda: r.set("py:a", "x", ex=-1))
    equal(r.set("k" * 4096, "v" * 1024 * 1024), True)
    equal(r.strlen("k" * 4096), 1024 * 1024)
    equal(r.delete("k" * 4096), 1)


def many_clients(host, port):
    """Counters that many connections raise at once miss nothing."""
    r = connect(host, port)
    r.delete("py:counter")

    def raise_it():
        mine = connect(host, port)
        pipe = mine.pipeline(transaction=False)
        for _ in range(100):
            pipe.incr("py:counter")
        pipe.execute()

    threads = [threading.Thread(target=raise_it) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(r.get("py:counter"), b"1000")
    equal(r.delete("py:counter"), 1)


def main():
    host, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
    for port in ports:
        for protocol in (2, 3):
            r = connect(host, port, protocol=protocol)
            strings(r)
            ranges(r, protocol)
            connection(r, protocol)
            server(r)
            expiry(r)
            ranges_deleted(r)
            absent(r)
            bad_input(r)
            r.close()
        many_clients(host, port)
    writer, reader = connect(host, ports[0]), connect(host, ports[-1])
    for number in range(200):
        writer.set("py:seen", number)
        equal(reader.get("py:seen"), str(number).encode())
    writer.delete("py:seen")
    print(f"redis-py {redis.__version__}: {CHECKS} checks passed")


if __name__ == "__main__":
    main()
