//! The frames of a link over a byte stream, for both sides. See `docs/formats/fabric.md`.
//!
//! Requests go from the side that connected to the side that owns memory:
//!
//! ```text
//!  0       4      5       8        12
//!  | crc32c | kind | 0 0 0 | length |                                  Message, Ping
//!  | crc32c | kind | 0 0 0 | length | memory u64 | key u64 | offset u64 |   Write, Read, Import, Release (36 bytes)
//!  | crc32c | kind | 0 0 0 | length | written u64 | read u64 | 0         |   Moved (36 bytes)
//! ```
//! Answers come in the order of the requests. Messages have no answer:
//!
//! ```text
//!  0       4      5       8        12             20
//!  | crc32c | kind | 0 0 0 | length | sequence u64 |
//! ```
//! All little endian. The CRC covers the rest of the header; payloads carry their own checksums. `length` is the length
//! of the payload that follows (Message, Write, ReadBytes, Granted) or that is asked for (Read), else 0. The `offset` of
//! an Import is the permission that the peer expects. Revoked is not an answer to a request; its `sequence` is the
//! number of a revoked memory.
//!
//! Pure functions over bytes that may be hostile: they return an error, and never panic.

use crate::memory::{MemoryId, Permission};

/// Bytes of a request's header without an address.
pub(crate) const SHORT_REQUEST: usize = 12;
/// Bytes of a request's header with an address.
pub(crate) const LONG_REQUEST: usize = 36;
/// Bytes of an answer's header.
pub(crate) const ANSWER: usize = 20;
/// Most bytes of a grant.
pub(crate) const MAX_GRANT: usize = 1024;

const MESSAGE: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const PING: u8 = 4;
const IMPORT: u8 = 5;
const RELEASE: u8 = 6;
const MOVED: u8 = 7;

const MAX_GRANT_LENGTH: u32 = MAX_GRANT as u32;

const ACK: u8 = 16;
const REFUSED: u8 = 17;
const READ_BYTES: u8 = 18;
const READ_END: u8 = 19;
const IMPORTED: u8 = 20;
const GRANTED: u8 = 21;
const REVOKED: u8 = 22;

/// The bytes are no frame of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The header is damaged, or is no header.
    #[error("a frame header with checksum {found:#010x} where {expected:#010x} was computed")]
    Checksum {
        /// In the header.
        found: u32,
        /// Over the header.
        expected: u32,
    },
    /// A field of the header is not valid.
    #[error("{0}")]
    Invalid(String),
}

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemotePlace {
    /// Number of the memory.
    pub(crate) id: u64,
    pub(crate) key: u64,
    /// Offset in it, in bytes.
    pub(crate) offset: u64,
}

/// Header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A control message of this many bytes follows.
    Message(u32),
    /// This many bytes for a place follow.
    Write(RemotePlace, u32),
    /// Asks for this many bytes.
    Read(RemotePlace, u32),
    /// Asks whether the peer is alive.
    Ping,
    /// Asks how a memory is reached, if not by frames.
    Import(MemoryId),
    /// Gives a granted memory back: the peer has no operations under way there any more. The offset is 0.
    Release(RemotePlace),
    /// Bytes written to and read from granted memory since the last such report.
    Moved {
        /// Bytes written.
        written: u64,
        /// Bytes read.
        read: u64,
    },
}

/// Header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every write and ping up to this request is done.
    Ack(u64),
    /// This request is refused.
    Refused(u64),
    /// This many of the bytes that this read asked for follow.
    ReadBytes(u64, u32),
    /// All bytes of this read were sent.
    ReadEnd(u64),
    /// The file descriptor that this request asked for comes with this answer.
    Imported(u64),
    /// The grant that this request asked for follows, with this many bytes.
    Granted(u64, u32),
    /// The owner has revoked the memory with this number, which was granted over this connection.
    Revoked(u64),
}

impl Request {
    /// Appends the header to `out`.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let (kind, length, place) = match self {
            Request::Message(length) => (MESSAGE, length, None),
            Request::Write(place, length) => (WRITE, length, Some(place)),
            Request::Read(place, length) => (READ, length, Some(place)),
            Request::Ping => (PING, 0, None),
            Request::Import(MemoryId { id, key, permission }) => {
                (IMPORT, 0, Some(RemotePlace { id, key, offset: permission as u64 }))
            }
            Request::Release(place) => (RELEASE, 0, Some(place)),
            Request::Moved { written, read } => (MOVED, 0, Some(RemotePlace { id: written, key: read, offset: 0 })),
        };
        let mut header = [0; LONG_REQUEST];
        header[4] = kind;
        header[8..12].copy_from_slice(&length.to_le_bytes());
        let bytes = if let Some(place) = place {
            header[12..20].copy_from_slice(&place.id.to_le_bytes());
            header[20..28].copy_from_slice(&place.key.to_le_bytes());
            header[28..36].copy_from_slice(&place.offset.to_le_bytes());
            LONG_REQUEST
        } else {
            SHORT_REQUEST
        };
        seal(&mut header[..bytes]);
        out.extend_from_slice(&header[..bytes]);
    }

    /// Bytes of the header that starts with `start`, which has at least [`SHORT_REQUEST`] bytes.
    pub(crate) fn header_bytes(start: &[u8]) -> usize {
        let is_long = matches!(start[4], WRITE | READ | IMPORT | RELEASE | MOVED);
        if is_long { LONG_REQUEST } else { SHORT_REQUEST }
    }

    /// The request whose complete header is `header`.
    pub(crate) fn decode(header: &[u8]) -> Result<Request, FrameError> {
        let (kind, length) = open(header)?;
        let place = || RemotePlace { id: word(header, 12), key: word(header, 20), offset: word(header, 28) };
        match (kind, length) {
            (MESSAGE, _) if length as usize > crate::MAX_MESSAGE_BYTES => Err(FrameError::Invalid(format!(
                "a message of {length} bytes, the limit is {}",
                crate::MAX_MESSAGE_BYTES
            ))),
            (MESSAGE, _) => Ok(Request::Message(length)),
            (WRITE, _) => Ok(Request::Write(place(), length)),
            (READ, _) => Ok(Request::Read(place(), length)),
            (PING, 0) => Ok(Request::Ping),
            (IMPORT, 0) => import(place()).map(Request::Import),
            (RELEASE, 0) => Ok(Request::Release(place())),
            (MOVED, 0) => Ok(Request::Moved { written: word(header, 12), read: word(header, 20) }),
            _ => Err(FrameError::Invalid(format!("a request of kind {kind} and length {length}"))),
        }
    }
}

