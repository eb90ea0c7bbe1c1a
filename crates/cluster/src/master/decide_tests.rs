//! Each rule of the master by itself, on hand-made views.

use super::super::work_queue::WorkQueue;
use super::*;
use crate::view::tests::{change, configure, member, register, synced};
use bytes::Bytes;
use leeward_format::cluster::{ClusterPath, CopyFound, DesiredState, TableOptions, encode_value};
use leeward_format::partition::Partition;
use leeward_format::{Incarnation, VolumeId};

/// A view with `regions` fresh regions and the servers `live`, each with (term, LSN) of its copy of region 1.
pub(in super::super) fn view(regions: u32, replicas: u32, live: &[(Member, Option<(u32, u64)>)]) -> View {
    let splits: Vec<Bytes> = (1..regions).map(|number| Bytes::from(format!("{number:04}"))).collect();
    view_of(&TableOptions { replicas, ..TableOptions::default() }, &splits, live)
}

/// As [`view`], of this table.
fn view_of(table: &TableOptions, splits: &[Bytes], live: &[(Member, Option<(u32, u64)>)]) -> View {
    let mut view = synced(table, splits);
    for (member, copy) in live {
        register(&mut view, *member, *copy);
    }
    view
}

pub(in super::super) fn kill(view: &mut View, server: u32) {
    change(view, ClusterPath::Server(ServerId(server)), None);
}

pub(in super::super) fn group(
    view: &View,
    epoch: u32,
    primary: Member,
    backups: &[Member],
    learners: &[Member],
) -> GroupConfig {
    GroupConfig {
        epoch: Epoch(epoch),
        term: Epoch(epoch),
        primary: Some(primary),
        backups: backups.to_vec(),
        learners: learners.to_vec(),
        prior_members: Vec::new(),
        recovery_quorum: 0,
        ..view.region(RegionId(1)).unwrap().clone()
    }
}

/// The configurations that a master proposes when it looks at all regions.
pub(super) fn decide_all(view: &View, assign: Assign) -> Vec<Arc<GroupConfig>> {
    WorkQueue::default().decide(view, &Rooms::default(), Policy { assign, keeps: true }, |_| true).next
}

pub(super) fn decide_one(view: &View) -> Option<GroupConfig> {
    let decided = decide_all(view, Assign::Any).into_iter().find(|config| config.region == RegionId(1));
    decided.map(|config| GroupConfig::clone(&config))
}

#[test]
fn assignment_balances_primaries_and_fills_groups() {
    let view = view(9, 3, &[(member(1, 1), None), (member(2, 1), None), (member(3, 1), None)]);
    assert!(decide_all(&view, Assign::No).is_empty());
    let decided = decide_all(&view, Assign::Fresh);
    assert_eq!(decided.len(), 9);
    for server in 1..=3 {
        assert_eq!(decided.iter().filter(|config| config.primary == Some(member(server, 1))).count(), 3);
    }
    for config in &decided {
        assert_eq!((config.epoch, config.term), (Epoch(1), Epoch(1)));
        assert_eq!((config.backups.len(), config.learners.len()), (2, 0), "an empty copy is complete");
    }
}

#[test]
fn tokens_go_round_the_servers_and_their_copies_are_on_successive_servers() {
    let table = TableOptions { replicas: 3, partition: Partition::Hash { tokens: 10 }, ..TableOptions::default() };
    let live: Vec<(Member, Option<(u32, u64)>)> = [1, 2, 5, 7].map(|server| (member(server, 1), None)).into();
    let mut view = view_of(&table, &[], &live);
    let decided = decide_all(&view, Assign::Fresh);
    let groups = decided.iter().map(|config| config.in_sync().map(|member| member.server.0).collect::<Vec<_>>());
    let ring = [[1, 2, 5], [2, 5, 7], [5, 7, 1], [7, 1, 2]];
    let ring: Vec<Vec<u32>> = ring.iter().cycle().take(10).map(|group| group.to_vec()).collect();
    assert_eq!(groups.collect::<Vec<_>>(), ring);

    // A server that fills a place later is the least loaded one, as in any table.
    decided.iter().for_each(|config| configure(&mut view, config));
    kill(&mut view, 5);
    let next = decide_one(&view);
    assert_eq!(next, None, "only the primary removes a backup");
    let left = view.region(RegionId(1)).unwrap().without(member(5, 1));
    configure(&mut view, &left);
    assert_eq!(decide_one(&view).unwrap().learners, [member(7, 1)]);
}

