#!/usr/bin/env bash
# Linux 6.18; ext4 (e2fsprogs 1.47.0), XFS (xfsprogs 6.1.0), btrfs (btrfs-progs 6.2), tmpfs. As root, with loop devices.
#
# A program keeps room in a file with fallocate, because the device may become full. It becomes full. Then:
#   again:   fallocate of the same range, to see that it has room (after a restart nobody remembers)
#   append:  100 bytes and fdatasync, 100 times, into 1 MiB that was allocated ahead of the file's end
#   again in place, append in place: the same in btrfs files with the mark NOCOW
#   punch:   a hole into it, to give room back
# Expected: all work, since no new block is needed. fallocate(2): after a successful call, writes into the range are
# guaranteed not to fail because of lack of disk space.
# Guessed before the run: XFS refuses `again`, because it reserves blocks for the range before it looks which are there.
# btrfs refuses the second `append`: the first one used the allocated block, the second one writes it again, elsewhere.
# Guessed that both work in place there, and everything else everywhere.
# Seen: XFS as guessed. btrfs refuses `again` as well, which was not guessed, and already the first `append`, because the
# block with the file's end was written before. In place both work. The map of a file's extents (FIEMAP) tells what has
# room also there.
#
# Output of 2026-11-30:
#   tmpfs: again works, append works, punch works
#   ext4: again works, append works, punch works
#   xfs: again ENOSPC, append works, punch works
#   btrfs: again ENOSPC, append ENOSPC at 1, again in place works, append in place works, punch works
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "needs root, to mount" >&2; exit 2; }
work=$(mktemp -d)
trap 'umount "$work"/{tmpfs,ext4,xfs,btrfs} 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"

# Programs of Debian 12, unpacked here; those of the machine are not used.
for package in e2fsprogs=1.47.0-2+b2 xfsprogs=6.1.0-1 btrfs-progs=6.2-1+deb12u2; do
    name=${package%%=*}
    apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
    mkdir "tools-$name" && dpkg -x "$name"_*.deb "tools-$name"
done

cat >run.py <<'P'
import ctypes, errno, fcntl, os, struct, sys

KEEP_SIZE, PUNCH_HOLE, MIB = 1, 2, 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def outcome(work):
    try:
        work()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]


def kept(path, in_place=False):
    """A file of 100 bytes with 1 MiB ahead of its end."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if in_place:
        fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0x800000))
    os.write(fd, bytes(100))
    fallocate(fd, KEEP_SIZE, 100, MIB)
    os.fsync(fd)
    return fd


def fill(path):
    fd, piece = os.open(path, os.O_WRONLY | os.O_CREAT), MIB
    while piece >= 512:
        try:
            os.write(fd, os.urandom(piece))
            os.fsync(fd)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            piece //= 2
    os.close(fd)


def append(fd):
    for number in range(100):
        try:
            os.write(fd, b"x" * 100)
            os.fdatasync(fd)
        except OSError as error:
            return f"{errno.errorcode[error.errno]} at {number + 1}"
    return "works"


folder, is_btrfs = sys.argv[1], "btrfs" in sys.argv[1]
again, ahead = kept(f"{folder}/again"), kept(f"{folder}/ahead")
in_place = kept(f"{folder}/in-place", True) if is_btrfs else None
fill(f"{folder}/ballast")
found = {"again": outcome(lambda: fallocate(again, KEEP_SIZE, 100, MIB)), "append": append(ahead)}
if is_btrfs:
    found["again in place"] = outcome(lambda: fallocate(in_place, KEEP_SIZE, 100, MIB))
    found["append in place"] = append(in_place)
found["punch"] = outcome(lambda: fallocate(again, KEEP_SIZE | PUNCH_HOLE, 64 * 1024, 512 * 1024))
print(f"{os.path.basename(folder)}: " + ", ".join(f"{what} {how}" for what, how in found.items()))
P

# A file system by name, and what makes it in an image.
on() {
    local name=$1
    shift
    mkdir "$name"
    if [ "$name" = tmpfs ]; then
        mount -t tmpfs -o size=320M tmpfs "$name"
    else
        truncate -s 320M "$name.image"
        "$@" "$name.image" >mkfs.log 2>&1 || { cat mkfs.log >&2; exit 1; }
        mount -o loop "$name.image" "$name"
    fi
    python3 run.py "$work/$name"
    umount "$name"
}

on tmpfs >found
on ext4 tools-e2fsprogs/sbin/mkfs.ext4 -q -F -m 0 >>found
on xfs tools-xfsprogs/sbin/mkfs.xfs -q -f >>found
on btrfs tools-btrfs-progs/sbin/mkfs.btrfs -q -f >>found
cat found
diff - found <<'SEEN'
tmpfs: again works, append works, punch works
ext4: again works, append works, punch works
xfs: again ENOSPC, append works, punch works
btrfs: again ENOSPC, append ENOSPC at 1, again in place works, append in place works, punch works
SEEN
