//! The surroundings of a session in tests: a node that has no figures to tell and executes nothing.

use crate::cursors::Cursors;
use crate::node::PeerSettings;
use crate::quota::Quota;
use crate::session_context::{AskNode, Context, Facts, SharedBySessions};
use crate::users::{Audit, Gate};
use leeward_cluster::View;
use leeward_format::op::{Op, OpResult};
use leeward_format::status::NodeStatus;
use leeward_format::user::Users;
use leeward_format::{Lsn, RegionId};
use leeward_platform::Nanos;
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::{ReplyTo, Request};
use std::sync::Arc;

struct NoFigures;

impl AskNode for NoFigures {
    fn status(&self) -> NodeStatus {
        NodeStatus::default()
    }

    fn committed(&self, region: RegionId) -> Option<Lsn> {
        Some(Lsn(u64::from(region.0) * 100))
    }

    fn read_at_once(&self, _heard: Nanos, _table: &str, _op: &Op) -> Option<OpResult> {
        None
    }
}

/// What sessions share, and what they see of a cluster.
pub(crate) struct IdleNode {
    pub(crate) shared: SharedBySessions,
    pub(crate) view: View,
    pub(crate) peer_settings: PeerSettings,
    pub(crate) users: Arc<Users>,
}

impl IdleNode {
    /// With an empty cluster, without users, and with memory for all clients.
    pub(crate) fn new(facts: Facts) -> IdleNode {
        let gate = Gate::new(true, Audit::default());
        let accounts = (Arc::new(crate::commands::new_metrics()), ClientMemory::unlimited(), gate);
        let shared = SharedBySessions::new(facts, Cursors::new(1), accounts);
        IdleNode {
            shared,
            view: View::default(),
            peer_settings: PeerSettings::default(),
            users: Arc::new(Users::none()),
        }
    }

    /// A turn of the event loop.
    pub(crate) fn context(&mut self) -> Context<'_> {
        Context {
            now: Nanos::ZERO,
            routes: self.view.routes(),
            is_synced: self.view.is_synced(),
            peer_settings: &self.peer_settings,
            users: &self.users,
            node: &NoFigures,
            shared: &mut self.shared,
            quota: Quota::default(),
        }
    }
}

/// The number of an operation on its connection.
pub(crate) fn number_of(request: &Request) -> u64 {
    let ReplyTo::Client(token) = request.to else { panic!("a client's") };
    token.distance_from(0)
}