#[test]
fn any_surviving_member_of_a_new_region_takes_over_before_the_first_write() {
    let mut view = view(1, 3, &[(member(1, 1), None), (member(2, 1), None), (member(3, 1), None)]);
    let first = decide_one(&view).unwrap();
    let primary = first.primary.unwrap();
    configure(&mut view, &first);
    kill(&mut view, primary.server.0);
    let next = decide_one(&view).unwrap();
    assert!(first.backups.contains(&next.primary.unwrap()), "it waits for no volume");
    assert_eq!((next.epoch, next.backups.len()), (Epoch(2), 1));
}

#[test]
fn larger_clusters_spread_their_groups_too() {
    let live: Vec<(Member, Option<(u32, u64)>)> = (1..=6).map(|server| (member(server, 1), None)).collect();
    let view = view(12, 3, &live);
    let decided = decide_all(&view, Assign::Any);
    for (server, _) in live {
        assert_eq!(decided.iter().filter(|config| config.primary == Some(server)).count(), 2);
        assert_eq!(decided.iter().filter(|config| config.has(server)).count(), 6);
    }
}

#[test]
fn pending_decisions_count_and_are_not_repeated() {
    let view = view(2, 1, &[(member(1, 1), None), (member(2, 1), None)]);
    let mut work_queue = WorkQueue::default();
    let mut decide = |free: u32| {
        work_queue.put_back(RegionId(free));
        work_queue
            .decide(&view, &Rooms::default(), Policy { assign: Assign::Any, keeps: true }, |region| region.0 == free)
            .next
    };
    assert_eq!(decide(1)[0].primary, Some(member(1, 1)));
    let second = decide(2);
    let second: Vec<_> = second.iter().map(|config| (config.region, config.primary)).collect();
    assert_eq!(second, [(RegionId(2), Some(member(2, 1)))]);
}

#[test]
fn a_cluster_whose_coordinator_was_lost_keeps_its_best_copy() {
    let mut view = view(1, 3, &[(member(1, 1), None), (member(2, 1), Some((4, 90)))]);
    assert!(decide_all(&view, Assign::Fresh).is_empty(), "a better copy may be on a server that is missing");
    register(&mut view, member(3, 1), Some((5, 70)));
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.epoch, next.term), (Some(member(3, 1)), Epoch(6), Epoch(6)));
    assert_eq!(next.learners, [member(2, 1), member(1, 1)], "the one with a copy lacks less");
}

