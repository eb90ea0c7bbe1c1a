//! Golden bytes of the structures of a volume and its logs: a change of a format fails here before it loses data.

mod golden;

use golden::check;
use leeward_format::cluster::{CopyIdentity, TableOptions};
use leeward_format::data_key::{DATA_KEY_BYTES, SEAL_NONCE_BYTES, SealedEntry, WrappedKey};
use leeward_format::frame::{FrameKind, write_frame};
use leeward_format::manifest::{
    Base, BaseSegment, Change, Entry, EntryBody, InstallEdit, L1, LevelState, LogExtent, Parent, RegionState,
    SegmentKind, SegmentState, Terms, VolumeState,
};
use leeward_format::nonces::{NONCE_BYTES, Use, UseKind};
use leeward_format::record::{FLAG_BATCH_CONTINUES, Record, RecordKind, RecordSeed, read_record};
use leeward_format::request::RequestId;
use leeward_format::segment::LogHeader;
use leeward_format::superblock::{Superblock, VOLUME_VERSION};
use leeward_format::{
    ClusterId, Expiry, Incarnation, LogKind, Lsn, Pointer, RegionId, SegmentId, SegmentNo, Stamp, TableId, VolumeId,
};

#[test]
fn records() {
    let seed = RecordSeed::new(RegionId(1), LogKind::Recovery, SegmentId::new(leeward_format::Epoch(2), 3));
    let flags = FLAG_BATCH_CONTINUES;
    let put =
        Record { stamp: Lsn(258).into(), kind: RecordKind::Put, flags, request: None, key: b"cape", value: b"wind" };
    let delete =
        Record { stamp: Lsn(259).into(), kind: RecordKind::Delete, flags: 0, request: None, key: b"bay", value: b"" };
    let stamp = Stamp { lsn: Lsn(260), expires: Expiry::from_ms(0x0192_a5b6_c7d8) };
    let expiring = Record { stamp, kind: RecordKind::Put, flags: 0, request: None, key: b"bay", value: b"lee" };
    let range = Record {
        stamp: Lsn(261).into(),
        kind: RecordKind::DeleteRange,
        flags: 0,
        request: None,
        key: b"a",
        value: b"cb",
    };
    let count = 1000u64.to_le_bytes();
    let ingest =
        Record { stamp: Lsn(262).into(), kind: RecordKind::Ingest, flags: 0, request: None, key: &[0], value: &count };
    let request = Some(RequestId { client: 0x1122_3344_5566_7788, sequence: 9 });
    let stamp = Stamp { lsn: Lsn(1262), expires: Expiry::from_ms(1) };
    let named = Record { stamp, kind: RecordKind::Put, flags: 0, request, key: b"n", value: b"5" };
    let (stamp, value) = (Lsn(1263).into(), 258u64.to_le_bytes());
    let refused = Record { stamp, kind: RecordKind::Refused, flags: 0, request, key: &[0], value: &value };
    let mut bytes = Vec::new();
    put.append_to(seed, &mut bytes);
    delete.append_to(seed, &mut bytes);
    expiring.append_to(seed, &mut bytes);
    let range_at = bytes.len();
    range.append_to(seed, &mut bytes);
    ingest.append_to(seed, &mut bytes);
    named.append_to(seed, &mut bytes);
    refused.append_to(seed, &mut bytes);
    check("record.hex", include_str!("golden/record.hex"), &bytes);
    assert_eq!(read_record(seed, &bytes), Ok(Some(put)));
    assert_eq!(read_record(seed, &bytes[put.bytes()..]), Ok(Some(delete)));
    assert_eq!(read_record(seed, &bytes[put.bytes() + delete.bytes()..]), Ok(Some(expiring)));
    assert_eq!(read_record(seed, &bytes[range_at..]), Ok(Some(range)));
    assert_eq!(read_record(seed, &bytes[range_at + range.bytes() + ingest.bytes()..]), Ok(Some(named)));
    assert_eq!((range.last_lsn(), ingest.last_lsn()), (Lsn(261), Lsn(1261)));
}

#[test]
fn log_segment_headers() {
    let id = SegmentId::new(leeward_format::Epoch(2), 3);
    let header = LogHeader { region: RegionId(1), log: LogKind::Large, id, first_lsn: Lsn(258) };
    check("log-segment.hex", include_str!("golden/log-segment.hex"), &header.encode());
}

#[test]
fn superblocks() {
    let (version, volume) = (VOLUME_VERSION, VolumeId(0x1122_3344_5566_7788));
    let superblock = Superblock { version, segment_bytes: 2 << 20, zone_segments: 4, volume, nonce_bytes: 0 };
    check("superblock.hex", include_str!("golden/superblock.hex"), &superblock.encode());
}

