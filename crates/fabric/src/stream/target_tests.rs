//! The receiving machine against a model, in arbitrary pieces, and against hostile bytes.

use super::*;
use crate::{
    Memory,
    memory::{HeapMemory, Permission, Registry, Transport},
    stream::frame::{ANSWER, HeaderBuffer},
};
use leeward_platform::Rng;
use proptest::prelude::*;

const BYTES: usize = 256;
/// Number of a memory that is reached in another way.
const GRANTED: u64 = 77;
/// Number of a memory that cannot be exported.
const BROKEN: u64 = 78;
/// Every byte of the memory that may only be read.
const READABLE: u8 = 0x52;

/// Three memories: the second is revoked, and the third may only be read.
struct Fixture {
    registry: Arc<Registry<HeapMemory>>,
    open: Arc<HeapMemory>,
    revoked: Arc<HeapMemory>,
    readable: Arc<HeapMemory>,
    /// Memory that the peer gave back, and bytes that it reported.
    told: Vec<(u64, u64)>,
    /// Revocations to report to the peer.
    to_tell: Vec<u64>,
}

impl Fixture {
    fn new() -> Fixture {
        let registry = Arc::new(Registry::new(Rng::new(1)));
        let make = |permission| HeapMemory::register(&registry, Transport::Tcp, permission, BYTES);
        let (open, revoked) = (make(Permission::ReadWrite), make(Permission::ReadWrite));
        revoked.revoke();
        let readable = make(Permission::ReadOnly);
        readable.write(0, &[READABLE; BYTES]);
        Fixture { registry, open, revoked, readable, told: Vec::new(), to_tell: Vec::new() }
    }

    fn memory(&self, which: Which) -> &HeapMemory {
        match which {
            Which::Open => &self.open,
            Which::Revoked => &self.revoked,
            Which::Readable => &self.readable,
        }
    }

    /// Asserts that nothing has come to where nothing may be written.
    fn assert_untouched(&self) {
        assert_eq!(Fixture::bytes(&self.revoked), [0; BYTES]);
        assert_eq!(Fixture::bytes(&self.readable), [READABLE; BYTES]);
    }

    fn place(memory: &HeapMemory, offset: u64) -> RemotePlace {
        let bytes = memory.descriptor().0;
        let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        RemotePlace { id: field(1), key: field(9), offset }
    }

    fn bytes(memory: &HeapMemory) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        memory.read(0, &mut bytes);
        bytes
    }
}

impl Owner for Fixture {
    fn framed(&self, id: u64, key: u64) -> Option<Arc<dyn Framed>> {
        Some(self.registry.find(id, key)?)
    }
    fn export(&mut self, memory: MemoryId) -> io::Result<Option<Export>> {
        match memory.id {
            BROKEN => Err(io::Error::other("out of endpoints")),
            id => Ok((id == GRANTED).then(|| Export::Grant(b"grant".to_vec()))),
        }
    }
    fn release(&mut self, id: u64, key: u64) {
        self.told.push((id, key));
    }
    fn moved(&mut self, written: u64, read: u64) {
        self.told.push((written, read));
    }
    fn revoked(&mut self) -> io::Result<Vec<u64>> {
        Ok(std::mem::take(&mut self.to_tell))
    }
}

#[derive(Default)]
struct Collected {
    messages: Vec<Vec<u8>>,
    answers: Vec<u8>,
}

impl Outlet for Collected {
    fn message(&mut self, bytes: Vec<u8>) {
        self.messages.push(bytes);
    }
    fn answer(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        assert!(fd.is_none());
        self.answers.extend_from_slice(bytes);
        Ok(())
    }
}

impl Collected {
    /// The outcome of each request.
    fn outcomes(&self) -> Vec<Outcome> {
        let (mut input, mut header, mut outcomes) = (&self.answers[..], HeaderBuffer::default(), Vec::new());
        let mut reading = Vec::new();
        while let Some(answer) = header.answer(&mut input).expect("our own answers are sound") {
            match answer {
                Answer::Ack(through) => outcomes.resize(through as usize, Some(b"ack".to_vec())),
                Answer::Refused(_) => outcomes.push(None),
                Answer::ReadBytes(_, len) => {
                    reading.extend_from_slice(&input[..len as usize]);
                    input = &input[len as usize..];
                }
                Answer::ReadEnd(_) => outcomes.push(Some(std::mem::take(&mut reading))),
                Answer::Imported(_) | Answer::Granted(..) | Answer::Revoked(_) => panic!("nothing was imported"),
            }
        }
        outcomes
    }
}

/// None: refused. Else the bytes that a read brought, or that a write or ping was acknowledged.
type Outcome = Option<Vec<u8>>;

/// One of the memories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Open,
    Revoked,
    Readable,
}