#[test]
fn a_dead_primary_is_followed_by_a_backup_in_its_very_incarnation() {
    let mut view = view(1, 3, &[(member(2, 1), None), (member(3, 2), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    // Server 3 restarted: it is a learner at best.
    let next = decide_one(&view).unwrap();
    assert_eq!((next.epoch, next.term, next.primary), (Epoch(8), Epoch(8), Some(member(2, 1))));
    assert_eq!((&next.backups[..], &next.learners[..]), (&[][..], &[member(3, 2)][..]));
}

#[test]
fn promotion_keeps_the_other_backups_and_prefers_the_server_with_the_fewest_primaries() {
    let mut view = view(2, 3, &[(member(2, 1), None), (member(3, 1), None)]);
    let mut other = view.region(RegionId(2)).unwrap().clone();
    other.primary = Some(member(2, 1));
    other.backups = vec![member(3, 1)];
    configure(&mut view, &other);
    let config = group(&view, 4, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, &next.backups[..]), (Some(member(3, 1)), &[member(2, 1)][..]));
    // The old primary is back in a new incarnation before the master decided: it joins at once.
    register(&mut view, member(1, 2), None);
    assert_eq!(decide_one(&view).unwrap().learners, [member(1, 2)]);
}

#[test]
fn a_learner_is_never_promoted() {
    let mut view = view(1, 3, &[(member(2, 1), Some((7, 100)))]);
    let config = group(&view, 7, member(1, 1), &[], &[member(2, 1)]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
}

#[test]
fn without_a_live_member_in_sync_all_must_be_back_and_the_longest_copy_wins() {
    let mut view = view(1, 3, &[(member(1, 2), Some((7, 50)))]);
    let config = group(&view, 9, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
    register(&mut view, member(2, 2), Some((7, 80)));
    assert_eq!(decide_one(&view), None, "server 3 may have more");
    register(&mut view, member(3, 2), Some((5, 900)));
    let next = decide_one(&view).unwrap();
    assert_eq!(
        (next.primary, next.epoch, next.term),
        (Some(member(2, 2)), Epoch(10), Epoch(10)),
        "a later term beats a longer log"
    );
    assert_eq!((&next.backups[..], &next.learners[..]), (&[][..], &[member(1, 2), member(3, 2)][..]));
}

#[test]
fn a_group_of_one_waits_for_its_server() {
    let mut view = view(1, 1, &[(member(2, 1), None)]);
    let config = group(&view, 3, member(1, 1), &[], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
    register(&mut view, member(1, 2), Some((3, 10)));
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.learners.len()), (Some(member(1, 2)), 0));
}

#[test]
fn under_a_live_primary_dead_learners_leave_and_live_servers_become_learners() {
    let live = [(member(1, 1), None), (member(2, 1), None), (member(3, 1), None), (member(4, 1), None)];
    let mut view = view(1, 3, &live);
    let whole = group(&view, 5, member(1, 1), &[member(2, 1)], &[member(3, 1)]);
    configure(&mut view, &whole);
    assert_eq!(decide_one(&view), None, "three members are enough");
    kill(&mut view, 2);
    assert_eq!(decide_one(&view), None, "only the primary removes a member in sync");
    configure(&mut view, &whole.without(member(2, 1)));
    let next = decide_one(&view).unwrap();
    assert_eq!((next.epoch, next.term, next.primary), (Epoch(7), Epoch(5), Some(member(1, 1))));
    assert_eq!((&next.backups[..], &next.learners[..]), (&[][..], &[member(3, 1), member(4, 1)][..]));
    kill(&mut view, 3);
    register(&mut view, member(2, 2), None);
    let next = decide_one(&view).unwrap();
    assert_eq!((&next.backups[..], &next.learners[..]), (&[][..], &[member(2, 2), member(4, 1)][..]));
}

#[test]
fn until_a_primary_has_settled_its_prior_members_must_be_back_too() {
    let mut view = view(1, 3, &[(member(2, 1), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1)], &[]);
    configure(&mut view, &config);
    let promoted = decide_one(&view).unwrap();
    assert_eq!(
        (promoted.primary, &promoted.prior_members[..]),
        (Some(member(2, 1)), &[PriorMember { member: member(1, 1), term: Epoch(7) }][..])
    );
    configure(&mut view, &promoted);
    // It dies before it has made durable what only its memory held. Server 1 has that in its files.
    register(&mut view, member(2, 2), Some((7, 60)));
    assert_eq!(decide_one(&view), None);
    register(&mut view, member(1, 2), Some((7, 100)));
    let next = decide_one(&view).unwrap();
    assert_eq!(
        (next.primary, next.prior_members.len()),
        (Some(member(1, 2)), 2),
        "its own dead incarnation, and server 2"
    );
    // The same if server 1 did not die, but only lost its session: it registered what it had found at its start.
    register(&mut view, member(1, 1), Some((2, 5)));
    assert_eq!(decide_one(&view).and_then(|config| config.primary), Some(member(1, 1)));
    // A primary that served before it died has more.
    register(&mut view, member(2, 2), Some((8, 101)));
    assert_eq!(decide_one(&view).and_then(|config| config.primary), Some(member(2, 2)));
    // If it had settled, no other volume would be missing.
    kill(&mut view, 1);
    configure(&mut view, &promoted.settled());
    assert_eq!(decide_one(&view).and_then(|config| config.primary), Some(member(2, 2)));
}

/// The server of `member`, back with an empty volume.
fn replaced(member: Member) -> Member {
    Member { volume: VolumeId(member.volume.0 + 100), incarnation: Incarnation(1), ..member }
}

#[test]
fn an_empty_volume_is_never_mistaken_for_the_one_it_replaced() {
    // The last member in sync is back, but its data is gone: the region waits.
    let mut view = view(1, 3, &[(replaced(member(1, 1)), None), (member(2, 1), Some((2, 9))), (member(3, 1), None)]);
    let config = group(&view, 3, member(1, 1), &[], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
    // Until the old volume is back.
    register(&mut view, member(1, 2), Some((3, 10)));
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(1, 2)));
}

#[test]
fn without_a_replaced_backup_the_primarys_volume_is_enough() {
    let mut view = view(1, 3, &[(member(1, 2), Some((7, 100))), (replaced(member(2, 1)), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None, "server 3 may be back with its volume");
    register(&mut view, replaced(member(3, 1)), None);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.backups.len(), next.learners.len()), (Some(member(1, 2)), 0, 2));
    // With the primary's volume replaced it is not.
    register(&mut view, replaced(member(1, 1)), None);
    assert_eq!(decide_one(&view), None);
}

#[test]
fn a_volume_that_was_given_up_is_not_waited_for() {
    let mut view = view(1, 3, &[(replaced(member(1, 1)), None), (member(2, 2), Some((7, 90)))]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1)], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
    let accepted = config.without_volume(&member(1, 1));
    configure(&mut view, &accepted);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.epoch, next.term), (Some(member(2, 2)), Epoch(9), Epoch(9)));
    // A backup that is live after all becomes primary like any other.
    register(&mut view, member(2, 1), None);
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(2, 1)));
    // With no member left, the best copy there is wins, once every expected server is there.
    configure(&mut view, &accepted.without_volume(&member(2, 1)));
    register(&mut view, replaced(member(2, 2)), Some((6, 50)));
    assert!(decide_all(&view, Assign::Fresh).is_empty());
    assert_eq!(decide_one(&view).unwrap().primary, Some(replaced(member(2, 2))));
}

