//! CPU time, device bytes and memory of a process of this machine, by the kernel's accounting in `/proc`.

use std::fs;

/// Clock ticks a second in `/proc/<pid>/stat`: USER_HZ, which is 100 in every Linux ABI that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident bytes of a process, without the page cache; `None` if the kernel does not tell.
pub(crate) fn memory_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("RssShmem:")?) << 10)
}

/// An amount that may be unknown.
pub(crate) type Amount = Option<u64>;

/// The resources that one process spent since it started; `None` if the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSpent {
    /// User time of all threads, in [`seconds`].
    pub user_ticks: Option<u64>,
    /// System time of all threads, in [`seconds`].
    pub system_ticks: Option<u64>,
    /// Bytes read from devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to devices, and pages of files made dirty.
    pub written_bytes: Option<u64>,
}

impl ProcessSpent {
    /// Of the process with this id.
    pub fn of(pid: u32) -> ProcessSpent {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let (user_ticks, system_ticks) = cpu_ticks(&stat).unzip();
        let bytes = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        ProcessSpent {
            user_ticks,
            system_ticks,
            read_bytes: bytes("read_bytes:"),
            written_bytes: bytes("write_bytes:"),
        }
    }
}

/// Seconds of clock ticks.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

/// User and system time, fields 14 and 15. The second field is the program's name, which may hold anything.
pub(crate) fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
