//! Answers that fit, and answers that no request asked for.

use super::*;
use crate::memory::Permission;
use proptest::prelude::*;

const MEMORY: MemoryId = MemoryId { id: 1, key: 2, permission: Permission::ReadOnly };

/// A write 10, a read 11 of 5 bytes, a ping, an import of the memory and a write 12.
fn flights() -> Flights {
    let mut flights = Flights::default();
    flights.push(Flight::Write { op: 10 });
    flights.push(Flight::Read { op: 11, want: 5, bytes: Vec::new() });
    flights.push(Flight::Note);
    flights.push(Flight::Import { memory: MEMORY, bytes: Vec::new() });
    flights.push(Flight::Write { op: 12 });
    flights
}

/// A memory, and its grant: no bytes for a file, none if it was refused.
type Found = (MemoryId, Option<Vec<u8>>);

/// Records what was imported.
#[derive(Default)]
struct Imported {
    found: Vec<Found>,
    revoked: Vec<u64>,
}

impl Extension for Imported {
    type Context = ();
    fn new(_context: &Arc<()>, _peer: PeerId) -> Imported {
        Imported::default()
    }
    fn imported(
        &mut self,
        memory: MemoryId,
        export: Option<Export>,
        _events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        let bytes = export.map(|export| match export {
            Export::File(_) => Vec::new(),
            Export::Grant(bytes) => bytes,
        });
        if bytes.as_deref() == Some(b"bad") {
            return Err("a bad grant".into());
        }
        self.found.push((memory, bytes));
        Ok(())
    }
    fn revoked(&mut self, id: u64) {
        self.revoked.push(id);
    }
}

fn file() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("it is always there").into()
}

/// Feeds the answers in pieces of `size`. Returns the events and imports.
fn feed(answers: &[u8], size: usize) -> Result<(Vec<LinkEvent>, Imported, bool), FrameError> {
    let (mut flights, mut imported, mut events) = (flights(), Imported::default(), VecDeque::new());
    let mut fds = VecDeque::from([file()]);
    for piece in answers.chunks(size) {
        flights.feed(piece, &mut fds, &mut imported, &mut events)?;
    }
    Ok((events.into(), imported, flights.is_empty()))
}