/// Of a copy that is damaged, in term 7.
const DAMAGED: Option<(u32, u64)> = Some((7, CopyFound::DAMAGED.0));

#[test]
fn a_damaged_copy_counts_as_another_volume() {
    // Server 1 was the last primary. Nobody knows how far its log reached.
    let mut view = view(1, 3, &[(member(1, 2), DAMAGED), (member(2, 2), Some((7, 90))), (member(3, 2), DAMAGED)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None, "the last primary's log may reach further than any other");
    // An undamaged copy of its data directory is put back: no other backup is waited for.
    register(&mut view, member(1, 3), Some((7, 80)));
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(2, 2)));
    // Or it is given up.
    register(&mut view, member(1, 2), DAMAGED);
    let accepted = config.without_volume(&member(1, 1));
    configure(&mut view, &accepted);
    assert_eq!(decide_one(&view), None, "then every backup's copy is needed");
    configure(&mut view, &accepted.without_volume(&member(3, 1)));
    let next = decide_one(&view).unwrap();
    assert_eq!(next.primary, Some(member(2, 2)));
    assert_eq!(next.learners, [member(1, 2), member(3, 2)]);
    // A process that never ended becomes primary, unless its copy was found to be damaged meanwhile.
    configure(&mut view, &config);
    register(&mut view, member(3, 1), None);
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(3, 1)));
    register(&mut view, member(3, 1), DAMAGED);
    assert_eq!(decide_one(&view), None);
    // It was brought in sync again.
    register(&mut view, member(3, 1), Some((7, 20)));
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(3, 1)));
}

