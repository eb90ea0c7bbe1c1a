#!/usr/bin/env python3
"""Kills, wipes and rolls back ensembles of ZooKeeper under running nodes: `cargo xtask compat zookeeper`.

Each row is a version of ZooKeeper: an ensemble of three servers, and three nodes whose tables have three copies. Clients
write and read all the time. The kinds of rounds take turns:

  kill              each ZooKeeper server is killed with -9 and restarted, the leader first, and then a node
  disk              one ZooKeeper server comes back without its data, another with an older copy of it
  wipe              all lose their data, while the nodes run
  rollback          all are put back to a copy that was made some rounds earlier, while the nodes run
  wipe, restart     the same two, and all nodes are killed and started again before anything is restored
  rollback, restart

Tables are made and dropped between the faults, also under a name that was dropped a moment before. After a wipe or a
rollback each node must say in /readyz what it refuses, and no table may be made; then `leeward restore-coordinator` must
bring everything back. After each round every acknowledged pair is read. A row is met if none was destroyed, or shown or
overwritten under another name; no number was given to two regions that are in use; no epoch and no term of a region was
given to two primaries; and every refusal was named.
Needs Java, and Maven for versions other than Debian's. Only loopback, only files below a temporary directory.
"""

import collections
import json
import pathlib
import platform
import random
import re
import shutil
import sys
import tempfile
import threading
import time

from common import chosen, conclude, is_error, parsed, parser_of, until
from ensemble import DEBIAN, DEBIAN_JARS, SERVERS, VERSIONS, Ensemble, Nodes, class_path

ROWS = [*VERSIONS, "debian"]
KINDS = ["kill", "wipe", "rollback", "disk", "wipe, restart", "rollback, restart"]
SETTLES_WITHIN = 120
MOST_TABLES = 5
MOST_KEYS = 400
REFUSES = "refuses what the coordinator says"
SERVING = re.compile(r"region=(\S+) term=(\S+) .*\bserving|\bserving\b.* region=(\S+) term=(\S+)")


class Table:
    """What a table must hold. `uid` is in each of its values, and of no other table, also none of the same name."""

    def __init__(self, name, uid):
        self.name, self.uid = name, uid
        # Key: the last acknowledged value, and those sent since whose outcome is not known.
        self.pairs = {}

    def may_be(self, key):
        acknowledged, unknown = self.pairs.get(key, (None, []))
        return {acknowledged, *unknown}


class Clients(threading.Thread):
    """One client that writes and reads all tables through all nodes, one operation at a time."""

    def __init__(self, cluster, seed):
        super().__init__(daemon=True)
        self.cluster, self.random = cluster, random.Random(seed)
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.tables, self.acknowledged, self.reads, self.serial = {}, 0, 0, 0
        self.connections, self.violations = {}, []

    def run(self):
        while not self.is_over.is_set():
            with self.lock:
                if self.tables:
                    self.operate()
            time.sleep(0.002)

    def operate(self):
        table = self.tables[self.random.choice(sorted(self.tables))]
        key = b"%c%05d" % (self.random.choice(b"az"), self.random.randrange(MOST_KEYS))
        node = self.random.choice(SERVERS)
        try:
            if node not in self.connections:
                self.connections[node] = self.cluster.nodes.connect(node)
            client = self.connections[node]
            client.ask("SELECT", table.name)
            self.get(client, table, key) if self.random.random() < 0.3 else self.put(client, table, key)
        except (OSError, ValueError):
            if node in self.connections:
                self.connections.pop(node).close()

    def put(self, client, table, key):
        self.serial += 1
        value = b"%d:%s:%d" % (table.uid, key, self.serial)
        acknowledged, unknown = table.pairs.get(key, (None, []))
        table.pairs[key] = (acknowledged, unknown + [value])
        if client.ask("SET", key, value) == b"+OK":
            table.pairs[key] = (value, [])
            self.acknowledged += 1

    def get(self, client, table, key):
        found = client.ask("GET", key)
        if not is_error(found):
            self.reads += 1
            self.compare(table, key, found)

    def compare(self, table, key, found):
        if found not in table.may_be(key):
            acknowledged, unknown = table.pairs.get(key, (None, []))
            what = f"{key} of {table.name} (of identity {table.uid}) is {found}, and not {acknowledged}"
            self.violations.append(f"{what} or one of {len(unknown)} that were not answered")

    def verify(self):
        """Reads every pair of every table, and looks for pairs that nobody wrote there."""
        for table in self.tables.values():
            took, last = until(SETTLES_WITHIN, lambda: self.read_all(table))
            if took is None:
                self.violations.append(f"table {table.name} cannot be read: {last}")
            is_done, said = self.cluster.nodes.run("scan", "--table", table.name)
            if not is_done:
                self.violations.append(f"table {table.name} cannot be scanned: {said}")
                continue
            for line in said.splitlines():
                key, _, value = line.partition("\t")
                self.compare(table, key.encode(), value.encode())

    def read_all(self, table):
        client = self.cluster.nodes.connect(self.random.choice(SERVERS))
        client.ask("SELECT", table.name)
        keys = sorted(table.pairs)
        for key in keys:
            client.send("GET", key)
        found = [client.reply() for _ in keys]
        client.close()
        errors = [reply for reply in found if is_error(reply)]
        if not errors:
            for key, reply in zip(keys, found):
                self.compare(table, key, reply)
        return not errors, errors[:1]


