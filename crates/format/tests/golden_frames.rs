//! Golden files of frames: the bytes of requests, replies and control messages as they stand on a wire, range by range.
//! A change of these bytes is a change of the protocol: raise `frame::PROTOCOL_VERSION` and say so in `docs/formats`.

use bytes::Bytes;
use leeward_format::cluster::{
    Acknowledge, Addressing, BackupMode, CompactionMode, GroupConfig, IndexKind, Intent, Member, Placement, Posting,
    ReadPaths, Reads, RegionRequest, Scans, TableOptions, decode_value, encode_value,
};
use leeward_format::control::{Control, SafeLsnOf, ToBackup};
use leeward_format::frame::{FrameKind, read_frame, write_frame};
use leeward_format::hash_index::Line;
use leeward_format::load::{Fullness, RegionLoad, ServerLoad};
use leeward_format::manifest::SegmentKind;
use leeward_format::op::{
    Condition, DigestInstant, ExpireIf, HashIndexAnswer, HashIndexQuestion, HashIndexState, Lifetime,
    MAX_MESSAGE_BYTES, Op, OpError, OpResult, Pair, RangeAnswer, RangeDigest, RangeOp, RangeQuestion, Read, ReadResult,
    Reply, Request, ScanRange, Secret, SegmentDigest,
};
use leeward_format::packed::{Codec, Compression};
use leeward_format::partition::Partition;
use leeward_format::request::{Once, RequestId};
use leeward_format::routes::{RoutesUpdate, TableRoutes, TableRouting};
use leeward_format::safe_lsn::SafeLsnLineGrant;
use leeward_format::table::{NewTable, TableChange, TableName};
use leeward_format::user::{Grant, PasswordHash, PasswordId, Presence, Rights, User, UserChange, UserRule};
use leeward_format::{Epoch, Expiry, Incarnation, LogKind, Lsn, RegionId, SegmentId, ServerId, UnixMs, VolumeId};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// The bytes of an annotated file: on each line the digits before `#`, two for each byte.
fn golden(file: &str) -> Vec<u8> {
    let digits = file.lines().flat_map(|line| line.split('#').next().expect("split answers once").split_whitespace());
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits")).collect()
}

/// `value` is written as `file` says, and `file` is read as `value`.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: FrameKind, value: T, file: &str) {
    let expected = golden(file);
    let mut written = Vec::new();
    write_frame(kind, &value, &mut written);
    let hex: Vec<String> = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(written == expected, "{value:?} is written as\n{}", hex.join(" "));
    let read = read_frame(kind, &expected, MAX_MESSAGE_BYTES).expect("the golden file is a frame");
    assert_eq!(read, Some((value, expected.len())));
}

fn options() -> TableOptions {
    TableOptions {
        name: "orders".into(),
        placement: Placement::HYBRID,
        replicas: 3,
        min_in_sync: 2,
        l0_bytes: 1 << 20,
        growth_factor: 8,
        l1_runs: 4,
        compaction: CompactionMode::WholeLevel,
        backups: BackupMode::BuildIndex,
        addressing: Addressing::Logical,
        wire: Codec::Lz4,
        acknowledge: Acknowledge::LastFlush,
        posting: Posting::PerRecord,
        max_unacked_bytes: 1 << 19,
        quorum: Some(2),
        garbage_percent: 10,
        garbage_mib_per_second: 64,
        max_space_percent: 130,
        compression: Compression { upper: Codec::Lz4, last: Codec::Zstd },
        split_bytes: 8 << 30,
        reads: ReadPaths {
            stale: Reads::Any { max_staleness_ms: 500 },
            index: IndexKind::Hybrid,
            scans: Scans::Backups,
        },
        partition: Partition::Range,
    }
}

fn once() -> Once {
    Once { request: RequestId { client: 0x0102, sequence: 9 }, region: RegionId(7), since: Lsn(300), is_again: true }
}

fn expiry() -> Expiry {
    Expiry::from_ms(1_000_000).expect("an instant")
}

fn hashed() -> TableOptions {
    TableOptions { partition: Partition::Hash { tokens: 300 }, ..options() }
}