#[test]
fn a_live_primary_with_a_damaged_copy_is_replaced_by_a_sound_backup() {
    let mut view = view(1, 3, &[(member(1, 1), DAMAGED), (member(2, 1), DAMAGED), (member(3, 1), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.backups.len()), (Some(member(3, 1)), 0));
    assert_eq!(next.learners, [member(1, 1), member(2, 1)]);
    // Without one it stays, and says what is missing.
    let without = group(&view, 7, member(1, 1), &[member(2, 1)], &[member(3, 1)]);
    configure(&mut view, &without);
    assert_eq!(decide_one(&view), None);
    // It may have been mended meanwhile.
    register(&mut view, member(1, 1), Some((7, 20)));
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
}

/// Seed 11530: the coordinator was put back, two servers were made the primary one after the other, and the one of the forgotten
/// term could follow nobody any more.
#[test]
fn a_copy_of_a_term_that_was_forgotten_gets_a_primary_of_a_later_term() {
    let mut view = view(1, 3, &[(member(1, 1), Some((5, 20))), (member(2, 1), Some((9, 20))), (member(3, 1), None)]);
    let config = group(&view, 7, member(1, 1), &[member(3, 1)], &[member(2, 1)]);
    configure(&mut view, &GroupConfig { epoch: Epoch(9), ..config });
    let next = decide_one(&view).expect("its primary is live, but of an earlier term than that copy");
    assert_eq!((next.primary, &next.backups[..]), (Some(member(1, 1)), &[member(3, 1)][..]));
    assert_eq!((next.term, next.epoch, &next.learners[..]), (Epoch(10), Epoch(10), &[member(2, 1)][..]));
    configure(&mut view, &next);
    assert_eq!(decide_one(&view), None);
}

#[test]
fn a_damaged_copy_is_chosen_only_where_it_may_be_all_that_there_is() {
    // The coordinator lost its data.
    let live = [(member(1, 1), Some((7, 90))), (member(2, 1), DAMAGED), (member(3, 1), None)];
    let mut view = view(1, 3, &live);
    assert!(decide_all(&view, Assign::Fresh).is_empty());
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.epoch), (Some(member(2, 1)), Epoch(8)), "it refuses to serve, and nothing is lost");
    assert_eq!(next.learners, [member(1, 1), member(3, 1)]);
    // Every volume was given up, the damaged one too.
    let left = group(&view, 7, member(2, 1), &[], &[]);
    configure(&mut view, &GroupConfig { primary: None, ..left });
    assert_eq!(decide_one(&view).unwrap().primary, Some(member(1, 1)));
    register(&mut view, member(1, 1), None);
    assert!(decide_all(&view, Assign::Fresh).is_empty(), "a copy was found, if a damaged one");
    let next = decide_one(&view).unwrap();
    assert!([member(1, 1), member(3, 1)].contains(&next.primary.unwrap()), "any other server comes first");
    assert_eq!(next.learners.last(), Some(&member(2, 1)));
}

#[test]
fn learners_that_are_left_after_a_loss_are_promoted_and_not_emptied() {
    // No process was started again, so none has said that it has a copy.
    let live = [(replaced(member(1, 1)), None), (member(2, 1), None), (member(3, 1), None)];
    let mut view = view(1, 3, &live);
    let left = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &GroupConfig { primary: None, recovery_quorum: 2, ..left.clone() });
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, &next.backups[..]), (Some(member(2, 1)), &[member(3, 1)][..]));
    assert_eq!((next.recovery_quorum, &next.learners[..]), (2, &[replaced(member(1, 1))][..]));
    // Where nothing is left at all, no copy counts as in sync unseen.
    configure(&mut view, &GroupConfig { primary: None, backups: Vec::new(), ..left });
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary.is_some(), next.backups.len(), next.learners.len()), (true, 0, 2));
}

/// A view whose table wants a quorum of two.
fn with_quorum(live: &[(Member, Option<(u32, u64)>)]) -> View {
    let mut view = view(1, 3, live);
    let table = TableOptions { quorum: Some(2), ..view.table("default").unwrap().clone() };
    change(&mut view, ClusterPath::Table("default".into()), Some(encode_value(&table)));
    view
}

#[test]
fn with_a_quorum_a_new_primary_needs_enough_others() {
    let mut view = with_quorum(&[(member(2, 1), None), (member(3, 1), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &config);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, &next.backups[..], next.recovery_quorum), (Some(member(2, 1)), &[member(3, 1)][..], 2));
    configure(&mut view, &next);
    kill(&mut view, 2);
    let after = decide_one(&view).unwrap();
    assert_eq!(
        (after.primary, after.recovery_quorum),
        (Some(member(3, 1)), 2),
        "no primary has served since: still of the same three"
    );
    let candidates: BTreeSet<ServerId> = after.candidates().map(|candidate| candidate.server).collect();
    assert_eq!(candidates.len(), 3);
    let settled = group(&view, 12, member(1, 1), &[member(3, 1)], &[]);
    configure(&mut view, &settled);
    assert_eq!(decide_one(&view).unwrap().recovery_quorum, 0, "a group of two has all on both");
}

