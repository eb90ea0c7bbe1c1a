//! The parts that a node is built from, its inputs, and its outputs for the runtime. Plain data.

use crate::node::Token;
use leeward_cluster::{ClusterOptions, Coordinator, CoordinatorEvent};
use leeward_engine::{Replica, Volume};
use leeward_fabric::{Fabric, LinkEvent};
use leeward_format::ServerId;
use leeward_format::cluster::ServerInfo;
use leeward_format::op::OpResult;
use leeward_platform::Nanos;
use leeward_region::client_memory::ClientMemory;
use leeward_region::effects::Checkpoints;
use leeward_region::job::{Job, JobDone};
use leeward_region::request::Request;
use leeward_replication::Timing;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An event for a node.
pub enum Input {
    /// Time passed: every few tens of milliseconds.
    Tick,
    /// A client's operation.
    Submit(Request),
    /// From the fabric.
    Link(ServerId, LinkEvent),
    /// From the coordinator.
    Coordinator(CoordinatorEvent),
    /// A job ended.
    Job(JobDone),
}

/// The output of a node's turn, for the runtime.
#[derive(Default)]
pub struct Outbox {
    /// Answers.
    pub replies: VecDeque<(Token, OpResult)>,
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
    /// Bytes a second that the node reads to build learners; 0: no limit.
    pub catch_up_bytes: u64,
    /// While more bytes than this are queued on a link, no segment is added: records, and answers, would wait behind it.
    pub bulk_bytes: usize,
    /// How long a group must be whole without this node before the node destroys its copy: the group may take the node back.
    pub replica_gc_after: Nanos,
    /// How often the node reports its load to the master.
    pub load_interval: Nanos,
    /// Most bytes of pairs that a merge copies from one region to its neighbour; 0: no region is merged.
    pub merge_bytes: u64,
}

impl NodeTiming {
    /// The same, for a node whose leases last for `lease`.
    pub fn with_lease(self, lease: Nanos) -> NodeTiming {
        NodeTiming { replication: Timing::of_lease(lease), ..self }
    }
}

impl Default for NodeTiming {
    fn default() -> Self {
        NodeTiming {
            replication: Timing::default(),
            flush_interval: Nanos::from_secs(1),
            catch_up_bytes: 0,
            bulk_bytes: 4 << 20,
            replica_gc_after: Nanos::from_secs(10),
            load_interval: Nanos::from_secs(2),
            merge_bytes: 4 << 20,
        }
    }
}

/// What a node is built from.
pub struct NodeParts {
    /// Its ids and addresses; `copies` is filled in from the volume.
    pub info: ServerInfo,
    /// Opened by the caller.
    pub volume: Arc<Volume>,
    /// The copies that the volume held when it was opened.
    pub copies: Vec<Replica>,
    /// The account of its clients' memory.
    pub clients: ClientMemory,
    /// Its fabric, whose events come back as [`Input::Link`].
    pub fabric: Arc<dyn Fabric>,
    /// The fabric whose memory clients read, if they can read any.
    pub readable: Option<Arc<dyn Fabric>>,
    /// Its coordinator, whose events come back as [`Input::Coordinator`].
    pub coordinator: Arc<dyn Coordinator>,
    /// Options of the cluster.
    pub cluster: ClusterOptions,
    /// Timing.
    pub timing: NodeTiming,
    /// Settings that are to be the same on all nodes, which the node tells the others. It tells nothing if there are none.
    pub settings: BTreeMap<String, String>,
    /// Where checkpoints go; `None`: the node makes none.
    pub checkpoints: Option<Checkpoints>,
}
