//! How two ends of a new connection introduce themselves: the side that connected says who it is and whom it wants,
//! the other says who it is and whether it agrees. Only then is the link up.
//!
//! ```text
//!  0      4         6         8     12        16        20       24
//!  | LWFB | version | verdict | own | wanted  | 0       | crc32c |      little endian
//!  |      | u16     | u16     | u32 | u32     | u32     | u32    |
//! ```
//! The same 24 bytes both ways; a reply's `wanted` is the peer that was asked for. The layout stays in every later
//! version, so that a version that is not spoken can be named. Pure functions over hostile bytes.

use crate::PeerId;

/// Bytes of a hello and of the reply to it.
pub(crate) const HELLO: usize = 24;
/// Version of the hello and of the frames after it.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"LWFB";

const WELCOME: u16 = 0;
const NOT_ME: u16 = 1;
const OTHER_VERSION: u16 = 2;

/// Why a connection is not one of this fabric's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    /// Whatever is there speaks another protocol.
    #[error("no fabric answers there: it began with {0:02x?}")]
    Stranger([u8; 4]),
    /// It speaks another version.
    #[error("it speaks version {0} of the fabric's protocol, this process speaks {VERSION}")]
    Version(u16),
    /// The bytes were damaged.
    #[error("its hello is damaged")]
    Damaged,
    /// Another process than the wanted one.
    #[error("peer {wanted} was wanted there, but it is peer {found}: check the addresses")]
    WrongPeer {
        /// Whom the connecting side wanted.
        wanted: PeerId,
        /// Who is there.
        found: PeerId,
    },
}

/// The hello of `own`, who wants `wanted`.
pub(crate) fn hello(own: PeerId, wanted: PeerId) -> [u8; HELLO] {
    encode(WELCOME, own, wanted)
}

/// Checks the hello that reached `own`: who sent it, or what is wrong and the reply that says so, if one makes sense.
pub(crate) fn check_hello(own: PeerId, bytes: &[u8; HELLO]) -> Result<PeerId, (HelloError, Option<[u8; HELLO]>)> {
    match decode(bytes) {
        Ok((_, from, wanted)) if wanted == own => Ok(from),
        Ok((_, _, wanted)) => Err((HelloError::WrongPeer { wanted, found: own }, Some(encode(NOT_ME, own, wanted)))),
        Err(error @ HelloError::Version(_)) => Err((error, Some(encode(OTHER_VERSION, own, own)))),
        Err(error) => Err((error, None)),
    }
}

/// The reply by which `own` takes `peer` in.
pub(crate) fn welcome(own: PeerId) -> [u8; HELLO] {
    encode(WELCOME, own, own)
}

/// Checks the reply to a hello that wanted `wanted`.
pub(crate) fn check_reply(wanted: PeerId, bytes: &[u8; HELLO]) -> Result<(), HelloError> {
    let (verdict, found, _) = decode(bytes)?;
    match verdict {
        WELCOME if found == wanted => Ok(()),
        WELCOME | NOT_ME => Err(HelloError::WrongPeer { wanted, found }),
        _ => Err(HelloError::Damaged),
    }
}

fn encode(verdict: u16, own: PeerId, wanted: PeerId) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&verdict.to_le_bytes());
    bytes[8..12].copy_from_slice(&own.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&wanted.0.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Verdict, own and wanted.
fn decode(bytes: &[u8; HELLO]) -> Result<(u16, PeerId, PeerId), HelloError> {
    let half = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a hello has 24 bytes"));
    let short = |at: usize| u16::from_le_bytes(*bytes[at..].first_chunk().expect("a hello has 24 bytes"));
    let magic = *bytes.first_chunk().expect("a hello has 24 bytes");
    if magic != MAGIC {
        return Err(HelloError::Stranger(magic));
    }
    if short(4) != VERSION {
        return Err(HelloError::Version(short(4)));
    }
    if crc32c::crc32c(&bytes[..20]) != half(20) {
        return Err(HelloError::Damaged);
    }
    Ok((short(6), PeerId(half(8)), PeerId(half(12))))
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
