#!/usr/bin/env python3
"""Fills a store on one file system after another, kills it, makes room, and goes on: `cargo xtask compat filesystems`.

Each row is a file system in a file of its own, mounted below a temporary directory, with one node on it for all rounds.
A round:
 1. a ballast file takes 64 MiB of the file system, or what there is;
 2. values are written and overwritten until writes are refused, with deletes among them; in two rounds of three the
    node is killed by `kill -9` meanwhile, and started again;
 3. a key is deleted, the node is killed, and started on the full file system, where another key is deleted;
 4. the ballast is removed, and the time until a write is taken is measured, if it had 64 MiB;
 5. each pair is read again: it has the last acknowledged value, or one whose answer a kill took away;
 6. all is deleted, key by key or by one range, or half of it, so that the next round begins on a store that is not
    empty; in one round of three the node is killed meanwhile.
Sizes of values take turns: 4 kB, 400 bytes, 20 kB, and all of them. Needs root, loop devices, and the programs of the
file systems. Only loopback, only files below the directory.
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
import threading
import time

from common import Client, children_of, chosen, conclude, encoded, free_port, is_error, parsed, parser_of, ports_of, until

# Of the values of a round. The last are drawn for each value.
SIZES = ((4_000,), (400,), (20_000,), (400, 4_000, 20_000))
BALLAST_BYTES = 64 << 20
STARTS_WITHIN = 60
GIVEN_BACK_WITHIN = 30
DELETES_WITHIN = 5
# What is wanted of a row: how soon a write is taken after there is room.
WRITES_WITHIN = 5.0
BATCH = 64
# So many refused batches, a tenth of a second apart, and the store is full: compactions may make room meanwhile.
REFUSALS = 40
# A round that fills no more by then goes on.
WRITES_AT_MOST = 200_000
POOL = random.Random(1).randbytes(4 << 20)

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
            for _ in range(100):
                if subprocess.run(command, shell=True, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                # The process of a FUSE file system may hold what is below it for long: then it goes with that process.
                subprocess.run(command.replace("umount", "umount --lazy"), shell=True, capture_output=True)
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

    def kill_now(self):
        """Nodes first: one whose parent is gone stops in order."""
        for pid in children_of(self.process.pid) + [self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def kill(self):
        if self.process is not None:
            self.kill_now()
            self.process.wait()
            self.process = None
            time.sleep(0.2)

    def connect(self):
        return Client(self.port)


def value(number, serial, size):
    """Bytes that no other version of the key has, and that do not compress."""
    head = f"{number:08}:{serial:08}:".encode()
    begin = (number * 7_919 + serial * 104_729) % (len(POOL) - size)
    return head + POOL[begin : begin + size - len(head)]


def fill_ballast(path):
    """A file of `BALLAST_BYTES`, as soon as there is room for it, or of what there is after a while. Its size."""
    begun, written = time.monotonic(), 0
    with open(path, "wb", buffering=0) as file:
        while written < BALLAST_BYTES and time.monotonic() - begun < GIVEN_BACK_WITHIN:
            try:
                written += file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
            except OSError:
                time.sleep(0.5)
    return written


class Pairs:
    """What a reader may find: of each key the versions that it may have, as (serial, size), or None where it is absent."""

    def __init__(self):
        self.possible, self.serial = {}, 0

    def next_version(self, size):
        self.serial += 1
        return self.serial, size

    def begun(self, number, version):
        self.possible.setdefault(number, {None}).add(version)

    def ended(self, number, version, was, done):
        self.possible[number] = {version} if done else was

    def of(self, number):
        return set(self.possible.get(number, {None}))

    def present(self):
        return [number for number, versions in self.possible.items() if versions != {None}]


class DoesNotStart(Exception):
    pass


class Round:
    def __init__(self, store, mounted, pairs, number, draw):
        self.store, self.mounted, self.pairs, self.number, self.draw = store, mounted, pairs, number, draw
        self.sizes = SIZES[number % len(SIZES)]
        self.failures, self.refusal = [], ""
        self.written = self.kills = 0
        self.room = self.left = None

    def go(self):
        self.await_ready()
        ballast = self.mounted.folder / "ballast"
        begun = time.monotonic()
        ballast_bytes = fill_ballast(ballast)
        self.waited, self.ballast = time.monotonic() - begun, ballast_bytes
        self.beside_a_kill(self.number % 3 != 0, self.fill)
        self.delete_one("full")
        self.restart()
        self.delete_one("started on a full file system")
        ballast.unlink()
        self.measure_room(ballast_bytes)
        self.compare()
        self.beside_a_kill(self.number % 3 == 2, self.empty)
        self.left = self.mounted.used()
        return self

    def await_ready(self):
        def ready():
            reply = self.store.connect().ask("GET", "ready")
            return not is_error(reply), reply

        took, last = until(STARTS_WITHIN, ready)
        if took is None:
            raise DoesNotStart(f"it does not start: {last}")

    def restart(self):
        self.store.kill()
        self.store.start()
        self.kills += 1
        self.await_ready()

    def beside_a_kill(self, killed, work):
        """Carries `work` out; if a kill is wanted, it strikes at some time, and the work begins anew after a start."""
        if not killed:
            return work()
        killer = threading.Timer(self.draw.uniform(0.1, 4), self.store.kill_now)
        killer.start()
        try:
            work()
        except OSError:
            pass
        killer.join()
        self.restart()
        return work()

    def batch(self, client, changes):
        """Sends changes, each of a key to a version or None. Answers the errors. An answer that never comes leaves both possible."""
        before = []
        for number, version in changes:
            before.append(self.pairs.of(number))
            self.pairs.begun(number, version)
        client.socket.sendall(b"".join(change(number, version) for number, version in changes))
        errors = []
        for (number, version), was in zip(changes, before):
            reply = client.reply()
            self.pairs.ended(number, version, was, not is_error(reply))
            if is_error(reply):
                errors.append((version, reply.decode(errors="replace")[1:]))
        return errors

    def fill(self):
        """New keys and old ones, and a delete in each batch, until some batches are refused as a whole."""
        client, refused, sent = self.store.connect(), 0, 0
        keys = self.pairs.present()
        fresh = max(self.pairs.possible, default=0) + 1
        while refused < REFUSALS and sent < WRITES_AT_MOST:
            numbers = {self.draw.choice(keys) if keys and self.draw.random() < 0.3 else fresh + at for at in range(BATCH)}
            fresh += BATCH
            changes = [(number, self.pairs.next_version(self.draw.choice(self.sizes))) for number in numbers]
            deleted, changes[0] = changes[0][0], (changes[0][0], None)
            errors = self.batch(client, changes)
            for version, error in errors:
                if version is None:
                    self.failures.append(f"DEL of {deleted} is refused while the store is filled: {error}")
            self.refusal = errors[-1][1] if errors else self.refusal
            keys += [number for number in numbers if number % 8 == 0]
            sent += BATCH
            self.written += BATCH - len(errors)
            if len(errors) >= BATCH // 2:
                refused += 1
                time.sleep(0.1)
        if refused == REFUSALS and not self.refusal.startswith("UNAVAILABLE"):
            self.failures.append(f"a full file system answers {self.refusal!r} after {sent} writes")

    def delete_one(self, when):
        # On a device that is full from the beginning there may be none: then it is a key that was never there.
        number = self.draw.choice(self.pairs.present() or [1])

        def delete():
            errors = self.batch(self.store.connect(), [(number, None)])
            return not errors, errors

        took, last = until(DELETES_WITHIN, delete)
        if took is None:
            self.failures.append(f"DEL is refused ({when}): {last}")

    def measure_room(self, ballast_bytes):
        def one_write():
            errors = self.batch(self.store.connect(), [(0, self.pairs.next_version(self.sizes[0]))])
            return not errors, errors

        took, last = until(60, one_write)
        if ballast_bytes < BALLAST_BYTES:
            return
        self.room = took
        if took is None:
            self.failures.append(f"no write 60 s after there was room: {last}")
        elif took > WRITES_WITHIN:
            self.failures.append(f"the first write took {took:.1f} s")

    def compare(self):
        client, lost, numbers = self.store.connect(), [], list(self.pairs.possible)
        for begin in range(0, len(numbers), BATCH):
            part = numbers[begin : begin + BATCH]
            client.socket.sendall(b"".join(encoded("GET", key(number)) for number in part))
            for number in part:
                found = client.reply()
                matching = [v for v in self.pairs.possible[number] if found == (None if v is None else value(number, *v))]
                if matching:
                    self.pairs.possible[number] = set(matching)
                else:
                    lost.append((number, None if found is None else found[:20]))
        if lost:
            self.failures.append(f"{len(lost)} of {len(numbers)} pairs are not as acknowledged: {lost[:3]}")

    def empty(self):
        client, present = self.store.connect(), self.pairs.present()
        if self.number % 3 == 0:
            present = present[::2]
        if self.number % 6 == 1:
            self.empty_by_range(client)
            return
        for begin in range(0, len(present), BATCH):
            errors = self.batch(client, [(number, None) for number in present[begin : begin + BATCH]])
            if errors:
                self.failures.append(f"DEL is refused (room): {errors[0][1]}")
                return

    def empty_by_range(self, client):
        before = {number: self.pairs.of(number) for number in self.pairs.present()}
        for number in before:
            self.pairs.begun(number, None)
        reply = client.ask("KDELRANGE", "k", "l")
        for number, was in before.items():
            self.pairs.ended(number, None, was, not is_error(reply))
        if is_error(reply):
            self.failures.append(f"KDELRANGE is refused (room): {reply.decode(errors='replace')}")


def key(number):
    return f"k{number:08}"


def change(number, version):
    return encoded("DEL", key(number)) if version is None else encoded("SET", key(number), value(number, *version))


def row(name, options, work):
    with Mounted(name, work, options.mib) as mounted:
        store, pairs, draw = Store(options.leeward, mounted.folder), Pairs(), random.Random(options.seed)
        rooms, lefts, refusal, failures, written, kills = [], [], "", [], 0, 0
        try:
            store.start()
            for number in range(options.rounds):
                begun = time.monotonic()
                try:
                    done = Round(store, mounted, pairs, number, draw).go()
                except DoesNotStart as error:
                    failures.append(f"round {number + 1}: {error}")
                    break
                failures += [f"round {number + 1}: {failure}" for failure in done.failures]
                written += done.written
                kills += done.kills
                refusal = done.refusal or refusal
                rooms += [done.room] if done.room is not None else []
                lefts += [done.left >> 20]
                pairs.possible = {k: v for k, v in pairs.possible.items() if v != {None}}
                if options.verbose:
                    room = f"{done.room:.1f} s" if done.room is not None else "-"
                    took = time.monotonic() - begun
                    ballast = f"{done.ballast >> 20} MiB of ballast after {done.waited:.0f} s"
                    print(f"{name} {number + 1}: {took:.0f} s, {ballast}, {done.written} writes, {done.kills} kills, room {room}, "
                          f"{done.left >> 20} MiB in use, {len(pairs.possible)} pairs left; {done.failures}", flush=True)
                if len(failures) > 20:
                    break
        finally:
            store.kill()
    longest = f"{max(rooms):.1f} s ({len(rooms)})" if rooms else "-"
    left = f"{min(lefts)} to {max(lefts)} MiB" if lefts else "-"
    met = "met" if not failures else "MISSED"
    print(f"| {name} | {met} | {written} | {kills} | {refusal[:60] or '-'} | {longest} | {left} |", flush=True)
    for failure in failures:
        print(f"|   | {failure} | | | | | |", flush=True)
    return not failures


def main():
    parser = parser_of("filesystems", __doc__)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas between: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=1, help="rounds a file system")
    parser.add_argument("--mib", type=int, default=320, help="size of each file system")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--verbose", action="store_true", help="print each round")
    options = parsed(parser)
    names = chosen(options.only, ROWS)
    for name in names:
        for program in ROWS[name][0].split():
            if shutil.which(program) is None:
                sys.exit(f"{name} needs {program}")
    print(f"Linux {platform.release()}, {options.mib} MiB each, {options.rounds} rounds\n")
    print("| file system | | acknowledged | kills | a full one answers | first write with room (rounds) | in use after deletes |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="leeward-compat-") as work:
        met = [row(name, options, work) for name in names]
    conclude(met)


if __name__ == "__main__":
    main()