/// Requests of operators about segments, regions, servers and tables.
fn operators_requests() -> Vec<Op> {
    vec![
        Op::Digests { region: RegionId(7), after: Some(SegmentId::new(Epoch(2), 3)) },
        Op::SegmentContent { region: RegionId(7), segment: SegmentId::new(Epoch(2), 3) },
        Op::RepairSegment {
            region: RegionId(7),
            segment: SegmentId::new(Epoch(2), 3),
            content: Bytes::from_static(b"bytes"),
        },
        Op::RequestRegion { region: RegionId(7), request: RegionRequest::Move { from: ServerId(1), to: ServerId(2) } },
        Op::Intend { server: ServerId(2), intent: Some(Intent::Restart) },
        Op::DropTable { table: "orders".parse().expect("a name") },
        Op::RequestRegion { region: RegionId(7), request: RegionRequest::Split { at: Some(Bytes::from_static(b"m")) } },
        Op::RequestRegion { region: RegionId(7), request: RegionRequest::Merge { into: RegionId(6) } },
    ]
}

#[test]
fn requests() {
    let hello = Request::Hello { client: "bench".into(), known: 300 };
    check(FrameKind::Request, hello, include_str!("golden/request-hello.hex"));
    check(FrameKind::Request, Request::Identify, include_str!("golden/request-identify.hex"));
    check(FrameKind::Request, Request::Routes { known: 300 }, include_str!("golden/request-routes.hex"));
    let (address, reply) = ("@c".into(), Bytes::from_static(&[1, 2, 3]));
    let open = Request::RingOpen { address, request_bytes: 4096, reply_bytes: 8192, reply };
    check(FrameKind::Request, open, include_str!("golden/request-ring-open.hex"));
    let key = Bytes::from_static(b"key");
    let mut ops = vec![
        Op::Get { key: key.clone() },
        Op::Put {
            key: key.clone(),
            value: Bytes::from_static(b"value"),
            when: Condition::Absent,
            want_old: true,
            lifetime: Lifetime::Until(expiry()),
        },
        Op::Delete { key: key.clone(), when: Condition::Always },
        Op::Add { key: key.clone(), delta: -3 },
        Op::Append { key: key.clone(), suffix: Bytes::from_static(b"!") },
        Op::Scan(ScanRange { start: key.clone(), end: None, reverse: false, limit: 300, keys_only: true }),
        Op::Count { region: RegionId(7) },
        Op::AcceptLoss { region: RegionId(7), server: ServerId(2) },
        Op::CreateTable { table: Box::new(NewTable::new(options(), vec![Bytes::from_static(b"m")])) },
        Op::GetPair { key: key.clone(), want_value: true },
        Op::Expire {
            key: key.clone(),
            lifetime: Lifetime::For(300),
            when: ExpireIf { expires: Some(true), later: None },
            want_old: false,
        },
        Op::Delete { key: key.clone(), when: Condition::Version(Lsn(300)) },
        Op::Approximate { start: key, end: None },
        Op::Checkpoint { region: RegionId(7), name: "monday".into() },
        Op::AlterTable {
            change: Box::new(TableChange {
                name: "orders".parse().expect("a name"),
                min_in_sync: Some(1),
                acknowledge: Some(Acknowledge::LastFlush),
                posting: Some(Posting::PerRecord),
                reads: Some(Reads::Primary),
                index: Some(IndexKind::Hybrid),
                scans: Some(Scans::Backups),
                ..TableChange::default()
            }),
        },
    ];
    ops.extend(operators_requests());
    ops.extend([
        Read::stale(Op::GetPair { key: Bytes::from_static(b"key"), want_value: true }, 300),
        RangeOp::DeleteRange { start: Bytes::from_static(b"a"), end: None }.within(RegionId(7)),
        Op::CreateTable { table: Box::new(NewTable::new(hashed(), Vec::new())) },
        Op::RangeBounds { region: RegionId(7), want_bounds: true },
        Op::RangeDigests(Box::new(range_question())),
        Op::RebuildIndex { region: RegionId(7), server: ServerId(3) },
        Op::HashIndex(Box::new(HashIndexQuestion {
            region: RegionId(7),
            nonce: 300,
            version: 1,
            read: vec![Line(300)],
        })),
    ]);
    ops.extend(requests_about_users_and_trees());
    let table = "orders".parse().expect("a name");
    check(FrameKind::Request, Request::Ops { id: 1, direct: true, table, ops }, include_str!("golden/request-ops.hex"));
    let (table, add) = ("orders".parse().expect("a name"), Op::Add { key: Bytes::from_static(b"key"), delta: 1 });
    let request = Request::Once { id: 2, direct: true, table, ops: vec![add], named: vec![(0, once())] };
    check(FrameKind::Request, request, include_str!("golden/request-once.hex"));
}

