#!/usr/bin/env python3
"""Fills a store on one file system after another, kills it, makes room, and goes on: `cargo xtask compat filesystems`.

Each row is a file system in a file of its own, mounted below a temporary directory. A round:
 1. values of 4 kB are written until the file system refuses, with a ballast file that takes 64 MiB of it;
 2. a key is deleted, which must be taken;
 3. kill -9, and a start on the full file system;
 4. the ballast is removed, and the time until a write is taken is measured;
 5. each acknowledged pair is read again, and everything is deleted.
Needs root, loop devices, and the programs of the file systems. Only loopback, only files below the directory.
"""

import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from common import Client, chosen, conclude, free_port, is_error, parsed, parser_of, ports_of, until

VALUE_BYTES = 4_000
BALLAST_BYTES = 64 << 20
STARTS_WITHIN = 60
# What is wanted of a row: the first write after there is room, and what may be in use after everything was deleted.
WRITES_WITHIN = 5.0

# name: programs that it needs, the command that makes the file system of the image, options of the mount
ROWS = {
    "tmpfs": ("", "", ""),
    "ext4": ("mkfs.ext4", "mkfs.ext4 -q -F -m 0", ""),
    "ext4-data-journal": ("mkfs.ext4", "mkfs.ext4 -q -F -m 0", "data=journal"),
    "ext4-1k-blocks": ("mkfs.ext4", "mkfs.ext4 -q -F -m 0 -b 1024", ""),
    "ext4-4k-sectors": ("mkfs.ext4 losetup", "mkfs.ext4 -q -F -m 0", ""),
    "ext3": ("mkfs.ext3", "mkfs.ext3 -q -F -m 0", ""),
    "xfs": ("mkfs.xfs", "mkfs.xfs -q -f", ""),
    "btrfs": ("mkfs.btrfs", "mkfs.btrfs -q -f", ""),
    "btrfs-nodatacow": ("mkfs.btrfs", "mkfs.btrfs -q -f", "nodatacow"),
    "btrfs-zstd": ("mkfs.btrfs", "mkfs.btrfs -q -f", "compress=zstd"),
    "overlayfs": ("mkfs.ext4", "mkfs.ext4 -q -F -m 0", ""),
    "bindfs": ("mkfs.ext4 bindfs", "mkfs.ext4 -q -F -m 0", ""),
}


def run(command):
    return subprocess.run(command, shell=isinstance(command, str), check=True, capture_output=True, text=True).stdout


