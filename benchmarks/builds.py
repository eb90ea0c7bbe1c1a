#!/usr/bin/env python3
"""Two builds of Leeward, in turn: throughput, CPU time of the servers, latency, and ratios of the second to the first.

    python3 benchmarks/builds.py BEFORE/leeward AFTER/leeward --rounds 5

Each round runs both builds, in an order that alternates: YCSB Load, A and C on three nodes (`leeward bench ycsb`), and
SET and GET by `redis-benchmark` (which must be installed), 50 connections, 16 requests deep, on three nodes. `--regions`
gives YCSB's cluster so many regions; `--rate` offers each build as many operations a second. A figure is the median of
its rounds; a ratio is the median of the rounds' ratios, with the lowest and the highest. Latency is the 99.9th
percentile of YCSB, the 99th of `redis-benchmark`. Each build runs its own client, so YCSB compares clients too. Use
release builds, and nothing beside them.
"""

import argparse
import contextlib
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "compat"))

from common import Client, children_of, free_port, ports_of, start_dev, until  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
READY_WITHIN = 60


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


@contextlib.contextmanager
def three_nodes(build):
    with tempfile.TemporaryDirectory(prefix="leeward-builds-") as work:
        port = free_port(ports_of(3))
        dev = start_dev(build, work, port, "--nodes", "3")
        try:
            if until(READY_WITHIN, lambda: (Client(port).ask("SET", "ready", "yes") == b"+OK", None))[0] is None:
                sys.exit(f"the nodes are not ready within {READY_WITHIN} s")
            yield dev.pid, port
        finally:
            dev.terminate()
            dev.wait()


def ycsb(build, options):
    """Figures by phase: (operations a second, CPU seconds of the servers for a million, latency in ms)."""
    with tempfile.TemporaryDirectory(prefix="leeward-builds-") as work:
        result = f"{work}/result.json"
        command = [build, "bench", "ycsb", "--dev", "3", "--data", f"{work}/data", "--workload", "load,a,c"]
        command += ["--records", str(options.records), "--ops", str(options.ops), "--json", result]
        command += ["--regions", str(options.regions)] if options.regions else []
        command += ["--target-rate", str(options.rate)] if options.rate else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        phases = json.loads(pathlib.Path(result).read_text())["phases"]
    figures = {}
    for phase in phases:
        if phase["errors"]:
            sys.exit(f"{build}: {phase['workload']}: {phase['first_error']}")
        name = f"YCSB {phase['workload'].capitalize()}"
        latency = phase["latency_us_of_all"]["p999"] / 1000
        figures[name] = phase["ops_per_second"], phase["server_cpu_seconds_per_million_ops"], latency
    return figures


def redis(build, options):
    """The same for SET and GET."""
    figures = {}
    with three_nodes(build) as (pid, port):
        for test in ("set", "get"):
            nodes = children_of(pid)
            before = cpu_seconds(nodes)
            command = ["redis-benchmark", "-p", str(port), "-t", test, "-n", str(options.requests), "-r", "100000"]
            command += ["-d", "100", "-c", "50", "-P", "16", "--csv"]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            row = next((row for row in csv.DictReader(printed.splitlines()) if row["test"] == test.upper()), None)
            if row is None:
                sys.exit(f"redis-benchmark printed no rate:\n{printed}")
            cpu = (cpu_seconds(nodes) - before) * 1e6 / options.requests
            figures[test.upper()] = float(row["rps"]), cpu, float(row["p99_latency_ms"])
    return figures


def main():
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("benchmarks/builds.py", description=__doc__, formatter_class=shown)
    parser.add_argument("before", help="the program of the first build")
    parser.add_argument("after", help="the program of the second build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=500_000, help="pairs that YCSB loads")
    parser.add_argument("--ops", type=int, default=500_000, help="operations of YCSB A, and of C")
    parser.add_argument("--requests", type=int, default=1_000_000, help="SETs, and GETs; 0: none")
    parser.add_argument("--regions", type=int, help="regions of YCSB's cluster")
    parser.add_argument("--rate", type=int, help="operations a second that YCSB offers; without it as many as it can")
    options = parser.parse_args()
    builds = [os.path.abspath(options.before), os.path.abspath(options.after)]
    rounds = []
    for number in range(options.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        figures = [None, None]
        for which in order:
            of_redis = redis(builds[which], options) if options.requests else {}
            figures[which] = {**of_redis, **ycsb(builds[which], options)}
        rounds.append(figures)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(f"before: {builds[0]}\nafter:  {builds[1]}\n{options.rounds} rounds\n")
    columns = [("ops/s", ",.0f"), ("CPU s/Mop", ".2f"), ("latency, ms", ".2f")]
    print("| |" + "".join(f" {column} before | after | ratio (lowest to highest) |" for column, _ in columns))
    print("|---|" + "---|---|---|" * len(columns))
    for name in rounds[0][0]:
        cells = [name]
        for at, (_, form) in enumerate(columns):
            pairs = [(before[name][at], after[name][at]) for before, after in rounds]
            ratios = sorted(after / before for before, after in pairs)
            medians = [format(statistics.median(side), form) for side in zip(*pairs)]
            cells += medians + [f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