fn requests_about_users_and_trees() -> [Op; 4] {
    let names = Some(vec!["bob".parse().expect("a name")]);
    [
        Op::ListUsers,
        Op::ChangeUser { change: Box::new(user_change()) },
        Op::RemoveUsers { names },
        Op::RestoreTree { confirms: true },
    ]
}

fn password_hash() -> PasswordHash {
    PasswordHash::new("$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA".into())
}

fn user_change() -> UserChange {
    let grant =
        Grant { rights: Rights::WRITE, table: Some("orders".parse().expect("a name")), prefixes: vec!["eu/".into()] };
    let rules = vec![
        UserRule::Enable(true),
        UserRule::AddPassword(password_hash()),
        UserRule::RemovePassword(PasswordId(300)),
        UserRule::ResetPasswords,
        UserRule::NoPassword,
        UserRule::AddRights(Rights::ALL),
        UserRule::RemoveRights(Rights::OPERATE),
        UserRule::AddPrefix("a".into()),
        UserRule::ResetPrefixes,
        UserRule::AddGrant(grant),
        UserRule::ClearGrants,
        UserRule::Reset,
    ];
    UserChange { name: "bob".parse().expect("a name"), presence: Presence::Known, rules }
}

fn user() -> User {
    let name = "alice".parse().expect("a name");
    let mut user = User { is_enabled: true, passwords: vec![password_hash()], ..User::new(name) };
    user.grants.push("read,write@orders:eu/".parse().expect("a grant"));
    user
}

/// The value of a user's path at the coordinator.
#[test]
fn users() {
    let (value, expected) = (encode_value(&user()), golden(include_str!("golden/user.hex")));
    let hex: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(value == expected, "it is written as\n{}", hex.join(" "));
    assert_eq!(decode_value::<User>("user", &expected), Ok(user()));
    let auth = Request::Auth { user: "alice".into(), password: Secret(Bytes::from_static(b"pw")) };
    check(FrameKind::Request, auth, include_str!("golden/request-auth.hex"));
    let refused = Reply::Auth { refused: Some(OpError::Unauthenticated("no".into())) };
    check(FrameKind::Reply, refused, include_str!("golden/reply-auth.hex"));
    let shown = OpResult::Users(vec![user().shown()]);
    let refused = OpResult::Error(OpError::NotPermitted("no".into()));
    let results = Reply::Results { id: 1, results: vec![shown, refused] };
    check(FrameKind::Reply, results, include_str!("golden/reply-users.hex"));
}

fn digest_instant() -> DigestInstant {
    DigestInstant { term: Epoch(2), lsn: Lsn(300), now: UnixMs(1_000) }
}

fn range_digest() -> RangeDigest {
    RangeDigest { pairs: 300, hash: *b"0123456789abcdef", damage: None }
}

fn range_question() -> RangeQuestion {
    let (start, ends) = (Bytes::from_static(b"a"), vec![Some(Bytes::from_static(b"m")), None]);
    RangeQuestion { region: RegionId(7), at: digest_instant(), start, ends, so_far: range_digest() }
}

