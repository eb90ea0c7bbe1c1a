//! The measurements of one workload on one engine. The child process sends them to its parent as a line of JSON.

use crate::Failure;
use crate::work::Work;
use leeward_bench::{Latency, ProcessSpent, seconds};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a block in the `blocks` of a file.
const BLOCK_BYTES: u64 = 512;

/// A line that a child prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// A workload is over.
    Measured(Box<Measurement>),
    /// The run is over: the engine failed.
    Failed(String),
    /// The run is over: with these sizes it would prove nothing, for any engine.
    Refused(String),
}

impl Line {
    /// Prints it to the standard output.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// Bytes moved from and to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceBytes {
    /// Bytes read.
    pub(crate) read: u64,
    /// Bytes written.
    pub(crate) written: u64,
}

impl DeviceBytes {
    pub(crate) fn minus(self, earlier: DeviceBytes) -> DeviceBytes {
        DeviceBytes { read: self.read - earlier.read, written: self.written - earlier.written }
    }
}

/// One workload on one engine in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) workload: Work,
    /// Operations done.
    pub(crate) ops: u64,
    /// Seconds from the first operation to the last answer.
    pub(crate) seconds: f64,
    /// Seconds that the engine worked after the last answer.
    pub(crate) settle_seconds: f64,
    /// User and system time of the process, until the engine had settled.
    pub(crate) cpu_seconds: f64,
    /// Bytes of keys and values written, read and scanned.
    pub(crate) user_bytes: u64,
    /// Device bytes by the kernel's account of the process, until the engine had settled.
    pub(crate) device: DeviceBytes,
    /// The same by the engine's own account, if it keeps one.
    pub(crate) engine_device: Option<DeviceBytes>,
    /// Bytes that the store takes on the device at the end.
    pub(crate) stored_bytes: u64,
    /// Bytes of keys and values that it holds then.
    pub(crate) live_bytes: u64,
    /// Latency of writes, also of those that follow a read in F; `None` if there were none.
    pub(crate) write_latency_us: Option<Latency>,
    /// Latency of reads and scans; `None` if there were none.
    pub(crate) read_latency_us: Option<Latency>,
    /// Levels that hold data, L0 included.
    pub(crate) levels: u32,
    /// Peak memory of the process so far.
    pub(crate) peak_memory_bytes: u64,
}

impl Measurement {
    pub(crate) fn ops_per_second(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn cpu_seconds_per_million_ops(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.ops as f64
    }

    pub(crate) fn read_amplification(&self) -> f64 {
        self.device.read as f64 / self.user_bytes as f64
    }

    pub(crate) fn write_amplification(&self) -> f64 {
        self.device.written as f64 / self.user_bytes as f64
    }

    pub(crate) fn space_amplification(&self) -> f64 {
        self.stored_bytes as f64 / self.live_bytes as f64
    }
}

/// CPU time and device bytes of this process so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    pub(crate) cpu_seconds: f64,
    pub(crate) device: DeviceBytes,
}

impl Spent {
    /// # Errors
    /// `/proc` does not tell.
    pub(crate) fn of_this_process() -> io::Result<Spent> {
        let ProcessSpent { user_ticks, system_ticks, read_bytes, written_bytes } = ProcessSpent::of(std::process::id());
        let told = user_ticks.zip(system_ticks).zip(read_bytes.zip(written_bytes));
        let ((user, system), (read, written)) =
            told.ok_or_else(|| io::Error::other("/proc/self/stat and io do not tell"))?;
        Ok(Spent { cpu_seconds: seconds(user + system), device: DeviceBytes { read, written } })
    }
}

/// Peak memory of this process so far; 0 if `/proc` does not tell.
pub(crate) fn peak_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    peak.map_or(0, |kib: u64| kib << 10)
}

/// Bytes that the files below `directory` take on the device.
///
/// # Errors
/// It cannot be read. Files that vanish meanwhile do not count.
pub(crate) fn stored_bytes(directory: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sum += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => stored_bytes(&entry.path())?,
            Ok(metadata) => metadata.blocks() * BLOCK_BYTES,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(sum)
}