#[test]
fn encrypted_volumes() {
    let (generation, wrapped_with) = (300, "2026-11".to_owned());
    let (nonce, sealed) = ([0xa5; SEAL_NONCE_BYTES], vec![0x5a; DATA_KEY_BYTES + 16]);
    let key = WrappedKey { generation, wrapped_with, nonce, sealed };
    check("wrapped-key.hex", include_str!("golden/wrapped-key.hex"), &key.encode());
    let sealed = SealedEntry { nonce: [0xa5; SEAL_NONCE_BYTES], sealed: vec![0x5a; 48] };
    let mut frame = Vec::new();
    write_frame(FrameKind::SealedManifestEdit, &sealed, &mut frame);
    check("sealed-entry.hex", include_str!("golden/sealed-entry.hex"), &frame);
    let slot =
        Use { start: 0x4000, end: 0x20_0000, kind: UseKind::Stream, generation: 258, nonce: [0xa5; NONCE_BYTES] };
    check("nonce-slot.hex", include_str!("golden/nonce-slot.hex"), &slot.encode());
}

#[test]
fn manifest_entries() {
    let region = RegionId(1);
    let id = |counter| SegmentId::new(leeward_format::Epoch(2), counter);
    let level = LevelState {
        root: Some(Pointer::new(SegmentNo(12).name(), 8192)),
        index_segments: Vec::new(),
        leaf_segments: 1,
        entries: 300,
        bytes: 40_000,
        ranged: vec![id(5)],
    };
    let edit = InstallEdit {
        // The eighth run of L1 from the oldest has been the first position since the first version.
        levels: vec![(L1 as u8 - 7, level)],
        added: vec![(id(5), SegmentKind::Leaf)],
        removed: vec![id(4)],
        replay_from: Lsn(301),
        logs: vec![LogExtent { log: LogKind::Large, id: id(3), bytes: 5000 }],
        dead: vec![(id(3), 700)],
    };
    let (last_lsn, kind) = (Lsn(290), SegmentKind::Log(LogKind::Large));
    let (origin, primary) = (RegionId(7), SegmentNo(10));
    let segment = BaseSegment { id: id(3), origin, kind, primary, bytes: 6000, last_lsn, dead_bytes: 700 };
    let mut terms = Terms::default();
    terms.begin(leeward_format::Epoch(1), Lsn(0));
    terms.begin(leeward_format::Epoch(2), Lsn(280));
    let base = Box::new(Base {
        options: TableOptions::default(),
        term: leeward_format::Epoch(2),
        terms: terms.clone(),
        replay_from: Lsn(301),
        last_lsn: Lsn(300),
        commit: Lsn(300),
        levels: Vec::new(),
        segments: vec![segment],
        parent: Some(Parent { region: origin, term: leeward_format::Epoch(1), last_lsn: Lsn(280) }),
    });
    let mut state = RegionState { terms, ..RegionState::new(region, TableOptions::default()) };
    state.segments.insert(id(3), SegmentState { durable_bytes: 5000, ..segment.state() });
    let changes = vec![
        Change::Opened(Incarnation(2)),
        Change::Region(Box::new(state)),
        Change::OpenLog { region, log: LogKind::Large, id: id(3), no: SegmentNo(10) },
        Change::SealLog { region, id: id(3), bytes: 6000, last_lsn: Lsn(290) },
        Change::Install { region, edit, places: vec![(SegmentNo(12), 16_384)], commit: Lsn(300) },
        Change::Checkpoint { region, name: "a".into(), base },
        Change::DropCheckpoint { region, name: "a".into() },
        Change::Forget { region, ids: vec![id(3)] },
        Change::Identify { region, identity: Box::new(identity()) },
        Change::Drop(region),
    ];
    let entry = Entry { sequence: 9, durable: 8, incarnation: Incarnation(2), body: EntryBody::Edit(changes) };
    let mut bytes = Vec::new();
    write_frame(FrameKind::ManifestEdit, &entry, &mut bytes);
    check("manifest-edit.hex", include_str!("golden/manifest-edit.hex"), &bytes);
}

fn identity() -> CopyIdentity {
    CopyIdentity {
        cluster: ClusterId(300),
        table_id: TableId(301),
        epoch: leeward_format::Epoch(5),
        start: "a".into(),
        end: Some("m".into()),
        inherited_below: SegmentId(2),
    }
}

#[test]
fn checkpoints_say_what_copies_belong_to() {
    let mut state = VolumeState { incarnation: Incarnation(2), ..VolumeState::default() };
    state.identities.insert(RegionId(1), identity());
    let body = EntryBody::checkpoint(state);
    let entry = Entry { sequence: 10, durable: 9, incarnation: Incarnation(2), body };
    let mut bytes = Vec::new();
    write_frame(FrameKind::ManifestEdit, &entry, &mut bytes);
    check("manifest-checkpoint.hex", include_str!("golden/manifest-checkpoint.hex"), &bytes);
}

#[test]
fn manifest_zones() {
    let body = EntryBody::Zone(vec![SegmentNo(9), SegmentNo(300)]);
    let entry = Entry { sequence: 10, durable: 9, incarnation: Incarnation(2), body };
    let mut bytes = Vec::new();
    write_frame(FrameKind::ManifestEdit, &entry, &mut bytes);
    check("manifest-zone.hex", include_str!("golden/manifest-zone.hex"), &bytes);
}