#[test]
fn replies() {
    let value = Bytes::from_static(b"value");
    let results = vec![
        OpResult::Value(Some(value.clone())),
        OpResult::Value(None),
        OpResult::Put { done: false, old: Some(value.clone()), version: Some(Lsn(300)) },
        OpResult::Deleted { done: false, old: None, version: None },
        OpResult::Integer(-3),
        OpResult::Entries { entries: vec![(Bytes::from_static(b"key"), value)], resume: None },
        OpResult::Error(OpError::NotPrimary { region: RegionId(7), epoch: Epoch(9) }),
        OpResult::Error(OpError::NotEnoughReplicas { region: RegionId(7), in_sync: 1, needed: 2 }),
        OpResult::Error(OpError::Forgotten(RegionId(7))),
        OpResult::Error(OpError::Overloaded(RegionId(7))),
        OpResult::Error(OpError::AnswerGone { done: true }),
        OpResult::Done,
        OpResult::Approximation { pairs: 300, bytes: 7, resume: None },
        OpResult::Pair(Some(Pair { version: Lsn(300), expires: Some(expiry()), now: UnixMs(300), value: None })),
        OpResult::Checkpoint { left: 300, path: "dir".into(), last: Lsn(300) },
        OpResult::Digests {
            segments: vec![SegmentDigest {
                id: SegmentId::new(Epoch(2), 3),
                kind: SegmentKind::Leaf,
                bytes: 300,
                crc: 7,
                damage: Some("torn".into()),
            }],
            has_more: true,
        },
        OpResult::Stale { age_ms: 300, lsn: Lsn(7), result: ReadResult::Value(None) },
        OpResult::RangeBounds { at: digest_instant(), bounds: vec![Bytes::from_static(b"m")] },
        OpResult::RangeDigests(RangeAnswer::NotYet),
        OpResult::RangeDigests(RangeAnswer::TooLate),
        OpResult::RangeDigests(RangeAnswer::Digests {
            whole: vec![RangeDigest { damage: Some("torn".into()), ..range_digest() }],
            begun: Some((Bytes::from_static(b"n"), range_digest())),
        }),
        OpResult::RangeDigests(RangeAnswer::InstantPassed),
        OpResult::HashIndex(Box::new(HashIndexAnswer { clock: 300, state: HashIndexState::None { again_ms: 300 } })),
        OpResult::HashIndex(Box::new(HashIndexAnswer { clock: 300, state: HashIndexState::Unchanged })),
    ];
    check(FrameKind::Reply, Reply::Results { id: 1, results }, include_str!("golden/reply-results.hex"));
    let node = Reply::Node { server: ServerId(7), admin_address: "host:1".into() };
    check(FrameKind::Reply, node, include_str!("golden/reply-node.hex"));
    let heard = Reply::Heard { regions: vec![(RegionId(7), Lsn(300))] };
    check(FrameKind::Reply, heard, include_str!("golden/reply-heard.hex"));
    let (fabric, address) = ("shm".into(), "@n".into());
    let offer = Reply::RingOffer { fabric, node: 7, client: 300, address, most_bytes: 4096 };
    check(FrameKind::Reply, offer, include_str!("golden/reply-ring-offer.hex"));
    let open = Reply::RingOpen { request: Bytes::from_static(&[1, 2, 3]), request_key: 1, reply_key: 300 };
    check(FrameKind::Reply, open, include_str!("golden/reply-ring-open.hex"));
}

#[test]
fn routes() {
    let member = |server| Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) };
    let config = |region, start: &'static str, primary: Option<u32>| GroupConfig {
        start: start.into(),
        epoch: Epoch(300),
        term: Epoch(300),
        primary: primary.map(member),
        backups: vec![member(2), member(3)],
        ..GroupConfig::unassigned(RegionId(region), "orders")
    };
    let regions = [config(7, "k1", Some(1)), config(9, "k23", None), config(8, "k25", Some(1))];
    let update = RoutesUpdate {
        version: 700,
        since: Some(300),
        digest: 1,
        tables: vec![
            TableRoutes::pack("old", None, []),
            TableRoutes::pack("orders", Some(Partition::Range.into()), &regions),
            TableRoutes::pack(
                "users",
                Some(TableRouting { partition: Partition::Hash { tokens: 300 }, scans: Scans::Backups }),
                [],
            ),
        ],
        gone: vec![RegionId(5)],
        servers: vec![(ServerId(1), "host:1".into())],
    };
    check(FrameKind::Reply, Reply::Routes(update), include_str!("golden/reply-routes.hex"));
    let partition = Partition::Slots { tokens: 2 };
    let region = |region, start| GroupConfig { start, ..config(region, "", Some(1)) };
    let second = partition.splits().next().expect("the first slot of the second region");
    let regions = [region(1, Bytes::new()), region(2, second)];
    let update = RoutesUpdate {
        version: 701,
        tables: vec![TableRoutes::pack("carts", Some(partition.into()), &regions)],
        ..RoutesUpdate::default()
    };
    check(FrameKind::Reply, Reply::Routes(update), include_str!("golden/reply-routes-slots.hex"));
}

