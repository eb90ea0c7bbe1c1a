//! A server's disk: a file system in a file, which can be filled and slowed down. On a machine that allows no such mounts it is a
//! directory. Belongs to one thread.

use crate::error::{ChaosError, fault};
use crate::place::RunResources;
use crate::tool;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Size of a disk. The file is sparse.
const DISK_BYTES: u64 = 4 << 30;
/// Sizes of the allocations that fill a disk, from large to small, in bytes.
const BALLAST_STEPS: [u64; 4] = [256 << 20, 16 << 20, 1 << 20, 4 << 10];

/// A server's disk. Dropping the [`RunResources`] unmounts it.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    /// `None`: it is a directory of the machine's own disk.
    device: Option<Device>,
}

#[derive(Debug)]
struct Device {
    /// `major:minor`.
    number: String,
    /// Control group of the process that uses it, where the machine has such groups.
    group: Option<PathBuf>,
}

impl Disk {
    /// Makes the disk of a server; with `alone` a directory.
    ///
    /// # Errors
    /// The machine refuses.
    pub(crate) fn new(place: &RunResources, server: usize, alone: bool) -> Result<Disk, ChaosError> {
        let folder = place.directory().join(format!("disk-{server}"));
        fs::create_dir_all(&folder).map_err(fault("make", &folder))?;
        if alone {
            return Ok(Disk { folder, device: None });
        }
        let image = place.directory().join(format!("image-{server}"));
        let file = File::create_new(&image).map_err(fault("make", &image))?;
        file.set_len(DISK_BYTES).map_err(fault("size", &image))?;
        // Without reserved blocks, so that even a server that runs as root finds the disk full.
        tool::run(&format!("mkfs.ext4 -q -F -m 0 -E lazy_itable_init=1,lazy_journal_init=1 {}", image.display()))?;
        tool::run(&format!("mount -o loop,discard {} {}", image.display(), folder.display()))?;
        let device = folder.metadata().map_err(fault("look at", &folder))?.dev();
        let group = place.group(server);
        let group = fs::create_dir_all(&group).is_ok().then_some(group);
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        Ok(Disk { folder, device: Some(Device { number, group }) })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notes the server's process, which has to be known before its device can be slowed down.
    pub(crate) fn used_by(&self, pid: u32) -> Result<(), ChaosError> {
        let Some(group) = self.device.as_ref().and_then(|device| device.group.as_ref()) else { return Ok(()) };
        let path = group.join("cgroup.procs");
        fs::write(&path, pid.to_string()).map_err(fault("write to", &path))
    }

    /// Allocates the free space of the disk, except for so many bytes.
    ///
    /// # Errors
    /// The machine refuses.
    pub(crate) fn fill(&self, left: u64) -> Result<(), ChaosError> {
        let path = self.ballast();
        let file = File::create(&path).map_err(fault("make", &path))?;
        let mut bytes = 0;
        for step in BALLAST_STEPS {
            while (left == 0 || self.free()? >= left + step)
                && fallocate(&file, FallocateFlags::empty(), bytes, step).is_ok()
            {
                bytes += step;
            }
        }
        Ok(())
    }

    fn free(&self) -> Result<u64, ChaosError> {
        let stat = statvfs(&self.folder).map_err(|error| fault("look at", &self.folder)(error.into()))?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Frees what [`Disk::fill`] allocated.
    pub(crate) fn empty(&self) {
        // It may not have been full.
        drop(fs::remove_file(self.ballast()));
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    /// Limits reads and writes to this many bytes per second each; 0 removes the limit.
    pub(crate) fn throttle(&self, bytes_per_second: u64) -> Result<(), ChaosError> {
        let Some(Device { number, group: Some(group) }) = &self.device else { return Ok(()) };
        for way in ["read", "write"] {
            let path = group.join(format!("blkio.throttle.{way}_bps_device"));
            fs::write(&path, format!("{number} {bytes_per_second}")).map_err(fault("write to", &path))?;
        }
        Ok(())
    }
}

/// Whether disks can be slowed down here.
pub(crate) fn can_be_slow() -> bool {
    Path::new("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device").exists()
}