class Watcher(threading.Thread):
    """Asks the nodes for configurations and refusals, many times a second, and finds what was given twice."""

    def __init__(self, nodes):
        super().__init__(daemon=True)
        self.nodes, self.is_over = nodes, threading.Event()
        self.tables, self.terms, self.epochs, self.offsets = {}, {}, {}, {}
        self.violations, self.refusals, self.given = [], collections.Counter(), 0

    def run(self):
        while not self.is_over.is_set():
            for node in SERVERS:
                status, text = self.nodes.get(node, "/status")
                if status == 200:
                    self.note_map(json.loads(text)["map"])
                status, text = self.nodes.get(node, "/readyz")
                if status == 503:
                    self.refusals[re.sub(r"[0-9a-f]{16}|\d+", "N", text.strip())[:100]] += 1
            time.sleep(0.05)

    def note_map(self, found):
        for region in found["regions"]:
            number = region["region"]
            self.note(self.tables, number, region["table"], f"region {number} is of table")
            if region["primary"] is not None:
                given = (region["term"], region["primary"])
                epoch = f"region {number} in epoch {region['epoch']} has term and primary"
                self.note(self.epochs, (number, region["epoch"]), given, epoch)
                self.note(self.terms, (number, region["term"]), region["primary"], f"term {given[0]} of region {number} is of server")

    def note(self, known, key, value, what):
        self.given += known is self.terms and key not in known
        if known.setdefault(key, value) != value:
            self.violations.append(f"{what} {value}, and {known[key]} before")
            known[key] = value

    def forget_all_but(self, numbers):
        """Nothing is left of the other regions: their numbers, and so their terms, may be given again."""
        for known in (self.tables, self.epochs, self.terms):
            for key in list(known):
                if (key[0] if isinstance(key, tuple) else key) not in numbers:
                    del known[key]

    def read_logs(self):
        """Each node says in its log which terms it serves."""
        for node, process in self.nodes.processes.items():
            with open(process.log, "rb") as log:
                log.seek(self.offsets.get(node, 0))
                text = log.read()
                self.offsets[node] = log.tell()
            for line in text.decode(errors="replace").splitlines():
                if "panicked" in line or "assertion" in line:
                    self.violations.append(f"node {node}: {line}")
                if found := SERVING.search(line):
                    region, term = [part for part in found.groups() if part]
                    self.note(self.terms, (int(region), int(term)), node, f"term {term} of region {region} is served by")


