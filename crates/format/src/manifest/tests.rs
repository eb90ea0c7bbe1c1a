//! Tests of the manifest's state machine: edits that fit are executed, others change nothing.

use super::*;
use crate::frame::{FrameKind, read_frame, write_frame};
use proptest::prelude::*;

const REGION: RegionId = RegionId(1);

fn state_with(segments: &[(u64, SegmentKind)]) -> VolumeState {
    let mut region = RegionState::new(REGION, TableOptions::default());
    for (number, kind) in segments {
        let id = SegmentId(*number);
        region.segments.insert(id, SegmentState::new(REGION, id, SegmentNo(*number as u32), *kind));
    }
    let regions = BTreeMap::from([(REGION, region.into())]);
    VolumeState { incarnation: Incarnation(1), regions, ..VolumeState::default() }
}

fn install(edit: InstallEdit, places: Vec<(SegmentNo, u32)>) -> Change {
    Change::Install { region: REGION, edit, places, commit: Lsn(4) }
}

#[test]
fn an_install_swaps_segments_and_levels() {
    let mut state = state_with(&[(1, SegmentKind::Log(LogKind::Large)), (2, SegmentKind::Leaf)]);
    let level =
        LevelState { root: Some(Pointer::new(SegmentNo(9).name(), 0)), leaf_segments: 1, ..LevelState::default() };
    let edit = InstallEdit {
        levels: vec![(1, level.clone())],
        added: vec![(SegmentId(3), SegmentKind::Leaf)],
        removed: vec![SegmentId(2)],
        replay_from: Lsn(5),
        logs: vec![LogExtent { log: LogKind::Large, id: SegmentId(1), bytes: 100 }],
        dead: Vec::new(),
    };
    state.apply(&install(edit, vec![(SegmentNo(9), 4096)])).unwrap();
    let region = &state.regions[&REGION];
    assert_eq!(region.levels, [LevelState::default(), level]);
    assert_eq!(region.segments.keys().map(|id| id.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(region.segments[&SegmentId(3)].bytes, Some(4096));
    assert_eq!(region.segments[&SegmentId(1)].durable_bytes, 100);
    assert_eq!((region.replay_from, region.commit), (Lsn(5), Lsn(4)));
}

#[test]
fn edits_that_do_not_fit_change_nothing() {
    let log = SegmentKind::Log(LogKind::Recovery);
    let before = state_with(&[(1, log), (2, SegmentKind::Leaf)]);
    let id = SegmentId;
    let level = |index: u64| LevelState { index_segments: vec![id(index)], ..LevelState::default() };
    let edits = [
        InstallEdit { removed: vec![id(9)], ..InstallEdit::default() },
        InstallEdit { removed: vec![id(1)], ..InstallEdit::default() },
        InstallEdit { added: vec![(id(2), SegmentKind::Leaf)], ..InstallEdit::default() },
        InstallEdit { added: vec![(id(3), log)], ..InstallEdit::default() },
        InstallEdit { added: vec![(id(3), SegmentKind::Leaf)], ..InstallEdit::default() },
        InstallEdit { levels: vec![(200, LevelState::default())], ..InstallEdit::default() },
        InstallEdit { levels: vec![(0, level(7))], ..InstallEdit::default() },
        InstallEdit { levels: vec![(0, level(2))], removed: vec![id(2)], ..InstallEdit::default() },
    ];
    let installs = edits.map(|edit| install(edit, Vec::new()));
    let others = [
        Change::Drop(RegionId(2)),
        Change::OpenLog { region: REGION, log: LogKind::Large, id: id(1), no: SegmentNo(4) },
        Change::OpenLog { region: RegionId(2), log: LogKind::Large, id: id(4), no: SegmentNo(4) },
        Change::SealLog { region: REGION, id: id(2), bytes: 64, last_lsn: Lsn(1) },
        Change::SealLog { region: REGION, id: id(8), bytes: 64, last_lsn: Lsn(1) },
        Change::Forget { region: REGION, ids: vec![id(1), id(8)] },
    ];
    for change in installs.iter().chain(&others) {
        let mut state = before.clone();
        assert!(state.apply(change).is_err(), "{change:?}");
        assert_eq!(state, before);
    }
}

#[test]
fn the_life_of_a_log_segment() {
    let mut state = state_with(&[]);
    let (log, id, no) = (LogKind::Recovery, SegmentId(5), SegmentNo(6));
    state.apply(&Change::OpenLog { region: REGION, log, id, no }).unwrap();
    assert_eq!(state.regions[&REGION].log_segments(log).next().unwrap().bytes, None);
    state.apply(&Change::SealLog { region: REGION, id, bytes: 99, last_lsn: Lsn(3) }).unwrap();
    assert_eq!(state.regions[&REGION].log_segments(log).next().unwrap().bytes, Some(99));
    state.apply(&Change::Forget { region: REGION, ids: vec![id] }).unwrap();
    assert_eq!(state.regions[&REGION].log_segments(log).count(), 0);
    state.apply(&Change::Drop(REGION)).unwrap();
    assert!(state.regions.is_empty());
}

fn any_kind() -> impl Strategy<Value = SegmentKind> {
    prop_oneof![
        Just(SegmentKind::Leaf),
        Just(SegmentKind::Index),
        Just(SegmentKind::Log(LogKind::Recovery)),
        Just(SegmentKind::Log(LogKind::Large)),
    ]
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = (0u64..6).prop_map(SegmentId);
    let edit = (
        prop::collection::vec((0u8..20, prop::collection::vec(id.clone(), 0..2)), 0..2),
        prop::collection::vec((id.clone(), any_kind()), 0..3),
        prop::collection::vec(id.clone(), 0..3),
        0usize..4,
    );
    let install = edit.prop_map(|(levels, added, removed, places)| {
        let level = |index_segments| LevelState { index_segments, ..LevelState::default() };
        let levels = levels.into_iter().map(|(at, index)| (at, level(index))).collect();
        let edit = InstallEdit { levels, added, removed, replay_from: Lsn(3), ..InstallEdit::default() };
        Change::Install { region: REGION, edit, places: vec![(SegmentNo(1), 64); places], commit: Lsn(2) }
    });
    prop_oneof![
        install,
        id.clone().prop_map(|id| Change::OpenLog { region: REGION, log: LogKind::Large, id, no: SegmentNo(3) }),
        id.clone().prop_map(|id| Change::SealLog { region: REGION, id, bytes: 70, last_lsn: Lsn(9) }),
        prop::collection::vec(id, 0..3).prop_map(|ids| Change::Forget { region: REGION, ids }),
        (0u32..3).prop_map(|region| Change::Drop(RegionId(region))),
    ]
}

proptest! {
    #[test]
    fn any_edit_counts_completely_or_not_at_all(changes in prop::collection::vec(any_change(), 0..12)) {
        let mut state = state_with(&[(1, SegmentKind::Leaf), (2, SegmentKind::Index)]);
        for change in &changes {
            let before = state.clone();
            if state.apply(change).is_err() {
                prop_assert_eq!(&state, &before);
            }
        }
    }

    #[test]
    fn entries_survive_their_frame(changes in prop::collection::vec(any_change(), 0..5), sequence: u64) {
        let entry = Entry { sequence, durable: 1, incarnation: Incarnation(2), body: EntryBody::Edit(changes) };
        let mut frame = Vec::new();
        write_frame(FrameKind::ManifestEdit, &entry, &mut frame);
        let read = read_frame::<Entry>(FrameKind::ManifestEdit, &frame, frame.len()).unwrap();
        prop_assert_eq!(read, Some((entry, frame.len())));
    }

    #[test]
    fn hostile_entries_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        // Past the checksum: bytes that a bug, or an attacker with a CRC, could write.
        let _ = postcard::from_bytes::<Entry>(&body);
        let _ = read_frame::<Entry>(FrameKind::ManifestEdit, &body, 1 << 20);
    }
}