#[test]
fn a_live_former_member_of_a_quorum_may_lack_committed_writes() {
    let mut view = with_quorum(&[(member(1, 1), None), (member(2, 2), Some((7, 90))), (member(3, 2), Some((7, 80)))]);
    let prior_members = vec![PriorMember { member: member(1, 1), term: Epoch(7) }];
    let config =
        GroupConfig { prior_members, recovery_quorum: 2, ..group(&view, 8, member(2, 1), &[member(3, 1)], &[]) };
    configure(&mut view, &config);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.recovery_quorum), (Some(member(1, 1)), 3));
    assert!(next.candidates().any(|one| one == member(2, 1)) && next.candidates().any(|one| one == member(3, 1)));
    register(&mut view, member(1, 2), Some((7, 85)));
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.recovery_quorum), (Some(member(2, 2)), 0), "the volumes have all that is left");
}

/// Runs only where bugs can be planted. It breaks the rule that the simulator must find broken.
#[cfg(feature = "planted-bugs")]
#[test]
fn the_planted_bug_promotes_a_restarted_incarnation() {
    let mut view = view(1, 3, &[(member(2, 2), None)]);
    let config = group(&view, 7, member(1, 1), &[member(2, 1)], &[]);
    configure(&mut view, &config);
    assert_eq!(decide_one(&view), None);
    planted::plant(Some(Bug::PromoteRestarted));
    let next = decide_one(&view);
    planted::plant(None);
    assert_eq!(next.and_then(|config| config.primary), Some(member(2, 2)));
}

#[test]
fn a_server_that_leaves_for_good_is_replaced_and_a_restarting_one_is_not() {
    let live: Vec<(Member, Option<(u32, u64)>)> = (1..=4).map(|server| (member(server, 1), None)).collect();
    let mut view = view(1, 3, &live);
    let whole = group(&view, 3, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &whole);
    assert_eq!(decide_one(&view), None);
    change(&mut view, ClusterPath::Intent(ServerId(2)), Some(encode_value(&Intent::Restart)));
    assert_eq!(decide_one(&view), None, "its place is kept");
    change(&mut view, ClusterPath::Intent(ServerId(2)), Some(encode_value(&Intent::Leave)));
    let next = decide_one(&view).unwrap();
    assert_eq!((&next.learners[..], next.backups), (&[member(4, 1)][..], whole.backups.clone()));
    // It has left.
    let shrunk = group(&view, 4, member(1, 1), &[member(3, 1)], &[]);
    configure(&mut view, &shrunk);
    let filled = decide_one(&view).unwrap();
    assert_eq!(filled.learners, [member(4, 1)], "a leaving server gets no copies");
    change(&mut view, ClusterPath::Intent(ServerId(2)), Some(encode_value(&Intent::Restart)));
    assert_eq!(decide_one(&view), None, "its place is kept");
    let policy = Policy { assign: Assign::Any, keeps: false };
    assert_eq!(
        WorkQueue::default().decide(&view, &Rooms::default(), policy, |_| true).next[0].learners,
        [member(4, 1)],
        "for a while"
    );
    kill(&mut view, 3);
    let alone = group(&view, 5, member(1, 1), &[], &[]);
    configure(&mut view, &alone);
    assert_eq!(decide_one(&view).unwrap().learners, [member(4, 1)], "the place of another server is not kept");
}

#[test]
fn a_copy_that_moves_is_replaced_and_the_requested_primary_is_promoted_first() {
    let live: Vec<(Member, Option<(u32, u64)>)> = (1..=4).map(|server| (member(server, 1), None)).collect();
    let mut view = view(1, 3, &live);
    let mut moving = group(&view, 3, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    moving.desired = DesiredState { primary: Some(ServerId(3)), leaving: Some(ServerId(2)), plan: None };
    configure(&mut view, &moving);
    assert_eq!(decide_one(&view).unwrap().learners, [member(4, 1)]);
    kill(&mut view, 1);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.primary, next.desired.primary), (Some(member(3, 1)), None));
    assert_eq!(next.released_term(), None, "no primary released its term");
}

#[test]
fn a_lost_server_that_was_to_leave_does_not_come_back_into_the_group() {
    let live = [(member(1, 1), Some((3, 9))), (member(2, 1), None), (member(3, 2), Some((3, 9)))];
    let mut view = view(1, 2, &live);
    let mut moving = group(&view, 3, member(1, 1), &[], &[member(3, 2)]);
    moving.desired.leaving = Some(ServerId(3));
    configure(&mut view, &moving);
    let next = decide_one(&view).unwrap();
    assert_eq!((&next.learners[..], next.desired.leaving), (&[member(2, 1)][..], None));
    kill(&mut view, 2);
    let next = decide_one(&view).unwrap();
    assert_eq!((&next.learners[..], next.desired.leaving), (&[][..], None), "the move is over");
    configure(&mut view, &next);
    assert_eq!(decide_one(&view).unwrap().learners, [member(3, 2)], "and there is no other server");
}

