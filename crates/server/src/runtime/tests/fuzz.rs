//! Random and mutated commands of every kind, Redis and native, those of operators included, against a cluster in this process:
//! every node lives and serves afterwards, and keys of another table stay linearizable meanwhile.
//!
//! A seed determines what is sent, but not what happens then, since nodes are threads. `LEEWARD_TEST_SEED` sets another
//! seed.

use super::*;
use crate::commands;
use bytes::Bytes;
use leeward_format::cluster::{Intent, ReadPaths, Reads, RegionRequest, Scans};
use leeward_format::hash_index::Line;
use leeward_format::op::{
    DigestInstant, ExpireIf, HashIndexQuestion, RangeDigest, RangeOp, RangeQuestion, Read as StaleRead, ScanRange,
};
use leeward_format::table::{NewTable, TableChange};
use leeward_format::{Epoch, Expiry, SegmentId, ServerId, UnixMs};
use leeward_history::{Action, Operation, UNANSWERED, Verdict, check, counterexample};
use leeward_platform::Rng;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The bytes that are sent: pipelines of Redis commands, and native requests of some operations.
const STEPS: u64 = 1_200;
/// The table whose keys are judged: nothing that is sent names it.
const JUDGED: &str = "judged";
/// Of its keys.
const KEYS: u64 = 3;
/// States that the search of a history may take.
const MOST_STATES: usize = 4_000_000;

/// Words that commands understand, numbers at the ends of their ranges, and odd words.
const WORDS: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "42",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "nan",
    "NX",
    "XX",
    "GT",
    "LT",
    "GET",
    "KEEPTTL",
    "EX",
    "PX",
    "EXAT",
    "PXAT",
    "PERSIST",
    "IFEQ",
    "IFNE",
    "MATCH",
    "COUNT",
    "TYPE",
    "string",
    "REV",
    "LIMIT",
    "KEYS",
    "LIST",
    "INFO",
    "SETNAME",
    "SETINFO",
    "ID",
    "DOCS",
    "GET *",
    "*",
    "*a*b*c*",
    "[^a-",
    "\\",
    "?",
    "~",
    "~fuzz/",
    "default",
    "fuzz",
    "everything",
    "commandstats",
    "3",
    "AUTH",
    "\u{0}",
    "\r\n",
    "maxmemory",
    "-",
    "+",
    "(",
    "{",
    "%s%n",
];

struct Fuzz(Rng);