class Cluster:
    def __init__(self, version, options, work):
        folder = pathlib.Path(work) / f"row-{version}"
        folder.mkdir()
        self.random = random.Random(options.seed)
        self.ensemble = Ensemble(class_path(version, work), folder)
        self.nodes = Nodes(options.leeward, self.ensemble.address(), folder)
        self.clients, self.watcher = Clients(self, options.seed), Watcher(self.nodes)
        self.copies, self.dropped, self.uid, self.failures = [], set(), 0, []
        # How often the tree was put back to a table whose name another has now.
        self.refused_for, self.renamed = [], 0

    def start(self):
        self.ensemble.start()
        self.nodes.start()
        self.watcher.start()
        made = until(SETTLES_WITHIN, lambda: self.create("default"))
        if made[0] is None:
            raise RuntimeError(f"no table can be made: {made[1]}")
        self.clients.start()

    def stop(self):
        self.clients.is_over.set()
        self.watcher.is_over.set()
        self.nodes.kill()
        self.ensemble.kill()

    def fail(self, what):
        self.failures.append(what)

    def create(self, name, nodes=SERVERS):
        is_done, said = self.nodes.run("table", "create", name, "--replicas", "3", "--split-at", "m", nodes=nodes)
        if is_done:
            self.uid += 1
            with self.clients.lock:
                self.clients.tables[name] = Table(name, self.uid)
            self.dropped.discard(name)
        return is_done, said

    def drop(self, name):
        with self.clients.lock:
            self.clients.tables.pop(name, None)
        self.dropped.add(name)
        took, said = until(SETTLES_WITHIN, lambda: self.nodes.run("table", "drop", name))
        if took is None:
            self.fail(f"table {name} cannot be dropped: {said}")

    def change_tables(self):
        """Makes a table, and drops one where there are many; its name is used again now and then."""
        self.must_create(f"t{self.uid + 1}")
        names = sorted(set(self.clients.tables) - {"default"})
        if len(names) >= MOST_TABLES - 2:
            name = self.random.choice(names)
            self.drop(name)
            if self.random.random() < 0.5:
                self.must_create(name)

    def must_create(self, name):
        took, said = until(SETTLES_WITHIN, lambda: self.create(name))
        if took is None:
            self.fail(f"table {name} cannot be made: {said}")

    def restart_node(self):
        node = self.random.choice(SERVERS)
        self.nodes.kill([node])
        time.sleep(self.random.choice([0.5, 4]))
        self.nodes.start([node])

    def is_ready(self):
        pages = [self.nodes.get(node, "/readyz") for node in SERVERS]
        return all(status == 200 for status, _ in pages), pages

    def must_be_ready(self, when):
        took, pages = until(SETTLES_WITHIN, self.is_ready)
        if took is None:
            self.fail(f"not ready {when}: {pages}")

    def round(self, kind):
        self.failures = []
        self.must_be_ready("at the beginning")
        if kind == "kill":
            self.kills()
        elif kind == "disk":
            self.disks()
        else:
            self.forget(is_wiped=kind.startswith("wipe"), is_restarted="restart" in kind)
        self.must_be_ready("at the end")
        self.watcher.read_logs()
        with self.clients.lock:
            self.clients.verify()
            violations = self.clients.violations + self.watcher.violations
            self.clients.violations, self.watcher.violations = [], []
        self.copies = [*self.copies[-2:], self.save()]
        return self.failures + violations

    def tables(self):
        with self.clients.lock:
            return {name: table.uid for name, table in self.clients.tables.items()}

    def save(self):
        """A copy of the ensemble, and which table each name belonged to."""
        return self.ensemble.save(), self.tables()

    def kills(self):
        leader = self.ensemble.leader()
        for server in [leader] + [server for server in SERVERS if server != leader]:
            self.ensemble.kill([server])
            if server == leader:
                self.change_tables()
            self.ensemble.start([server])
        self.restart_node()

    def disks(self):
        first, second = self.random.sample(SERVERS, 2)
        self.ensemble.replace(None, [first])
        self.change_tables()
        # A copy of before a wipe or a rollback would be of another ensemble.
        self.ensemble.replace(self.copies[-1][0], [second])
        self.restart_node()

    def forget(self, is_wiped, is_restarted):
        copy, tables = (None, {}) if is_wiped else self.random.choice(self.copies)
        self.change_tables()
        self.restart_node()
        self.must_be_ready("before the ensemble forgets")
        names = self.tables()
        self.renamed += any(name in names and names[name] != uid for name, uid in tables.items())
        self.ensemble.replace(copy)
        if is_restarted:
            self.nodes.kill()
            self.nodes.start()
        before = self.clients.acknowledged
        begun = time.monotonic()
        for node in SERVERS:
            if not self.refuses(node):
                return
        self.refused_for.append(time.monotonic() - begun)
        is_done, said = self.create("none", nodes=[self.random.choice(SERVERS)])
        if is_done or not any(part in said for part in ("tree is refused", "/readyz of its admin port says why")):
            self.fail(f"a table is made in a tree that forgot, or it is not said why not: {said}")
        writes = lambda: (self.clients.acknowledged > before, None)
        if not is_restarted and until(20, writes)[0] is None:
            self.fail("no write was taken while the coordinator was refused")
        is_done, said = self.nodes.run("restore-coordinator")
        if not is_done:
            self.fail(f"nothing is restored: {said}")
        self.must_be_ready("after the restoration")
        self.compare_tables()
        if is_restarted:
            # No node knows any more which tables were dropped since the copy was made, and none has a copy of them.
            self.watcher.read_logs()
            found = json.loads(self.nodes.get(1, "/status")[1])["map"]["regions"]
            self.watcher.forget_all_but({region["region"] for region in found})

    def refuses(self, node):
        def attempt():
            status, text = self.nodes.get(node, "/readyz")
            return status == 503 and REFUSES in text and "leeward restore-coordinator" in text, (status, text)

        took, last = until(SETTLES_WITHIN, attempt)
        if took is None:
            self.fail(f"node {node} does not name what it refuses: {last}")
        return took is not None

    def compare_tables(self):
        """All tables are there again; those that were dropped since may be there as well, and are dropped again."""
        is_done, said = self.nodes.run("table", "list")
        found = {line.split()[0] for line in said.splitlines()[1:]} if is_done else set()
        wanted = set(self.clients.tables)
        if wanted - found:
            self.fail(f"no longer there: {sorted(wanted - found)}: {said}")
        if found - wanted - self.dropped:
            self.fail(f"nobody made {sorted(found - wanted - self.dropped)}")
        for name in sorted(found & self.dropped):
            self.drop(name)


