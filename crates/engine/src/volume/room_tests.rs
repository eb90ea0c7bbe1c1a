//! Tests of the bound of a checkpoint's size.

use super::*;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{InstallEdit, LevelState, RegionState, SegmentKind};
use leeward_format::{LogKind, Lsn, RegionId, SegmentId, SegmentNo};
use leeward_platform::Rng;

const REGION: RegionId = RegionId(u32::MAX);

/// A change with the numbers that take the most bytes.
fn change(rng: &mut Rng, counter: u64) -> Change {
    let id = SegmentId(u64::MAX - counter);
    let no = SegmentNo(u32::MAX - counter as u32);
    let old = SegmentId(u64::MAX - rng.below(counter.max(1)));
    match rng.below(5) {
        0 | 1 => Change::OpenLog { region: REGION, log: LogKind::Large, id, no },
        2 => Change::SealLog { region: REGION, id: old, bytes: 2 << 20, last_lsn: Lsn(u64::MAX) },
        3 => Change::Forget { region: REGION, ids: vec![old] },
        _ => {
            let added: Vec<_> = (0..rng.below(40)).map(|i| (SegmentId(id.0 - (i << 32)), SegmentKind::Leaf)).collect();
            let places = vec![(no, 2 << 20); added.len()];
            let dead = (0..rng.below(5)).map(|_| (old, u32::MAX)).collect();
            let level = LevelState { leaf_segments: 9, index_segments: vec![id; 5], ..LevelState::default() };
            let edit = InstallEdit { levels: vec![(20, level)], added, dead, ..InstallEdit::default() };
            Change::Install { region: REGION, edit, places, commit: Lsn(u64::MAX) }
        }
    }
}

#[test]
fn a_checkpoint_is_never_larger_than_its_bound() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut state = VolumeState::default();
        state.regions.insert(REGION, RegionState::new(REGION, TableOptions::default()).into());
        let mut size = Size::exactly(measure(state.clone()));
        for counter in 1..400 {
            let change = change(&mut rng, counter);
            if state.apply(&change).is_err() {
                continue;
            }
            let frame_bytes = body_bytes(&EntryBody::Edit(vec![change.clone()]));
            size = size.after(&[change], frame_bytes);
            let exact = measure(state.clone());
            assert!(exact <= size.bytes(), "seed {seed}, change {counter}: {exact} of {}", size.bytes());
            size = Size::exactly(exact);
        }
    }
}
