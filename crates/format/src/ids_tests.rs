//! Terms of openings, and the ids of their segments.

use super::*;

#[test]
fn ids_rise_with_openings_and_say_which_one_made_them() {
    let near = |term: u32| Epoch(term.saturating_sub(300));
    for start in [Epoch(0), near(1 << 17), near(1 << 24), Epoch::LAST_TERM, near(1 << 30)] {
        let (mut term, mut openings) = (start, 0);
        while openings < 600
            && let Some(next) = term.next_opening()
        {
            assert!(next > term && next.has_ids(), "{next} after {term}");
            let ids =
                |term| [0, 1, SegmentId::MOST_OF_TERM - 1].map(|n| (n, SegmentId::made_by(term, n).expect("an id")));
            if term.has_ids() {
                assert!(ids(term)[2].1 < ids(next)[0].1, "{next} after {term}");
            }
            for (n, id) in ids(next) {
                assert_eq!((id.term(), id.counter(), id.builder()), (next, n, None));
                assert_eq!(id.name().0, u64::from(next.0 % 1024) << 32 | n);
            }
            assert_eq!(SegmentId::made_by(next, SegmentId::MOST_OF_TERM), None);
            let built = SegmentId::built_by(next, ServerId(7), 9);
            assert_eq!(
                built.map(|id| (id.term(), id.builder())),
                next.can_be_term().then_some((next, Some((ServerId(7), 9))))
            );
            (term, openings) = (next, openings + 1);
        }
        assert!(openings == 600 || start == Epoch::LAST_TERM && openings == 127, "{openings} after {start}");
    }
    assert_eq!(Epoch((1 << 31) - 1).next_opening(), None);
}
