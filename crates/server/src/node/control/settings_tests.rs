//! What differs is said, and counts for the process that told it.

use super::*;
use leeward_format::VolumeId;

fn settings(pairs: &[(&str, &str)]) -> Settings {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn member(server: u32, incarnation: u64) -> Member {
    Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(incarnation) }
}

#[test]
fn settings_that_differ_are_said_of_live_processes() {
    let mut peers = PeerSettings::new(settings(&[("merge_bytes", "4194304"), ("redis_table", "\"carts\"")]));
    let live = [member(1, 1), member(2, 7), member(3, 9)];
    peers.hear(ServerId(2), Incarnation(7), settings(&[("merge_bytes", "0"), ("of_another_version", "1")]));
    peers.hear(ServerId(3), Incarnation(8), settings(&[("merge_bytes", "5")]));
    assert_eq!(peers.differences(live.iter()), ["merge_bytes is 4194304 here and 0 on server 2"]);
    peers.hear(ServerId(2), Incarnation(7), settings(&[("merge_bytes", "4194304")]));
    assert!(peers.differences(live.iter()).is_empty());
}

#[test]
fn only_what_this_process_has_told_is_agreed_on() {
    let mut peers = PeerSettings::new(settings(&[("redis_table", "\"carts\"")]));
    assert!(!peers.agrees(&member(2, 7), "redis_table"), "it has told nothing yet");
    peers.hear(ServerId(2), Incarnation(7), settings(&[("redis_table", "\"carts\"")]));
    assert!(peers.agrees(&member(2, 7), "redis_table"));
    assert!(!peers.agrees(&member(2, 8), "redis_table"), "another process may have another value");
    peers.hear(ServerId(2), Incarnation(8), settings(&[("redis_table", "\"default\"")]));
    assert!(!peers.agrees(&member(2, 8), "redis_table"));
    assert!(peers.agrees(&member(2, 8), "a setting that this node does not tell"));
}
