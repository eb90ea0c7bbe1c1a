//! Golden bytes of the coordinator's messages and log, and refusal of damaged bytes.

use super::*;
use crate::cluster::{
    ClusterPath, DesiredState, Floor, GroupConfig, MASTER_PATH, Member, Plan, PriorMember, decode_value, encode_value,
};
use crate::frame::{FrameKind, read_frame, write_frame};
use crate::{Epoch, Incarnation, Lsn, RegionId, SegmentId, ServerId, VolumeId};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The frame of `body` has these bytes after its checksum, reads back, and does not when any bit is flipped.
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: FrameKind, body: T, hex: &str) {
    let mut frame = Vec::new();
    write_frame(kind, &body, &mut frame);
    assert_eq!(frame[4..], bytes(hex), "{:02x?}", &frame[4..]);
    assert_eq!(read_frame(kind, &frame, 1 << 20).unwrap(), Some((body, frame.len())));
    for bit in 0..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!matches!(read_frame::<T>(kind, &damaged, 1 << 20), Ok(Some(_))), "bit {bit}");
    }
}

#[test]
fn requests_have_these_bytes() {
    golden(
        FrameKind::CoordinatorRequest,
        CoordinatorRequest::Attach { session: Some(SessionId(5)), timeout_ms: 1000 },
        "01 05 0000 05000000   00 01 05 e807", // version, kind, reserved, length; Attach, Some, 5, 1000
    );
    golden(
        FrameKind::CoordinatorRequest,
        CoordinatorRequest::Submit {
            id: 9,
            op: CoordinatorOp::Set { path: "/a".into(), value: "xy".into(), version: 300 },
        },
        "01 05 0000 0b000000   02 09 01  02 2f61  02 7879  ac02", // Submit, id, Set, path, value, version
    );
}

#[test]
fn replies_have_these_bytes() {
    golden(
        FrameKind::CoordinatorReply,
        CoordinatorReply::Changed(Change { path: "/a".into(), version: 7, value: None }),
        "01 06 0000 06000000   02  02 2f61  07  00", // Changed, path, version, None
    );
    golden(
        FrameKind::CoordinatorReply,
        CoordinatorReply::Done { id: 9, result: Err(CoordinatorError::Stale { version: 7 }) },
        "01 06 0000 05000000   05 09 01 02 07", // Done, id, Err, Stale, version
    );
}

#[test]
fn log_batches_have_these_bytes() {
    let snapshot = TreeSnapshot {
        version: 3,
        next_session: 2,
        sessions: vec![(SessionId(2), 1000)],
        nodes: vec![NodeSnapshot { path: "/a".into(), version: 3, value: "x".into(), owner: Some(SessionId(2)) }],
    };
    golden(
        FrameKind::CoordinatorLog,
        LogBatch {
            sequence: 1,
            entries: vec![LogEntry::Snapshot(snapshot), LogEntry::Closed { session: SessionId(2) }],
        },
        // sequence, 2 entries; Snapshot, version, next session, 1 session, 1 node; Closed, session
        "01 07 0000 14000000   01 02  00 03 02  01 02 e807  01 02 2f61 03 01 78 01 02  03 02",
    );
}

#[test]
fn an_operation_is_never_longer_than_it_says() {
    let path = "/x".repeat(60);
    let create = CoordinatorOp::Create { path: path.clone(), value: vec![1; 5000].into(), ephemeral: true };
    let set = CoordinatorOp::Set { path: path.clone(), value: vec![1; 20].into(), version: u64::MAX };
    let delete = CoordinatorOp::Delete { path, version: Some(u64::MAX) };
    let all = CoordinatorOp::All(vec![create.clone(), set.clone(), delete.clone()]);
    for op in [create, set, delete, all] {
        assert!(postcard::to_stdvec(&op).unwrap().len() <= op.bytes(), "{op:?}");
    }
}

#[test]
fn every_path_has_one_spelling() {
    let paths = [
        (ClusterPath::Table("default".into()), "/leeward/table/default"),
        (ClusterPath::Region(RegionId(12)), "/leeward/region/12"),
        (ClusterPath::Server(ServerId(3)), "/leeward/server/3"),
        (ClusterPath::Master, MASTER_PATH),
        (ClusterPath::Users, "/leeward/users"),
        (ClusterPath::User("alice".parse().expect("a name")), "/leeward/user/alice"),
    ];
    for (path, text) in paths {
        assert_eq!(path.to_string(), text);
        assert_eq!(ClusterPath::parse(text), Some(path));
    }
    for strange in [
        "",
        "/",
        "/leeward",
        "/leeward/server/",
        "/leeward/server/01",
        "/leeward/server/+1",
        "/leeward/region/4294967296",
        "/leeward/user/",
        "/leeward/user/.",
        "/leeward/user/a/b",
    ] {
        assert_eq!(ClusterPath::parse(strange), None, "{strange}");
    }
}

fn member(server: u32) -> Member {
    Member { server: ServerId(server), volume: VolumeId(8), incarnation: Incarnation(9) }
}

fn group() -> GroupConfig {
    GroupConfig {
        start: "a".into(),
        epoch: Epoch(5),
        term: Epoch(4),
        primary: Some(member(1)),
        backups: vec![member(2)],
        learners: vec![member(3)],
        prior_members: vec![PriorMember { member: member(4), term: Epoch(3) }],
        recovery_quorum: 2,
        relinquished_term: Epoch(3),
        desired: DesiredState {
            primary: Some(ServerId(2)),
            leaving: Some(ServerId(1)),
            plan: Some(Plan::Split { at: Some("m".into()), child: RegionId(6) }),
        },
        inherited_below: SegmentId(300),
        floor: Some(Floor { member: member(1), term: Epoch(4), lsn: Lsn(300) }),
        restored_in: Some(5),
        table_id: crate::TableId(7),
        ..GroupConfig::unassigned(RegionId(1), "t")
    }
}

