//! Which servers have granted which leases, and which have not.

use super::*;

const ONE: ServerId = ServerId(1);
const TWO: ServerId = ServerId(2);

fn regions(numbers: &[u32]) -> Vec<(RegionId, Epoch)> {
    numbers.iter().map(|number| (RegionId(*number), Epoch(7))).collect()
}

fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// The node asks both servers for lease grants at 100 ms.
fn asked() -> LeaseGrants {
    let mut lease_grants = LeaseGrants::new(ms(100));
    lease_grants.ask(ms(100), &wants([(ONE, regions(&[3, 5, 8])), (TWO, regions(&[3]))]));
    lease_grants
}

fn wants<const N: usize>(of: [(ServerId, Vec<(RegionId, Epoch)>); N]) -> BTreeMap<ServerId, LeaseWants> {
    of.map(|(server, regions)| (server, LeaseWants { regions, safe_lsns: Vec::new() })).into()
}

#[test]
fn grants_that_an_answer_lacks_are_known() {
    let mut lease_grants = asked();
    assert!(lease_grants.answered(ONE, ms(100), &regions(&[3, 5, 8])).is_empty());
    assert_eq!(lease_grants.answered(ONE, ms(100), &regions(&[5])), [RegionId(3), RegionId(8)]);
    assert_eq!(
        lease_grants.answered(ONE, ms(100), &[(RegionId(5), Epoch(6))]).len(),
        3,
        "another term needs another grant"
    );
    assert!(lease_grants.answered(ONE, ms(90), &regions(&[5])).is_empty(), "it was asked for others then");
    assert!(lease_grants.answered(ServerId(3), ms(100), &regions(&[5])).is_empty());
}

#[test]
fn missing_grants_are_found_where_each_answer_comes_after_the_next_request() {
    let mut lease_grants = asked();
    lease_grants.ask(ms(250), &wants([(ONE, regions(&[3, 4, 8]))]));
    assert!(lease_grants.answered(ONE, ms(100), &regions(&[3, 5, 8])).is_empty(), "4 was not asked for then");
    assert_eq!(lease_grants.answered(ONE, ms(100), &regions(&[5, 8])), [RegionId(3)]);
    lease_grants
        .ask(ms(400), &wants([(ONE, vec![(RegionId(3), Epoch(7)), (RegionId(4), Epoch(7)), (RegionId(8), Epoch(9))])]));
    assert_eq!(lease_grants.answered(ONE, ms(250), &regions(&[3, 8])), [RegionId(4)], "and 8 not in this term");
}

#[test]
fn a_server_that_does_not_answer_is_late() {
    let timing = Timing::default();
    let mut lease_grants = asked();
    let mut late_at = None;
    for now in (100..1000).step_by(50) {
        if lease_grants.look(ms(now), &timing) {
            late_at = Some(now);
            break;
        }
        if now % 150 == 100 {
            lease_grants.ask(ms(now), &wants([(ONE, regions(&[3])), (TWO, regions(&[3]))]));
            lease_grants.answered(ONE, ms(now), &regions(&[3]));
        }
    }
    assert_eq!(late_at, Some(450));
    // A server that is no longer asked owes nothing.
    lease_grants.ask(ms(450), &wants([(ONE, regions(&[3]))]));
    lease_grants.answered(ONE, ms(450), &regions(&[3]));
    assert!(!lease_grants.look(ms(500), &timing));
}

#[test]
fn a_node_that_was_stopped_waits_for_answers_anew() {
    let timing = Timing::default();
    let mut lease_grants = asked();
    assert!(!lease_grants.look(ms(5_000), &timing));
    assert!(!lease_grants.look(ms(5_150), &timing));
    assert!(!lease_grants.look(ms(5_300), &timing));
    assert!(lease_grants.look(ms(5_350), &timing));
}

#[test]
fn a_lease_that_is_too_long_or_too_short_is_refused_with_the_range() {
    // A request of a program without the duration names a few regions in its place.
    for lasts in [Nanos(3), ms(99), ms(60_001)] {
        let reason = refusal(lasts).expect("it is no lease");
        assert!(reason.contains("100 to 60000 ms"), "{reason}");
    }
    assert_eq!([ms(100), ms(600), ms(60_000)].map(refusal), [None, None, None]);
}
