//! A store in memory that speaks the native protocol and answers `/status`: one node, which can be killed and can be
//! made to lose writes. Each connection has a thread; all state is behind one lock.

use bytes::Bytes;
use leeward_client::{GroupConfig, Op, OpError, OpResult, RegionMap, ScanRange, ServerInfo, TableOptions};
use leeward_format::cluster::Member;
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, Reply, Request};
use leeward_format::routes::RoutesUpdate;
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};
use leeward_operate::dev::NodeProcesses;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The content of the store, and its faults.
#[derive(Default)]
struct State {
    entries: BTreeMap<Bytes, Bytes>,
    up: bool,
    life: u64,
    /// Acknowledge every n-th write without keeping it.
    forget_every: Option<u64>,
    writes: u64,
    connections: Vec<TcpStream>,
    /// Refuse writes with an error that clients do not retry.
    full: bool,
    /// Report that a node has died by itself.
    broken: bool,
}

/// The node. Clones are handles.
#[derive(Clone)]
pub(crate) struct Store {
    state: Arc<Mutex<State>>,
    pub(crate) address: String,
    admin: String,
}

impl Store {
    pub(crate) fn start() -> Store {
        let native = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let admin = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
        let state = State { up: true, life: 1, ..State::default() };
        let store = Store { state: Arc::new(Mutex::new(state)), address: address(&native), admin: address(&admin) };
        for (listener, serve) in [(native, Store::native as fn(&Store, TcpStream)), (admin, Store::status)] {
            let store = store.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let store = store.clone();
                    thread::spawn(move || serve(&store, stream.expect("accept")));
                }
            });
        }
        store
    }

    pub(crate) fn forget_every(&self, writes: u64) {
        self.lock().forget_every = Some(writes);
    }

    /// Goes down for good, as a node that dies by itself.
    pub(crate) fn break_down(&mut self) {
        self.kill(1).expect("it can be killed");
        self.lock().broken = true;
    }

    pub(crate) fn set_full(&self) {
        self.lock().full = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    fn map(&self, life: u64) -> RegionMap {
        let member = Member { server: ServerId(1), volume: VolumeId(1), incarnation: Incarnation(life) };
        let group = |region: u32, start: &'static str, end: Option<&'static str>| GroupConfig {
            start: start.into(),
            end: end.map(Bytes::from),
            epoch: Epoch(life as u32),
            term: Epoch(life as u32),
            primary: Some(member),
            ..GroupConfig::unassigned(RegionId(region), "default")
        };
        let server = ServerInfo {
            native_address: self.address.clone(),
            admin_address: self.admin.clone(),
            ..ServerInfo::of(member)
        };
        RegionMap {
            version: life,
            tables: vec![TableOptions::default()],
            regions: vec![group(1, "", Some("user1")), group(2, "user1", None)],
            servers: vec![server],
        }
    }

    fn native(&self, mut stream: TcpStream) {
        {
            let mut state = self.lock();
            if !state.up {
                return;
            }
            state.connections.push(stream.try_clone().expect("a descriptor"));
        }
        let mut input = Vec::new();
        let mut scratch = vec![0; 1 << 16];
        loop {
            let mut out = Vec::new();
            while let Some((request, bytes)) =
                read_frame::<Request>(FrameKind::Request, &input, MAX_MESSAGE_BYTES).expect("a well-formed request")
            {
                input.drain(..bytes);
                let mut state = self.lock();
                if !state.up {
                    return;
                }
                let reply = match request {
                    Request::Hello { .. } | Request::Routes { .. } => {
                        Reply::Routes(RoutesUpdate::everything(&self.map(state.life)))
                    }
                    Request::Map => Reply::Map(self.map(state.life)),
                    Request::Identify
                    | Request::Auth { .. }
                    | Request::RingOffer
                    | Request::RingOpen { .. }
                    | Request::RingBell => {
                        unreachable!("the benchmark does not ask")
                    }
                    Request::Ops { id, ops, .. } | Request::Once { id, ops, .. } => {
                        Reply::Results { id, results: ops.into_iter().map(|op| state.execute(op)).collect() }
                    }
                };
                write_frame(FrameKind::Reply, &reply, &mut out);
            }
            if stream.write_all(&out).is_err() {
                return;
            }
            match stream.read(&mut scratch) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => input.extend_from_slice(&scratch[..bytes]),
            }
        }
    }

    fn status(&self, mut stream: TcpStream) {
        let mut request = [0; 1024];
        if !self.lock().up || !matches!(stream.read(&mut request), Ok(1..)) {
            return;
        }
        let pid = std::process::id();
        let body = format!(r#"{{"server":1,"pid":{pid},"network":{{"bytes_sent":5,"bytes_received":7}},"new":[1]}}"#);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        // The client may have gone.
        drop(stream.write_all(answer.as_bytes()));
    }
}

impl State {
    fn execute(&mut self, op: Op) -> OpResult {
        match op {
            Op::Get { key } => OpResult::Value(self.entries.get(&key).cloned()),
            Op::Put { .. } if self.full => OpResult::Error(OpError::Invalid("no space".into())),
            Op::Put { key, value, .. } => {
                self.writes += 1;
                if self.forget_every.is_none_or(|every| !self.writes.is_multiple_of(every)) {
                    self.entries.insert(key, value);
                }
                OpResult::Put { done: true, old: None, version: None }
            }
            Op::Scan(ScanRange { start, limit, .. }) => {
                // Small pages, so that scans take several.
                let page = limit.min(40) as usize;
                let mut found = self.entries.range((Bound::Included(start), Bound::Unbounded));
                let entries = found.by_ref().take(page).map(|(key, value)| (key.clone(), value.clone())).collect();
                OpResult::Entries { entries, resume: found.next().map(|(key, _)| key.clone()) }
            }
            other => panic!("no workload does this: {other:?}"),
        }
    }
}

impl NodeProcesses for Store {
    fn kill(&mut self, server: u32) -> io::Result<()> {
        assert_eq!(server, 1);
        let mut state = self.lock();
        state.up = false;
        for connection in state.connections.drain(..) {
            drop(connection.shutdown(std::net::Shutdown::Both));
        }
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        if self.lock().broken { Err(io::Error::other("node 1 died")) } else { Ok(()) }
    }

    fn halt(&mut self, _server: u32) -> io::Result<()> {
        unreachable!("nothing is stopped here")
    }

    fn resume(&mut self, _server: u32) -> io::Result<()> {
        unreachable!("nothing is stopped here")
    }

    fn wipe(&mut self, _server: u32) -> io::Result<()> {
        unreachable!("it has no data that lasts")
    }

    fn restart(&mut self, _server: u32) -> io::Result<()> {
        let store = self.clone();
        thread::spawn(move || {
            thread::sleep(std::time::Duration::from_millis(60));
            let mut state = store.lock();
            state.up = true;
            state.life += 1;
        });
        Ok(())
    }
}
