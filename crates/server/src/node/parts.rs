//! What a node is made of, what happens to it, and what it asks of whoever runs it. Plain data.

use super::Token;
use super::export::Checkpoints;
use super::job::{Job, JobDone};
use crate::client_memory::ClientMemory;
use leeward_cluster::{ClusterOptions, Coordinator, CoordinatorEvent};
use leeward_engine::{Replica, Volume};
use leeward_fabric::{Fabric, LinkEvent};
use leeward_format::ServerId;
use leeward_format::cluster::ServerInfo;
use leeward_format::op::{Op, OpResult};
use leeward_format::request::Once;
use leeward_format::table::TableName;
use leeward_platform::Nanos;
use leeward_replication::Timing;
use std::sync::Arc;

/// What happens to a node.
pub enum Input {
    /// Time passed: every few tens of milliseconds.
    Tick,
    /// A client's operation.
    Submit {
        /// Its name.
        token: Token,
        /// The table that it is on.
        table: TableName,
        /// The operation.
        op: Op,
        /// How it is asked for, if it is to be carried out once.
        once: Option<Once>,
        /// Answer [`leeward_format::op::OpError::NotPrimary`] instead of forwarding.
        direct: bool,
    },
    /// From the fabric.
    Link(ServerId, LinkEvent),
    /// From the coordinator.
    Coordinator(CoordinatorEvent),
    /// A job ended.
    Job(JobDone),
}

/// What a turn of a node asks of the runtime.
#[derive(Default)]
pub struct Outbox {
    /// Answers.
    pub replies: Vec<(Token, OpResult)>,
    /// Work for the pool, in any order and in parallel.
    pub jobs: Vec<Job>,
}

/// Timing of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeTiming {
    /// Of its replica groups.
    pub replication: Timing,
    /// How long bytes of a log tail may stay in the page cache, or in a backup's memory.
    pub flush_interval: Nanos,
    /// Bytes a second that are read to build learners; 0: as many as it can.
    pub catch_up_bytes: u64,
    /// For so long a group must be whole without this node before what it has of it is destroyed: it may be asked back.
    pub surplus_after: Nanos,
    /// How often the master is told what there is to do.
    pub load_interval: Nanos,
    /// Bytes of pairs that are copied at most when a region becomes part of its neighbour; 0: none does.
    pub merge_bytes: u64,
}

impl Default for NodeTiming {
    fn default() -> Self {
        NodeTiming {
            replication: Timing::default(),
            flush_interval: Nanos::from_secs(1),
            catch_up_bytes: 0,
            surplus_after: Nanos::from_secs(10),
            load_interval: Nanos::from_secs(2),
            merge_bytes: 4 << 20,
        }
    }
}

/// What a node is made of.
pub struct NodeParts {
    /// Who it is and where it is reached; `copies` is filled in from the volume.
    pub info: ServerInfo,
    /// Its volume.
    pub volume: Arc<Volume>,
    /// The copies that the volume held when it was opened.
    pub copies: Vec<Replica>,
    /// The account of its clients' memory.
    pub clients: ClientMemory,
    /// Its fabric, whose events come back as [`Input::Link`].
    pub fabric: Arc<dyn Fabric>,
    /// Its coordinator, whose events come back as [`Input::Coordinator`].
    pub coordinator: Arc<dyn Coordinator>,
    /// Options of the cluster.
    pub cluster: ClusterOptions,
    /// Timing.
    pub timing: NodeTiming,
    /// Where checkpoints go; `None`: none are made.
    pub checkpoints: Option<Checkpoints>,
}