fn encode(answers: &[(Answer, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (answer, payload) in answers {
        answer.encode(&mut bytes);
        bytes.extend_from_slice(payload);
    }
    bytes
}

#[test]
fn answers_in_any_pieces_become_events() {
    let answers = encode(&[
        (Answer::Ack(1), b""),
        (Answer::ReadBytes(2, 3), b"abc"),
        (Answer::ReadBytes(2, 2), b"de"),
        (Answer::ReadEnd(2), b""),
        (Answer::Ack(3), b""),
        (Answer::Imported(4), b""),
        (Answer::Refused(5), b""),
    ]);
    for size in 1..=answers.len() {
        let (events, imported, done) = feed(&answers, size).unwrap();
        let read = LinkEvent::ReadDone { op: 11, bytes: b"abcde".to_vec() };
        assert_eq!(events, [LinkEvent::Completed { op: 10 }, read, LinkEvent::Refused { op: 12 }]);
        assert_eq!((imported.found, done), (vec![(MEMORY, Some(vec![]))], true));
    }
}

#[test]
fn refusals_reach_the_operations_that_asked() {
    let answers = [Answer::Refused(1), Answer::Refused(2), Answer::Ack(3), Answer::Refused(4), Answer::Ack(5)];
    let (events, imported, done) = feed(&encode(&answers.map(|answer| (answer, &b""[..]))), 7).unwrap();
    let refused = |op| LinkEvent::Refused { op };
    assert_eq!(events, [refused(10), refused(11), LinkEvent::Completed { op: 12 }]);
    assert_eq!((imported.found, done), (vec![(MEMORY, None)], true));
}

#[test]
fn grants_and_revocations_reach_the_transport_in_any_pieces() {
    let answers = encode(&[
        (Answer::Revoked(7), b""),
        (Answer::Ack(1), b""),
        (Answer::Refused(2), b""),
        (Answer::Ack(3), b""),
        (Answer::Revoked(8), b""),
        (Answer::Granted(4, 5), b"grant"),
        (Answer::Ack(5), b""),
    ]);
    for size in 1..=answers.len() {
        let (events, imported, done) = feed(&answers, size).unwrap();
        let completed = |op| LinkEvent::Completed { op };
        assert_eq!(events, [completed(10), LinkEvent::Refused { op: 11 }, completed(12)]);
        assert_eq!((imported.found, done), (vec![(MEMORY, Some(b"grant".to_vec()))], true));
        assert_eq!(imported.revoked, [7, 8]);
    }
}

#[test]
fn a_read_refused_midway_gives_no_bytes() {
    let answers = encode(&[(Answer::Ack(1), b""), (Answer::ReadBytes(2, 3), b"abc"), (Answer::Refused(2), b"")]);
    let (events, ..) = feed(&answers, 1000).unwrap();
    assert_eq!(events[1..], [LinkEvent::Refused { op: 11 }]);
}

#[test]
fn answers_to_nothing_are_errors() {
    let ack = (Answer::Ack(1), &b""[..]);
    let cases: [&[(Answer, &[u8])]; 15] = [
        &[(Answer::Ack(0), b"")],
        &[(Answer::Ack(2), b"")],
        &[(Answer::Ack(u64::MAX), b"")],
        &[ack, ack],
        &[(Answer::Refused(2), b"")],
        &[(Answer::ReadEnd(1), b"")],
        &[(Answer::ReadBytes(1, 1), b"a")],
        &[ack, (Answer::ReadBytes(2, 6), b"abcdef")],
        &[ack, (Answer::ReadBytes(2, 3), b"abc"), (Answer::ReadBytes(2, u32::MAX), b"")],
        &[ack, (Answer::ReadBytes(2, 3), b"abc"), (Answer::ReadEnd(2), b"")],
        &[ack, (Answer::Refused(2), b""), (Answer::Refused(3), b"")],
        &[(Answer::Imported(1), b"")],
        &[(Answer::Granted(1, 1), b"a")],
        &[ack, (Answer::Refused(2), b""), (Answer::Ack(3), b""), (Answer::Granted(5, 1), b"a")],
        &[ack, (Answer::Refused(2), b""), (Answer::Ack(3), b""), (Answer::Granted(4, 3), b"bad")],
    ];
    for case in cases {
        assert!(feed(&encode(case), 1000).is_err(), "{case:?}");
    }
}

#[test]
fn an_import_without_its_file_is_an_error() {
    let mut flights = Flights::default();
    flights.push(Flight::Import { memory: MEMORY, bytes: Vec::new() });
    let answers = encode(&[(Answer::Imported(1), b"")]);
    let fed = flights.feed(&answers, &mut VecDeque::new(), &mut Imported::default(), &mut VecDeque::new());
    assert!(fed.is_err());
}

proptest! {
    #[test]
    fn any_answers_are_taken_or_refused(
        answers in prop::collection::vec((0..5u8, 0..7u64, 0..8u32, any::<[u8; 8]>()), 0..12),
    ) {
        let mut bytes = Vec::new();
        for (kind, sequence, length, payload) in answers {
            let answer = match kind {
                0 => Answer::Ack(sequence),
                1 => Answer::Refused(sequence),
                2 => Answer::ReadBytes(sequence, length),
                3 => Answer::ReadEnd(sequence),
                _ => Answer::Imported(sequence),
            };
            answer.encode(&mut bytes);
            if let Answer::ReadBytes(..) = answer {
                bytes.extend_from_slice(&payload[..length as usize]);
            }
        }
        if let Ok((events, ..)) = feed(&bytes, 5) {
            prop_assert!(events.len() <= 3);
        }
    }
}
