//! Tests of the registry: an edit costs as much as it changes, and frees the right segments.

use super::*;
use crate::volume::space::Space;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Base, InstallEdit, SegmentKind};
use leeward_format::{Epoch, LogKind, Lsn};
use leeward_platform::{Disk, Rng, SimDisk};

const REGION: RegionId = RegionId(1);
/// Size of a segment.
const SEGMENT_BYTES: u64 = 4096;
/// Segments of the region.
const SEGMENTS: u64 = 2000;

struct Fixture {
    device: Arc<Device>,
    space: Arc<Space>,
    registry: Registry,
}

impl Fixture {
    /// A region with [`SEGMENTS`] leaf segments.
    fn new() -> Fixture {
        let device = Arc::new(Device::new(SimDisk::new(1, 1 << 30).open("volume").unwrap()));
        let space = Space::new(Arc::clone(&device), SEGMENT_BYTES, 0, 0, u32::MAX);
        let state = RegionState::new(REGION, TableOptions::default());
        let mut fixture =
            Fixture { device, space, registry: Registry::new(VolumeState::default(), SEGMENT_BYTES as usize) };
        fixture.apply(&[Change::Region(Box::new(state))], &[]);
        let (changes, added) = fixture.install(1..=SEGMENTS, vec![]);
        assert_eq!(fixture.apply(&changes, &added), 0);
        fixture
    }

    /// The edit that adds and removes segments.
    fn install(
        &self,
        added: impl Iterator<Item = u64>,
        removed: Vec<SegmentId>,
    ) -> (Vec<Change>, Vec<(SegmentId, Arc<Segment>)>) {
        let held: Vec<_> = added.map(|id| (SegmentId(id), self.space.allocate(REGION).unwrap())).collect();
        let places = held.iter().map(|(_, segment)| (segment.no(), 100)).collect();
        let added = held.iter().map(|(id, _)| (*id, SegmentKind::Leaf)).collect();
        let edit = InstallEdit { added, removed, ..InstallEdit::default() };
        (vec![Change::Install { region: REGION, edit, places, commit: Lsn(0) }], held)
    }

    /// Returns the number of freed segments.
    fn apply(&mut self, changes: &[Change], added: &[(SegmentId, Arc<Segment>)]) -> usize {
        let dropped = self.registry.apply(&self.device, (REGION, changes), added).unwrap();
        let count = dropped.iter().count();
        dropped.free(&self.device.sync().unwrap());
        count
    }

    /// Number of segments that `change` visits.
    fn looked_at(&self, change: &Change) -> usize {
        let mut candidates = Vec::new();
        self.registry.find_candidates(REGION, change, &mut candidates);
        candidates.len()
    }

    fn checkpoint(&self, name: &str) -> Change {
        let state = self.registry.region(REGION).unwrap();
        let segments = state.segments.values().map(|segment| leeward_format::manifest::BaseSegment {
            id: segment.id,
            origin: segment.origin,
            kind: segment.kind,
            primary: segment.no,
            bytes: 100,
            last_lsn: Lsn(0),
            dead_bytes: 0,
        });
        let base = Base {
            options: state.options.clone(),
            term: Epoch(1),
            terms: state.terms.clone(),
            replay_from: Lsn(1),
            last_lsn: Lsn(0),
            commit: Lsn(0),
            levels: Vec::new(),
            segments: segments.collect(),
            parent: None,
        };
        Change::Checkpoint { region: REGION, name: name.to_owned(), base: Box::new(base) }
    }
}

#[test]
fn an_edit_looks_at_what_it_changes_and_not_at_the_region() {
    let mut fixture = Fixture::new();
    let mut next = SEGMENTS;
    for _ in 0..200 {
        next += 1;
        let (changes, added) = fixture.install(next..=next, vec![SegmentId(next - SEGMENTS)]);
        assert_eq!(fixture.looked_at(&changes[0]), 1);
        assert_eq!(fixture.apply(&changes, &added), 1);
        let (id, segment) = (SegmentId(1_000_000 + next), fixture.space.allocate(REGION).unwrap());
        let opened = Change::OpenLog { region: REGION, log: LogKind::Recovery, id, no: segment.no() };
        let sealed = Change::SealLog { region: REGION, id, bytes: 64, last_lsn: Lsn(1) };
        assert_eq!((fixture.looked_at(&opened), fixture.looked_at(&sealed)), (0, 0));
        assert_eq!(fixture.apply(&[opened, sealed], &[(id, segment)]), 0);
        let forgotten = Change::Forget { region: REGION, ids: vec![id] };
        assert_eq!(fixture.looked_at(&forgotten), 1);
        assert_eq!(fixture.apply(&[forgotten], &[]), 1);
    }
    assert_eq!(fixture.registry.segments(REGION).len() as u64, SEGMENTS);
}

