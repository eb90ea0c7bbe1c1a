//! The coordinator of the simulation: the real [`Tree`], with sessions that expire and connections that are cut.
//!
//! Messages on a connection arrive in order, after a delay. A cut loses the messages in flight; chance decides whether an
//! operation in flight is executed. In one seed of three, a change may be delivered together with later ones, and then only
//! the last change of each path, as ZooKeeper's client does.

use crate::world::NodeId;
use leeward_cluster::{Change, Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp, SessionId, Tree};
use leeward_format::coordinator::TreeSnapshot;
use leeward_platform::{Nanos, Rng};
use parking_lot::Mutex;
use std::sync::Arc;

const SESSION_TIMEOUT: Nanos = Nanos::from_millis(1_000);
/// After this long without a message a node knows that its connection is gone.
const NOTICED: Nanos = Nanos(SESSION_TIMEOUT.0 / 3);

/// Operations that nodes submit in a batch, until the world takes them.
pub(crate) type Submitted = Arc<Mutex<Vec<(NodeId, u64, CoordinatorOp)>>>;

/// A node's handle.
pub(crate) struct SimCoordinator {
    pub(crate) node: NodeId,
    pub(crate) submitted: Submitted,
}

impl Coordinator for SimCoordinator {
    fn submit(&self, id: u64, op: CoordinatorOp) {
        self.submitted.lock().push((self.node, id, op));
    }
}

#[derive(Default)]
struct Client {
    session: Option<SessionId>,
    /// Identifies the connection. Messages of an earlier connection are lost.
    connection: Option<u64>,
    heard: Nanos,
    /// Changes that are delivered together with the next message, at most one per path.
    held: Vec<Change>,
    /// When the last message in each direction arrives.
    inbound: Nanos,
    outbound: Nanos,
}

pub(crate) struct Host {
    pub(crate) tree: Tree,
    clients: Vec<Client>,
    /// Sessions of processes that are gone, and when each was last heard.
    orphans: Vec<(SessionId, Nanos)>,
    pub(crate) reachable: Vec<bool>,
    /// The coordinator's process does not run: no node reaches it, and no session expires.
    pub(crate) down: bool,
    next_connection: u64,
    /// Chooses which changes are delivered together, in the seeds that do so.
    together: Option<Rng>,
}

/// A message in flight: when it arrives, the node that sent or receives it, and its content.
pub(crate) type Sent = (Nanos, NodeId, Travelling);

/// The content of a message.
pub(crate) enum Travelling {
    /// An operation reaches the host.
    Op { connection: u64, id: u64, op: CoordinatorOp },
    /// An event reaches a node.
    Event { connection: Option<u64>, event: CoordinatorEvent },
}

impl Host {
    /// The coordinator for `nodes` nodes in the world of `seed`.
    pub(crate) fn new(nodes: usize, seed: u64) -> Host {
        Host {
            tree: Tree::new(),
            clients: (0..nodes).map(|_| Client::default()).collect(),
            orphans: Vec::new(),
            reachable: vec![true; nodes],
            down: false,
            next_connection: 1,
            together: seed.is_multiple_of(3).then(|| Rng::new(!seed)),
        }
    }

    fn delay(rng: &mut Rng) -> Nanos {
        Nanos::from_micros(rng.between(100, 3_000))
    }

    fn tell(&mut self, now: Nanos, node: NodeId, event: CoordinatorEvent, rng: &mut Rng, out: &mut Vec<Sent>) {
        self.tell_held(now, node, rng, out);
        let client = &mut self.clients[node];
        client.inbound = client.inbound.max(now + Host::delay(rng));
        let travelling = Travelling::Event { connection: client.connection, event };
        out.push((client.inbound, node, travelling));
    }

    /// Delivers the changes that are held back for `node`.
    fn tell_held(&mut self, now: Nanos, node: NodeId, rng: &mut Rng, out: &mut Vec<Sent>) {
        let held = std::mem::take(&mut self.clients[node].held);
        if !held.is_empty() {
            self.tell(now, node, CoordinatorEvent::Changed(held), rng, out);
        }
    }

    fn broadcast(&mut self, now: Nanos, changes: &[Change], rng: &mut Rng, out: &mut Vec<Sent>) {
        for node in 0..self.clients.len() {
            if self.clients[node].connection.is_none() {
                continue;
            }
            for change in changes {
                let held = &mut self.clients[node].held;
                held.retain(|other| other.path != change.path);
                held.push(change.clone());
                if !self.together.as_mut().is_some_and(|rng| rng.one_in(2)) {
                    self.tell_held(now, node, rng, out);
                }
            }
        }
    }

    /// A node's process ended. Its connection is gone; its session remains until it expires.
    pub(crate) fn process_ended(&mut self, node: NodeId) {
        let client = std::mem::take(&mut self.clients[node]);
        self.orphans.extend(client.session.map(|session| (session, client.heard)));
    }

    /// An operation leaves a node.
    pub(crate) fn submit(&mut self, now: Nanos, node: NodeId, id: u64, op: CoordinatorOp, rng: &mut Rng) -> Sent {
        let client = &mut self.clients[node];
        match client.connection {
            Some(connection) => {
                client.outbound = client.outbound.max(now + Host::delay(rng));
                (client.outbound, node, Travelling::Op { connection, id, op })
            }
            None => {
                let event = CoordinatorEvent::Reply { id, result: Err(CoordinatorError::Disconnected) };
                (now, node, Travelling::Event { connection: None, event })
            }
        }
    }

