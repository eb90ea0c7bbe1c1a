//! Places of answers against a model that looks at every pair; and clients that take nothing.

use super::*;
use proptest::prelude::*;

/// Offset and bytes.
type Piece = (u32, u32);

fn overlap((a, a_bytes): Piece, (b, b_bytes): Piece) -> bool {
    a < b + b_bytes && b < a + a_bytes
}

proptest! {
    /// No write overlaps another. An answer that waits is written as soon as nothing is in its way. Nothing is lost.
    #[test]
    fn answers_go_as_soon_as_their_place_is_free(
        steps in prop::collection::vec((any::<bool>(), 0_u32..30, 1_u32..12, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut answers = Answers::default();
        let (mut writes, mut waiting): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        for (is_new, at, units, index) in steps {
            if is_new || writes.is_empty() {
                let piece = (at * 32, units * 32);
                let mut message = vec![7; piece.1 as usize];
                match answers.place(piece.0, &mut message) {
                    Err(_) => prop_assert!(waiting.iter().any(|other| overlap(*other, piece))),
                    Ok(is_written) => {
                        prop_assert!(!waiting.iter().any(|other| overlap(*other, piece)));
                        prop_assert_eq!(is_written, !writes.iter().any(|other| overlap(*other, piece)));
                        if is_written { &mut writes } else { &mut waiting }.push(piece);
                    }
                }
            } else {
                let (at, _) = writes.swap_remove(index.index(writes.len()));
                for (at, message) in answers.complete(at) {
                    let piece = (at, message.len() as u32);
                    let place = waiting.iter().position(|other| *other == piece).expect("it waited");
                    waiting.swap_remove(place);
                    prop_assert!(!writes.iter().any(|other| overlap(*other, piece)));
                    writes.push(piece);
                }
                let is_free = |piece: &Piece| !writes.iter().any(|other| overlap(*other, *piece));
                prop_assert!(!waiting.iter().any(is_free), "what has room does not wait");
            }
            let bytes: u32 = writes.iter().chain(&waiting).map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(answers.bytes(), bytes as usize);
        }
        while let Some((at, _)) = writes.pop() {
            for (at, message) in answers.complete(at) {
                let place = waiting.iter().position(|(other, _)| *other == at).expect("it waited");
                waiting.swap_remove(place);
                writes.push((at, message.len() as u32));
            }
        }
        prop_assert!(waiting.is_empty() && answers.bytes() == 0);
    }
}

#[test]
fn who_takes_nothing_is_found() {
    let timeout = Nanos::from_secs(60);
    let at = Nanos::from_secs;
    let mut answers = Answers::default();
    assert!(!answers.is_stalled(at(1000), timeout), "nothing is to be taken");
    assert_eq!(answers.place(0, &mut vec![0; 64]), Ok(true));
    assert_eq!(answers.place(64, &mut vec![0; 64]), Ok(true));
    assert!(!answers.is_stalled(at(1001), timeout));
    assert!(!answers.is_stalled(at(1060), timeout));
    answers.complete(0);
    assert!(!answers.is_stalled(at(1062), timeout), "something moves");
    assert!(answers.is_stalled(at(1123), timeout));
    answers.complete(64);
    assert!(!answers.is_stalled(at(1200), timeout), "all was taken");
    // Answers that are never fetched, while others come and go.
    answers.keep(5, vec![0; 100]);
    answers.keep(6, vec![0; 100]);
    for second in 1201..=1261 {
        assert_eq!(answers.place(0, &mut vec![0; 64]), Ok(true));
        answers.complete(0);
        assert!(!answers.is_stalled(at(second), timeout));
    }
    assert!(answers.is_stalled(at(1262), timeout));
    assert_eq!(answers.fetch(5), Some(vec![0; 100]));
    assert!(!answers.is_stalled(at(1263), timeout), "the next one has its time");
    assert!(answers.is_stalled(at(1324), timeout));
    assert_eq!(answers.fetch(6).map(|kept| kept.len()), Some(100));
    assert_eq!((answers.fetch(6), answers.kept_bytes()), (None, 0));
}