/// A generated request.
#[derive(Clone, Debug)]
enum Made {
    Message(Vec<u8>),
    Write { to: Which, offset: u64, bytes: Vec<u8> },
    Read { from: Which, offset: u64, len: u32 },
    Ping,
}

fn made() -> impl Strategy<Value = Made> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    let offset = || prop_oneof![9 => 0..=BYTES as u64, 1 => any::<u64>()];
    let which = || prop_oneof![7 => Just(Which::Open), 1 => Just(Which::Revoked), 2 => Just(Which::Readable)];
    prop_oneof![
        bytes().prop_map(Made::Message),
        (which(), offset(), bytes()).prop_map(|(to, offset, bytes)| Made::Write { to, offset, bytes }),
        (which(), offset(), 0..80u32).prop_map(|(from, offset, len)| Made::Read { from, offset, len }),
        Just(Made::Ping),
    ]
}

impl Made {
    fn encode(&self, fixture: &Fixture, out: &mut Vec<u8>) {
        match self {
            Made::Message(bytes) => {
                Request::Message(bytes.len() as u32).encode(out);
                out.extend_from_slice(bytes);
            }
            Made::Write { to, offset, bytes } => {
                Request::Write(Fixture::place(fixture.memory(*to), *offset), bytes.len() as u32).encode(out);
                out.extend_from_slice(bytes);
            }
            Made::Read { from, offset, len } => {
                Request::Read(Fixture::place(fixture.memory(*from), *offset), *len).encode(out);
            }
            Made::Ping => Request::Ping.encode(out),
        }
    }
}

/// The expected results of `requests`: messages, memory, outcomes.
fn model(requests: &[Made]) -> (Vec<Vec<u8>>, Vec<u8>, Vec<Outcome>) {
    let (mut messages, mut memory, mut outcomes) = (Vec::new(), vec![0; BYTES], Vec::new());
    let range = |offset: u64, len: usize| {
        let start = usize::try_from(offset).ok()?;
        Some(start..start.checked_add(len).filter(|end| *end <= BYTES)?)
    };
    for request in requests {
        match request {
            Made::Message(bytes) => messages.push(bytes.clone()),
            Made::Write { to, offset, bytes } => {
                outcomes.push(range(*offset, bytes.len()).filter(|_| *to == Which::Open).map(|range| {
                    memory[range].copy_from_slice(bytes);
                    b"ack".to_vec()
                }))
            }
            Made::Read { from, offset, len } => {
                outcomes.push(range(*offset, *len as usize).filter(|_| *from != Which::Revoked).map(|range| {
                    if *from == Which::Open { memory[range].to_vec() } else { vec![READABLE; range.len()] }
                }));
            }
            Made::Ping => outcomes.push(Some(b"ack".to_vec())),
        }
    }
    (messages, memory, outcomes)
}

