"""An ensemble of three ZooKeeper servers of one version, and three nodes of Leeward that know nothing but the ensemble.

All of it is on loopback and below a temporary directory. A process dies with `kill -9`, and none outlives the script.
"""

import functools
import http.client
import os
import pathlib
import shutil
import signal
import socket
import subprocess

from common import Client, die_with_parent, free_port, ports_of, until

# A version, and the version of SLF4J that it logs to.
VERSIONS = {"3.6.4": "1.7.36", "3.7.2": "1.7.36", "3.8.6": "2.0.13", "3.9.5": "2.0.13"}
# What Debian's package brings.
DEBIAN_JARS = pathlib.Path("/usr/share/java")
DEBIAN = ["zookeeper", "zookeeper-jute", "netty-all", "netty-codec", "netty-resolver", "slf4j-log4j12", "log4j-1.2"]
# Sessions end at a multiple of it. A follower that is behind serves for syncLimit ticks: less than a session.
TICK_MS = 200
SESSION_MS = 2_000
STARTS_WITHIN = 60
SERVERS = (1, 2, 3)

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>compat</groupId><artifactId>zookeeper</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions>"
    "<exclusion><groupId>ch.qos.logback</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


def class_path(version, work):
    """The jars of a version: Debian's, or those that Maven fetches."""
    if version == "debian":
        return [str(DEBIAN_JARS / f"{jar}.jar") for jar in DEBIAN]
    folder = pathlib.Path(work) / f"jars-{version}"
    folder.mkdir()
    parts = [
        ("org.apache.zookeeper", "zookeeper", version),
        ("org.slf4j", "slf4j-simple", VERSIONS[version]),
        ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
        ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ]
    (folder / "pom.xml").write_text(POM.format("".join(DEPENDENCY.format(*part) for part in parts)))
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    subprocess.run(command, cwd=folder, check=True)
    return [f"{folder}/*"]


class Process:
    """A process with a log that grows over its starts."""

    def __init__(self, command, folder):
        self.command, self.folder, self.running, self.starts = command, folder, None, 0
        self.log = folder / "log"

    def start(self):
        self.starts += 1
        with open(self.log, "ab") as log:
            log.write(b"--- start %d\n" % self.starts)
            log.flush()
            self.running = subprocess.Popen(
                self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1"},
                preexec_fn=functools.partial(die_with_parent, signal.SIGKILL),
            )

    def kill(self):
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self.running = None


class Ensemble:
    def __init__(self, jars, folder):
        self.folder, self.saved = folder, 0
        self.ports = {server: free_port((0, 1, 2)) for server in SERVERS}
        self.processes = {}
        peers = "".join(f"server.{server}=127.0.0.1:{port + 1}:{port + 2}\n" for server, port in self.ports.items())
        for server, port in self.ports.items():
            home = folder / f"zookeeper-{server}"
            (home / "data").mkdir(parents=True)
            (home / "data/myid").write_text(str(server))
            (home / "config").write_text(
                f"tickTime={TICK_MS}\ninitLimit=50\nsyncLimit=5\nminSessionTimeout={TICK_MS}\nmaxSessionTimeout=60000\n"
                f"dataDir={home}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
                f"admin.enableServer=false\n4lw.commands.whitelist=*\n{peers}"
            )
            (home / "log4j.properties").write_text(
                "log4j.rootLogger=WARN, OUT\nlog4j.appender.OUT=org.apache.log4j.ConsoleAppender\n"
                "log4j.appender.OUT.layout=org.apache.log4j.PatternLayout\n"
                "log4j.appender.OUT.layout.ConversionPattern=%d %p %c{1} %m%n\n"
            )
            command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            command += ["-Dlog4j.configuration=file:log4j.properties", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
            command += ["-cp", ":".join(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", "config"]
            self.processes[server] = Process(command, home)

    def address(self):
        return "zk://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values()) + "/stores/compat"

    def says(self, server, word):
        try:
            with socket.create_connection(("127.0.0.1", self.ports[server]), timeout=2) as stream:
                stream.sendall(word.encode())
                return stream.makefile("rb").read().decode(errors="replace")
        except OSError:
            return ""

    def start(self, servers=SERVERS):
        for server in servers:
            self.processes[server].start()
        for server in servers:
            took, _ = until(STARTS_WITHIN, lambda: ("Mode:" in self.says(server, "srvr"), None))
            if took is None:
                log = self.processes[server].log.read_text(errors="replace")
                raise RuntimeError(f"ZooKeeper {server} does not start: {log[-2000:]}")

    def version(self):
        return self.says(1, "srvr").partition("version: ")[2].partition("-")[0]

    def leader(self):
        leads = lambda: next((server for server in SERVERS if "Mode: leader" in self.says(server, "srvr")), None)
        return until(STARTS_WITHIN, lambda: (leads() is not None, leads()))[1]

    def kill(self, servers=SERVERS):
        for server in servers:
            self.processes[server].kill()

    def data(self, server):
        return self.folder / f"zookeeper-{server}" / "data" / "version-2"

    def save(self):
        """A copy of the leader's data, made while it runs, as a backup of an operator is."""
        self.saved += 1
        copy = self.folder / f"copy-{self.saved}"
        shutil.copytree(self.data(self.leader()), copy)
        return copy

    def replace(self, copy, servers=SERVERS):
        """Ends servers, puts their data back to a copy, or empties it, and starts them again."""
        self.kill(servers)
        for server in servers:
            shutil.rmtree(self.data(server))
            if copy is not None:
                shutil.copytree(copy, self.data(server))
        self.start(servers)


class Nodes:
    def __init__(self, leeward, coordinator, folder):
        self.leeward = leeward
        self.base = free_port(ports_of(3))
        self.processes = {}
        for node in SERVERS:
            home = folder / f"node-{node}"
            home.mkdir()
            command = [leeward, "serve", "--coordinator", coordinator]
            for setting in (
                f"server_id={node}",
                f"data_dir={home}/data",
                f"session_timeout_ms={SESSION_MS}",
                f"resp_listen=127.0.0.1:{self.resp(node)}",
                f"native_listen=127.0.0.1:{self.native(node)}",
                f"admin_listen=127.0.0.1:{self.admin(node)}",
                f"fabric_listen=127.0.0.1:{self.base + 299 + node}",
            ):
                command += ["--set", setting]
            self.processes[node] = Process(command, home)

    def resp(self, node):
        return self.base - 1 + node

    def native(self, node):
        return self.base + 99 + node

    def admin(self, node):
        return self.base + 199 + node

    def start(self, nodes=SERVERS):
        for node in nodes:
            self.processes[node].start()

    def kill(self, nodes=SERVERS):
        for node in nodes:
            self.processes[node].kill()

    def connect(self, node):
        return Client(self.resp(node), timeout=5)

    def get(self, node, path):
        """Status and text of a page of a node's port for operators; none if it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin(node), timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None, ""
        finally:
            connection.close()

    def run(self, *words, nodes=SERVERS, timeout=90):
        """Runs a command of `leeward` against nodes: whether it succeeded, and what it said."""
        connect = ",".join(f"127.0.0.1:{self.native(node)}" for node in nodes)
        command = [self.leeward, *words, "--connect", connect]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return False, f"no answer within {timeout} s"
        return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr.strip()
