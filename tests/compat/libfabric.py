#!/usr/bin/env python3
"""Runs nodes with one version of libfabric against nodes with another: `cargo xtask compat libfabric`.

Each row is a provider and a pair of versions: a node of each, on this host, with a table of two copies. A node with a
version that is not used must not start, and say what to install. Versions that do not mix must name each other in the
log, and share nothing. With all others the copies must come in sync, and every acknowledged pair must be read.

The version "installed" is the machine's own (Debian: apt install libfabric1). The others are in packages of the Python
index: Intel's MPI brings libfabric and its providers. pip fetches them, some 60 MB each; nothing is installed.
No root, only loopback, only files below a temporary directory and, with the provider shm, in /dev/shm.
"""

import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import zipfile

from common import Client, chosen, conclude, die_with_parent, free_port, parsed, parser_of, ports_of, until

# A version, and the version of the package impi-rt that has it.
PACKAGES = {
    "1.13.2": "2021.6.0",
    "1.18.0": "2021.10.0",
    "1.18.1": "2021.11.0",
    "1.21.0": "2021.14.0",
    "2.1.0": "2021.16.0",
}
ROWS = ["installed", *PACKAGES]
PROVIDERS = ["tcp", "shm"]
WRITES, VALUE = 200, "v" * 4_000
SETTLES_WITHIN = 30
# fi_tostr of this type is the version.
FI_TYPE_VERSION = 18
ASK_VERSION = (
    "import ctypes; f = ctypes.CDLL('libfabric.so.1').fi_tostr; f.restype = ctypes.c_char_p;"
    f"print(f(b'', {FI_TYPE_VERSION}).decode())"
)
APART = re.compile(r"its fabric is .*?(?=: |$)")
REFUSED = re.compile(r"(libfabric of this machine has version|provider \S+ of libfabric) .*")


class Library:
    """A version, and the environment in which a process opens it."""

    def __init__(self, name, work):
        self.environment = {**os.environ, "NO_COLOR": "1"}
        if name in PACKAGES:
            folder = fetch(PACKAGES[name], pathlib.Path(work) / f"libfabric-{name}")
            self.environment |= {"LD_LIBRARY_PATH": str(folder), "FI_PROVIDER_PATH": str(folder / "prov")}
        asked = subprocess.run([sys.executable, "-c", ASK_VERSION], env=self.environment, capture_output=True, text=True)
        if asked.returncode != 0:
            sys.exit(f"the row {name} needs a libfabric: {asked.stderr.strip().splitlines()[-1]}")
        # Release candidates count as their release.
        self.version = re.match(r"[\d.]+", asked.stdout.strip()).group()
        if name in PACKAGES and self.version != name:
            sys.exit(f"impi-rt {PACKAGES[name]} has libfabric {self.version}, not {name}")
        self.number = tuple(int(part) for part in self.version.split("."))

    def is_refused(self, provider):
        """Why a node with it must not start, as a part of what the node says."""
        if self.number < (1, 17):
            return "install 1.17 or later"
        if self.number == (1, 18, 0) and provider == "tcp":
            return "install 1.18.1 or later"
        return None


