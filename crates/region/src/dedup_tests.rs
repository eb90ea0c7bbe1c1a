//! Which requests a region remembers, and which it knows to have forgotten.

use super::*;
use leeward_format::record::RecordKind;
use std::collections::BTreeSet;

const REGION: RegionId = RegionId(4);
const LAST: Lsn = Lsn(10_000);

fn once(sequence: u32, since: u64) -> Once {
    Once { request: RequestId { client: 1, sequence }, region: REGION, since: Lsn(since), is_again: false }
}

fn knowing(forgotten: u64, of_node: Arc<OfNode>) -> Requests {
    Requests::new(REGION, Found::since(Lsn(forgotten)), of_node)
}

fn add() -> Op {
    Op::Add { key: "k".into(), delta: 1 }
}

fn effect(value: &str) -> Effect {
    Effect::of(RecordKind::Put, value.as_bytes())
}

#[test]
fn a_request_that_was_executed_is_answered_and_another_one_is_new() {
    let mut requests = knowing(0, Arc::default());
    assert_eq!(requests.look_up(once(1, 0), &add(), LAST), Known::New);
    requests.remember(once(1, 0).request, Lsn(7), effect("5"));
    assert_eq!(requests.look_up(once(1, 0), &add(), LAST), Known::Done(Lsn(7), Ok(OpResult::Integer(5))));
    assert_eq!(requests.look_up(once(2, 0), &add(), LAST), Known::New);
    let get = Op::Get { key: "k".into() };
    assert!(matches!(requests.look_up(once(1, 0), &get, LAST), Known::Done(_, Err(OpError::Invalid(_)))));
}

#[test]
fn a_primary_knows_what_it_replayed_and_from_where() {
    let found = [(once(1, 0).request, Lsn(12), effect("1")), (once(2, 0).request, Lsn(15), effect("2"))];
    let requests = Requests::new(REGION, Found { forgotten: Lsn(10), found: found.into() }, Arc::default());
    assert_eq!(requests.look_up(once(2, 3), &add(), LAST), Known::Done(Lsn(15), Ok(OpResult::Integer(2))));
    assert_eq!(requests.look_up(once(3, 9), &add(), LAST), Known::Forgotten);
    assert_eq!(requests.look_up(once(3, 10), &add(), LAST), Known::New, "an earlier attempt has a later LSN than 10");
}

/// A merge target may get the source's requests in more than one attempt.
#[test]
fn a_request_that_is_told_again_is_remembered_by_its_latest_record_alone() {
    let of_node = Arc::default();
    let mut requests = knowing(0, Arc::clone(&of_node));
    for (sequence, lsn) in [(1, 5), (2, 7), (3, 8), (1, 20), (2, 21), (4, 30)] {
        requests.remember(once(sequence, 0).request, Lsn(lsn), effect("1"));
    }
    let written_at = |lsn| requests.written_at(Lsn(lsn)).map(|request| request.sequence);
    let expected = [None, None, Some(3), Some(1), Some(2), Some(4)];
    assert_eq!([5, 7, 8, 20, 21, 30].map(written_at), expected);
    assert_eq!(of_node.requests.load(Relaxed), 4);
}

/// No matter what is remembered: an id that was executed is never new to a caller that counts from an earlier LSN.
#[test]
fn nothing_that_was_executed_is_taken_for_new() {
    let of_node = Arc::new(OfNode { requests: MOST_OF_A_NODE.into(), regions: MOST_OF_A_NODE.into() });
    let mut requests = knowing(0, of_node.clone());
    let mut forgotten = BTreeSet::new();
    for sequence in 0..500 {
        let lsn = Lsn(u64::from(sequence) * 3 + 5);
        requests.remember(once(sequence, 0).request, lsn, effect("1"));
        for earlier in [sequence / 2, sequence.saturating_sub(70), sequence.saturating_sub(10), sequence] {
            let executed = u64::from(earlier) * 3 + 5;
            for since in [0, executed - 1] {
                match requests.look_up(once(earlier, since), &add(), LAST) {
                    Known::Done(lsn, _) => assert_eq!(lsn.0, executed),
                    Known::Forgotten => drop(forgotten.insert(earlier)),
                    Known::New => panic!("{earlier} was executed at {executed}, since {since} it is new"),
                }
            }
        }
        assert!(requests.order.len() <= LEAST_OF_A_REGION && requests.order.len() == requests.by_id.len());
    }
    assert!(forgotten.len() > 100);
    assert_eq!(of_node.requests.load(Relaxed), MOST_OF_A_NODE + LEAST_OF_A_REGION);
    drop(requests);
    assert_eq!(of_node.requests.load(Relaxed), MOST_OF_A_NODE, "what is gone is not counted");
    assert_eq!(of_node.regions.load(Relaxed), MOST_OF_A_NODE);
}

