"""Options and transactions beside Debian's redis-server: the same random sequences to both, the same replies.

options.py REDIS_PORT HOST LEEWARD_PORT ROOT_PASSWORD [SEED]

An empty ROOT_PASSWORD means no users. Each transaction at Redis gets a wrong command first, since Leeward refuses all:
from then on both discard it. Redis queues what Leeward refuses at once. These replies are not compared, but what is
there afterwards is. Only the standard library.
"""

import os
import random
import sys

from acl import Connection

STEPS = 4000
# Times far apart, so that a second between two replies makes no difference.
SECONDS = ["1000", "2000"]
TIMES = [("EX", SECONDS), ("PX", [s + "000" for s in SECONDS]), ("EXAT", ["4000000000"]), ("PXAT", ["4000000000000"])]


def options(rng, words):
    """Up to three options, wrong ones among them."""
    found = []
    for _ in range(rng.randint(0, 3)):
        if rng.random() < 0.5:
            found.append(rng.choice(words))
            continue
        unit, amounts = rng.choice(TIMES)
        found.append(unit)
        if rng.random() < 0.95:
            found.append(rng.choice(amounts + ["0", "-1", "x"]) if rng.random() < 0.4 else rng.choice(amounts))
    return found


def command(rng, amounts):
    """A command. Times of EXPIRE differ by more than the test takes: of equal ones a millisecond decides which is greater."""
    key, amount = rng.choice(["opt:a", "opt:b", "opt:c"]), str(amounts.pop())
    return rng.choice(
        [
            ["SET", key, rng.choice("123"), *options(rng, ["NX", "XX", "GET", "KEEPTTL", "get"])],
            ["GETEX", key, *options(rng, ["PERSIST", "persist", "KEEPTTL"])],
            ["EXPIRE", key, rng.choice([amount, amount, "x"]), *rng.choices(["NX", "XX", "GT", "LT"], k=rng.randint(0, 2))],
            ["GET", key],
            ["TTL", key],
            ["EXPIRETIME", key],
            ["PERSIST", key],
            ["DEL", key],
            ["KEYS", rng.choice(["opt:a", "opt:a" + "k" * rng.choice([4091, 4092, 5000, 12000]), "opt:[ab]*"])],
            ["EXEC"],
            ["DISCARD"],
        ]
    )


def alike(words, reply):
    """A reply without what may differ by a second."""
    if words[0] in ("TTL", "EXPIRETIME") and reply[:1] == b":" and int(reply[1:]) > 0:
        return round(int(reply[1:]) / 100)
    return sorted(reply) if isinstance(reply, list) else reply


def transaction(rng, redis, leeward):
    """MULTI, what is discarded, and an end. Answers how many replies were the same."""
    same = 0
    redis.run("MULTI"), redis.run("NOPE")
    assert leeward.run("MULTI").startswith(b"-ERR MULTI is not supported")
    inside = [["SET", "opt:a", "inside"], ["DEL", "opt:b"], ["GET", "opt:a"], ["MULTI"], ["WATCH", "opt:a"]]
    inside += [["DISCARD", "x"], ["NOPE"], ["SET"]]
    for words in rng.choices(inside, k=rng.randint(0, 5)):
        replies = redis.run(*words), leeward.run(*words)
        if words[0] in ("MULTI", "WATCH", "DISCARD"):
            assert replies[0] == replies[1], (words, replies)
            same += 1
        else:
            assert replies[1].startswith(b"-ERR not executed"), (words, replies)
    end = rng.choice([["EXEC"], ["DISCARD"], ["exec"], ["EXEC", "x"]])
    replies = redis.run(*end), leeward.run(*end)
    assert replies[0] == replies[1], (end, replies)
    return same + 1


def main():
    redis = Connection("127.0.0.1", int(sys.argv[1]))
    leeward = Connection(sys.argv[2], int(sys.argv[3]), os.environ.get("REDIS_TLS_CA"))
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else random.randrange(1 << 32)
    assert not sys.argv[4] or leeward.run("AUTH", "root", sys.argv[4]) == b"+OK"
    rng, same = random.Random(seed), 0
    amounts = [100 * number for number in range(1_000, 1_000 + STEPS)]
    rng.shuffle(amounts)
    for step in range(STEPS):
        if rng.random() < 0.05:
            same += transaction(rng, redis, leeward)
            continue
        words = command(rng, amounts)
        replies = [alike(words, connection.run(*words)) for connection in (redis, leeward)]
        assert replies[0] == replies[1], f"seed {seed}, step {step}: {words}: redis {replies[0]}, leeward {replies[1]}"
        same += 1
    leeward.run("DEL", "opt:a", "opt:b", "opt:c")
    print(f"redis-server: {same} replies about options and transactions are the same (seed {seed})")


if __name__ == "__main__":
    main()
