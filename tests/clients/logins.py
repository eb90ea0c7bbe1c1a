#!/usr/bin/env python3
"""Restarts a node with kill -9, and has thousands of clients of one user connect and authenticate at once.

    cargo build --release -p leeward-cli
    python3 tests/clients/logins.py --leeward target/release/leeward

Prints how long it took until the last one was in, and the CPU time of the thread that checks passwords: a full check of argon2
takes some 20 ms. Exit code 1: one was refused, it took longer than 3 s, or more than 8 checks were made. Linux only.
"""

import argparse
import os
import pathlib
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "compat"))

from common import free_port, ports_of, start_dev, until  # noqa: E402

PASSWORD = "some-password-of-32-characters-x"
WITHIN = 3.0
MOST_CHECKS = 8
CHECK_MS = 20


def kill(dev):
    """Ends the cluster, and waits until its node is gone."""
    nodes = children(dev)
    os.killpg(dev.pid, signal.SIGKILL)
    dev.wait()
    until(10, lambda: (not any(os.path.exists(f"/proc/{node}") for node in nodes), None))


def children(dev):
    return [int(pid) for pid in pathlib.Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()]


def password_ms(dev):
    """CPU time of the nodes' threads that check passwords."""
    ticks = 0
    for node in children(dev):
        for task in pathlib.Path(f"/proc/{node}/task").iterdir():
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            ticks += sum(map(int, rest.split()[11:13])) if name == "passwords" else 0
    return ticks * 1_000 // os.sysconf("SC_CLK_TCK")


def connect_all(port, clients):
    """How many were let in, and the last refusal."""
    auth = b"*3\r\n$4\r\nAUTH\r\n$4\r\nroot\r\n$%d\r\n%s\r\n" % (len(PASSWORD), PASSWORD.encode())
    ready, sockets, admitted, refusal, answered = selectors.DefaultSelector(), [], 0, b"", 0
    for _ in range(clients):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        ready.register(one, selectors.EVENT_WRITE)
        sockets.append(one)
    begun = time.monotonic()
    while answered < clients and time.monotonic() - begun < 60:
        for key, events in ready.select(1):
            if events & selectors.EVENT_WRITE:
                key.fileobj.send(auth)
                ready.modify(key.fileobj, selectors.EVENT_READ)
                continue
            answer = key.fileobj.recv(200)
            ready.unregister(key.fileobj)
            answered += 1
            admitted += answer == b"+OK\r\n"
            refusal = refusal if answer == b"+OK\r\n" else answer
    for one in sockets:
        one.close()
    return admitted, refusal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leeward", required=True, help="the program")
    parser.add_argument("--clients", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (options.clients + 1_000, options.clients + 1_000))
    leeward, met = os.path.abspath(options.leeward), True
    port = free_port(ports_of(1))
    with tempfile.TemporaryDirectory(prefix="leeward-logins-") as folder:
        start = lambda: start_dev(leeward, folder, port, "--nodes", "1")
        dev = start()
        try:
            password = pathlib.Path(folder) / "password"
            password.write_text(PASSWORD + "\n")
            add = [leeward, "user", "add", "root", "--new-password-file", password, "--grant", "all"]
            subprocess.run([*add, "--connect", f"127.0.0.1:{port + 100}"], check=True, stdout=subprocess.DEVNULL)
            for number in range(options.rounds):
                kill(dev)
                dev = start()
                before, begun = password_ms(dev), time.monotonic()
                admitted, refusal = connect_all(port, options.clients)
                took, spent = time.monotonic() - begun, password_ms(dev) - before
                print(f"{admitted} of {options.clients} in after {took:.2f} s, {spent} ms for passwords {refusal or ''}")
                met &= admitted == options.clients and took <= WITHIN and spent <= MOST_CHECKS * CHECK_MS
        finally:
            kill(dev)
    sys.exit(0 if met else 1)


main()
