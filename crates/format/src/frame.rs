//! The envelope of every message and of every manifest edit: a fixed header that carries kind, version, length and
//! CRC32C, then a [postcard](https://docs.rs/postcard) body.
//!
//! ```text
//!  0        4     5     6          8            12
//!  | crc32c | ver | kind | reserved | body bytes | body ...
//!  | u32    | u8  | u8   | u16 = 0  | u32        |
//! ```
//! The header is 12 bytes. The CRC covers everything after itself, without a seed. A reader checks the length against
//! its own limit before it allocates.

use bytes::BufMut;
use postcard::ser_flavors::{Flavor, Size};
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of the header before the body.
pub const FRAME_HEADER_BYTES: usize = 12;
/// Version of stored frames: edits of manifests, encrypted keys, and the coordinator's log. Frames of another version are refused.
pub const FRAME_VERSION: u8 = 1;
/// Version of all messages between processes, and of values at the coordinator. From the first release on, a change of
/// any message, or of the value of any path, raises it. A process that finds another version stops there and reports
/// it.
pub const PROTOCOL_VERSION: u8 = 1;

/// The content of a frame. A stream of one kind never accepts another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// One atomic edit of a volume's manifest.
    ManifestEdit = 1,
    /// Node to node, over the fabric's control channel.
    Control = 2,
    /// Native client to node.
    Request = 3,
    /// Node to native client.
    Reply = 4,
    /// Process to coordinator.
    CoordinatorRequest = 5,
    /// Coordinator to process.
    CoordinatorReply = 6,
    /// One persisted change of the embedded coordinator.
    CoordinatorLog = 7,
    /// One atomic edit of the manifest of an encrypted volume.
    SealedManifestEdit = 8,
    /// The data key of an encrypted volume, encrypted.
    WrappedKey = 9,
}

impl FrameKind {
    /// Version of frames of this kind.
    pub const fn version(self) -> u8 {
        match self {
            FrameKind::ManifestEdit
            | FrameKind::SealedManifestEdit
            | FrameKind::WrappedKey
            | FrameKind::CoordinatorLog => FRAME_VERSION,
            FrameKind::Control
            | FrameKind::Request
            | FrameKind::Reply
            | FrameKind::CoordinatorRequest
            | FrameKind::CoordinatorReply => PROTOCOL_VERSION,
        }
    }
}

/// Why bytes do not decode. They come from a disk or a peer, so this is a fault, never a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the structure does.
    #[error("{what}: needs {needed} bytes, has {available}")]
    Short {
        /// Structure being decoded.
        what: &'static str,
        /// Bytes it needs, as far as is known.
        needed: usize,
        /// Bytes there are.
        available: usize,
    },
    /// The checksum does not match: the bytes are damaged, or left by an earlier use of the same place.
    #[error("{what}: checksum {found:#010x} where {expected:#010x} was computed")]
    Checksum {
        /// Structure being decoded.
        what: &'static str,
        /// Checksum stored with the bytes.
        found: u32,
        /// Checksum computed over the bytes.
        expected: u32,
    },
    /// Another version of Leeward wrote it. Checked before anything whose place a version may change.
    #[error("{what}: format version {found}, this program has version {known}")]
    Version {
        /// Structure being decoded.
        what: &'static str,
        /// Version that it says it has.
        found: u32,
        /// Version that this program reads and writes.
        known: u32,
    },
    /// A field has a value that no writer of this version produces.
    #[error("{what}: {detail}")]
    Invalid {
        /// Structure being decoded.
        what: &'static str,
        /// What field is wrong, and why.
        detail: String,
    },
}

impl DecodeError {
    /// Version of the sender, if the error is another version.
    pub fn other_version(&self) -> Option<u32> {
        match self {
            DecodeError::Version { found, .. } => Some(*found),
            _ => None,
        }
    }

    /// An [`DecodeError::Invalid`] for `what`.
    pub fn invalid(what: &'static str, detail: impl Into<String>) -> DecodeError {
        DecodeError::Invalid { what, detail: detail.into() }
    }
}

