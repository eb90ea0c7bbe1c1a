//! Which notices the operator gets of a node that is not part of the cluster, and when.

use super::*;
use leeward_cluster::Incompatible;
use leeward_format::cluster::Member;
use leeward_format::{Incarnation, ServerId, VolumeId};

const START: Nanos = Nanos::from_secs(100);

fn outage() -> Outage {
    Outage { address: "127.0.0.1:7779".into(), since: START, reason: "connection refused".into() }
}

/// The notices in `ms` milliseconds of ticks from `from`, each with its millisecond.
fn listen(presence: &mut Presence, from: u64, ms: u64, not_joined: Option<&NotJoined>) -> Vec<(u64, Notice)> {
    let outage = outage();
    let outage = (not_joined == Some(&NotJoined::NoSession)).then_some(&outage);
    let ticks = (from..from + ms).step_by(50);
    ticks.filter_map(|at| Some((at, presence.look(START + Nanos::from_millis(at), not_joined, outage)?))).collect()
}

fn times(notices: &[(u64, Notice)]) -> Vec<u64> {
    notices.iter().map(|(at, _)| *at).collect()
}

#[test]
fn an_unreachable_coordinator_is_logged_at_once_and_at_intervals() {
    let mut presence = Presence::new(START);
    let notices = listen(&mut presence, 0, 40_000, Some(&NotJoined::NoSession));
    assert_eq!(times(&notices), [0, 15_000, 30_000]);
    let Notice::Absent(first) = &notices[0].1 else { panic!("{notices:?}") };
    assert!(first.contains("cannot be reached: connection refused"), "{first}");
    let Notice::Absent(text) = &notices[1].1 else { panic!("{notices:?}") };
    for part in ["127.0.0.1:7779", "for 15 s", "connection refused", "-LOADING", "set `coordinator`"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let notices = listen(&mut presence, 40_000, 60_000, None);
    assert_eq!(notices, [(40_000, Notice::Present("this node is part of the cluster".into()))]);
    let notices = listen(&mut presence, 100_000, 2_000, Some(&NotJoined::NoSession));
    let [(100_000, Notice::Absent(text))] = &notices[..] else { panic!("{notices:?}") };
    assert!(text.contains("what this node serves, it serves"), "{text}");
    let notices = listen(&mut presence, 102_000, 2_000, None);
    assert_eq!(notices, [(102_000, Notice::Present("this node is part of the cluster again, after 2.0 s".into()))]);
}

#[test]
fn a_start_that_goes_well_is_one_line() {
    let mut presence = Presence::new(START);
    assert_eq!(presence.look(START, Some(&NotJoined::NoSession), None), None);
    assert_eq!(listen(&mut presence, 0, 900, Some(&NotJoined::Registering)), []);
    assert_eq!(listen(&mut presence, 900, 60_000, None).len(), 1);
}

#[test]
fn another_reason_is_logged_at_once_and_flapping_does_not_flood() {
    let mut presence = Presence::new(START);
    listen(&mut presence, 0, 2_000, Some(&NotJoined::NoSession));
    let holder = Member { server: ServerId(2), volume: VolumeId(0xab), incarnation: Incarnation(9) };
    let duplicate_id = NotJoined::DuplicateId { holder, address: "host:7480".into(), is_copy: false };
    let notices = listen(&mut presence, 2_000, 5_000, Some(&duplicate_id));
    let [(2_000, Notice::Absent(text))] = &notices[..] else { panic!("{notices:?}") };
    assert!(
        text.contains("another process is server 2: it has volume 00000000000000ab and native address host:7480"),
        "{text}"
    );
    let mut said = 0;
    for at in (7_000..17_000).step_by(50) {
        said += listen(&mut presence, at, 50, (at % 100 == 0).then_some(&NotJoined::NoSession)).len();
    }
    assert!((1..=11).contains(&said), "{said} notices in ten seconds");
}

#[test]
fn every_reason_says_what_it_means() {
    let presence = Presence::new(START);
    let say = |not_joined: &NotJoined| presence.describe(START + Nanos::from_secs(700), not_joined, None);
    assert!(say(&NotJoined::NoSession).contains("no session with the coordinator for 11 min"));
    assert!(say(&NotJoined::Registering).contains("has not accepted this node's registration"));
    assert!(say(&NotJoined::Refused("full".into())).contains("refuses this node for 11 min: full"));
    let other = say(&NotJoined::Incompatible(Incompatible::Protocol { found: 3, own: 2 }));
    assert!(other.contains("speaks version 3 of the protocol, this program version 2: run the version"));
    assert!(say(&NotJoined::SteppedAside).contains("restart it"));
}