#[test]
fn what_a_checkpoint_needs_stays_until_the_last_one_is_gone() {
    let mut fixture = Fixture::new();
    for name in ["monday", "tuesday"] {
        let made = fixture.checkpoint(name);
        assert_eq!(fixture.apply(&[made], &[]), 0);
    }
    let (changes, added) = fixture.install(5001..=5001, (1..=10).map(SegmentId).collect());
    assert_eq!(fixture.apply(&changes, &added), 0, "both checkpoints need them");
    let gone = |name: &str| Change::DropCheckpoint { region: REGION, name: name.to_owned() };
    assert_eq!(fixture.apply(&[gone("monday")], &[]), 0, "the other needs them");
    assert_eq!(fixture.apply(&[gone("tuesday")], &[]), 10);
    assert_eq!(fixture.apply(&[Change::Drop(REGION)], &[]) as u64, SEGMENTS - 10 + 1);
    assert!(fixture.registry.segments(REGION).is_empty() && fixture.registry.holders.is_empty());
}

#[test]
fn what_was_let_go_of_is_in_use_until_that_is_durable() {
    let mut fixture = Fixture::new();
    let used = |fixture: &Fixture| fixture.space.usage().0 / SEGMENT_BYTES;
    assert_eq!(used(&fixture), SEGMENTS);
    let forget = |id: u64| [fixture.install(0..0, vec![SegmentId(id)]).0.remove(0)];
    let (first, second) = (forget(1), forget(2));
    let dropped = fixture.registry.apply(&fixture.device, (REGION, &first), &[]).unwrap();
    drop(dropped);
    assert_eq!(used(&fixture), SEGMENTS, "the edit was not reported durable");
    assert_eq!(fixture.apply(&second, &[]), 1);
    assert_eq!(used(&fixture), SEGMENTS - 1);
}

#[test]
fn half_an_edit_ends_all_writing() {
    let mut fixture = Fixture::new();
    let (unknown, known) = (SegmentId(77_777), SegmentId(1));
    let forget = |id| Change::Forget { region: REGION, ids: vec![id] };
    let apply = |fixture: &mut Fixture, changes: &[Change]| {
        fixture.registry.apply(&fixture.device, (REGION, changes), &[]).map(drop).unwrap_err()
    };
    assert!(matches!(apply(&mut fixture, &[forget(unknown), forget(known)]), Error::Protocol { .. }));
    fixture.device.check().expect("nothing of it was done");
    assert!(matches!(apply(&mut fixture, &[forget(known), forget(unknown)]), Error::Protocol { .. }));
    assert!(fixture.device.why_failed().is_some_and(|why| why.contains("a part of an edit")));
}

/// Two regions that share segments, and are changed at random.
struct Two {
    fixture: Fixture,
    rng: Rng,
    next: u64,
}

impl Two {
    const OTHER: RegionId = RegionId(2);

    fn new(seed: u64) -> Two {
        let mut fixture = Fixture::new();
        let held: Vec<_> = fixture.registry.segments(REGION).into_iter().collect();
        let state = RegionState { region: Two::OTHER, ..fixture.registry.region(REGION).unwrap().clone() };
        drop(fixture.registry.apply(&fixture.device, (Two::OTHER, &[Change::Region(Box::new(state))]), &held).unwrap());
        Two { fixture, rng: Rng::new(seed), next: 1_000_000 }
    }

    fn id(&mut self, region: RegionId, of: impl Fn(&SegmentState) -> bool) -> Option<SegmentId> {
        let state = self.fixture.registry.region(region)?;
        let all: Vec<_> = state.segments.values().filter(|one| of(one)).map(|one| one.id).collect();
        (!all.is_empty()).then(|| all[self.rng.index(all.len())])
    }

    fn allocated(&mut self) -> (SegmentId, Arc<Segment>) {
        self.next += 1;
        (SegmentId(self.next), self.fixture.space.allocate(REGION).unwrap())
    }

