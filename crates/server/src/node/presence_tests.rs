//! What an operator hears of a node that is not part of the cluster, and when.

use super::*;
use leeward_cluster::Misfit;
use leeward_format::cluster::Member;
use leeward_format::{Incarnation, ServerId, VolumeId};

const START: Nanos = Nanos::from_secs(100);

fn outage() -> Outage {
    Outage { address: "127.0.0.1:7779".into(), since: START, reason: "connection refused".into() }
}

/// What is said in `ms` milliseconds of ticks, with the millisecond, counted from `from`.
fn listen(presence: &mut Presence, from: u64, ms: u64, absence: Option<&Absence>) -> Vec<(u64, Word)> {
    let outage = outage();
    let outage = (absence == Some(&Absence::NoSession)).then_some(&outage);
    let ticks = (from..from + ms).step_by(50);
    ticks.filter_map(|at| Some((at, presence.look(START + Nanos::from_millis(at), absence, outage)?))).collect()
}

fn times(words: &[(u64, Word)]) -> Vec<u64> {
    words.iter().map(|(at, _)| *at).collect()
}

#[test]
fn an_unreachable_coordinator_is_named_at_once_and_now_and_then() {
    let mut presence = Presence::new(START);
    let words = listen(&mut presence, 0, 40_000, Some(&Absence::NoSession));
    assert_eq!(times(&words), [0, 15_000, 30_000]);
    let Word::Absent(first) = &words[0].1 else { panic!("{words:?}") };
    assert!(first.contains("cannot be reached: connection refused"), "{first}");
    let Word::Absent(text) = &words[1].1 else { panic!("{words:?}") };
    for part in ["127.0.0.1:7779", "for 15 s", "connection refused", "-LOADING", "set `coordinator`"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let words = listen(&mut presence, 40_000, 60_000, None);
    assert_eq!(words, [(40_000, Word::Present("this node is part of the cluster".into()))]);
    let words = listen(&mut presence, 100_000, 2_000, Some(&Absence::NoSession));
    let [(100_000, Word::Absent(text))] = &words[..] else { panic!("{words:?}") };
    assert!(text.contains("what this node serves, it serves"), "{text}");
    let words = listen(&mut presence, 102_000, 2_000, None);
    assert_eq!(words, [(102_000, Word::Present("this node is part of the cluster again, after 2.0 s".into()))]);
}

#[test]
fn a_start_that_goes_well_is_one_line() {
    let mut presence = Presence::new(START);
    assert_eq!(presence.look(START, Some(&Absence::NoSession), None), None);
    assert_eq!(listen(&mut presence, 0, 900, Some(&Absence::Registering)), []);
    assert_eq!(listen(&mut presence, 900, 60_000, None).len(), 1);
}

#[test]
fn another_reason_is_said_at_once_and_flapping_does_not_flood() {
    let mut presence = Presence::new(START);
    listen(&mut presence, 0, 2_000, Some(&Absence::NoSession));
    let holder = Member { server: ServerId(2), volume: VolumeId(0xab), incarnation: Incarnation(9) };
    let twin = Absence::Twin { holder, address: "host:7480".into() };
    let words = listen(&mut presence, 2_000, 5_000, Some(&twin));
    let [(2_000, Word::Absent(text))] = &words[..] else { panic!("{words:?}") };
    assert!(
        text.contains("another process is server 2: it has volume 00000000000000ab and native address host:7480"),
        "{text}"
    );
    let mut said = 0;
    for at in (7_000..17_000).step_by(50) {
        said += listen(&mut presence, at, 50, (at % 100 == 0).then_some(&Absence::NoSession)).len();
    }
    assert!((1..=11).contains(&said), "{said} words in ten seconds");
}

#[test]
fn every_reason_says_what_it_means() {
    let presence = Presence::new(START);
    let say = |absence: &Absence| presence.describe(START + Nanos::from_secs(700), absence, None);
    assert!(say(&Absence::NoSession).contains("no session with the coordinator for 11 min"));
    assert!(say(&Absence::Registering).contains("has not taken this node's registration"));
    assert!(say(&Absence::Refused("full".into())).contains("refuses this node for 11 min: full"));
    let other = say(&Absence::Misfit(Misfit::Protocol { found: 3, own: 2 }));
    assert!(other.contains("speaks version 3 of the protocol, this program version 2: run the version"));
    assert!(say(&Absence::Withdrawn).contains("restart it"));
}