impl Answer {
    /// Appends the header to `out`.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let (kind, sequence, length) = match self {
            Answer::Ack(sequence) => (ACK, sequence, 0),
            Answer::Refused(sequence) => (REFUSED, sequence, 0),
            Answer::ReadBytes(sequence, length) => (READ_BYTES, sequence, length),
            Answer::ReadEnd(sequence) => (READ_END, sequence, 0),
            Answer::Imported(sequence) => (IMPORTED, sequence, 0),
            Answer::Granted(sequence, length) => (GRANTED, sequence, length),
            Answer::Revoked(id) => (REVOKED, id, 0),
        };
        let mut header = [0; ANSWER];
        header[4] = kind;
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[12..20].copy_from_slice(&sequence.to_le_bytes());
        seal(&mut header);
        out.extend_from_slice(&header);
    }

    /// The answer whose header is `header`.
    pub(crate) fn decode(header: &[u8; ANSWER]) -> Result<Answer, FrameError> {
        let (kind, length) = open(header)?;
        let sequence = word(header, 12);
        match (kind, length) {
            (ACK, 0) => Ok(Answer::Ack(sequence)),
            (REFUSED, 0) => Ok(Answer::Refused(sequence)),
            (READ_BYTES, _) => Ok(Answer::ReadBytes(sequence, length)),
            (READ_END, 0) => Ok(Answer::ReadEnd(sequence)),
            (IMPORTED, 0) => Ok(Answer::Imported(sequence)),
            (GRANTED, 1..=MAX_GRANT_LENGTH) => Ok(Answer::Granted(sequence, length)),
            (REVOKED, 0) => Ok(Answer::Revoked(sequence)),
            _ => Err(FrameError::Invalid(format!("an answer of kind {kind} and length {length}"))),
        }
    }
}

/// The memory that an Import asks for.
fn import(place: RemotePlace) -> Result<MemoryId, FrameError> {
    let RemotePlace { id, key, offset } = place;
    let permission = Permission::ALL.into_iter().find(|permission| *permission as u64 == offset);
    let unknown = || FrameError::Invalid(format!("an import with permission {offset}"));
    Ok(MemoryId { id, key, permission: permission.ok_or_else(unknown)? })
}

/// Collects a header that arrives in pieces.
pub(crate) struct HeaderBuffer {
    bytes: [u8; LONG_REQUEST],
    have: usize,
}

impl Default for HeaderBuffer {
    fn default() -> HeaderBuffer {
        HeaderBuffer { bytes: [0; LONG_REQUEST], have: 0 }
    }
}

impl HeaderBuffer {
    /// Takes bytes from `input` until there are `want`. Returns whether there are.
    fn fill(&mut self, input: &mut &[u8], want: usize) -> bool {
        let take = input.len().min(want.saturating_sub(self.have));
        let (bytes, rest) = input.split_at(take);
        self.bytes[self.have..self.have + take].copy_from_slice(bytes);
        (self.have, *input) = (self.have + take, rest);
        self.have >= want
    }

    /// The next request, once its header is complete.
    pub(crate) fn request(&mut self, input: &mut &[u8]) -> Result<Option<Request>, FrameError> {
        if !self.fill(input, SHORT_REQUEST) {
            return Ok(None);
        }
        let want = Request::header_bytes(&self.bytes);
        if !self.fill(input, want) {
            return Ok(None);
        }
        self.have = 0;
        Request::decode(&self.bytes[..want]).map(Some)
    }

    /// The next answer, once its header is complete.
    pub(crate) fn answer(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, FrameError> {
        if !self.fill(input, ANSWER) {
            return Ok(None);
        }
        self.have = 0;
        let header = self.bytes.first_chunk().expect("the buffer is longer than an answer");
        Answer::decode(header).map(Some)
    }
}

fn seal(header: &mut [u8]) {
    let crc = crc32c::crc32c(&header[4..]);
    header[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a header, and returns its kind and length.
fn open(header: &[u8]) -> Result<(u8, u32), FrameError> {
    let half = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("a header has 12 bytes"));
    let (found, expected) = (half(0), crc32c::crc32c(&header[4..]));
    if found != expected {
        return Err(FrameError::Checksum { found, expected });
    }
    if header[5..8] != [0; 3] {
        return Err(FrameError::Invalid("a frame header whose reserved bytes are not 0".into()));
    }
    Ok((header[4], half(8)))
}

fn word(header: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*header[at..].first_chunk().expect("the header of this kind is longer"))
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
