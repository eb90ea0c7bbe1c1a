"""What the comparisons of this directory share: a Redis client, free ports, waiting."""

import random
import socket
import time


def free_port(offsets):
    """A port that is free, and so are those that lie so far behind it. The system gives none of them to connections."""
    while True:
        port = random.randrange(10_000, 32_000)
        taken = False
        for offset in offsets:
            with socket.socket() as probe:
                taken |= probe.connect_ex(("127.0.0.1", port + offset)) == 0
        if not taken:
            return port


class Client:
    """A Redis client that pipelines."""

    def __init__(self, port, timeout=20):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.file = self.socket.makefile("rb")

    def close(self):
        self.file.close()
        self.socket.close()

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        if line[:1] == b"$" and int(line[1:]) >= 0:
            return self.file.read(int(line[1:]) + 2)[:-2]
        return None if line[:1] == b"$" else line.strip()

    def ask(self, *words):
        self.send(*words)
        return self.reply()


def is_error(reply):
    return isinstance(reply, bytes) and reply[:1] == b"-"


def until(seconds, attempt):
    """The time until `attempt` answers something that is true, and that; or None and the last answer."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < seconds:
        try:
            done, last = attempt()
            if done:
                return time.monotonic() - begun, last
        except OSError as error:
            last = str(error)
        time.sleep(0.05)
    return None, last