#[test]
fn a_busy_region_forgets_in_favour_of_one_that_comes_later() {
    let of_node = Arc::<OfNode>::default();
    let mut regions: Vec<Requests> = (0..4).map(|_| knowing(0, of_node.clone())).collect();
    let mut remember = |region: usize, count: u32| {
        for sequence in 0..count {
            regions[region].remember(once(sequence, 0).request, Lsn(sequence.into()), effect("1"));
        }
        regions.iter().map(|requests| requests.order.len()).collect::<Vec<_>>()
    };
    assert_eq!(remember(0, 100_000), [MOST_REQUESTS, 0, 0, 0]);
    assert_eq!(remember(1, 100_000)[1], MOST_REQUESTS);
    assert_eq!(remember(2, 100_000)[2], MOST_OF_A_NODE / 3, "its share, though the others have all there is");
    assert_eq!(remember(3, 10)[3], 10);
    remember(0, 100_000);
    let again = remember(1, 1);
    assert!(again[0] < MOST_REQUESTS && again[2] == MOST_OF_A_NODE / 3, "{again:?}");
    let total: usize = again.iter().sum();
    assert!(total <= MOST_OF_A_NODE, "{total}");
}

#[test]
fn lsns_of_another_region_or_of_lost_records_say_nothing() {
    let requests = knowing(10, Arc::default());
    assert_eq!(requests.look_up(once(1, 12), &add(), LAST), Known::New);
    assert_eq!(
        requests.look_up(once(1, 12), &add(), Lsn(11)),
        Known::Forgotten,
        "LSN 12 is lost, and will be assigned again"
    );
    assert_eq!(knowing(0, Arc::default()).look_up(once(1, 12), &add(), Lsn(11)), Known::Forgotten);
    let elsewhere = Once { region: RegionId(9), ..once(1, 12) };
    assert_eq!(requests.look_up(elsewhere, &add(), LAST), Known::Forgotten);
    assert_eq!(knowing(0, Arc::default()).look_up(elsewhere, &add(), LAST), Known::New, "nothing is forgotten");
    let unknown = Requests::new(REGION, Found::default(), Arc::default());
    assert_eq!(unknown.look_up(once(1, 9_999), &add(), LAST), Known::Forgotten);
}

/// A neighbour is merged into this region. A request that the neighbour had is not new to this region, for any caller and any
/// LSN, unless it is known.
#[test]
fn what_may_have_been_executed_by_a_neighbour_is_forgotten() {
    let mut requests = knowing(0, Arc::default());
    requests.remember(once(1, 0).request, Lsn(7), effect("5"));
    let of_neighbour = Once { region: RegionId(9), ..once(2, 8) };
    requests.forget_up_to(Lsn(20));
    assert_eq!(requests.look_up(once(1, 0), &add(), LAST), Known::Done(Lsn(7), Ok(OpResult::Integer(5))));
    assert_eq!(requests.look_up(of_neighbour, &add(), LAST), Known::Forgotten);
    assert_eq!(requests.look_up(once(2, 19), &add(), LAST), Known::Forgotten, "it was in this region before");
    assert_eq!(requests.look_up(once(3, 20), &add(), LAST), Known::New);
    // Its id came with the pair that it has written.
    requests.remember(of_neighbour.request, Lsn(22), effect("6"));
    assert_eq!(requests.look_up(of_neighbour, &add(), LAST), Known::Done(Lsn(22), Ok(OpResult::Integer(6))));
    assert_eq!(requests.written_at(Lsn(7)), Some(once(1, 0).request));
    assert_eq!((requests.written_at(Lsn(22)), requests.written_at(Lsn(8))), (Some(of_neighbour.request), None));
}