class Mounted:
    """One file system of a row; unmounted when it is left."""

    def __init__(self, name, work, mib):
        self.name, self.work, self.mib = name, pathlib.Path(work) / name, mib
        self.undo = []

    def __enter__(self):
        _, make, options = ROWS[self.name]
        self.work.mkdir()
        base = self.work / "base"
        base.mkdir()
        try:
            if self.name == "tmpfs":
                self.mount(f"mount -t tmpfs -o size={self.mib}M tmpfs {base}", base)
            else:
                self.on_image(make, options, base)
            self.folder = self.layer(base)
        except BaseException:
            self.__exit__()
            raise
        return self

    def on_image(self, make, options, base):
        image = self.work / "image"
        with open(image, "wb") as file:
            file.truncate(self.mib << 20)
        target = image
        if self.name == "ext4-4k-sectors":
            target = run(f"losetup --find --show --sector-size 4096 {image}").strip()
            self.undo.append(f"losetup -d {target}")
        run(f"{make} {target}")
        loop = "" if target != image else "loop,"
        self.mount(f"mount -o {loop}{options or 'defaults'} {target} {base}", base)

    def layer(self, base):
        top = self.work / "top"
        if self.name == "overlayfs":
            for part in ("upper", "workdir", "lower"):
                (base / part).mkdir()
            top.mkdir()
            parts = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/workdir"
            self.mount(f"mount -t overlay overlay -o {parts} {top}", top)
            return top
        if self.name == "bindfs":
            (base / "below").mkdir()
            top.mkdir()
            self.mount(f"bindfs {base}/below {top}", top)
            return top
        return base

    def mount(self, command, at):
        run(command)
        self.undo.append(f"umount {at}")

    def __exit__(self, *_):
        for command in reversed(self.undo):
            for _ in range(50):
                if subprocess.run(command, shell=True, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
        shutil.rmtree(self.work, ignore_errors=True)

    def used(self):
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


class Store:
    """A cluster of one node on a folder."""

    def __init__(self, leeward, folder):
        self.leeward, self.folder, self.process = leeward, folder, None
        self.port = free_port(ports_of(2))

    def start(self):
        command = [self.leeward, "dev", "--nodes", "1", "--data", str(self.folder / "data")]
        command += ["--base-port", str(self.port), "--set", "memory_budget=67108864"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            time.sleep(0.2)

    def connect(self):
        return Client(self.port)


def value(number, serial):
    seed = random.Random(number * 1_000_003 + serial)
    return seed.randbytes(VALUE_BYTES)


def fill_ballast(path, most):
    written = 0
    with open(path, "wb") as file:
        try:
            while written < most:
                file.write(os.urandom(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                written += 1 << 20
        except OSError:
            pass
    return written


class Round:
    def __init__(self, store, mounted, serial):
        self.store, self.mounted, self.serial = store, mounted, serial
        self.known, self.failures = {}, []
        self.refusal, self.room, self.left = "", None, None

    def put(self, client, number):
        reply = client.ask("SET", f"k{number:06}", value(number, self.serial))
        if reply == b"+OK":
            self.known[number] = self.serial
        return reply

    def go(self):
        def ready():
            reply = self.store.connect().ask("SET", "ready", "yes")
            return reply == b"+OK", reply

        if until(STARTS_WITHIN, ready)[0] is None:
            self.failures.append("it does not start")
            return self
        ballast = self.mounted.folder / "ballast"
        fill_ballast(ballast, BALLAST_BYTES)
        self.fill()
        self.delete_one("full")
        self.store.kill()
        self.store.start()
        ballast.unlink()
        self.room, last = until(60, self.one_write)
        if self.room is None:
            self.failures.append(f"no write 60 s after there was room: {last}")
        elif self.room > WRITES_WITHIN:
            self.failures.append(f"the first write took {self.room:.1f} s")
        self.compare()
        self.delete_all()
        return self

    def fill(self):
        client, refused, number = self.store.connect(), 0, 0
        while refused < 20 and number < 200_000:
            reply = self.put(client, number)
            if is_error(reply):
                self.refusal = reply.decode(errors="replace")[1:]
                refused += 1
                time.sleep(0.05)
            number += 1
        if not self.refusal.startswith("UNAVAILABLE"):
            self.failures.append(f"a full file system answers {self.refusal!r}")

    def delete_one(self, when):
        number = next(iter(self.known))

        def delete():
            reply = self.store.connect().ask("DEL", f"k{number:06}")
            return not is_error(reply), reply

        took, last = until(5, delete)
        del self.known[number]
        if took is None:
            self.failures.append(f"DEL is refused ({when}): {last}")

    def one_write(self):
        reply = self.put(self.store.connect(), 999_999)
        return reply == b"+OK", reply

    def compare(self):
        client, lost = self.store.connect(), 0
        for number, serial in self.known.items():
            lost += client.ask("GET", f"k{number:06}") != value(number, serial)
        if lost:
            self.failures.append(f"{lost} of {len(self.known)} acknowledged writes are lost")

    def delete_all(self):
        client = self.store.connect()
        for number in self.known:
            reply = client.ask("DEL", f"k{number:06}")
            if is_error(reply):
                self.failures.append(f"DEL is refused (room): {reply.decode(errors='replace')}")
                break
        time.sleep(5)
        self.left = self.mounted.used()


def row(name, options, work):
    with Mounted(name, work, options.mib) as mounted:
        store = Store(options.leeward, mounted.folder)
        rooms, lefts, refusal, failures, written = [], [], "", [], 0
        try:
            store.start()
            for serial in range(options.rounds):
                done = Round(store, mounted, serial).go()
                failures += [f"round {serial + 1}: {failure}" for failure in done.failures]
                written += len(done.known)
                refusal = done.refusal or refusal
                rooms += [done.room] if done.room is not None else []
                lefts += [done.left >> 20] if done.left is not None else []
        finally:
            store.kill()
    longest = f"{max(rooms):.1f} s" if rooms else "-"
    left = f"{max(lefts)} MiB" if lefts else "-"
    print(f"| {name} | {'met' if not failures else 'MISSED'} | {written} | {refusal[:60] or '-'} | {longest} | {left} |", flush=True)
    for failure in failures:
        print(f"|   | {failure} | | | | |", flush=True)
    return not failures


def main():
    parser = parser_of("filesystems", __doc__)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=1, help="rounds a file system")
    parser.add_argument("--mib", type=int, default=512, help="size of each file system")
    options = parsed(parser)
    names = chosen(options.only, ROWS)
    for name in names:
        for program in ROWS[name][0].split():
            if shutil.which(program) is None:
                sys.exit(f"{name} needs {program}")
    print(f"Linux {platform.release()}, {options.mib} MiB each, {options.rounds} rounds\n")
    print("| file system | | acknowledged | a full one answers | first write with room | in use after deletes |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="leeward-compat-") as work:
        met = [row(name, options, work) for name in names]
    conclude(met)


main()