#[test]
fn control_messages() {
    let safe_lsns = vec![SafeLsnOf { region: RegionId(1), epoch: Epoch(5), lsn: Lsn(300) }];
    let regions = vec![(RegionId(1), Epoch(2))];
    let (sent, lasts) = (1_000_000_000, 600_000_000);
    let lease = Control::LeaseRequest { sent, lasts, regions: regions.clone(), heard: Some(300), safe_lsns };
    check(FrameKind::Control, lease, include_str!("golden/control-lease-request.hex"));
    let released = Control::Released { regions: regions.clone() };
    check(FrameKind::Control, released, include_str!("golden/control-released.hex"));
    let grant = Control::LeaseGrant { sent, lasts, regions, now: 300 };
    check(FrameKind::Control, grant, include_str!("golden/control-lease-grant.hex"));
    let settings = BTreeMap::from([("balance".into(), "true".into())]);
    let settings = Control::Settings { incarnation: Incarnation(7), settings };
    check(FrameKind::Control, settings, include_str!("golden/control-settings.hex"));
    let refused = Control::LeaseRefused { reason: "no".into() };
    check(FrameKind::Control, refused, include_str!("golden/control-lease-refused.hex"));
    let question = Control::SafeLsnQuestion { id: 9, region: RegionId(7), wants_line: true };
    check(FrameKind::Control, question, include_str!("golden/control-safe-lsn-question.hex"));
    let safe_lsn = Some(SafeLsnOf { region: RegionId(7), epoch: Epoch(5), lsn: Lsn(300) });
    let line = Some(SafeLsnLineGrant { memory: Bytes::from_static(&[1, 2]), offset: 64, nonce: 300, clock: 1_000 });
    let answer = Control::SafeLsnAnswer { id: 9, now: UnixMs(1_000), safe_lsn, line };
    check(FrameKind::Control, answer, include_str!("golden/control-safe-lsn-answer.hex"));
    let op = Op::Get { key: Bytes::from_static(b"key") };
    let forward = Control::Forward { id: 9, table: TableName::default(), op, once: None, epoch: Epoch(5) };
    check(FrameKind::Control, forward, include_str!("golden/control-forward.hex"));
    let op = Op::Add { key: Bytes::from_static(b"key"), delta: 1 };
    let forward = Control::Forward { id: 9, table: TableName::default(), op, once: Some(once()), epoch: Epoch(5) };
    check(FrameKind::Control, forward, include_str!("golden/control-forward-once.hex"));
    let (result, committed) = (OpResult::Integer(-3), Some((RegionId(7), Lsn(300))));
    let answer = Control::Forwarded { id: 9, result, committed };
    check(FrameKind::Control, answer, include_str!("golden/control-forwarded.hex"));
    let body = ToBackup::Flush {
        log: LogKind::Large,
        index: 5,
        id: SegmentId::new(Epoch(2), 9),
        bytes: 2_000_000,
        last_lsn: Lsn(70_000),
    };
    let flush = Control::ToBackup { region: RegionId(1), term: Epoch(2), session: 3, body };
    check(FrameKind::Control, flush, include_str!("golden/control-flush.hex"));
    let region = RegionLoad {
        region: RegionId(7),
        bytes: 2 << 20,
        ops: 300,
        written: 5,
        shared: 1 << 20,
        inherited: 1000,
        is_trimmed: true,
        middle: Some(Bytes::from_static(b"m")),
        pair_bytes: 2000,
    };
    let load =
        ServerLoad { used: 4 << 20, capacity: Some(64 << 20), fullness: Fullness::WasFull, regions: vec![region] };
    check(FrameKind::Control, Control::Load(load), include_str!("golden/control-load.hex"));
}
