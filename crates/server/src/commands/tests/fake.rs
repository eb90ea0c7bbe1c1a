//! A node of a map: answers operations as the real one does, region by region.

use crate::commands::Session;
use crate::commands::idle_node::number_of;
use crate::cursors::Cursors;
use crate::node::PeerSettings;
use crate::protocol_session::ProtocolSession;
use crate::quota::{Quota, STEP_UNITS};
use crate::session_context::{AskNode, Context, Facts, SharedBySessions, check_op};
use crate::users::{Audit, Gate};
use bytes::{Buf, Bytes};
use leeward_cluster::{Change, CoordinatorEvent, Routes, View};
use leeward_format::cluster::{ClusterPath, GroupConfig, Member, TableOptions, encode_value};
use leeward_format::op::{Op, OpError, OpResult, RangeOp, ScanRange};
use leeward_format::routing::Routing;
use leeward_format::status::{MemoryStatus, NodeStatus};
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_format::user::Users;
use leeward_format::{Epoch, Expiry, Incarnation, Lsn, RegionId, ServerId, UnixMs, VolumeId};
use leeward_platform::Nanos;
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::{Naming, Request};
use leeward_region::serving::decide::{Current, Decision, decide};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A table beside the default one.
const ORDERS: &str = "orders";

pub(super) struct FakeNode {
    /// Of each table.
    pub(super) tables: BTreeMap<TableName, BTreeMap<Bytes, Bytes>>,
    view: View,
    expiries: BTreeMap<(TableName, Bytes), Expiry>,
    /// The wall time, by which pairs expire.
    pub(super) wall: UnixMs,
    /// How often its figures were gathered.
    pub(super) gathered: Cell<u32>,
    /// The result of the next operation, which is not executed then.
    pub(super) error: Option<OpError>,
    /// It answers reads at once.
    pub(super) is_quick: bool,
}

impl AskNode for FakeNode {
    fn status(&self) -> NodeStatus {
        self.gathered.set(self.gathered.get() + 1);
        let memory = MemoryStatus { budget: 134_217_728, ..MemoryStatus::default() };
        NodeStatus { server: ServerId(1), coordinator_up: true, memory, ..NodeStatus::default() }
    }

    fn committed(&self, _: RegionId) -> Option<Lsn> {
        None
    }

    fn read_at_once(&self, _heard: Nanos, table: &str, op: &Op) -> Option<OpResult> {
        let key = op.key().filter(|_| self.is_quick)?;
        let table: TableName = table.parse().expect("a name");
        match decide(op, self.current(&table, key), self.wall) {
            Decision::Answer(answer) => Some(answer),
            Decision::Put(..) | Decision::Delete(_) => None,
        }
    }
}

