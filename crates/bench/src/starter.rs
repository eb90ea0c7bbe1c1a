//! Starts the clusters that measurements need, one at a time, each in a directory of its own.
//!
//! Belongs to one thread.

use crate::keys::even_split_points;
use crate::options::Failure;
use leeward_fabric::{LibfabricFabric, LinkOptions, PeerId, Provider};
use leeward_format::cluster::TableOptions;
use leeward_operate::dev::{Cluster, Fabric, NodeProcesses, Plan};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, process, thread};
use tempfile::TempDir;

/// How long a client or node spins on its rings before it sleeps, in microseconds, where spinning is measured.
const SPIN_US: u64 = 100;
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// How nodes and clients reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// Nodes by shared memory, clients by TCP.
    Shm,
    /// All by TCP.
    Tcp,
    /// All by shared memory.
    Rings,
    /// As `Rings`; nodes and clients poll for messages for 100 us before they sleep.
    SpinningRings,
    /// Nodes by libfabric's own TCP, where libfabric is installed; clients by TCP.
    Libfabric,
}

/// A cluster to be started.
#[derive(Debug)]
pub(crate) struct WantedCluster {
    pub(crate) table: TableOptions,
    /// The transports between nodes, and to clients.
    pub(crate) link: Link,
    /// Regions of the table.
    pub(crate) regions: u32,
    /// Nodes that run from the start.
    pub(crate) nodes: u32,
    /// Nodes beside them: [`NodeProcesses::restart`] starts them.
    pub(crate) late: u32,
    /// Memory of a node, in bytes.
    pub(crate) memory_bytes: u64,
    /// Size of a segment of its nodes, in bytes; `None`: the default.
    pub(crate) segment_bytes: Option<u64>,
}

/// A cluster that runs. Dropping it stops its nodes and removes its data.
pub(crate) struct Started {
    /// Addresses for its clients.
    pub(crate) seeds: Vec<String>,
    pub(crate) cluster: Box<dyn NodeProcesses>,
}

/// Starts clusters.
#[derive(Debug)]
pub struct Starter {
    program: PathBuf,
    /// Holds the directories of all clusters.
    directory: TempDir,
}

impl Starter {
    /// Creates a starter whose nodes are processes of `program`, the `leeward` binary. Their data is below `parent`:
    /// see [`temporary`].
    ///
    /// # Errors
    /// No directory can be made.
    pub fn new(program: PathBuf, parent: Option<&Path>) -> Result<Starter, Failure> {
        Ok(Starter { program, directory: temporary(parent)? })
    }

    /// Starts a cluster and waits until every region has all of its replicas.
    pub(crate) fn start(&self, wanted: WantedCluster) -> Result<Started, Failure> {
        let directory = tempfile::Builder::new().prefix("cell-").tempdir_in(&self.directory)?;
        let link = wanted.link;
        let mut cluster = Cluster::start(self.plan(wanted, directory.path())?)?.with_temporary(directory);
        // A signal ends the process.
        cluster.wait_until_ready(true, || false)?;
        let seed = |address: &String| match link {
            Link::Rings => format!("leeward+ring://{address}"),
            Link::SpinningRings => format!("leeward+ring://{address}?spin_us={SPIN_US}"),
            Link::Shm | Link::Tcp | Link::Libfabric => address.clone(),
        };
        let seeds = cluster.addresses().iter().map(seed).collect();
        Ok(Started { seeds, cluster: Box::new(cluster) })
    }

    /// Where the clusters' data is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn plan(&self, wanted: WantedCluster, directory: &Path) -> Result<Plan, Failure> {
        let WantedCluster { mut table, link, mut regions, nodes, late, memory_bytes, segment_bytes } = wanted;
        if table.partition.is_hash() {
            (table.partition, regions) = (table.partition.with_tokens(regions), 1);
        }
        let mut settings = vec![("memory_budget".into(), memory_bytes.to_string())];
        settings.extend(segment_bytes.map(|bytes| ("segment_bytes".into(), bytes.to_string())));
        if late == 0 {
            // A transfer of a primary role would disturb the measurement.
            settings.push(("balance".into(), "false".into()));
        }
        if link == Link::SpinningRings {
            settings.push(("ring_spin_us".into(), SPIN_US.to_string()));
        }
        let fabric = match link {
            Link::Shm | Link::Rings | Link::SpinningRings => Fabric::Shm,
            Link::Tcp => Fabric::Tcp,
            Link::Libfabric => Fabric::LibfabricTcp,
        };
        let plan = Plan::new(self.program.clone(), nodes + late, even_split_points(regions), directory.into())?;
        Ok(Plan { late, fabric, table, settings, ..plan })
    }
}

/// Checks that this machine has what a link needs; the message says what is missing.
pub(crate) fn check_link(link: Link) -> Result<(), Failure> {
    if link == Link::Libfabric {
        // The provider that stands in for a network card.
        LibfabricFabric::bind(PeerId(0), "127.0.0.1:0", Provider::Tcp, LinkOptions::default(), Arc::new(|_, _| {}))?;
    }
    Ok(())
}

/// Makes a directory in `parent`, or where temporary files are. Dropping the handle removes it. Ctrl-C and SIGTERM
/// remove it as well, and end this process. Its nodes then stop, because their standard inputs end.
///
/// # Errors
/// It cannot be made, or the system refuses to install handlers.
pub fn temporary(parent: Option<&Path>) -> Result<TempDir, Failure> {
    let parent = parent.map_or_else(env::temp_dir, Path::to_path_buf);
    let made = tempfile::Builder::new().prefix("leeward-bench-").tempdir_in(&parent);
    let made = made.map_err(|error| format!("--data {}: {error}", parent.display()))?;
    let path = made.path().to_path_buf();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        if signals.forever().next().is_some() {
            eprintln!("interrupted");
            if let Err(error) = fs::remove_dir_all(path) {
                eprintln!("the temporary directory cannot be removed: {error}");
            }
            process::exit(INTERRUPTED);
        }
    };
    thread::Builder::new().name("interrupt".into()).spawn(wait)?;
    Ok(made)
}