#[test]
fn an_excess_learner_is_not_built_and_an_excess_backup_leaves() {
    let live: Vec<(Member, Option<(u32, u64)>)> = (1..=3).map(|server| (member(server, 1), None)).collect();
    let mut view = view(1, 2, &live);
    let building = group(&view, 3, member(1, 1), &[member(2, 1)], &[member(3, 1)]);
    configure(&mut view, &building);
    assert!(decide_one(&view).unwrap().learners.is_empty());
    let built = group(&view, 4, member(1, 1), &[member(2, 1), member(3, 1)], &[]);
    configure(&mut view, &built);
    let next = decide_one(&view).unwrap();
    assert_eq!((next.desired.leaving, &next.backups), (Some(ServerId(3)), &built.backups), "the primary releases it");
    configure(&mut view, &next);
    assert_eq!(decide_one(&view), None);
}

#[test]
fn a_merge_source_moves_to_its_target_and_the_plan_ends_when_they_are_no_neighbours_any_more() {
    let mut view = view(2, 2, &[(member(1, 1), None), (member(2, 1), None), (member(3, 1), None)]);
    let of = |view: &View, region: u32, primary, backup| GroupConfig {
        epoch: Epoch(4),
        term: Epoch(4),
        primary: Some(member(primary, 1)),
        backups: vec![member(backup, 1)],
        ..view.region(RegionId(region)).unwrap().clone()
    };
    let (one, mut two) = (of(&view, 1, 1, 2), of(&view, 2, 2, 1));
    two.desired.plan = Some(Plan::Merge { into: RegionId(1) });
    configure(&mut view, &one);
    configure(&mut view, &two);
    let next = decide_on(&view, &two).expect("its primary is elsewhere");
    assert_eq!(next, two.with_desired(DesiredState { primary: Some(ServerId(1)), ..two.desired.clone() }));
    // The other region was split, or was merged into a third one.
    let apart = two.with_desired(DesiredState::default());
    configure(&mut view, &GroupConfig { end: Some("0000".into()), ..one.renewed() });
    assert_eq!(decide_on(&view, &two), Some(apart.clone()));
    change(&mut view, ClusterPath::Region(RegionId(1)), None);
    assert_eq!(decide_on(&view, &two), Some(apart));
}

fn decide_on(view: &View, config: &GroupConfig) -> Option<GroupConfig> {
    let (rooms, loads, distances) = (&Rooms::default(), &Loads::default(), &Distances::default());
    decide(Known { view, rooms, loads, distances }, config, Policy { assign: Assign::Any, keeps: true })
}

#[test]
fn a_change_of_a_merge_target_puts_the_source_into_the_work_queue() {
    let mut view = view(2, 2, &[(member(1, 1), None), (member(2, 1), None)]);
    let of = |view: &View, region: u32| GroupConfig {
        epoch: Epoch(4),
        term: Epoch(4),
        primary: Some(member(1, 1)),
        backups: vec![member(2, 1)],
        ..view.region(RegionId(region)).unwrap().clone()
    };
    let (one, mut two) = (of(&view, 1), of(&view, 2));
    two.desired.plan = Some(Plan::Merge { into: RegionId(1) });
    configure(&mut view, &one);
    configure(&mut view, &two);
    let mut work_queue = WorkQueue::default();
    let policy = Policy { assign: Assign::Any, keeps: true };
    work_queue.changed(&view.take_changed());
    assert!(work_queue.decide(&view, &Rooms::default(), policy, |_| true).next.is_empty(), "all is well");
    let handed = GroupConfig { primary: Some(member(2, 1)), backups: vec![member(1, 1)], ..one.renewed() };
    configure(&mut view, &handed);
    work_queue.changed(&view.take_changed());
    let next = work_queue.decide(&view, &Rooms::default(), policy, |_| true).next;
    assert_eq!(next.len(), 1);
    assert_eq!((next[0].region, next[0].desired.primary), (RegionId(2), Some(ServerId(2))));
}
