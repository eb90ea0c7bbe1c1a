//! A scripted node: a TCP server that answers each request of the native protocol as the test says.

use bytes::Bytes;
use leeward_client::{GroupConfig, Op, OpResult, RegionMap, ServerInfo, TableName, TableOptions};
use leeward_format::cluster::Member;
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, OpError, Reply, Request};
use leeward_format::request::Once;
use leeward_format::routes::RoutesUpdate;
use leeward_format::{Epoch, Incarnation, Lsn, RegionId, ServerId, VolumeId};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What the node does with one request for operations.
pub(crate) enum Act {
    /// Answers.
    Results(Vec<OpResult>),
    /// Sends routes, then answers.
    RoutesThen(Vec<OpResult>),
    /// Closes the connection without an answer.
    Close,
    /// Never answers.
    Silence,
    /// Takes nothing more off the connection, which stays open.
    Hang,
    /// Sends these bytes.
    Raw(Vec<u8>),
}

type Script = Box<dyn FnMut(&[Op]) -> Act + Send>;

/// A request's operations, and the table that they were on.
type Batch = (TableName, Vec<Op>);

/// The commit LSN of region 1 that a node reports with the first operation that has a request id; one more with each
/// further one.
pub(crate) const HEARD: u64 = 100;

/// The user that it lets in.
pub(crate) const ADMITTED: &str = "alice";

/// A scripted node.
#[derive(Clone)]
pub(crate) struct FakeNode {
    pub(crate) address: String,
    /// Batches that reached it, in order.
    pub(crate) seen: Arc<Mutex<Vec<Batch>>>,
    /// The request ids of operations, in order.
    named: Arc<Mutex<Vec<Once>>>,
    map: Arc<Mutex<RegionMap>>,
}

impl FakeNode {
    /// Binds a free port; [`FakeNode::serve`] starts it.
    pub(crate) fn bind() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        (listener, address)
    }

    pub(crate) fn serve(
        listener: TcpListener,
        map: RegionMap,
        script: impl FnMut(&[Op]) -> Act + Send + 'static,
    ) -> FakeNode {
        let address = listener.local_addr().expect("it is bound").to_string();
        let node = FakeNode { address, seen: Arc::default(), named: Arc::default(), map: Arc::new(Mutex::new(map)) };
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let served = node.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (node, script) = (served.clone(), Arc::clone(&script));
                let stream = stream.expect("accept");
                thread::spawn(move || node.connection(stream, &script));
            }
        });
        node
    }

    pub(crate) fn set_map(&self, map: RegionMap) {
        *self.map.lock().expect("no panic") = map;
    }

    /// Every operation that reached the node.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.seen.lock().expect("no panic").iter().flat_map(|(_, ops)| ops.clone()).collect()
    }

    /// The request ids of all operations that reached the node.
    pub(crate) fn named(&self) -> Vec<Once> {
        self.named.lock().expect("no panic").clone()
    }

    /// The table and the size of every request that reached the node.
    pub(crate) fn requests(&self) -> Vec<(String, usize)> {
        self.seen.lock().expect("no panic").iter().map(|(table, ops)| (table.to_string(), ops.len())).collect()
    }

    fn connection(&self, mut stream: TcpStream, script: &Mutex<Script>) {
        let mut input = Vec::new();
        let mut scratch = [0; 65536];
        loop {
            while let Some((request, bytes)) =
                read_frame::<Request>(FrameKind::Request, &input, MAX_MESSAGE_BYTES).expect("a well-formed request")
            {
                input.drain(..bytes);
                let mut out = Vec::new();
                match request {
                    Request::Hello { .. } | Request::Routes { .. } => self.write_routes(&mut out),
                    Request::Map => write_frame(FrameKind::Reply, &Reply::Map(self.map()), &mut out),
                    Request::Identify => {
                        let node = Reply::Node { server: ServerId(1), admin_address: "admin:1".into() };
                        write_frame(FrameKind::Reply, &node, &mut out);
                    }
                    Request::RingOffer | Request::RingOpen { .. } => {
                        let refused = Reply::RingRefused { reason: "there is no script for rings".into() };
                        write_frame(FrameKind::Reply, &refused, &mut out);
                    }
                    Request::RingBell => {}
                    Request::Auth { user, .. } => {
                        let wrong = || OpError::Unauthenticated("wrong user".into());
                        let refused = (user != ADMITTED).then(wrong);
                        write_frame(FrameKind::Reply, &Reply::Auth { refused }, &mut out);
                    }
                    Request::Ops { id, direct, table, ops } => {
                        assert!(direct, "the client routes by itself");
                        if !self.answer(id, (table, ops), script, &mut out) {
                            return;
                        }
                    }
                    Request::Once { id, direct, table, ops, named } => {
                        assert!(direct, "the client routes by itself");
                        let committed = HEARD + self.named().len() as u64;
                        self.named.lock().expect("no panic").extend(named.iter().map(|(_, once)| *once));
                        let heard = Reply::Heard { regions: vec![(RegionId(1), Lsn(committed))] };
                        write_frame(FrameKind::Reply, &heard, &mut out);
                        if !self.answer(id, (table, ops), script, &mut out) {
                            return;
                        }
                    }
                }
                if stream.write_all(&out).is_err() {
                    return;
                }
            }
            match stream.read(&mut scratch) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => input.extend_from_slice(&scratch[..bytes]),
            }
        }
    }

    fn map(&self) -> RegionMap {
        self.map.lock().expect("no panic").clone()
    }

    fn write_routes(&self, out: &mut Vec<u8>) {
        write_frame(FrameKind::Reply, &Reply::Routes(RoutesUpdate::everything(&self.map())), out);
    }

    /// Handles a request by the script. Returns false if the connection must end.
    fn answer(&self, id: u64, (table, ops): Batch, script: &Mutex<Script>, out: &mut Vec<u8>) -> bool {
        let act = script.lock().expect("no panic")(&ops);
        self.seen.lock().expect("no panic").push((table, ops));
        match act {
            Act::Results(results) => write_frame(FrameKind::Reply, &Reply::Results { id, results }, out),
            Act::RoutesThen(results) => {
                self.write_routes(out);
                write_frame(FrameKind::Reply, &Reply::Results { id, results }, out);
            }
            Act::Close => return false,
            Act::Silence => {}
            Act::Hang => loop {
                thread::park();
            },
            Act::Raw(bytes) => *out = bytes,
        }
        true
    }
}