impl Fuzz {
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.0.index(of.len())]
    }

    fn bytes(&mut self, most: usize) -> Bytes {
        let mut bytes = vec![0; self.0.index(most + 1)];
        self.0.fill(&mut bytes);
        bytes.into()
    }

    /// A key of its own, most often: none is as long as a judged one's.
    fn key(&mut self) -> Bytes {
        match self.0.below(12) {
            0 => Bytes::new(),
            1 => Bytes::from(vec![b'k'; [4_096, 4_097, 70_000][self.0.index(3)]]),
            2 => self.bytes(40),
            _ => format!("~fuzz/{}", self.0.below(20)).into(),
        }
    }

    fn value(&mut self) -> Bytes {
        match self.0.below(10) {
            0 => Bytes::from(vec![b'v'; [1 << 20, (1 << 20) + 1][self.0.index(2)]]),
            1..=3 => self.0.u64().to_string().into(),
            4 => self.bytes(3_000),
            _ => self.one(WORDS).to_owned().into(),
        }
    }

    fn argument(&mut self) -> Bytes {
        match self.0.below(4) {
            0 => self.key(),
            1 => self.value(),
            _ => self.one(WORDS).to_owned().into(),
        }
    }

    /// A Redis command, well framed: of all that there are, with as many arguments as it takes, or other ones.
    fn command(&mut self) -> Vec<u8> {
        let all = commands::all();
        let spec = &all[self.0.index(all.len())];
        let wanted = spec.arity.unsigned_abs() as usize;
        let extra = if spec.arity < 0 || self.0.one_in(8) { self.0.index(6) } else { 0 };
        let mut words: Vec<Bytes> = vec![spec.name.into()];
        words.extend(
            (1..wanted + extra).map(|at| if at == spec.keys.0 as usize { self.key() } else { self.argument() }),
        );
        if self.0.one_in(30) {
            words[0] = self.argument();
        }
        // Random choice takes commands that end the connection less often.
        if words[0] == "quit" && !self.0.one_in(10) {
            words[0] = "ping".into();
        }
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            out.extend_from_slice(&word);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    /// Some commands; now and then with some bytes that are others.
    fn pipeline(&mut self) -> Vec<u8> {
        let mut out: Vec<u8> = (0..self.0.between(1, 12)).flat_map(|_| self.command()).collect();
        if self.0.one_in(5) {
            self.mutate(&mut out);
        }
        out
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.0.between(1, 4) {
            let at = self.0.index(bytes.len());
            bytes[at] = self.0.u64() as u8;
        }
        if self.0.one_in(3) {
            bytes.truncate(self.0.index(bytes.len()) + 1);
        }
    }

    fn region(&mut self) -> RegionId {
        RegionId([0, 1, 2, 3, 4, 5, 9, 1 << 24, (1 << 24) - 1, u32::MAX][self.0.index(10)])
    }

    fn server(&mut self) -> ServerId {
        ServerId([0, 1, 2, 3, 4, u32::MAX][self.0.index(6)])
    }

    fn when(&mut self) -> Condition {
        match self.0.below(6) {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Value(self.value()),
            3 => Condition::NotValue(self.value()),
            4 => Condition::Version(Lsn(self.0.u64())),
            _ => Condition::Always,
        }
    }

    fn lifetime(&mut self) -> Lifetime {
        match self.0.below(5) {
            0 => Lifetime::Until(Expiry::after(UnixMs(self.0.u64()), Duration::from_millis(self.0.u64()))),
            1 => Lifetime::For([0, 1, u64::MAX][self.0.index(3)]),
            2 => Lifetime::AsBefore,
            _ => Lifetime::Forever,
        }
    }

    fn range(&mut self) -> ScanRange {
        let (start, end) = (self.key(), (!self.0.one_in(3)).then(|| self.key()));
        let limit = [0, 1, 1_000, u32::MAX][self.0.index(4)];
        ScanRange { start, end, reverse: self.0.one_in(2), limit, keys_only: self.0.one_in(2) }
    }

    fn range_question(&mut self) -> RangeQuestion {
        let term = Epoch([0, 1, u32::MAX][self.0.index(3)]);
        let at = DigestInstant { term, lsn: Lsn(self.0.below(100)), now: UnixMs([0, u64::MAX][self.0.index(2)]) };
        let ends = (0..self.0.index(5)).map(|_| (!self.0.one_in(4)).then(|| self.key())).collect();
        let so_far = RangeDigest { pairs: [0, u64::MAX][self.0.index(2)], hash: [7; 16], damage: None };
        RangeQuestion { region: self.region(), at, start: self.key(), ends, so_far }
    }

    fn region_request(&mut self) -> RegionRequest {
        match self.0.below(7) {
            0 => RegionRequest::Primary(self.server()),
            1 => RegionRequest::Move { from: self.server(), to: self.server() },
            2 => RegionRequest::KeepMembers,
            3 => RegionRequest::Split { at: None },
            4 => RegionRequest::Split { at: Some(self.key()) },
            5 => RegionRequest::KeepBounds,
            _ => RegionRequest::Merge { into: self.region() },
        }
    }

    fn table_name(&mut self) -> TableName {
        let mut name = TableName::default();
        if let Ok(other) = self.one(&["fuzz", "fuzz-2", "none", "default"]).parse() {
            name = other;
        }
        name
    }

    /// An operation of any kind but [`Op::AcceptLoss`], which may lose acknowledged writes of others.
    fn operation(&mut self) -> Op {
        match self.0.below(26) {
            0 => Op::Get { key: self.key() },
            1 | 2 => Op::Put {
                key: self.key(),
                value: self.value(),
                when: self.when(),
                want_old: self.0.one_in(2),
                lifetime: self.lifetime(),
            },
            3 => Op::Delete { key: self.key(), when: self.when() },
            4 => Op::Add { key: self.key(), delta: [1, i64::MIN, i64::MAX][self.0.index(3)] },
            5 => Op::Append { key: self.key(), suffix: self.value() },
            6 => Op::Scan(self.range()),
            7 => Op::Count { region: self.region() },
            8 => Op::GetPair { key: self.key(), want_value: self.0.one_in(2) },
            9 => {
                let when = ExpireIf { expires: Some(self.0.one_in(2)), later: Some(self.0.one_in(2)) };
                Op::Expire { key: self.key(), lifetime: self.lifetime(), when, want_old: self.0.one_in(2) }
            }
            10 => Op::DeleteRange { start: self.key(), end: Some(self.key()) },
            11..14 => self.read(),
            14 => Op::Digests { region: self.region(), after: Some(SegmentId(self.0.below(100))) },
            15 => Op::SegmentContent { region: self.region(), segment: SegmentId(self.0.below(100)) },
            16 => {
                let (region, segment, content) = (self.region(), SegmentId(self.0.below(100)), self.bytes(5_000));
                Op::RepairSegment { region, segment, content }
            }
            17 => Op::RequestRegion { region: self.region(), request: self.region_request() },
            18 => {
                let intent = [None, Some(Intent::Leave), Some(Intent::Restart)][self.0.index(3)];
                Op::Intend { server: self.server(), intent }
            }
            19 => {
                let number = |fuzz: &mut Fuzz| [0, 1, 3, u32::MAX][fuzz.0.index(4)];
                let options = TableOptions {
                    name: self.table_name().to_string(),
                    replicas: number(self),
                    min_in_sync: number(self),
                    growth_factor: [8, number(self)][self.0.index(2)],
                    l0_bytes: [4 << 20, u64::from(number(self))][self.0.index(2)],
                    reads: ReadPaths { scans: Scans::ALL[self.0.index(2)], ..Reads::ANY.into() },
                    ..TableOptions::default()
                };
                let splits = (0..self.0.below(3)).map(|_| self.key()).collect();
                Op::CreateTable { table: Box::new(NewTable::new(options, splits)) }
            }
            20 => Op::DropTable { table: self.table_name() },
            21 => Op::RangeBounds { region: self.region(), want_bounds: self.0.one_in(2) },
            22 => Op::RangeDigests(Box::new(self.range_question())),
            23 => Op::RebuildIndex { region: self.region(), server: self.server() },
            24 => Op::HashIndex(Box::new(HashIndexQuestion {
                region: self.region(),
                nonce: self.0.below(2),
                version: self.0.u64() as u32,
                read: vec![Line(self.0.u64() as u32); self.0.index(3)],
            })),
            _ => {
                let change = TableChange {
                    name: self.table_name(),
                    min_in_sync: Some([0, 1, 2, 9][self.0.index(4)]),
                    ..TableChange::default()
                };
                Op::AlterTable { change: Box::new(change) }
            }
        }
    }

    /// A read that backups may answer, or one that is like it.
    fn read(&mut self) -> Op {
        let at_most_ms = [0, 1_000, self.0.u64() as u32][self.0.index(3)];
        let stale = |read| Op::Stale { at_most_ms, read };
        match self.0.below(6) {
            0 => RangeOp::Approximate { start: self.key(), end: None }.within(self.region()),
            1 => Op::Approximate { start: self.key(), end: None },
            2 => RangeOp::Scan(self.range()).within(self.region()),
            3 => stale(StaleRead::Scan(self.range())),
            4 => stale(StaleRead::ScanIn { region: self.region(), range: self.range() }),
            _ => stale(StaleRead::Get { key: self.key() }),
        }
    }

    /// A native request, whose frame is sound; what is in it is not always.
    fn request(&mut self) -> Vec<u8> {
        let mut frame = Vec::new();
        let request = match self.0.below(10) {
            0 => Request::Hello { client: self.one(WORDS).into(), known: self.0.u64() },
            1 => Request::Map,
            2 => Request::Identify,
            _ => Request::Ops {
                id: self.0.u64(),
                direct: self.0.one_in(2),
                table: self.table_name(),
                ops: (0..self.0.index(8)).map(|_| self.operation()).collect(),
            },
        };
        write_frame(FrameKind::Request, &request, &mut frame);
        // A range to be deleted must not become another one, or of another table.
        let deletes =
            matches!(&request, Request::Ops { ops, .. } if ops.iter().any(|op| matches!(op, Op::DeleteRange { .. })));
        if self.0.one_in(6) && !deletes {
            self.mutate(&mut frame);
        }
        frame
    }
}