/// A frame of `kind` without a body. It answers a frame of another version before the connection ends, and tells the
/// peer the version of this side. The version's place in the header is the same in every version.
pub fn version_frame(kind: FrameKind) -> [u8; FRAME_HEADER_BYTES] {
    let mut frame = [0; FRAME_HEADER_BYTES];
    (frame[4], frame[5]) = (kind.version(), kind as u8);
    let crc = crc32c::crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// Appends `body` to `out` (a `Vec<u8>` or a `BytesMut`) as one frame of `kind`.
pub fn write_frame<T: Serialize>(kind: FrameKind, body: &T, out: &mut (impl BufMut + AsMut<[u8]>)) {
    let start = out.as_mut().len();
    out.put_slice(&[0; FRAME_HEADER_BYTES]);
    postcard::serialize_with_flavor(body, Appending(&mut *out)).expect("serialising into memory cannot fail");
    let frame = &mut out.as_mut()[start..];
    let body_bytes = u32::try_from(frame.len() - FRAME_HEADER_BYTES).expect("a frame is under 4 GiB");
    frame[4] = kind.version();
    frame[5] = kind as u8;
    frame[8..12].copy_from_slice(&body_bytes.to_le_bytes());
    let crc = crc32c::crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Bytes of `body` in a frame, without the header.
pub fn body_bytes<T: Serialize>(body: &T) -> usize {
    postcard::serialize_with_flavor(body, Size::default()).expect("counting cannot fail")
}

/// The output of postcard. Its own flavors copy byte by byte, which is slow for long values.
struct Appending<'a, B>(&'a mut B);

impl<B: BufMut> Flavor for Appending<'_, B> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.put_u8(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.put_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Length of the frame that starts at `bytes`, header included; `None` while the header is incomplete.
///
/// # Errors
/// The header is not one of `kind`, or the body would be longer than `limit` bytes.
pub fn frame_bytes(kind: FrameKind, bytes: &[u8], limit: usize) -> Result<Option<usize>, DecodeError> {
    if bytes.len() < FRAME_HEADER_BYTES {
        return Ok(None);
    }
    if bytes[4] != kind.version() {
        return Err(DecodeError::Version { what: "frame", found: bytes[4].into(), known: kind.version().into() });
    }
    if bytes[6..8] != [0, 0] {
        return Err(DecodeError::invalid("frame", "reserved bytes are not 0"));
    }
    if bytes[5] != kind as u8 {
        return Err(DecodeError::invalid("frame", format!("kind {} where {kind:?} is expected", bytes[5])));
    }
    let body = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if body > limit {
        return Err(DecodeError::invalid("frame", format!("body of {body} bytes, the limit is {limit}")));
    }
    Ok(Some(FRAME_HEADER_BYTES + body))
}

/// Decodes the frame at the start of `bytes`. Returns it and its length, header included; `None` while the frame is
/// incomplete.
///
/// # Errors
/// The bytes are not a frame of `kind` with a body of at most `limit` bytes.
pub fn read_frame<T: DeserializeOwned>(
    kind: FrameKind,
    bytes: &[u8],
    limit: usize,
) -> Result<Option<(T, usize)>, DecodeError> {
    let Some(len) = frame_bytes(kind, bytes, limit)?.filter(|len| *len <= bytes.len()) else {
        return Ok(None);
    };
    let found = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let expected = crc32c::crc32c(&bytes[4..len]);
    if found != expected {
        return Err(DecodeError::Checksum { what: "frame", found, expected });
    }
    match postcard::take_from_bytes(&bytes[FRAME_HEADER_BYTES..len]) {
        Ok((body, [])) => Ok(Some((body, len))),
        Ok((_, rest)) => Err(DecodeError::invalid("frame", format!("{} bytes after the body", rest.len()))),
        Err(error) => Err(DecodeError::invalid("frame", error.to_string())),
    }
}
