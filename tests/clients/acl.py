"""AUTH, HELLO and ACL beside Debian's redis-server: the same random sequences to both, the same replies.

acl.py REDIS_PORT HOST LEEWARD_PORT ROOT_PASSWORD [SEED]

Both have an admin `root`, and no user `default` that may do anything. Replies whose differences docs/resp.md lists (help,
lists of categories, hashes of passwords, the text for a wrong subcommand) are not asked for. Only the standard library.
"""

import os
import random
import socket
import ssl
import sys
import time


class Connection:
    def __init__(self, host, port, ca=None):
        raw = socket.create_connection((host, port), timeout=30)
        self.socket = ssl.create_default_context(cafile=ca).wrap_socket(raw, server_hostname=host) if ca else raw
        self.file = self.socket.makefile("rb")

    def run(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word.encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def reply(self):
        line = self.file.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind in (b"$", b"="):
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind in (b"*", b"~", b"%", b">"):
            count = int(rest) * (2 if kind == b"%" else 1)
            return None if count < 0 else [self.reply() for _ in range(count)]
        if kind == b"_":
            return None
        return line


USERS = ["alice", "bob"]
PASSWORDS = ["one", "two", "three"]
# Failed tries that are made.
MOST_WRONG = 7


def rules(rng):
    """Rules that mean the same in both."""
    choices = ["on", "off", "nopass", "resetpass", "resetkeys", "allkeys", "reset", "nosuch", "+@nosuch", "-@nosuch"]
    choices += [">" + password for password in PASSWORDS] + ["~a:*", "~b:*", "+@read", "+@write", "-@read", "-@write"]
    return rng.choices(choices, k=rng.randint(1, 4))


def command(rng):
    user, password = rng.choice(USERS), rng.choice(PASSWORDS + ["wrong"])
    key = rng.choice(["a:1", "b:1", "c:1"])
    return rng.choice(
        [
            ["AUTH", user, password],
            ["AUTH", "nobody", password],
            ["AUTH", "a", "b", "c"],
            ["AUTH"],
            ["HELLO", "2", "AUTH", user, password],
            ["HELLO", "4"],
            ["HELLO", "x"],
            ["HELLO", "2", "AUTH", user],
            ["GET", key],
            ["SET", key, "1"],
            ["SET", key, "1", "GET"],
            ["APPEND", key, ""],
            ["GETDEL", key],
            ["MGET", "a:1", key],
            ["DEL", key],
            ["GET"],
            ["NOSUCH"],
            ["ACL"],
            ["RESET"],
        ]
    )


def admin_command(rng):
    user = rng.choice(USERS)
    return rng.choice(
        [
            ["ACL", "SETUSER", user, *rules(rng)],
            ["ACL", "SETUSER", user, "on", ">" + rng.choice(PASSWORDS), "~a:*", "+@read", "+@write"],
            ["ACL", "SETUSER", "b b", "on"],
            ["ACL", "SETUSER", user, "(~x"],
            ["ACL", "SETUSER", user, "<never"],
            ["ACL", "DELUSER", user],
            ["ACL", "DELUSER", "default"],
            ["ACL", "DELUSER", "nobody"],
            ["ACL", "USERS"],
            ["ACL", "WHOAMI"],
            ["ACL", "DRYRUN", user, "GET", rng.choice(["a:1", "b:1"])],
            ["ACL", "DRYRUN", user, "SET", "a:1", "x"],
            ["ACL", "DRYRUN", user, "NOSUCH"],
            ["ACL", "DRYRUN", user, "GET"],
            ["ACL", "GENPASS", "0"],
            ["ACL", "GENPASS", "x"],
            ["ACL", "GETUSER", "nobody"],
            ["ACL", "LOG", "RESET"],
            ["ACL", "LOG", "x"],
            ["ACL", "CAT", "nosuch"],
        ]
    )


def alike(reply):
    """A reply without what differs on purpose."""
    if isinstance(reply, bytes) and reply.startswith(b"-ERR Error in ACL SETUSER modifier '<"):
        return b"-ERR Error in ACL SETUSER modifier '<"
    # Leeward's HELLO names itself.
    if isinstance(reply, list) and reply[:1] == [b"server"]:
        return b"server"
    # `default` is off in Redis, and not there in Leeward.
    if isinstance(reply, list):
        return [item for item in reply if item != b"default"]
    return reply


def main():
    redis_port, host, port, password = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    rng = random.Random(seed)
    ca = os.environ.get("REDIS_TLS_CA")

    def connect():
        return Connection("127.0.0.1", redis_port), Connection(host, port, ca)

    setup = Connection("127.0.0.1", redis_port)
    assert setup.run("ACL", "SETUSER", "root", "on", ">" + password, "~*", "+@all") == b"+OK"
    assert setup.run("AUTH", "root", password) == b"+OK"
    assert setup.run("ACL", "SETUSER", "default", "reset") == b"+OK"
    admins = connect()
    assert [admin.run("AUTH", "root", password) for admin in admins] == [b"+OK", b"+OK"]
    checks = wrong = 0
    for _ in range(60):
        clients = connect()
        for _ in range(rng.randint(1, 3)):
            words = admin_command(rng)
            replies = [alike(admin.run(*words)) for admin in admins]
            assert replies[0] == replies[1], f"seed {seed}: {words}: redis {replies[0]}, leeward {replies[1]}"
            checks += 1
        # Leeward's nodes follow a change within a second.
        time.sleep(0.1)
        for _ in range(3):
            words = command(rng)
            first = alike(clients[0].run(*words))
            if isinstance(first, bytes) and first.startswith(b"-WRONGPASS"):
                wrong += 1
                # Leeward answers failed tries later and later.
                if wrong > MOST_WRONG:
                    break
            replies = [first, alike(clients[1].run(*words))]
            assert replies[0] == replies[1], f"seed {seed}: {words}: redis {replies[0]}, leeward {replies[1]}"
            checks += 1
    for user in USERS:
        [admin.run("ACL", "DELUSER", user) for admin in admins]
    print(f"acl: {checks} replies were those of redis-server")


if __name__ == "__main__":
    main()
