#!/usr/bin/env python3
"""Runs Redis clients and tools of several versions against three nodes: `cargo xtask compat clients`.

Each row is a client of one version, and the check of it in tests/clients, on one cluster for all rows. The row "all" is
tests/clients/run.sh, which CI runs: every client in the version that is fixed there, alone and in cluster mode while
primaries move and a node is killed, with TLS, and with users. It takes some minutes; the others take seconds each.

A row is met if its check passes. pip, go, npm and mvn fetch the versions into a temporary directory; redis-cli,
redis-benchmark and promtool are the machine's own, and a row without its program is an error. No root, only loopback.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from common import Client, chosen, conclude, die_with_parent, free_port, parsed, parser_of, ports_of, until

CLIENTS = pathlib.Path(__file__).resolve().parent.parent / "clients"
# Each client, its versions, and the programs that its check needs. The machine's own version has no number.
ROWS = {
    "redis-cli": ([None], "redis-cli"),
    "redis-benchmark": ([None], "redis-benchmark"),
    "promtool": ([None], "promtool curl"),
    "redis-py": (["5.3.1", "6.4.0", "8.1.0"], "python3"),
    "go-redis": (["9.7.0", "9.11.0", "9.17.0"], "go"),
    "node-redis": (["5.0.0", "5.5.6", "5.10.0"], "node npm"),
    "jedis": (["5.2.0", "6.2.0", "7.0.0"], "java mvn"),
    "redisson": (["3.45.1", "3.52.0"], "java mvn"),
    "all": ([None], "redis-cli redis-benchmark redis-server promtool curl go node npm java mvn"),
}
SETTLES_WITHIN = 60
CHECK_WITHIN = 900


class Failed(Exception):
    """A command of a row failed, or took too long. The text is the end of what it printed."""


def run(*command, folder=None, environment=None):
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=CHECK_WITHIN,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{words[0]} does not end within {CHECK_WITHIN} s") from None
    if done.returncode != 0:
        raise Failed(f"{words[0]} ends with {done.returncode}: {done.stdout.strip()[-800:]}")
    return done.stdout


class Nodes:
    """Three nodes of `leeward dev`."""

    def __init__(self, leeward, folder):
        self.leeward = leeward
        self.base = free_port(ports_of(3))
        self.ports = [str(self.base + node) for node in range(3)]
        self.admin = [str(self.base + 200 + node) for node in range(3)]
        command = [leeward, "dev", "--nodes", "3", "--data", f"{folder}/data", "--base-port", str(self.base)]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        took, last = until(SETTLES_WITHIN, self.are_in_sync)
        if took is None:
            self.end()
            sys.exit(f"the nodes are not in sync within {SETTLES_WITHIN} s: {last}")

    def are_in_sync(self):
        found = []
        for port in self.ports:
            client = Client(int(port))
            client.ask("SELECT", "default")
            found.append(client.ask("WAIT", "0", "0"))
            client.close()
        return found == [b":2"] * 3, found

    def end(self):
        self.process.terminate()
        self.process.wait()


def version_of(program):
    return re.search(r"\d+\.\d+\.\d+", run(program, "--version")).group()


def redis_cli(nodes, _version, _folder):
    run("bash", CLIENTS / "redis_cli.sh", "127.0.0.1", *nodes.ports)
    return version_of("redis-cli")


def redis_benchmark(nodes, _version, _folder):
    run("bash", CLIENTS / "redis_benchmark.sh", "127.0.0.1", nodes.ports[0])
    return version_of("redis-benchmark")


def promtool(nodes, _version, _folder):
    run("bash", CLIENTS / "metrics.sh", "127.0.0.1", *nodes.admin)
    return version_of("promtool")


def redis_py(nodes, version, folder):
    python = environment_with(f"redis=={version}", folder)
    run(python, CLIENTS / "check.py", "127.0.0.1", *nodes.ports)
    return version


def environment_with(package, folder):
    """A Python that has the package."""
    run(sys.executable, "-m", "venv", folder / "python")
    python = folder / "python/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
    return python


def go_redis(nodes, version, folder):
    work = shutil.copytree(CLIENTS / "go", folder / "go")
    run("go", "get", f"github.com/redis/go-redis/v9@v{version}", folder=work)
    run("go", "build", "-o", folder / "check", ".", folder=work)
    run(folder / "check", f"127.0.0.1:{nodes.ports[0]}")
    return version


def node_redis(nodes, version, folder):
    work = shutil.copytree(CLIENTS / "node", folder / "node")
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--save-exact", f"redis@{version}", folder=work)
    run("node", work / "check.mjs", "127.0.0.1", nodes.ports[1])
    return version


def jedis(nodes, version, folder):
    return java(nodes.ports[2], "redis.clients", "jedis", version, "Check.java", folder)


def redisson(nodes, version, folder):
    return java(nodes.ports[0], "org.redisson", "redisson", version, "Scripts.java", folder)


def java(port, group, artifact, version, program, folder):
    work = shutil.copytree(CLIENTS / "java", folder / "java")
    pom = (work / "pom.xml").read_text()
    # Alone: with other clients beside it, it would get their versions of what they share.
    of_others = re.compile(rf"<dependency>(?:(?!</dependency>|<artifactId>{artifact}<).)*</dependency>", re.DOTALL)
    fixed = re.compile(rf"(<groupId>{group}</groupId>\s*<artifactId>{artifact}</artifactId>\s*<version>)[^<]+")
    (work / "pom.xml").write_text(fixed.sub(rf"\g<1>{version}", of_others.sub("", pom)))
    run("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", folder=work)
    run("java", "-cp", f"{work}/target/dependency/*", work / program, "127.0.0.1", port)
    return version


def all_of_ci(nodes, _version, folder):
    environment = {"PYTHON": str(environment_with("redis", folder)), "LEEWARD": nodes.leeward, "TMPDIR": str(folder)}
    environment["PORT"] = str(free_port(ports_of(3) + [50]))
    run("bash", CLIENTS / "run.sh", environment=environment)
    return "as fixed"


CHECKS = {
    "redis-cli": redis_cli,
    "redis-benchmark": redis_benchmark,
    "promtool": promtool,
    "redis-py": redis_py,
    "go-redis": go_redis,
    "node-redis": node_redis,
    "jedis": jedis,
    "redisson": redisson,
    "all": all_of_ci,
}


def row(name, version, nodes, work):
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    try:
        shown, said = CHECKS[name](nodes, version, folder), ""
    except Failed as failed:
        shown, said = version, str(failed)
    print(f"| {name} | {shown or 'its own'} | {'MISSED' if said else 'met'} |", flush=True)
    if said:
        print(said, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return not said


def main():
    parser = parser_of("clients", __doc__)
    parser.add_argument("--only", default=",".join(ROWS), help="clients, with commas between: " + ", ".join(ROWS))
    parser.add_argument("--version", help="this version of the clients in place of those of the list")
    options = parsed(parser)
    names = chosen(options.only, ROWS)
    for name in names:
        missing = [program for program in ROWS[name][1].split() if shutil.which(program) is None]
        if missing:
            sys.exit(f"the row {name} needs {', '.join(missing)}")
    print(f"Linux {platform.release()}\n\n| client | version | |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="leeward-compat-") as work:
        nodes = Nodes(options.leeward, pathlib.Path(work))
        try:
            rows = [(name, version) for name in names for version in ROWS[name][0]]
            if options.version:
                rows = [(name, options.version) for name in names if ROWS[name][0] != [None]]
            met = [row(name, version, nodes, work) for name, version in rows]
        finally:
            nodes.end()
    conclude(met)


main()