/// Sends `bytes`, reads some of what comes, and connects anew where the node has closed the connection.
fn send(stream: &mut Option<TcpStream>, address: &str, bytes: &[u8]) {
    let connect = || {
        let stream = TcpStream::connect(address).expect("the node listens");
        for timeout in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
            timeout(&stream, Some(Duration::from_millis(5))).expect("a timeout");
        }
        stream
    };
    let connection = stream.get_or_insert_with(connect);
    let mut sink = [0; 64 << 10];
    let would_wait = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let is_sent = connection.write_all(bytes).is_ok();
    let is_open = match connection.read(&mut sink) {
        Ok(read) => read > 0,
        Err(error) => would_wait(&error),
    };
    if !is_sent || !is_open {
        *stream = None;
    }
}

/// One client of the judged keys, until the end. Returns what it did with each key.
fn work(address: &str, client: u64, next: &AtomicI64, is_over: &AtomicBool, begun: Instant) -> Vec<(u64, Operation)> {
    let (mut rng, mut done) = (Rng::new(client), Vec::new());
    let mut connection = Client::connect(address);
    // A node may not know the new table yet.
    while connection.run_until_served(&format!("SELECT {JUDGED}")) != "+OK" {
        std::thread::sleep(Duration::from_millis(5));
    }
    let now = || begun.elapsed().as_micros() as u64;
    while !is_over.load(Ordering::SeqCst) {
        let key = rng.below(KEYS);
        let (called, new) = (now(), next.fetch_add(1, Ordering::SeqCst));
        let is_read = rng.one_in(2);
        let reply = match is_read {
            true => connection.run(&format!("GET judged/a-long-key/{key}")),
            false => connection.run(&format!("SET judged/a-long-key/{key} {new}")),
        };
        let is_refused = ["-LOADING", "-TRYAGAIN", "-NOREPLICAS"].iter().any(|code| reply.starts_with(code));
        let answered = now();
        let operation = match (is_read, &reply[..]) {
            _ if is_refused => None,
            (true, "$-1") => Some(Operation { called, answered, action: Action::Read(None) }),
            (true, value) => {
                let value = value.parse().unwrap_or_else(|_| panic!("{value:?} is no value that was set"));
                Some(Operation { called, answered, action: Action::Read(Some(value)) })
            }
            (false, "+OK") => Some(Operation { called, answered, action: Action::Write(new) }),
            (false, reply) if reply.starts_with("-UNKNOWN") => {
                Some(Operation { called, answered: UNANSWERED, action: Action::Write(new) })
            }
            (false, reply) => panic!("{reply}"),
        };
        done.extend(operation.map(|operation| (key, operation)));
        std::thread::sleep(Duration::from_millis(rng.below(8)));
    }
    done
}

