//! Digests of ranges of real nodes: every copy of a region has the same, in each backup mode, and none is answered once
//! the instant has passed. A rebuild goes to the primary.

use super::backups::{WITHIN, create, is_whole, select, wait_until};
use super::*;
use bytes::Bytes;
use leeward_format::cluster::BackupMode;
use leeward_format::op::{DigestInstant, OpError, RangeAnswer, RangeDigest, RangeQuestion};
use leeward_format::status::{RegionStatus, Role};
use leeward_format::{Epoch, RegionId, ServerId, UnixMs};

const KEYS: u64 = 3_000;

fn address(server: &Server) -> &str {
    &server.info().native_address
}

/// The state that the primary names.
fn state(primary: &Server, region: RegionId) -> DigestInstant {
    match identity::request(address(primary), &Op::RangeBounds { region, want_bounds: false }) {
        OpResult::RangeBounds { at, bounds } if bounds.is_empty() => at,
        other => panic!("{other:?}"),
    }
}

/// The answer about all keys, once the node has the state.
fn digest(server: &Server, region: RegionId, at: DigestInstant) -> RangeAnswer {
    let begun = Instant::now();
    let so_far = RangeDigest::default();
    let question = Box::new(RangeQuestion { region, at, start: Bytes::new(), ends: vec![None], so_far });
    loop {
        match identity::request(address(server), &Op::RangeDigests(question.clone())) {
            OpResult::RangeDigests(RangeAnswer::NotYet) => {
                assert!(begun.elapsed() < WITHIN, "it comes to have the state")
            }
            OpResult::RangeDigests(answer) => return answer,
            other => panic!("{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn prove(cluster: &Cluster, primary: usize, region: RegionId, pairs: u64) {
    let at = state(&cluster.servers[primary], region);
    for server in &cluster.servers {
        let one = digest(server, region, at);
        let first = digest(&cluster.servers[primary], region, at);
        assert!(matches!(&first, RangeAnswer::Digests { whole, .. } if whole[0].pairs == pairs), "{first:?}");
        assert_eq!(one, first, "server {}", address(server));
        let passed = DigestInstant { now: UnixMs(1), ..at };
        assert_eq!(digest(server, region, passed), RangeAnswer::InstantPassed);
        let earlier = DigestInstant { term: Epoch(at.term.0 - 1), ..at };
        assert_eq!(digest(server, region, earlier), RangeAnswer::TooLate);
    }
}

#[test]
fn every_copy_has_the_same_digest_also_after_a_rebuild() {
    for backups in BackupMode::ALL {
        let cluster = Cluster::start(3);
        create(&cluster, TableOptions { backups, ..TableOptions::default() });
        wait_until(&cluster, "every replica is in sync", is_whole);
        let mut client = select(&cluster);
        for n in 0..KEYS {
            assert_eq!(client.run_until_served(&format!("SET key{n} {}", "v".repeat(1 + n as usize % 300))), "+OK");
        }
        let found = wait_until(&cluster, "one serves", is_whole);
        let primary = found.iter().position(|region| region.role == Role::Primary).expect("one serves");
        let (region, epoch) = (found[primary].region, found[primary].epoch);
        prove(&cluster, primary, region, KEYS);
        let backup = (primary + 1) % 3;
        let rebuild = Op::RebuildIndex { region, server: ServerId(backup as u32 + 1) };
        let refused = identity::request(address(&cluster.servers[backup]), &rebuild);
        assert!(matches!(refused, OpResult::Error(OpError::NotPrimary { .. })), "{refused:?}");
        let answer = identity::request(address(&cluster.servers[primary]), &rebuild);
        if backups.ships_index() {
            assert!(matches!(answer, OpResult::Error(OpError::Invalid(_))), "{answer:?}");
            continue;
        }
        assert_eq!(answer, OpResult::Done);
        let is_back = |regions: &[RegionStatus]| is_whole(regions) && regions.iter().all(|r| r.epoch.0 >= epoch.0 + 2);
        wait_until(&cluster, "it has left the group and is back", is_back);
        prove(&cluster, primary, region, KEYS);
    }
}
