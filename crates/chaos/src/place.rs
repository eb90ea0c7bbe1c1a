//! Everything that a run makes outside of its processes: a directory, namespaces, a bridge, mounts, control groups.
//! Each name contains the process id of the run. So everything is found and removed at the end of the run or, if the
//! run was killed, when the next run begins.

use crate::error::{ChaosError, fault};
use crate::tool;
use std::fs;
use std::path::{Path, PathBuf};

/// The control groups (version 1) of processes with slow devices.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// Prefix of all names. It is short, since names of network devices have 15 bytes at most.
const PREFIX: &str = "lwc";

/// Directories, namespaces, mounts and control groups of a run. Dropping it removes everything.
#[derive(Debug)]
pub(crate) struct RunResources {
    pid: u32,
    directory: PathBuf,
    /// Keeps the logs and configurations after the run.
    keep: bool,
}

impl RunResources {
    /// Removes what dead runs have left, and makes the directory of this run in `parent`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn new(parent: &Path) -> Result<RunResources, ChaosError> {
        let pid = std::process::id();
        for dead in leftovers(parent).into_iter().filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_all(dead, parent);
        }
        let directory = parent.join(format!("{PREFIX}{pid}"));
        fs::create_dir_all(&directory).map_err(fault("make", &directory))?;
        Ok(RunResources { pid, directory, keep: false })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps the logs and configurations after the run, without the volumes.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    pub(crate) fn bridge(&self) -> String {
        format!("{PREFIX}{}", self.pid)
    }

    pub(crate) fn namespace(&self, host: usize) -> String {
        format!("{PREFIX}{}-{host}", self.pid)
    }

    /// The end of a host's link that is on the bridge.
    pub(crate) fn link(&self, host: usize) -> String {
        format!("{PREFIX}{}v{host}", self.pid)
    }

    /// The control group of a server's process.
    pub(crate) fn group(&self, server: usize) -> PathBuf {
        Path::new(BLKIO).join(format!("{PREFIX}{}-{server}", self.pid))
    }
}

impl Drop for RunResources {
    fn drop(&mut self) {
        let parent = self.directory.parent().unwrap_or(Path::new("/")).to_path_buf();
        if self.keep {
            let kept = parent.join(format!("leeward-chaos-{}", self.pid));
            // If it cannot be kept, it is removed.
            drop(fs::create_dir_all(&kept));
            for name in ["logs", "config"] {
                drop(fs::rename(self.directory.join(name), kept.join(name)));
            }
        }
        remove_all(self.pid, &parent);
    }
}

/// Where the logs of the run are kept.
pub(crate) fn kept(place: &RunResources) -> PathBuf {
    place.directory.with_file_name(format!("leeward-chaos-{}", place.pid))
}

/// Process ids of runs that have left something.
fn leftovers(parent: &Path) -> Vec<u32> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let folders = [parent, Path::new("/run/netns"), Path::new("/sys/class/net"), Path::new(BLKIO)];
    let mut pids: Vec<u32> = folders.into_iter().flat_map(names).filter_map(|name| pid_in(&name)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The process id in a name of a run.
fn pid_in(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn remove_all(pid: u32, parent: &Path) {
    let is_ours = |name: &str| pid_in(name) == Some(pid);
    let entries = |folder: &str| {
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    entries("/run/netns").iter().filter(|name| is_ours(name)).for_each(|name| {
        tool::attempt(&format!("ip netns del {name}"));
    });
    entries("/sys/class/net").iter().filter(|name| is_ours(name)).for_each(|name| {
        tool::attempt(&format!("ip link del {name}"));
    });
    let directory = parent.join(format!("{PREFIX}{pid}"));
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for folder in mounted.filter(|folder| Path::new(folder).starts_with(&directory)) {
        // Lazily, since a killed process may not be quite gone.
        tool::attempt(&format!("umount -l {folder}"));
    }
    entries(BLKIO).iter().filter(|name| is_ours(name)).for_each(|name| {
        // A group that still has processes stays. The next run removes it.
        drop(fs::remove_dir(Path::new(BLKIO).join(name)));
    });
    drop(fs::remove_dir_all(&directory));
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