/// A map whose regions are `(start, primary's server id)`, over servers 1, 2, ... at `addresses`.
pub(crate) fn map(version: u64, regions: &[(&'static str, u32)], addresses: &[&str]) -> RegionMap {
    let member = |id: u32| Member { server: ServerId(id), volume: VolumeId(id.into()), incarnation: Incarnation(1) };
    let ends = regions.iter().skip(1).map(|(start, _)| Some(Bytes::from(*start))).chain([None]);
    let group = |(number, ((start, primary), end)): (usize, (&(&'static str, u32), Option<Bytes>))| GroupConfig {
        start: (*start).into(),
        end,
        epoch: Epoch(version as u32),
        term: Epoch(version as u32),
        primary: Some(member(*primary)),
        ..GroupConfig::unassigned(RegionId(number as u32 + 1), "default")
    };
    let server = |(number, address): (usize, &&str)| ServerInfo {
        native_address: (*address).into(),
        ..ServerInfo::of(member(number as u32 + 1))
    };
    RegionMap {
        version,
        tables: vec![TableOptions::default()],
        regions: regions.iter().zip(ends).enumerate().map(group).collect(),
        servers: addresses.iter().enumerate().map(server).collect(),
    }
}

/// The answer of a store that succeeds at everything.
pub(crate) fn succeed(ops: &[Op]) -> Act {
    Act::Results(ops.iter().map(success).collect())
}

/// A primary's answer to a successful `op`.
pub(crate) fn success(op: &Op) -> OpResult {
    match op {
        Op::Get { key } => OpResult::Value(Some(key.clone())),
        Op::Put { .. } => OpResult::Put { done: true, old: None, version: None },
        Op::Approximate { .. } => OpResult::Approximation { pairs: 1, bytes: 2, resume: None },
        Op::GetPair { .. } => OpResult::Pair(None),
        Op::Expire { .. } => OpResult::Put { done: false, old: None, version: None },
        Op::Delete { .. } => OpResult::Deleted { done: false, old: None, version: None },
        Op::Add { delta, .. } => OpResult::Integer(*delta),
        Op::Append { suffix, .. } => OpResult::Integer(suffix.len() as i64),
        Op::Scan(_) => OpResult::Entries { entries: Vec::new(), resume: None },
        Op::DeleteRange { .. } => OpResult::RangeDeleted { resume: None },
        Op::Count { .. } => OpResult::Integer(0),
        Op::AcceptLoss { .. } | Op::CreateTable { .. } | Op::AlterTable { .. } => OpResult::Done,
        Op::RepairSegment { .. } | Op::RequestRegion { .. } | Op::Intend { .. } | Op::DropTable { .. } => {
            OpResult::Done
        }
        Op::RebuildIndex { .. } | Op::ChangeUser { .. } | Op::RemoveUsers { .. } => OpResult::Done,
        Op::RestoreTree { .. } => OpResult::Done,
        Op::ListUsers => OpResult::Users(Vec::new()),
        Op::Digests { .. } | Op::SegmentContent { .. } => OpResult::Value(None),
        Op::RangeBounds { .. } | Op::RangeDigests(_) | Op::HashIndex(_) => OpResult::Value(None),
        Op::Stale { read, .. } => success(&read.clone().op()),
        Op::In { op, .. } => success(&op.clone().into()),
        Op::Checkpoint { .. } => OpResult::Checkpoint { left: 0, path: String::new(), last: Lsn(0) },
    }
}