def fetch(package, folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--dest", folder, f"impi-rt=={package}"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            base = pathlib.Path(name).name
            if base == "libfabric.so.1" or base.endswith("-fi.so"):
                target = folder / ("prov" if base.endswith("-fi.so") else "") / base
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(files.read(name))
    wheel.unlink()
    return folder


def is_apart(provider, one, other):
    """Whether the two versions must refuse each other."""
    if provider == "shm":
        return one.number != other.number
    return (one.number < (1, 18)) != (other.number < (1, 18))


class Pair:
    """A node under `leeward dev`, which has the coordinator, and a node beside it."""

    def __init__(self, leeward, provider, libraries, folder):
        self.leeward, self.folder = leeward, folder
        self.base = free_port(ports_of(2))
        self.logs, self.processes, self.libraries = [folder / "first", folder / "second"], [], libraries
        fabric = f"libfabric:{provider}"
        dev = [leeward, "dev", "--nodes", "1", "--fabric", fabric, "--data", f"{folder}/data"]
        dev += ["--base-port", str(self.base), "--set", "memory_budget=134217728"]
        serve = [leeward, "serve", "--coordinator", f"127.0.0.1:{self.base + 400}"]
        settings = ["server_id=2", f"data_dir={folder}/data-2", f"fabric={fabric}", "memory_budget=134217728"]
        ports = {"resp": 1, "native": 101, "admin": 201, "fabric": 301}
        settings += [f"{name}_listen=127.0.0.1:{self.base + offset}" for name, offset in ports.items()]
        for setting in settings:
            serve += ["--set", setting]
        self.commands = [dev, serve]

    def start(self, node):
        """Starts a node; whether it answers, and what it said."""
        with open(self.logs[node], "wb") as log:
            process = subprocess.Popen(
                self.commands[node],
                env=self.libraries[node].environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.processes.append(process)

        def answers():
            if process.poll() is not None:
                return True, False
            return Client(self.base + node, timeout=5).ask("PING") == b"+PONG", True

        took, is_up = until(SETTLES_WITHIN, answers)
        return took is not None and is_up is True

    def said(self):
        logs = [log for log in [*self.logs, *self.folder.glob("data/node-*/log")] if log.exists()]
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def end(self):
        """Ends the nodes; `leeward dev` ends those that it started."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def create(self):
        command = [self.leeward, "table", "create", "compat", "--replicas", "2"]
        done = subprocess.run([*command, "--connect", f"127.0.0.1:{self.base + 100}"], capture_output=True, text=True)
        return done.returncode == 0, done.stderr

    def has_backup(self):
        client = Client(self.base)
        client.ask("SELECT", "compat")
        found = client.ask("WAIT", "0", "0")
        return found == b":1", found

    def write_and_read(self):
        client = Client(self.base)
        client.ask("SELECT", "compat")
        for number in range(WRITES):
            client.send("SET", f"k{number:04}", f"{number}{VALUE}")
        taken = [client.reply() for _ in range(WRITES)].count(b"+OK")
        for number in range(WRITES):
            client.send("GET", f"k{number:04}")
        read = sum(client.reply() == f"{number}{VALUE}".encode() for number in range(WRITES))
        return taken == read == WRITES and self.has_backup()[0]


def outcome(pair, provider, libraries):
    """What the pair did, and whether it is what it must do."""
    for node, library in enumerate(libraries):
        wanted = library.is_refused(provider)
        is_up = pair.start(node)
        if not is_up or wanted:
            found = REFUSED.search(pair.said())
            said = found.group() if found else pair.said().strip()[-300:]
            return f"{library.version} does not start: {said}" if not is_up else f"{library.version} starts", (
                not is_up and wanted is not None and found is not None and wanted in said
            )
    took, why = until(SETTLES_WITHIN, pair.create)
    if took is None:
        return f"no table can be made: {why}", False
    if is_apart(provider, *libraries):
        took, found = until(SETTLES_WITHIN, lambda: ((found := APART.search(pair.said())) is not None, found))
        if took is None:
            return "neither refuses the other", False
        is_named = provider == "tcp" or all(library.version in found.group() for library in libraries)
        return f"refused: {found.group()}", is_named and not pair.has_backup()[0]
    took, found = until(SETTLES_WITHIN, pair.has_backup)
    if took is None:
        return f"no copy comes in sync ({found}): {APART.findall(pair.said())[:1]}", False
    return f"in sync after {took:.1f} s", pair.write_and_read()


def row(leeward, provider, libraries, work):
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    pair = Pair(leeward, provider, libraries, folder)
    try:
        said, is_met = outcome(pair, provider, libraries)
    finally:
        pair.end()
    versions = " | ".join(library.version for library in libraries)
    print(f"| {provider} | {versions} | {'met' if is_met else 'MISSED'} | {said.replace('|', '/')} |", flush=True)
    return is_met


def main():
    parser = parser_of("libfabric", __doc__)
    parser.add_argument("--only", default=",".join(ROWS), help="versions, with commas between: " + ", ".join(ROWS))
    parser.add_argument("--provider", default=",".join(PROVIDERS), help="with commas between: " + ", ".join(PROVIDERS))
    options = parsed(parser)
    names = chosen(options.only, ROWS, "version")
    with tempfile.TemporaryDirectory(prefix="leeward-compat-") as work:
        libraries = [Library(name, work) for name in names]
        print(f"Linux {platform.release()}\n\n| provider | one node | the other | | what happened |\n|---|---|---|---|---|")
        pairs = [(one, other) for at, one in enumerate(libraries) for other in libraries[at:]]
        met = [row(options.leeward, provider, pair, work) for provider in options.provider.split(",") for pair in pairs]
    conclude(met)


main()
