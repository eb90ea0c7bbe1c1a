//! What a session sees of its node in one turn of the event loop: routes, figures, and the state that all connections share.
//!
//! Belongs to the event loop's thread.

use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::metrics::Metrics;
use crate::node::{Node, PeerSettings};
use crate::places::Places;
use crate::quota::Quota;
use crate::redirects::Redirects;
use crate::resp::Reply;
use crate::users::Gate;
use leeward_cluster::Routes;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::status::NodeStatus;
use leeward_format::table::{TableName, unknown_table};
use leeward_format::user::{UserRule, Users};
use leeward_format::{Lsn, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_region::client_memory::ClientMemory;
use leeward_security::passwords::check_hash;
use std::sync::Arc;

/// Units of the quota for gathering the node's figures, and for those of a region.
const FIGURES_UNITS: u32 = 100;
const REGION_UNITS: u32 = 10;

/// The state of the node that commands see in one turn of the event loop.
pub struct Context<'a> {
    /// A reading of the clock since the bytes came that the session has.
    pub now: Nanos,
    /// Regions as the node knows them.
    pub routes: &'a Routes,
    /// Whether the node hears the coordinator. Otherwise its routes are those that it knew last.
    pub is_synced: bool,
    /// What the other nodes have told of their settings.
    pub(crate) peer_settings: &'a PeerSettings,
    /// Users as the node knows them.
    pub users: &'a Arc<Users>,
    /// The node, as far as it answers at once.
    pub node: &'a dyn AskNode,
    /// The state that all connections share.
    pub shared: &'a mut SharedBySessions,
    /// The work that may be done before another connection has its turn.
    pub quota: Quota,
}

impl Context<'_> {
    /// Whether the node knows of any table. Until then, one that it does not know may exist.
    pub(crate) fn knows_tables(&self) -> bool {
        self.routes.tables().next().is_some()
    }

    /// The reply to a command on a table that has no regions here, or not all of them.
    pub(crate) fn no_regions(&self, table: &str) -> Reply {
        if self.is_synced && self.knows_tables() && self.routes.table(table).is_none() {
            return Reply::err(unknown_table(table));
        }
        Reply::Error("LOADING the table has no regions yet, or not all of them; try again".into())
    }

    /// The node's figures, as of now or a moment ago: clients that ask without a pause do not have them gathered each time.
    pub(crate) fn status(&mut self) -> Arc<NodeStatus> {
        let known = &mut self.shared.figures;
        if let Some((at, status)) = known
            && self.now - *at < figures_last(status.regions.len())
        {
            return status.clone();
        }
        let status = Arc::new(self.node.status());
        self.quota.take(FIGURES_UNITS + REGION_UNITS * status.regions.len() as u32);
        *known = Some((self.now, status.clone()));
        status
    }
}

/// How long figures of so many regions count as fresh: about twenty times as long as it takes to gather them.
pub(crate) fn figures_last(regions: usize) -> Nanos {
    Nanos::from_millis(1) + Nanos::from_micros(50 * regions as u64)
}

/// What a session asks the node at once: its figures, which have a cost, and reads that memory can answer.
pub trait AskNode {
    /// The figures, as of now.
    fn status(&self) -> NodeStatus;
    /// The last committed LSN of a region, as far as the node knows.
    fn committed(&self, region: RegionId) -> Option<Lsn>;
    /// See [`Node::read_at_once`].
    fn read_at_once(&self, heard: Nanos, table: &str, op: &Op) -> Option<OpResult>;
}

impl AskNode for Node {
    fn status(&self) -> NodeStatus {
        Node::status(self)
    }

    fn committed(&self, region: RegionId) -> Option<Lsn> {
        Node::committed(self, region)
    }

    fn read_at_once(&self, heard: Nanos, table: &str, op: &Op) -> Option<OpResult> {
        Node::read_at_once(self, heard, table, op)
    }
}

/// The state that all connections of a node share.
pub struct SharedBySessions {
    /// Constants of the process.
    pub facts: Facts,
    /// Connected clients.
    pub clients: Clients,
    /// Open `SCAN` cursors.
    pub cursors: Cursors,
    /// Primaries that clients in cluster mode are sent to.
    pub redirects: Redirects,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The last figures that clients were given, and when they were gathered.
    pub figures: Option<(Nanos, Arc<NodeStatus>)>,
    /// The account of what is held for clients.
    pub memory: ClientMemory,
    /// Who may come in.
    pub(crate) gate: Gate,
    /// How many may.
    pub(crate) places: Places,
}

impl SharedBySessions {
    /// Before the first connection.
    pub(crate) fn new(
        facts: Facts,
        cursors: Cursors,
        (metrics, memory, gate): (Arc<Metrics>, ClientMemory, Gate),
    ) -> SharedBySessions {
        let (clients, redirects) = (Clients::default(), Redirects::default());
        let places = Places::new(facts.max_connections);
        SharedBySessions { facts, clients, cursors, redirects, metrics, memory, gate, places, figures: None }
    }
}

/// Constants of the process, for `INFO`, `HELLO`, `CONFIG GET` and native clients that ask.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Number of the server.
    pub server: ServerId,
    /// Where operators reach it.
    pub admin_address: String,
    /// Port for Redis clients.
    pub resp_port: u16,
    /// Address that Redis clients connect to.
    pub bind: String,
    /// Names this run of the process: 40 hexadecimal digits.
    pub run_id: String,
    /// When the process started.
    pub started: Nanos,
    /// Most connections.
    pub max_connections: usize,
    /// Data directory.
    pub data_dir: String,
    /// The table of database 0.
    pub redis_table: TableName,
    /// Whether Redis clients connect with TLS.
    pub is_encrypted: bool,
}

/// Refuses what the store could never hold, before anything is submitted.
///
/// # Errors
/// The reason, as a sentence for the client.
pub(crate) fn check_op(op: &Op) -> Result<(), OpError> {
    let Op::ChangeUser { change } = op else { return op.check() };
    let mut added = change.rules.iter().filter_map(|rule| match rule {
        UserRule::AddPassword(hash) => Some(hash),
        _ => None,
    });
    // Before a node spends time and memory on them.
    added.try_for_each(|hash| check_hash(hash.phc())).map_err(OpError::Invalid)
}