    /// An operation reaches the host.
    pub(crate) fn apply(
        &mut self,
        now: Nanos,
        node: NodeId,
        (connection, id, op): (u64, u64, CoordinatorOp),
        rng: &mut Rng,
        out: &mut Vec<Sent>,
    ) {
        if (self.down || !self.reachable[node]) && self.clients[node].connection == Some(connection) {
            // Nothing gets through. Later messages on this connection are lost as well.
            self.cut(now, node, out);
        }
        let connected = self.clients[node].connection == Some(connection);
        // A cut connection may or may not have delivered its last bytes.
        if self.down || (!connected && rng.one_in(2)) {
            return;
        }
        let Some(session) = self.clients[node].session else { return };
        let result = self.tree.apply(Some(session), &op);
        if let Ok(applied) = &result {
            self.broadcast(now, &applied.changes, rng, out);
        }
        if connected {
            let result = result.map(|applied| applied.version);
            self.tell(now, node, CoordinatorEvent::Reply { id, result }, rng, out);
        }
    }

    /// The connection of a node ends. The node notices after a while.
    fn cut(&mut self, now: Nanos, node: NodeId, out: &mut Vec<Sent>) {
        let client = &mut self.clients[node];
        client.held.clear();
        if client.connection.take().is_some() {
            let noticed = client.inbound.max(client.heard + NOTICED).max(now);
            client.inbound = noticed;
            out.push((noticed, node, Travelling::Event { connection: None, event: CoordinatorEvent::Down }));
        }
    }

    /// Whether an event that reaches a node belongs to its current connection.
    pub(crate) fn is_current(&self, node: NodeId, connection: Option<u64>) -> bool {
        connection.is_none() || self.clients[node].connection == connection
    }

    /// Time has passed: connections are made and lost, and sessions expire. `alive` says which processes run and answer.
    pub(crate) fn tick(&mut self, now: Nanos, alive: &[bool], rng: &mut Rng, out: &mut Vec<Sent>) {
        for (node, alive) in alive.iter().enumerate() {
            let reachable = *alive && self.reachable[node] && !self.down;
            match (reachable, self.clients[node].connection) {
                (true, Some(_)) => self.clients[node].heard = now,
                (true, None) if self.clients[node].inbound <= now => self.attach(now, node, rng, out),
                (false, Some(_)) if self.down || now - self.clients[node].heard > NOTICED => self.cut(now, node, out),
                _ => {}
            }
        }
        if self.down {
            // When the coordinator runs again, every session has its whole timeout to be heard.
            let orphans = self.orphans.iter_mut().map(|(_, heard)| heard);
            self.clients.iter_mut().map(|client| &mut client.heard).chain(orphans).for_each(|heard| *heard = now);
            return;
        }
        for node in 0..alive.len() {
            self.tell_held(now, node, rng, out);
            let silent = now - self.clients[node].heard > SESSION_TIMEOUT;
            if let Some(session) = self.clients[node].session.take_if(|_| silent) {
                let changes = self.tree.close(session);
                self.broadcast(now, &changes, rng, out);
            }
        }
        let expired = |(_, heard): &mut (SessionId, Nanos)| now - *heard > SESSION_TIMEOUT;
        for (session, _) in self.orphans.extract_if(.., expired).collect::<Vec<_>>() {
            let changes = self.tree.close(session);
            self.broadcast(now, &changes, rng, out);
        }
    }

    /// The host's process is replaced by one whose tree is in an older state, or empty. Sessions that it does not know are over.
    pub(crate) fn forget(&mut self, now: Nanos, older: Option<TreeSnapshot>, out: &mut Vec<Sent>) {
        for node in 0..self.clients.len() {
            self.cut(now, node, out);
        }
        self.tree = older.map_or_else(Tree::new, Tree::restore);
        self.next_connection += 1;
        self.tree.draw_sessions_from(self.next_connection << 32);
        let known: Vec<SessionId> = self.tree.sessions().map(|(session, _)| session).collect();
        for client in &mut self.clients {
            client.session.take_if(|session| !known.contains(session));
        }
        let is_held = |session: &SessionId| self.clients.iter().any(|client| client.session == Some(*session));
        self.orphans = known.into_iter().filter(|session| !is_held(session)).map(|session| (session, now)).collect();
    }

    fn attach(&mut self, now: Nanos, node: NodeId, rng: &mut Rng, out: &mut Vec<Sent>) {
        let resumed = self.clients[node].session;
        let session = resumed.unwrap_or_else(|| self.tree.open(1_000).expect("a few sessions"));
        let client = &mut self.clients[node];
        client.session = Some(session);
        client.heard = now;
        client.connection = Some(self.next_connection);
        self.next_connection += 1;
        if resumed.is_none() {
            self.tell(now, node, CoordinatorEvent::Expired, rng, out);
        }
        self.tell(now, node, CoordinatorEvent::Up { session }, rng, out);
        for change in self.tree.changes().collect::<Vec<_>>() {
            self.tell(now, node, CoordinatorEvent::Changed(vec![change]), rng, out);
        }
        let version = self.tree.version();
        self.tell(now, node, CoordinatorEvent::Synced { version }, rng, out);
    }
}