def row(version, options, work):
    cluster = Cluster(version, options, work)
    failures, kinds = [], collections.Counter()
    begun = time.monotonic()
    try:
        cluster.start()
        found = cluster.ensemble.version()
        cluster.copies = [cluster.save()]
        for number in range(options.rounds):
            kind = KINDS[number % len(KINDS)]
            kinds[kind] += 1
            wrong = cluster.round(kind)
            failures += [f"round {number + 1} ({kind}): {failure}" for failure in wrong]
            if options.verbose:
                clients = cluster.clients
                print(f"  {time.monotonic() - begun:6.0f} s  round {number + 1} {kind}: {clients.acknowledged} writes,", end=" ")
                print(f"{len(clients.tables)} tables {wrong or ''}", flush=True)
            if wrong and options.stop:
                break
    finally:
        cluster.stop()
    clients, watcher = cluster.clients, cluster.watcher
    row = [f"{version} ({found})", "met" if not failures else "MISSED", sum(kinds.values()), clients.acknowledged, clients.reads]
    row += [cluster.uid, watcher.given, f"{max(cluster.refused_for, default=0):.1f} s", cluster.renamed]
    print("| " + " | ".join(str(part) for part in row) + " |", flush=True)
    for failure in failures:
        print(f"|   | {failure} | | | | | | | |", flush=True)
    if options.verbose:
        for refusal, count in watcher.refusals.most_common():
            print(f"  {count:6} x {refusal}")
    if failures and options.keep:
        shutil.copytree(pathlib.Path(work) / f"row-{version}", pathlib.Path(options.keep) / version, dirs_exist_ok=True)
    return not failures


def check_programs(names):
    if shutil.which("java") is None:
        sys.exit("ZooKeeper needs java: apt install default-jre-headless")
    if set(names) & set(VERSIONS) and shutil.which("mvn") is None:
        sys.exit("other versions than Debian's are fetched by mvn: apt install maven, or --only debian")
    missing = [jar for jar in DEBIAN if not (DEBIAN_JARS / f"{jar}.jar").exists()]
    if "debian" in names and missing:
        packages = "libzookeeper-java libslf4j-java liblog4j1.2-java libnetty-java"
        sys.exit(f"the row debian needs {missing[0]}.jar: apt install {packages}, or --only {','.join(VERSIONS)}")


def main():
    parser = parser_of("zookeeper", __doc__)
    parser.add_argument("--only", default=",".join(VERSIONS), help="rows, with commas between: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=len(KINDS), help="rounds a version; the six kinds take turns")
    parser.add_argument("--seed", type=int, default=1, help="of what is chosen at random")
    parser.add_argument("--stop", action="store_true", help="end a row at its first failure")
    parser.add_argument("--keep", help="where to copy logs and data of a row that is missed")
    parser.add_argument("--verbose", action="store_true", help="print each round, and what /readyz said")
    options = parsed(parser)
    names = chosen(options.only, ROWS)
    check_programs(names)
    print(f"Linux {platform.release()}, {options.rounds} rounds each, seed {options.seed}\n")
    print("| ZooKeeper | | rounds | acknowledged | read meanwhile | tables | terms | until all nodes refused | put back to a name used again |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="leeward-compat-") as work:
        met = [row(name, options, work) for name in names]
    conclude(met)


main()