    /// Changes `region` in one of the ways that there are.
    fn step(&mut self, region: RegionId) {
        let mut added = Vec::new();
        let change = match self.rng.below(8) {
            0 | 1 => {
                let (id, segment) = self.allocated();
                let log = if self.rng.one_in(2) { LogKind::Large } else { LogKind::Recovery };
                added.push((id, Arc::clone(&segment)));
                Some(Change::OpenLog { region, log, id, no: segment.no() })
            }
            2 | 3 => self.id(region, |one| !one.kind.is_index() && one.bytes.is_none()).map(|id| Change::SealLog {
                region,
                id,
                bytes: 2000 + self.rng.below(2000) as u32,
                last_lsn: Lsn(self.rng.below(99)),
            }),
            4 => self.id(region, |_| true).map(|id| Change::Forget { region, ids: vec![id] }),
            5 => {
                let name = format!("c{}", self.rng.below(3));
                let known = self.fixture.registry.region(region).unwrap().checkpoints.contains_key(&name);
                Some(match known {
                    true => Change::DropCheckpoint { region, name },
                    false => match self.fixture.checkpoint(&name) {
                        Change::Checkpoint { base, .. } if region == REGION => {
                            Change::Checkpoint { region, name, base }
                        }
                        _ => return,
                    },
                })
            }
            _ => {
                let count = self.rng.below(3);
                let held: Vec<_> = (0..count).map(|_| self.allocated()).collect();
                let places = held.iter().map(|(_, segment)| (segment.no(), 100)).collect();
                let kinds = held.iter().map(|(id, _)| (*id, SegmentKind::Leaf)).collect();
                let dead = self.id(region, |one| one.holds_values() && one.live_bytes().is_some_and(|live| live > 0));
                let live = |id| self.fixture.registry.region(region).unwrap().segments[&id].live_bytes().unwrap();
                let dead = dead.map(|id| (id, live(id)));
                let (halves, replay_from) = (self.rng.one_in(2), Lsn(self.rng.below(120)));
                let dead = dead.map(|(id, live)| (id, if halves { live / 2 } else { live })).into_iter().collect();
                let edit = InstallEdit { added: kinds, dead, replay_from, ..InstallEdit::default() };
                added = held;
                Some(Change::Install { region, edit, places, commit: Lsn(0) })
            }
        };
        let Some(change) = change else { return };
        drop(self.fixture.registry.apply(&self.fixture.device, (region, &[change]), &added).unwrap());
    }
}

#[test]
fn sums_are_what_a_walk_finds_after_every_edit() {
    for seed in 0..3 {
        let mut two = Two::new(seed);
        two.fixture.registry.set_inherited_below(REGION, SegmentId(1_000_040));
        for step in 0..300 {
            let region = if two.rng.one_in(2) { REGION } else { Two::OTHER };
            two.step(region);
            if step == 150 {
                two.fixture.registry.set_inherited_below(Two::OTHER, SegmentId(1_000_100));
            }
            let registry = &two.fixture.registry;
            for region in [REGION, Two::OTHER] {
                let state = registry.region(region).unwrap();
                let known = registry.tally(region).unwrap();
                let sharing = |segment: &SegmentState| registry.sharing(segment);
                let walked = Tally::of(state, known.inherited_below, SEGMENT_BYTES as usize, &sharing);
                assert_eq!(*known, walked, "seed {seed}, step {step}, region {region}");
                let edit = InstallEdit { replay_from: Lsn(50), ..InstallEdit::default() };
                assert_eq!(registry.trimmable(region, &edit).unwrap(), state.trimmable(&edit));
            }
            assert_eq!(registry.size(), measure(registry.state.clone()), "seed {seed}, step {step}");
        }
    }
}

#[test]
fn an_install_looks_at_few_segments_to_give_up() {
    let mut fixture = Fixture::new();
    let (id, segment) = (SegmentId(9_000_000), fixture.space.allocate(REGION).unwrap());
    let opened = Change::OpenLog { region: REGION, log: LogKind::Recovery, id, no: segment.no() };
    let sealed = Change::SealLog { region: REGION, id, bytes: 64, last_lsn: Lsn(1) };
    fixture.apply(&[opened, sealed], &[(id, segment)]);
    let tally = fixture.registry.tally(REGION).unwrap();
    assert_eq!(tally.trim_candidates().collect::<Vec<_>>(), [id], "of {SEGMENTS} segments");
    let edit = InstallEdit { replay_from: Lsn(2), ..InstallEdit::default() };
    assert_eq!(fixture.registry.trimmable(REGION, &edit), Some(vec![id]));
    let (changes, added) = fixture.install(20_000..=20_000, vec![SegmentId(1)]);
    assert_eq!(fixture.registry.touched(REGION, &changes, &added).len(), 2);
}

/// A clone of the state for a checkpoint copies no region.
#[test]
fn a_clone_of_the_state_shares_its_regions() {
    let mut fixture = Fixture::new();
    let before = fixture.registry.state.clone();
    assert!(Arc::ptr_eq(&before.regions[&REGION], &fixture.registry.state.regions[&REGION]));
    let (changes, added) = fixture.install(20_000..=20_000, vec![]);
    fixture.apply(&changes, &added);
    assert_eq!(before.regions[&REGION].segments.len() as u64, SEGMENTS, "it is as it was");
}