/// Commands that no node has executed.
fn commands_that_were_not_run(cluster: &Cluster) -> Vec<&'static str> {
    let metrics: String =
        cluster.servers.iter().map(|server| http(&server.info().admin_address, "/metrics").1).collect();
    let is_run = |name: &str| metrics.contains(&format!("leeward_commands_total{{command=\"{name}\"}}"));
    commands::all().iter().map(|spec| spec.name).filter(|name| !is_run(name)).collect()
}

#[test]
fn no_command_ends_a_node_or_touches_what_others_have() {
    let seed = std::env::var("LEEWARD_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let cluster = Cluster::start(3);
    let infos = || cluster.servers.iter().map(Server::info);
    let resp: Vec<String> = infos().map(|info| info.resp_address.clone()).collect();
    let native: Vec<String> = infos().map(|info| info.native_address.clone()).collect();
    let options = TableOptions { name: JUDGED.into(), replicas: 3, min_in_sync: 2, ..TableOptions::default() };
    let table = Box::new(NewTable::new(options, vec!["k".into()]));
    let begun = Instant::now();
    assert_eq!(identity::request(&native[0], &Op::CreateTable { table }), OpResult::Done, "there is a table to judge");
    let change = TableChange { reads: Some(Reads::ANY), scans: Some(Scans::Backups), ..TableChange::default() };
    let change = Op::AlterTable { change: Box::new(change) };
    assert_eq!(identity::request(&native[0], &change), OpResult::Done, "backups answer scans of the default table");
    let (next, is_over) = (AtomicI64::new(1), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let (address, next, is_over) = (&resp[client as usize], &next, &is_over);
                scope.spawn(move || work(address, client, next, is_over, begun))
            })
            .collect();
        let mut fuzz = Fuzz(Rng::new(seed));
        let mut streams: [Option<TcpStream>; 6] = Default::default();
        for _ in 0..STEPS {
            let at = fuzz.0.index(6);
            let (address, bytes) =
                if at < 3 { (&resp[at], fuzz.pipeline()) } else { (&native[at - 3], fuzz.request()) };
            send(&mut streams[at], address, &bytes);
        }
        is_over.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().expect("its answers are in order")).collect::<Vec<_>>()
    });
    assert_eq!(commands_that_were_not_run(&cluster), Vec::<&str>::new(), "seed {seed}");
    for (node, server) in cluster.servers.iter().enumerate() {
        let mut client = cluster.client(node);
        assert_eq!(client.run_until_served(&format!("SELECT {JUDGED}")), "+OK", "seed {seed}");
        for key in 0..KEYS {
            let reply = client.run_until_served(&format!("SET judged/a-long-key/{key} 0"));
            assert_eq!(reply, "+OK", "seed {seed}: node {node} serves");
        }
        assert!(server.snapshot().is_some(), "seed {seed}: node {node} lives");
    }
    for key in 0..KEYS {
        let history: Vec<Operation> =
            done.iter().filter(|(of, _)| *of == key).map(|(_, operation)| *operation).collect();
        assert!(history.len() > 20, "seed {seed}: {} operations on a key", history.len());
        let verdict = check(&history, MOST_STATES);
        let few = || counterexample(&history, MOST_STATES);
        assert!(verdict == Verdict::Linearizable, "seed {seed}, key {key}: {verdict:?}: {:#?}", few());
    }
}