proptest! {
    #[test]
    fn requests_in_any_pieces_do_as_the_model(
        requests in prop::collection::vec(made(), 0..40),
        sizes in prop::collection::vec(1..200usize, 1..20),
    ) {
        let mut fixture = Fixture::new();
        let mut bytes = Vec::new();
        for request in &requests {
            request.encode(&fixture, &mut bytes);
        }
        let (mut target, mut out) = (Target::new(Admission::AnyPeer), Collected::default());
        let (mut rest, mut sizes) = (&bytes[..], sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            target.feed(piece, &mut fixture, &mut out).unwrap();
            rest = after;
        }
        let (messages, memory, outcomes) = model(&requests);
        prop_assert_eq!(&out.messages, &messages);
        prop_assert_eq!(out.outcomes(), outcomes);
        prop_assert_eq!(Fixture::bytes(&fixture.open), memory);
        fixture.assert_untouched();
    }

    #[test]
    fn hostile_bytes_end_in_an_error_or_wait_for_more(
        requests in prop::collection::vec(made(), 1..10),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        garbage in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut fixture = Fixture::new();
        let mut bytes = Vec::new();
        for request in &requests {
            request.encode(&fixture, &mut bytes);
        }
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        bytes.extend(garbage);
        let (mut target, mut out) = (Target::new(Admission::AnyPeer), Collected::default());
        let _ = target.feed(&bytes, &mut fixture, &mut out);
        prop_assert!(out.messages.iter().map(Vec::len).sum::<usize>() <= bytes.len());
        fixture.assert_untouched();
    }

    #[test]
    fn sealed_headers_of_any_content_allocate_nothing_in_advance(
        kind in any::<u8>(), length in any::<u32>(), place in any::<[u64; 3]>(),
    ) {
        let mut fixture = Fixture::new();
        let mut bytes = vec![0, 0, 0, 0, kind, 0, 0, 0];
        bytes.extend(length.to_le_bytes());
        bytes.extend(place.iter().flat_map(|field| field.to_le_bytes()));
        let header = Request::header_bytes(&bytes);
        let crc = crc32c::crc32c(&bytes[4..header]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let (mut target, mut out) = (Target::new(Admission::AnyPeer), Collected::default());
        let _ = target.feed(&bytes, &mut fixture, &mut out);
        if let Stage::Message { bytes, .. } = &target.stage {
            prop_assert!(bytes.capacity() < 1024);
        }
        prop_assert!(out.answers.capacity() < 1024);
        prop_assert_eq!(Fixture::bytes(&fixture.open), vec![0; BYTES]);
    }
}

#[test]
fn everything_in_one_piece_is_acknowledged_once() {
    let mut fixture = Fixture::new();
    let mut bytes = Vec::new();
    for _ in 0..100 {
        Made::Ping.encode(&fixture, &mut bytes);
    }
    let (mut target, mut out) = (Target::new(Admission::AnyPeer), Collected::default());
    target.feed(&bytes, &mut fixture, &mut out).unwrap();
    assert_eq!(out.answers.len(), ANSWER);
}

proptest! {
    #[test]
    fn no_word_is_seen_half_written(
        offset in 0..40u64, bytes in prop::collection::vec(1..=255u8, 0..100),
        sizes in prop::collection::vec(1..30usize, 1..10),
    ) {
        let mut fixture = Fixture::new();
        let mut stream = Vec::new();
        Made::Write { to: Which::Open, offset, bytes: bytes.clone() }.encode(&fixture, &mut stream);
        let mut end = vec![0; BYTES];
        end[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        let (mut target, mut out) = (Target::new(Admission::AnyPeer), Collected::default());
        let (mut rest, mut sizes) = (&stream[..], sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            target.feed(piece, &mut fixture, &mut out).unwrap();
            rest = after;
            let now = Fixture::bytes(&fixture.open);
            for (now, end) in now.as_chunks::<WORD>().0.iter().zip(end.as_chunks::<WORD>().0) {
                prop_assert!(*now == [0; WORD] || now == end, "{now:?} on the way to {end:?}");
            }
        }
        prop_assert_eq!(Fixture::bytes(&fixture.open), end);
    }
}

#[test]
fn a_write_whose_memory_is_revoked_midway_is_refused() {
    let mut fixture = Fixture::new();
    let (mut target, mut out, mut bytes) = (Target::new(Admission::AnyPeer), Collected::default(), Vec::new());
    Made::Write { to: Which::Open, offset: 0, bytes: vec![7; 100] }.encode(&fixture, &mut bytes);
    target.feed(&bytes[..86], &mut fixture, &mut out).unwrap();
    fixture.open.revoke();
    target.feed(&bytes[86..], &mut fixture, &mut out).unwrap();
    assert_eq!(out.outcomes(), [None]);
    let landed = Fixture::bytes(&fixture.open);
    assert_eq!((&landed[..48], &landed[48..100]), (&[7; 48][..], &[0; 52][..]), "whole words before, nothing after");
}

#[test]
fn what_concerns_exported_memory_reaches_its_owner_and_is_answered() {
    let mut fixture = Fixture::new();
    fixture.to_tell.push(9);
    let memory = |id| MemoryId { id, key: 6, permission: Permission::ReadWrite };
    let requests = [
        Request::Release(RemotePlace { id: 5, key: 6, offset: 0 }),
        Request::Moved { written: 7, read: 8 },
        Request::Import(memory(GRANTED)),
        Request::Import(memory(5)),
        Request::Ping,
    ];
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    let mut out = Collected::default();
    Target::new(Admission::AnyPeer).feed(&bytes, &mut fixture, &mut out).unwrap();
    let mut expected = Vec::new();
    Answer::Ack(2).encode(&mut expected);
    Answer::Granted(3, 5).encode(&mut expected);
    expected.extend_from_slice(b"grant");
    Answer::Refused(4).encode(&mut expected);
    Answer::Ack(5).encode(&mut expected);
    Answer::Revoked(9).encode(&mut expected);
    assert_eq!(out.answers, expected);
    assert_eq!(fixture.told, [(5, 6), (7, 8)]);
}

#[test]
fn an_owner_that_cannot_export_ends_the_connection_and_says_nothing_of_a_revocation() {
    let mut bytes = Vec::new();
    Request::Import(MemoryId { id: BROKEN, key: 6, permission: Permission::ReadOnly }).encode(&mut bytes);
    let mut out = Collected::default();
    let ended = Target::new(Admission::AnyPeer).feed(&bytes, &mut Fixture::new(), &mut out);
    assert!(matches!(ended, Err(TargetError::Io(_))), "{ended:?}");
    assert_eq!(out.answers, b"");
}
