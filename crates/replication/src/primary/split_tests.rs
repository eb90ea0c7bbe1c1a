//! When a region can be split, and what it proposes.

use super::super::tests::{Group, ONE, THREE, TWO};
use super::*;
use crate::peer::PeerAction;
use crate::primary::Ops;
use crate::ship::Parcel;
use bytes::Bytes;
use leeward_format::cluster::{DesiredState, Intent, Plan};
use leeward_format::control::ToPrimary;
use leeward_format::manifest::{InstallEdit, SegmentKind};
use leeward_format::packed::Codec;
use leeward_format::{Epoch, SegmentId, SegmentNo};

const CHILD: RegionId = RegionId(9);

fn planned() -> Group {
    let mut group = Group::in_sync(&[TWO, THREE], TableOptions { replicas: 3, ..TableOptions::default() });
    assert_eq!(group.primary.planned(), None);
    let plan = Some(Plan::Split { at: None, child: CHILD });
    let config = group.primary.config().with_desired(DesiredState { plan, ..DesiredState::default() });
    group.primary.reconfigure(group.now, config, &[]);
    group
}

#[test]
fn it_waits_while_the_group_is_not_settled() {
    let mut group = planned();
    assert_eq!(group.primary.planned(), Some((CHILD, None)));
    group.primary.set_departing([(ONE.server, Intent::Leave)].into());
    assert!(matches!(group.primary.planned(), Some((CHILD, Some("its primary is to be another first")))));
    group.primary.set_departing(Default::default());
    group.primary.set_options(TableOptions {
        backups: leeward_format::cluster::BackupMode::BuildIndex,
        ..TableOptions::default()
    });
    assert!(matches!(group.primary.planned(), Some((CHILD, Some(why))) if why.contains("keep its copy")));
    let mut config = group.primary.config().renewed();
    (config.backups, config.learners) = (vec![TWO], vec![THREE]);
    group.primary.reconfigure(group.now, config, &[]);
    assert!(matches!(group.primary.planned(), Some((CHILD, Some("a copy is being built")))));
}

#[test]
fn a_compaction_is_installed_once_every_member_says_so() {
    let mut group = planned();
    group.primary.ops = Ops::after(1_000);
    let identity = (SegmentId(7), SegmentKind::Leaf, SegmentNo(7));
    group.primary.ship(&Parcel::pack(identity, Bytes::from(vec![0; 4096]), Codec::None));
    assert!(group.primary.is_installed(), "a compaction that is under way is no part of the region");
    group.primary.ship_install(&InstallEdit::default());
    let writes = group.primary.take_actions().into_iter().filter_map(|action| match action {
        PrimaryAction::Peer { server, action: PeerAction::Slot(write), .. } => Some((server, write.op)),
        _ => None,
    });
    for (server, op) in writes.collect::<Vec<_>>() {
        group.primary.complete(group.now, server, op);
    }
    for server in [TWO.server, THREE.server] {
        assert!(!group.primary.is_installed(), "it is on its way to {server}");
        let session = group.primary.peer(server).expect("a peer").session_number();
        for answer in [ToPrimary::Stored { slot: 0, rewritten: 0 }, ToPrimary::Installed] {
            group.primary.message(group.now, server, session, answer);
        }
    }
    assert!(group.primary.is_installed());
}

#[test]
fn nothing_else_is_proposed_until_the_outcome_is_known() {
    let mut group = planned();
    let config = group.primary.config().clone();
    let (left, right) = config.split("m".into(), CHILD, SegmentId(5));
    group.primary.split(left.clone(), right.clone());
    let actions = group.primary.take_actions();
    let is_it = |action: &PrimaryAction| matches!(action, PrimaryAction::Split { left: one, right: other } if **one == left && **other == right);
    assert!(actions.iter().any(is_it), "{actions:?}");
    assert!(!group.primary.is_settled());
    group.primary.proposal_ended();
    assert!(group.primary.is_settled());
    group.primary.renew();
    let actions = group.primary.take_actions();
    let next = GroupConfig { epoch: config.epoch.next(), ..config };
    assert!(actions.iter().any(|action| matches!(action, PrimaryAction::Propose(config) if *config == next)));
}

#[test]
fn a_merge_target_proposes_the_merge_and_nothing_else_until_the_outcome_is_known() {
    let mut group = Group::in_sync(&[TWO], TableOptions::default());
    group.primary.hold_more();
    let actions = group.primary.take_actions();
    let marked = |action: &PrimaryAction| matches!(action, PrimaryAction::Propose(config) if config.inherited_below == SegmentId(1));
    assert!(actions.iter().any(marked), "{actions:?}");
    group.primary.proposal_ended();
    let mut config = group.primary.config().renewed();
    config.end = Some("m".into());
    group.primary.reconfigure(group.now, config.clone(), &[]);
    let plan = Some(Plan::Merge { into: config.region });
    let source = GroupConfig {
        region: CHILD,
        start: "m".into(),
        end: None,
        desired: DesiredState { plan, ..DesiredState::default() },
        ..config.clone()
    };
    group.primary.propose_merge(source.clone());
    let actions = group.primary.take_actions();
    let is_it = |action: &PrimaryAction| matches!(action, PrimaryAction::Merge { wider, source: other } if **other == source && **wider == config.merged_with(&source));
    assert!(actions.iter().any(is_it), "{actions:?}");
    assert!(!group.primary.is_settled());
    group.primary.tick(group.now + Nanos::from_secs(60), leeward_format::Lsn(0));
    assert!(!group.primary.take_actions().iter().any(|action| matches!(action, PrimaryAction::Propose(_))));
}

#[test]
fn a_pending_child_proposes_nothing_whichever_member_fails() {
    let config = GroupConfig {
        epoch: Epoch(7),
        term: Epoch(7),
        primary: Some(ONE),
        backups: vec![TWO, THREE],
        ..GroupConfig::unassigned(CHILD, "default")
    };
    let now = Nanos::from_secs(1);
    let mut primary =
        Primary::pending_child(now, config, TableOptions::default(), (Timing::default(), Ops::default()), &[]);
    let proposes = |primary: &mut Primary, at: Nanos| {
        primary.tick(at, leeward_format::Lsn(0));
        let actions = primary.take_actions();
        actions.iter().any(|action| matches!(action, PrimaryAction::Propose(_)))
    };
    let late = now + Nanos::from_secs(60);
    assert!(!proposes(&mut primary, late));
    primary.activated();
    assert!(proposes(&mut primary, late + Nanos::from_millis(50)), "it goes on without them");
}