impl FakeNode {
    /// Regions split before each of `splits`.
    pub(super) fn new(splits: &[&str]) -> FakeNode {
        let starts: Vec<Bytes> =
            [Bytes::new()].into_iter().chain(splits.iter().map(|s| Bytes::copy_from_slice(s.as_bytes()))).collect();
        let member =
            |server| Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) };
        let mut regions: Vec<GroupConfig> = Vec::new();
        regions.extend(starts.iter().enumerate().map(|(index, start)| GroupConfig {
            start: start.clone(),
            end: starts.get(index + 1).cloned(),
            epoch: Epoch(1),
            term: Epoch(1),
            primary: Some(member(1)),
            backups: vec![member(2), member(3)],
            ..GroupConfig::unassigned(RegionId(index as u32 + 1), "default")
        }));
        // Another table of one region, with a backup less.
        let (table, region) = (String::from(ORDERS), RegionId(100));
        let (start, end, backups) = (Bytes::new(), None, vec![member(2)]);
        regions.push(GroupConfig { table, region, start, end, backups, ..regions[0].clone() });
        let tables = [DEFAULT_TABLE, ORDERS].map(|name| TableOptions { name: name.into(), ..TableOptions::default() });
        let (pairs, expiries, view) = (BTreeMap::new(), BTreeMap::new(), View::default());
        let (wall, gathered) = (UnixMs(1_000_000), Cell::new(0));
        let mut node = FakeNode { tables: pairs, expiries, wall, view, gathered, error: None, is_quick: false };
        tables.iter().for_each(|table| node.set(&ClusterPath::Table(table.name.clone()), Some(encode_value(table))));
        regions.iter().for_each(|config| node.configure(config.region, Some(config)));
        node
    }

    /// Sets a path of the coordinator's tree, or removes it.
    pub(super) fn set(&mut self, path: &ClusterPath, value: Option<Bytes>) {
        let change = Change { path: path.to_string(), version: self.view.version() + 1, value };
        self.view.handle(&CoordinatorEvent::Changed(vec![change]));
    }

    /// Sets the configuration of the region, or removes the region.
    pub(super) fn configure(&mut self, region: RegionId, config: Option<&GroupConfig>) {
        self.set(&ClusterPath::Region(region), config.map(encode_value));
    }

    /// Where its regions are.
    pub(super) fn routes(&self) -> &Routes {
        self.view.routes()
    }

    /// Keys of the default table.
    pub(super) fn keys(&mut self) -> &mut BTreeMap<Bytes, Bytes> {
        self.tables.entry(TableName::default()).or_default()
    }

    /// The pair of a key, as a look-up may have found it: it may have expired since.
    fn current(&self, table: &TableName, key: &Bytes) -> Current {
        let expires = self.expiries.get(&(table.clone(), key.clone())).copied();
        let value = self.tables.get(table).and_then(|keys| keys.get(key)).cloned();
        Current { lsn: Lsn(1), pair: value.map(|value| (value, expires)) }
    }

    pub(super) fn execute(&mut self, table: TableName, op: Op) -> OpResult {
        assert_eq!(check_op(&op), Ok(()), "commands check before they submit");
        if let Some(error) = self.error.take() {
            return OpResult::Error(error);
        }
        self.tables.entry(table.clone()).or_default();
        if let Some(key) = op.key() {
            let current = self.current(&table, key);
            let keys = self.tables.entry(table.clone()).or_default();
            let (pair, answer) = match decide(&op, current, self.wall) {
                Decision::Answer(answer) => return answer,
                Decision::Put(value, expires, answer) => (Some((value, expires)), answer),
                Decision::Delete(answer) => (None, answer),
            };
            self.expiries.remove(&(table.clone(), key.clone()));
            match pair {
                Some((value, expires)) => {
                    self.expiries.extend(expires.map(|expires| ((table, key.clone()), expires)));
                    keys.insert(key.clone(), value)
                }
                None => keys.remove(key),
            };
            return answer;
        }
        match op {
            Op::Count { region } => {
                let group = self.routes().region(region).expect("a region").clone();
                let of = group.table.parse().expect("a name");
                let partition = self.routes().partition(&group.table).expect("a table");
                let is_in = |key: &&Bytes| group.contains(&partition.place(key));
                OpResult::Integer(self.tables.entry(of).or_default().keys().filter(is_in).count() as i64)
            }
            Op::DeleteRange { start, end } => {
                let group = self.view.routes().region_of(&table, &start).expect("a region");
                let edge = group.end.clone().filter(|edge| end.as_ref().is_none_or(|end| edge < end));
                let end = edge.clone().or(end);
                self.tables
                    .entry(table)
                    .or_default()
                    .retain(|key, _| *key < start || end.as_ref().is_some_and(|end| key >= end));
                OpResult::RangeDeleted { resume: edge }
            }
            op if op.is_for_any_node() || matches!(op, Op::Checkpoint { .. }) => {
                unreachable!("no Redis command does that")
            }
            Op::Scan(range) => self.scan(&table, range),
            Op::In { region, op: RangeOp::Scan(range) } => {
                self.scan_in(&table, self.routes().region(region).expect("a region"), range)
            }
            op => unreachable!("{op:?} is about a key"),
        }
    }

    fn scan(&self, table: &TableName, range: ScanRange) -> OpResult {
        let group = match range.reverse {
            true => self.routes().region_below(table, range.end.as_deref()),
            false => self.routes().region_of(table, &range.start),
        };
        self.scan_in(table, group.expect("regions cover all keys"), range)
    }

    fn scan_in(&self, table: &TableName, group: &GroupConfig, range: ScanRange) -> OpResult {
        let ScanRange { start, end, reverse, limit, keys_only } = range;
        let partition = self.routes().partition(table).expect("a table");
        let is_in = |key: &Bytes| group.contains(&partition.place(key));
        let wanted = |key: &Bytes| is_in(key) && *key >= start && end.as_ref().is_none_or(|end| key < end);
        let mut entries: Vec<(Bytes, Bytes)> =
            self.tables[table].iter().filter(|(key, _)| wanted(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        if reverse {
            entries.reverse();
        }
        let is_cut = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        let resume = match (is_cut, reverse) {
            (true, false) => entries.last().map(|(key, _)| Bytes::from([key, &b"\0"[..]].concat())),
            (true, true) => entries.last().map(|(key, _)| key.clone()),
            (false, _) if partition.is_hash() => None,
            (false, false) => group.end.clone().filter(|next| end.as_ref().is_none_or(|end| next < end)),
            (false, true) => Some(group.start.clone()).filter(|next| *next > start),
        };
        if keys_only {
            entries.iter_mut().for_each(|(_, value)| value.clear());
        }
        OpResult::Entries { entries, resume }
    }
}

/// A connection to a fake node.
pub(super) struct Fake {
    pub(super) node: FakeNode,
    pub(super) users: Arc<Users>,
    pub(super) shared: SharedBySessions,
    pub(super) session: Session,
    /// Operations that were submitted and not executed.
    pub(super) waiting: Vec<Request>,
    pub(super) now: Nanos,
    /// The quota of a step.
    pub(super) units: u32,
    /// Whether the node hears the coordinator.
    pub(super) is_synced: bool,
    pub(super) peer_settings: PeerSettings,
}

impl Fake {
    pub(super) fn new(splits: &[&str]) -> Fake {
        Fake::within(splits, ClientMemory::unlimited())
    }

    /// One of those that share an account.
    pub(super) fn within(splits: &[&str], memory: ClientMemory) -> Fake {
        let node = FakeNode::new(splits);
        let facts = Facts {
            resp_port: 7379,
            bind: "127.0.0.1".into(),
            run_id: "0".repeat(40),
            max_connections: 10,
            data_dir: "data".into(),
            ..Facts::default()
        };
        let metrics = Arc::new(crate::commands::new_metrics());
        let accounts = (metrics, memory, Gate::new(true, Audit::default()));
        let mut shared = SharedBySessions::new(facts, Cursors::new(1), accounts);
        let now = Nanos::from_secs(100);
        let users = Arc::new(Users::none());
        let peer_settings = PeerSettings::default();
        let mut context = Context {
            now,
            routes: node.routes(),
            is_synced: true,
            peer_settings: &peer_settings,
            users: &users,
            node: &node,
            shared: &mut shared,
            quota: Quota::default(),
        };
        let session = Session::new(7, "127.0.0.1:5000".into(), "127.0.0.1:7379".into(), &mut context);
        Fake {
            node,
            users,
            shared,
            session,
            waiting: Vec::new(),
            now,
            units: STEP_UNITS,
            is_synced: true,
            peer_settings,
        }
    }

    /// Feeds bytes; operations are left waiting.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.session.feed(bytes);
        self.advance();
    }

    /// Takes steps until the session waits for something.
    pub(super) fn advance(&mut self) {
        self.step();
        while self.session.has_work() {
            self.step();
        }
    }

    /// Takes one step.
    pub(super) fn step(&mut self) {
        self.with(|session, context, waiting| session.advance(context, waiting));
    }

    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut Session, &mut Context, &mut Vec<Request>) -> T) -> T {
        let mut context = Context {
            now: self.now,
            routes: self.node.routes(),
            is_synced: self.is_synced,
            peer_settings: &self.peer_settings,
            users: &self.users,
            node: &self.node,
            shared: &mut self.shared,
            quota: Quota::of(self.units),
        };
        act(&mut self.session, &mut context, &mut self.waiting)
    }

    /// Executes the waiting operation at `index` and answers it.
    pub(super) fn answer(&mut self, index: usize) {
        let request = self.waiting.remove(index);
        assert!(matches!(request.naming, Naming::Unnamed), "nodes give names, not connections");
        assert!(!request.is_direct, "a Redis client's operations are forwarded");
        let number = number_of(&request);
        let result = self.node.execute(request.table, request.op);
        self.complete(number, result);
    }

    pub(super) fn complete(&mut self, number: u64, result: OpResult) {
        self.with(|session, context, _| {
            let result = context.shared.memory.hold_result(result);
            session.complete(number, result, context);
        });
        self.advance();
    }

    /// The bytes that the client has received so far.
    pub(super) fn take_output(&mut self) -> String {
        let output = self.session.output();
        let text = output.escape_ascii().to_string().replace("\\r\\n", "|").replace("\\'", "'");
        output.advance(output.len());
        self.advance();
        text
    }

    /// Whether the connection is to be closed: all that it was told has left.
    pub(super) fn is_finished(&self) -> bool {
        self.session.is_finished()
    }

    /// Feeds bytes, answers every operation, and takes the output, with `|` for line ends.
    pub(super) fn run_bytes(&mut self, bytes: &[u8]) -> String {
        self.feed(bytes);
        while !self.waiting.is_empty() {
            self.answer(0);
        }
        self.take_output()
    }

    /// Runs one command, typed as into a terminal.
    pub(super) fn run(&mut self, line: &str) -> String {
        self.run_bytes(format!("{line}\r\n").as_bytes())
    }
}
