//! Messages torn and hostile, and the ring against a simple model: a queue.

use super::space::RingSpace;
use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;

const KEY: u64 = 0x5eed_5eed_0000_0001;

fn identity(sequence: u64, place: u32) -> Identity {
    Identity { key: KEY, sequence, place }
}

fn message(identity: Identity, kind: RingKind, slot: Slot, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message(identity, kind, slot, payload, &mut bytes);
    bytes
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Memory that takes words one at a time, in any order.
struct Memory(RefCell<Vec<u64>>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(RefCell::new(vec![0; bytes / 8]))
    }

    fn take<'a>(&self, cursor: &mut Cursor, buffer: &'a mut Vec<u8>) -> Result<Next<'a>, DecodeError> {
        let copy = |from: usize, bytes: &mut [u8]| {
            for (word, place) in self.0.borrow()[from / 8..].iter().zip(bytes.chunks_mut(8)) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        };
        cursor.take(|at| self.0.borrow()[at / 8], copy, buffer)
    }
}

proptest! {
    #[test]
    fn a_message_is_read_as_it_was_written_and_as_no_other(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        sequence in 1_u64..9,
        place in 0_u32..4,
        at in any::<u32>(),
        room in any::<u32>(),
        flip in any::<prop::sample::Index>(),
    ) {
        let me = identity(sequence, place * 32);
        let slot = Slot { at, room };
        let mut bytes = message(me, RingKind::Frames, slot, &payload);
        prop_assert_eq!(bytes.len() % UNIT_BYTES, 0);
        prop_assert_eq!(bytes.len(), message_bytes(payload.len()));
        prop_assert_eq!(me.begun(words(&bytes)[0], bytes.len()), Some(bytes.len()));
        prop_assert_eq!(me.begun(words(&bytes)[0], bytes.len() - UNIT_BYTES), None, "no writer's: it is of an earlier lap");
        prop_assert!(me.ended(*words(&bytes).last().expect("it has words")));
        let read = RingMessage { kind: RingKind::Frames, slot, payload: &payload };
        prop_assert_eq!(read_message(me, &bytes), Ok(Some(read)));
        for other in [
            Identity { key: KEY + 1, ..me },
            Identity { sequence: sequence + 1, ..me },
            Identity { sequence: sequence + (1 << 32), ..me },
            Identity { place: me.place + 32, ..me },
        ] {
            prop_assert_eq!(read_message(other, &bytes), Ok(None));
        }
        let bit = flip.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(read_message(me, &bytes), Ok(None));
    }

    #[test]
    fn hostile_bytes_are_an_error_or_nothing(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        seal in any::<bool>(),
        first in any::<u64>(),
        most in any::<u32>(),
    ) {
        let me = identity(1, 0);
        // Even a client that knows the key, as each knows its own, cannot make the reader panic.
        if seal && bytes.len() >= UNIT_BYTES {
            bytes.truncate(bytes.len() / UNIT_BYTES * UNIT_BYTES);
            let content = bytes.len() - LAST_BYTES;
            let tag = me.tag().to_le_bytes();
            bytes[4..8].copy_from_slice(&tag);
            bytes[content + 4..].copy_from_slice(&tag);
            let crc = me.crc(&bytes[..content]);
            bytes[content..content + 4].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(Some(message)) = read_message(me, &bytes) {
            prop_assert!(message.payload.len() < bytes.len());
        }
        if let Some(length) = me.begun(first, most as usize) {
            prop_assert!(length <= most as usize);
        }
    }

    /// A ring of hostile words: the cursor always stays inside the ring, and bytes without a valid checksum are no
    /// error.
    #[test]
    fn a_hostile_ring_is_read_inside_of_its_bounds(
        content in prop::collection::vec(any::<u64>(), 128),
        lengths in prop::collection::vec(any::<u16>(), 1..40),
    ) {
        let memory = Memory(RefCell::new(content));
        let mut cursor = Cursor::new(1024, KEY);
        let mut buffer = Vec::new();
        for length in lengths {
            // The tag is right, so that the length is believed as far as it can be.
            let tag = u64::from(cursor.next.tag()) << 32;
            let place = cursor.rendezvous();
            memory.0.borrow_mut()[place / 8] = tag | u64::from(length);
            let end = place + message_bytes(length.into());
            if end <= 1024 {
                let last = memory.0.borrow()[end / 8 - 1] as u32;
                memory.0.borrow_mut()[end / 8 - 1] = tag | u64::from(last);
            }
            prop_assert_eq!(memory.take(&mut cursor, &mut buffer), Ok(Next::Nothing));
            prop_assert!(cursor.rendezvous() < 1024);
        }
    }

    /// Messages of any size, answered in any order, their words landing in any order: the server takes each once, in
    /// order, and none before all of it is there. Nothing is taken of messages that exceed the room.
    #[test]
    fn a_ring_is_a_queue(
        steps in prop::collection::vec((0_u8..10, 0_usize..480, any::<prop::sample::Index>()), 1..600),
        stale in any::<u64>(),
    ) {
        const RING: usize = 1024;
        let memory = Memory::new(RING);
        memory.0.borrow_mut().fill(stale);
        let (mut space, mut cursor) = (RingSpace::new(RING), Cursor::new(RING, KEY));
        let (mut sent, mut sequence): (VecDeque<Vec<u8>>, u64) = (VecDeque::new(), 0);
        // Words on their way; places whose message was taken by the server and not answered.
        let (mut flying, mut taken): (Vec<(usize, u64)>, Vec<usize>) = (Vec::new(), Vec::new());
        let (mut places, mut buffer) = (VecDeque::new(), Vec::new());
        for (act, size, index) in steps {
            match act {
                0..4 => {
                    let payload = vec![sequence as u8; size.min(space.most() - UNIT_BYTES)];
                    let Some(piece) = space.take(message_bytes(payload.len())) else {
                        prop_assert!(!places.is_empty() || !taken.is_empty(), "an empty ring has room");
                        continue;
                    };
                    let mut post = |at: usize, kind, payload: &[u8]| {
                        sequence += 1;
                        let bytes = message(identity(sequence, at as u32), kind, Slot::default(), payload);
                        flying.extend(words(&bytes).into_iter().enumerate().map(|(i, word)| (at / 8 + i, word)));
                    };
                    if let Some(at) = piece.skipped_at {
                        post(at, RingKind::Noop, &[]);
                    }
                    post(piece.at, RingKind::Frames, &payload);
                    sent.push_back(payload);
                    places.push_back(piece.at);
                }
                4..8 => {
                    for _ in 0..flying.len().min(size) {
                        let (at, word) = flying.swap_remove(index.index(flying.len()));
                        memory.0.borrow_mut()[at] = word;
                    }
                }
                8 if !taken.is_empty() => space.give_back(taken.swap_remove(index.index(taken.len()))),
                _ => {
                    if let Next::Message(_, message) = memory.take(&mut cursor, &mut buffer).expect("an honest client") {
                        let expected = sent.pop_front().expect("nothing is taken that was not sent");
                        prop_assert_eq!(message.payload, &expected[..]);
                        taken.push(places.pop_front().expect("a place a message"));
                    }
                }
            }
        }
        for (at, word) in flying {
            memory.0.borrow_mut()[at] = word;
        }
        while let Next::Message(_, message) = memory.take(&mut cursor, &mut buffer).expect("an honest client") {
            prop_assert_eq!(message.payload, &sent.pop_front().expect("sent")[..]);
        }
        prop_assert!(sent.is_empty(), "what has landed is taken");
    }
}

#[test]
fn a_rest_too_short_is_skipped_and_given_back_with_its_piece() {
    let mut space = RingSpace::new(256);
    assert_eq!(space.take(96), Some(space::Taken { at: 0, skipped_at: None }));
    assert_eq!(space.take(96), Some(space::Taken { at: 96, skipped_at: None }));
    assert_eq!(space.take(96), None, "the rest is too short, and the start is taken");
    space.give_back(96);
    assert_eq!(space.take(96), None, "older pieces hold what was given back");
    space.give_back(0);
    assert_eq!(space.take(96), Some(space::Taken { at: 0, skipped_at: Some(192) }));
    assert_eq!(space.take(96), Some(space::Taken { at: 96, skipped_at: None }));
    assert_eq!(space.take(32), None, "the skipped rest is taken as well");
    space.give_back(0);
    assert_eq!(space.take(64), Some(space::Taken { at: 192, skipped_at: None }), "to the last byte");
    space.give_back(96);
    assert_eq!(space.take(128), Some(space::Taken { at: 0, skipped_at: None }), "no skip at the very end");
}

#[test]
fn slots_outside_of_the_reply_ring_are_seen() {
    let fits = |at, room| Slot { at, room }.fits(1024);
    assert!(fits(0, 1024) && fits(992, 32));
    for (at, room) in [(0, 0), (0, 1056), (1024, 32), (16, 32), (32, 40), (u32::MAX - 31, 64), (32, u32::MAX - 31)] {
        assert!(!fits(at, room), "{room} bytes at {at}");
    }
}

#[test]
fn a_noop_leads_to_the_start_and_nowhere_else() {
    let memory = Memory::new(256);
    let mut cursor = Cursor::new(256, KEY);
    let mut buffer = Vec::new();
    let put = |identity: Identity, kind, payload: &[u8]| {
        let bytes = message(identity, kind, Slot::default(), payload);
        memory.0.borrow_mut()[identity.place as usize / 8..][..bytes.len() / 8].copy_from_slice(&words(&bytes));
    };
    put(identity(1, 0), RingKind::Frames, &[7; 100]);
    assert!(matches!(memory.take(&mut cursor, &mut buffer), Ok(Next::Message(1, _))));
    put(identity(2, 160), RingKind::Noop, &[]);
    assert_eq!(memory.take(&mut cursor, &mut buffer), Ok(Next::Nothing));
    assert_eq!(cursor.rendezvous(), 0);
    put(identity(3, 0), RingKind::Noop, &[]);
    assert!(memory.take(&mut cursor, &mut buffer).is_err(), "a no-op at the start leads nowhere");
}

#[test]
fn a_noop_that_lands_between_two_looks_is_none() {
    let memory = Memory::new(256);
    let mut cursor = Cursor::new(256, KEY);
    let mut buffer = Vec::new();
    for (identity, kind, payload) in
        [(identity(1, 0), RingKind::Frames, &[7; 100][..]), (identity(2, 160), RingKind::Noop, &[])]
    {
        let bytes = message(identity, kind, Slot::default(), payload);
        memory.0.borrow_mut()[identity.place as usize / 8..][..bytes.len() / 8].copy_from_slice(&words(&bytes));
    }
    assert!(matches!(memory.take(&mut cursor, &mut buffer), Ok(Next::Message(1, _))));
    let is_first = std::cell::Cell::new(true);
    let word = |at: usize| if is_first.replace(false) { 0 } else { memory.0.borrow()[at / 8] };
    let copy = |from: usize, bytes: &mut [u8]| {
        for (word, place) in memory.0.borrow()[from / 8..].iter().zip(bytes.chunks_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    };
    assert_eq!(cursor.take(word, copy, &mut buffer), Ok(Next::Nothing), "it was not there at the first look");
    assert_eq!(memory.take(&mut cursor, &mut buffer), Ok(Next::Nothing));
    assert_eq!(cursor.rendezvous(), 0, "it leads to the start");
}

#[test]
fn a_server_takes_no_message_that_only_a_server_writes() {
    for kind in [RingKind::TooSmall, RingKind::OnStream] {
        let memory = Memory::new(256);
        let bytes = message(identity(1, 0), kind, Slot::default(), &[1]);
        memory.0.borrow_mut()[..bytes.len() / 8].copy_from_slice(&words(&bytes));
        assert!(memory.take(&mut Cursor::new(256, KEY), &mut Vec::new()).is_err());
    }
}