#[test]
fn a_configuration_has_these_bytes_and_each_step_raises_the_epoch() {
    let config = group();
    let golden = bytes(
        "01 0174 07 0161 00  05 04  01 01 08 09  01 02 08 09  01 03 08 09  01 04 08 09 03  02  03  01 02 01 01 01 00 01 016d 06  ac02  01 01 08 09 04 ac02  01 05",
    );
    assert_eq!(encode_value(&config), golden);
    assert_eq!(decode_value::<GroupConfig>("region", &golden).unwrap(), config);
    assert!(decode_value::<GroupConfig>("region", &[&golden[..], b"!"].concat()).is_err());
    for cut in 0..golden.len() {
        assert!(decode_value::<GroupConfig>("region", &golden[..cut]).is_err());
    }
    let without = config.without(member(2));
    assert_eq!((without.epoch, without.term, without.backups.len()), (Epoch(6), Epoch(4), 0));
    assert_eq!(
        without.prior_members[1],
        PriorMember { member: member(2), term: Epoch(3) },
        "its copy may be the longest"
    );
    let with = config.with_backup(member(3));
    assert_eq!((&with.backups[..], with.learners.len(), with.prior_members.len()), (&[member(2), member(3)][..], 0, 0));
    let settled = config.settled();
    assert_eq!((settled.epoch, settled.prior_members.len(), settled.recovery_quorum), (Epoch(6), 0, 0));
    assert_eq!(settled.without(member(2)).prior_members, []);
    let (left, right) = config.split("n".into(), RegionId(6), SegmentId(400));
    assert_eq!((&left.start[..], left.end.as_deref(), left.term), (&b"a"[..], Some(&b"n"[..]), Epoch(4)));
    assert_eq!((&right.start[..], right.end.as_deref(), right.term), (&b"n"[..], None, Epoch(6)));
    assert_eq!((left.epoch, right.epoch, right.region), (Epoch(6), Epoch(6), RegionId(6)));
    assert_eq!((left.inherited_below, right.inherited_below), (SegmentId(400), SegmentId::new(Epoch(6), 0)));
    assert_eq!(
        (&left.desired.plan, &right.desired),
        (&None, &DesiredState::default()),
        "what was requested of the one was not requested of the other"
    );
    assert_eq!((right.primary, &right.backups), (config.primary, &config.backups));
    assert!(left.is_next_to(&right) && right.is_next_to(&left) && !left.is_next_to(&config));
    let (wider, higher) = (left.merged_with(&right), right.merged_with(&left));
    assert_eq!((&wider.start, &wider.end, wider.epoch), (&config.start, &config.end, Epoch(7)));
    assert_eq!((&higher.start, &higher.end, higher.term), (&config.start, &config.end, Epoch(6)));
    let unmarked = GroupConfig { inherited_below: SegmentId(0), ..config.clone() };
    assert_eq!((unmarked.holding_more().inherited_below, unmarked.holding_more().epoch), (SegmentId(1), Epoch(6)));
    assert_eq!(config.holding_more().inherited_below, SegmentId(300));
    let plan = Plan::Merge { into: RegionId(5) };
    assert_eq!(&encode_value(&plan)[..], [1, 5]);
    assert_eq!((plan.child(), plan.neighbour()), (None, Some(RegionId(5))));
    let handed = config.handed_to(member(3));
    assert_eq!(
        (handed.primary, handed.epoch, handed.term, handed.recovery_quorum),
        (Some(member(3)), Epoch(6), Epoch(6), 2)
    );
    assert_eq!(
        (&handed.backups[..], handed.learners.len(), handed.prior_members.len()),
        (&[member(1), member(2)][..], 0, 1)
    );
    assert_eq!((left.floor, right.floor), (config.floor, None), "it is of the parent's records");
}

#[test]
fn a_volume_below_the_floor_is_an_older_state_until_it_is_given_up() {
    let config = group();
    let reached = |server, volume, term, lsn| {
        let found = Member { volume: VolumeId(volume), incarnation: Incarnation(10), ..member(server) };
        config.is_reached_by(&found, (Epoch(term), Lsn(lsn)))
    };
    assert!(reached(1, 8, 4, 300) && reached(1, 8, 5, 1) && !reached(1, 8, 4, 299) && !reached(1, 8, 3, 400));
    assert!(reached(2, 8, 0, 0) && reached(1, 7, 0, 0), "of other volumes it says nothing");
    assert_eq!(config.settled().with_floor(Lsn(400)).floor.map(|floor| floor.lsn), Some(Lsn(400)));
    // A volume is given up in any incarnation, and only that volume of the server.
    let lost = |server, volume| Member { incarnation: Incarnation(1), volume: VolumeId(volume), ..member(server) };
    let given_up = config.without_volume(&lost(1, 8)).without_volume(&lost(4, 8)).without_volume(&lost(2, 7));
    assert_eq!(
        (given_up.epoch, given_up.primary, given_up.prior_members.len(), given_up.floor),
        (Epoch(8), None, 0, None)
    );
    assert_eq!((&given_up.backups[..], &given_up.learners[..]), (&[member(2)][..], &[member(3)][..]));
}
