"""What the comparisons of this directory share: options and rows, processes, free ports, a Redis client, waiting."""

import argparse
import ctypes
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time


def parser_of(what, description):
    """Options of `cargo xtask compat` for this script."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"cargo xtask compat {what}", description=description, formatter_class=shown)
    parser.add_argument("--leeward", required=True, help="the program")
    return parser


def parsed(parser):
    """The options. From here on the script cleans up when it is told to end."""
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.leeward = os.path.abspath(options.leeward)
    return options


def chosen(only, rows, what="row"):
    """The rows that are named, with commas between."""
    names = only.split(",")
    for name in names:
        if name not in rows:
            sys.exit(f"there is no {what} {name}: one of {', '.join(rows)}")
    return names


def conclude(met):
    """Ends the script: whether each row was met."""
    print(f"\n{sum(met)} of {len(met)} met")
    sys.exit(0 if met and all(met) else 1)


def die_with_parent(number=signal.SIGTERM):
    """For `preexec_fn`: the kernel sends the process a signal if this script dies."""
    ctypes.CDLL(None).prctl(1, number)


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ports_of(nodes):
    """How far the ports of so many nodes, and of the coordinator beside them, lie behind the first: as `leeward dev` has them."""
    return [kind * 100 + node for kind in range(4) for node in range(nodes)] + [400]


def start_dev(leeward, folder, port, *options):
    """`leeward dev` in a process group of its own, once a node answers."""
    command = [leeward, "dev", "--data", f"{folder}/data", "--base-port", str(port), *options]
    dev = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    if until(30, lambda: (Client(port).ask("PING") is not None, None))[0] is None:
        os.killpg(dev.pid, signal.SIGKILL)
        sys.exit("the nodes do not start")
    return dev


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


def encoded(*words):
    """A command in RESP."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


class Client:
    """A Redis client that pipelines."""

    def __init__(self, port, timeout=20):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.file = self.socket.makefile("rb")

    def close(self):
        self.file.close()
        self.socket.close()

    def send(self, *words):
        self.socket.sendall(encoded(*words))

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
