//! Shipments of one backup: the order of segments, messages and edits.

use super::*;
use leeward_format::Lsn;

fn parcel(id: u64) -> Parcel {
    Parcel::pack((SegmentId(id), SegmentKind::Leaf, SegmentNo(id as u32)), Bytes::from(vec![0; 4096]), Codec::None)
}

fn edit(replay_from: u64) -> InstallEdit {
    InstallEdit { replay_from: Lsn(replay_from), ..InstallEdit::default() }
}

/// A short text for each step.
fn describe(steps: &[ShipStep]) -> Vec<String> {
    let describe = |step: &ShipStep| match step {
        ShipStep::Write(write) => format!("write {} to slot {}", write.parcel.shipped.id, write.slot),
        ShipStep::Send(ToBackup::InstallBase) => "install base".to_owned(),
        ShipStep::Send(ToBackup::Install(edit)) => format!("install {}", edit.replay_from),
        ShipStep::Send(other) => format!("{other:?}"),
        ShipStep::Load(id) => format!("load {id}"),
    };
    steps.iter().map(describe).collect()
}

struct Rig {
    ship: Ship,
    next_op: u64,
}

impl Rig {
    fn pump(&mut self) -> Vec<ShipStep> {
        let next = &mut self.next_op;
        self.ship.pump(|| {
            *next += 1;
            *next
        })
    }
    /// Completes and stores every write among the steps.
    fn store(&mut self, steps: &[ShipStep]) {
        for step in steps {
            if let ShipStep::Write(write) = step {
                assert!(matches!(self.ship.complete(write.op).as_deref(), Some([ToBackup::Ship { .. }])));
                assert!(self.ship.stored(write.slot as u32));
            }
        }
    }
}

fn rig(missing: &[u64]) -> Rig {
    let mut ship = Ship::new(2);
    assert!(ship.compared(missing.iter().map(|id| SegmentId(*id)).collect()));
    Rig { ship, next_op: 0 }
}

#[test]
fn a_base_is_loaded_one_by_one_and_installed_at_its_end() {
    let mut rig = rig(&[1, 2]);
    assert_eq!(describe(&rig.pump()), ["load 1"]);
    rig.ship.loaded(parcel(1));
    let steps = rig.pump();
    assert_eq!(describe(&steps), ["write 1 to slot 0", "load 2"]);
    rig.ship.loaded(parcel(2));
    let last = rig.pump();
    assert_eq!(describe(&last), ["write 2 to slot 1"]);
    rig.store(&steps);
    assert!(rig.pump().is_empty(), "the second segment is still being written");
    rig.store(&last);
    assert_eq!(describe(&rig.pump()), ["install base"]);
    assert!(!rig.ship.is_base_installed());
    assert!(rig.ship.base_installed());
    assert!(!rig.ship.base_installed(), "an answer counts once");
    assert_eq!(rig.ship.pending(), 0);
    assert!(!rig.ship.owes_answer());
}

#[test]
fn an_empty_base_is_installed_at_once() {
    assert_eq!(describe(&rig(&[]).pump()), ["install base"]);
}

#[test]
fn a_compaction_and_the_base_take_turns_and_its_edit_waits_for_both() {
    let mut rig = rig(&[1]);
    rig.pump();
    rig.ship.loaded(parcel(1));
    rig.ship.segment(parcel(50));
    rig.ship.segment(parcel(51));
    rig.ship.segment(parcel(52));
    assert!(!rig.ship.has_room());
    rig.ship.install(edit(9));
    let steps = rig.pump();
    assert_eq!(describe(&steps), ["write 50 to slot 0", "write 1 to slot 1"]);
    rig.store(&steps);
    let steps = rig.pump();
    assert_eq!(describe(&steps), ["write 51 to slot 0", "write 52 to slot 1", "install base"]);
    assert!(rig.ship.has_room());
    rig.store(&steps);
    assert_eq!(describe(&rig.pump()), ["install 9"]);
    assert!(rig.ship.installed());
    assert!(!rig.ship.installed());
}

#[test]
fn an_edit_waits_for_its_own_segments_only() {
    let mut rig = rig(&[]);
    rig.pump();
    rig.ship.base_installed();
    rig.ship.segment(parcel(60));
    rig.ship.install(edit(1));
    rig.ship.segment(parcel(61));
    let steps = rig.pump();
    assert_eq!(steps.len(), 2, "both segments, no edit: {:?}", describe(&steps));
    let ShipStep::Write(first) = &steps[0] else { panic!("a write") };
    assert!(rig.ship.complete(first.op).is_some());
    assert_eq!(describe(&rig.pump()), ["install 1"], "segment 61 belongs to the next edit");
}

#[test]
fn segments_are_told_of_in_the_order_in_which_they_were_built() {
    let mut rig = rig(&[1]);
    rig.pump();
    rig.ship.segment(parcel(70));
    rig.ship.segment(parcel(71));
    rig.ship.install(edit(1));
    let steps = rig.pump();
    let [ShipStep::Write(first), ShipStep::Write(second)] = &steps[..] else { panic!("two writes") };
    assert_eq!(rig.ship.complete(second.op).map(|messages| messages.len()), Some(0), "it waits for the first");
    let messages = rig.ship.complete(first.op).expect("a write of this");
    let ids = messages.iter().map(|message| match message {
        ToBackup::Ship { shipped, .. } => shipped.id.0,
        other => panic!("{other:?}"),
    });
    assert_eq!(ids.collect::<Vec<_>>(), [70, 71]);
    assert!(rig.ship.stored(1) && rig.ship.stored(0));
}

#[test]
fn answers_to_nothing_are_told_apart() {
    let mut rig = rig(&[]);
    assert!(!rig.ship.stored(0));
    assert!(!rig.ship.stored(9));
    assert!(rig.ship.complete(77).is_none());
    assert!(!rig.ship.compared(Vec::new()));
}

#[test]
fn a_compaction_that_was_given_up_is_discarded_after_its_segments() {
    let mut rig = rig(&[]);
    rig.pump();
    rig.ship.base_installed();
    rig.ship.segment(parcel(80));
    rig.ship.discard(vec![SegmentId(80)]);
    rig.ship.segment(parcel(81));
    rig.ship.install(edit(1));
    let steps = rig.pump();
    assert_eq!(steps.len(), 2, "the discard has no turn before its segment: {:?}", describe(&steps));
    rig.store(&steps);
    assert_eq!(describe(&rig.pump()), ["Discard([SegmentId(80)])", "install 1"]);
    assert!(rig.ship.installed());
    assert!(!rig.ship.installed(), "a discard is not answered");
}

/// Seed 2349: a primary that compacted without a pause never sent the base to a member that was far away.
#[test]
fn compactions_that_never_end_do_not_keep_the_base_waiting() {
    let mut rig = rig(&[1, 2, 3, 4]);
    let mut built = 100;
    for _ in 0..20 {
        while rig.ship.has_room() {
            built += 1;
            rig.ship.segment(parcel(built));
        }
        let steps = rig.pump();
        for step in &steps {
            if let ShipStep::Load(id) = step {
                rig.ship.loaded(parcel(id.0));
            }
        }
        rig.store(&steps);
        if steps.iter().any(|step| matches!(step, ShipStep::Send(ToBackup::InstallBase))) {
            assert!(built > 104, "compactions went on meanwhile");
            return;
        }
    }
    panic!("the base is not sent");
}
