#!/usr/bin/env python3
"""Asks a node with many regions for /livez from many clients without pause, and measures how late leases are handled meanwhile.

    cargo build --release -p leeward-cli
    python3 tests/clients/probes.py --leeward target/release/leeward

Two nodes have a table of so many regions, with two copies of each. Prints, of either node, how many messages about leases were
handled meanwhile, and bounds of how late (`leeward_lease_lateness_seconds`). Exit code 1: a probe failed, or of 1,000 messages
more than one came 50 ms late.
"""

import argparse
import http.client
import os
import pathlib
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "compat"))

from common import free_port, ports_of, start_dev, until  # noqa: E402

CLIENTS = 64
WITHIN = 0.05
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BUCKET = re.compile(r'^leeward_lease_lateness_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$', re.M)


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def lateness(port):
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in BUCKET.findall(get(port, "/metrics")[1])}


def probe(port, seconds):
    """Probes that were answered 200, and others."""
    ready, good, bad = selectors.DefaultSelector(), 0, 0
    for _ in range(CLIENTS):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(REQUEST)
        ready.register(one, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in ready.select(1):
            answer = key.fileobj.recv(4_096)
            if not answer:
                sys.exit("the node closed the connection of a probe")
            good += answer.startswith(b"HTTP/1.1 200")
            bad += not answer.startswith(b"HTTP/1.1 200")
            key.fileobj.sendall(REQUEST)
    return good, bad


def judge(node, before, after):
    handled = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = handled[float("inf")]
    part = lambda share: next(bound for bound, count in handled.items() if count >= share * total)
    print(f"node {node}: {total:.0f} messages; p50 <= {part(0.5)} s, p99 <= {part(0.99)} s, p99.9 <= {part(0.999)} s")
    return total > 0 and part(0.999) <= WITHIN


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leeward", required=True, help="the program")
    parser.add_argument("--regions", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    leeward, port = os.path.abspath(options.leeward), free_port(ports_of(2))
    with tempfile.TemporaryDirectory(prefix="leeward-probes-") as folder:
        # Shared memory takes six files a region, more than a process may have.
        memory = f"memory_budget={(256 << 20) + options.regions * (64 << 10)}"
        dev = start_dev(leeward, folder, port, "--nodes", "2", "--fabric", "tcp", "--set", memory)
        try:
            table = ["table", "create", "many", "--partition", "hash", "--tokens", str(options.regions), "--replicas", "2"]
            subprocess.run([leeward, *table, "--connect", f"127.0.0.1:{port + 100}"], check=True)
            nodes = [port + 200, port + 201]
            if until(60, lambda: (all(get(node, "/readyz")[0] == 200 for node in nodes), None))[0] is None:
                sys.exit("the nodes are not ready")
            time.sleep(5)
            before = [lateness(node) for node in nodes]
            good, bad = probe(nodes[0], options.seconds)
            print(f"{good} probes answered, {bad} refused")
            met = [judge(number + 1, before[number], lateness(node)) for number, node in enumerate(nodes)]
        finally:
            os.killpg(dev.pid, signal.SIGKILL)
            dev.wait()
            time.sleep(1)
    sys.exit(0 if all(met) and not bad else 1)


main()
