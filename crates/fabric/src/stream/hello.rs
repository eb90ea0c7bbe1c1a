//! The handshake of a new connection. The side that connected says which peer it is and which peer it wants. The other
//! side says which peer it is and whether it agrees. Only then is the link up.
//!
//! ```text
//!  0      4         6         8     12        16        20       24
//!  | LWFB | version | verdict | own | wanted  | reach   | crc32c |      little endian
//!  |      | u16     | u16     | u32 | u32     | u32     | u32    |
//! ```
//! Both directions use the same 24 bytes. A reply's `wanted` is the peer that was asked for. The layout stays the same
//! in every later version, so that an unknown version can be named. In a hello, `verdict` says which connection of the
//! link it is: [`Connection`]. Pure functions over hostile bytes.

use crate::PeerId;

/// Bytes of a hello and of the reply to it.
pub(crate) const HELLO: usize = 24;
/// Version of the hello and of the frames after it.
pub(crate) const VERSION: u16 = 2;
const MAGIC: [u8; 4] = *b"LWFB";

const WELCOME: u16 = 0;
const NOT_ME: u16 = 1;
const OTHER_VERSION: u16 = 2;
const OTHER_REACH: u16 = 3;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Connection {
    /// All of a link but urgent messages.
    Link = 0,
    /// Urgent messages of the link.
    Urgent = 1,
}

/// Memory is reached over the link itself: by frames, or by files that are passed over it.
pub(crate) const REACH_BY_LINK: u32 = 0;

/// Memory is reached by a provider of libfabric, of any version.
pub(crate) fn reach_by(provider: &str) -> u32 {
    crc32c::crc32c(format!("libfabric {provider}").as_bytes()).max(REACH_BY_LINK + 1)
}

/// Names of providers, for [`describe`].
const PROVIDERS: [&str; 5] = ["tcp", "tcp;ofi_rxm", "verbs;ofi_rxm", "efa", "shm"];
/// The high byte of [`reach_by_shm`].
const SHM: u32 = 0x53 << 24;

/// Memory is reached by libfabric's provider shm, of this version (24 bits): its processes share structures that differ
/// from version to version.
pub(crate) fn reach_by_shm(version: u32) -> u32 {
    SHM | version & 0x00ff_ffff
}

/// The way to reach memory that has this number, in words.
fn describe(reach: u32) -> String {
    if reach == REACH_BY_LINK {
        return "fabric tcp or shm".into();
    }
    if let Some(provider) = PROVIDERS.into_iter().find(|provider| reach_by(provider) == reach) {
        let of = match provider {
            "tcp;ofi_rxm" => " (of 1.17)",
            "tcp" => " (of 1.18 or later)",
            "shm" => " (of a node of an earlier version)",
            _ => "",
        };
        return format!("libfabric with provider {provider}{of}");
    }
    let [high, major, minor, revision] = reach.to_be_bytes();
    match u32::from(high) << 24 {
        SHM => format!("libfabric {major}.{minor}.{revision} with provider shm"),
        _ => format!("another provider of libfabric ({reach:#010x})"),
    }
}

/// Why a connection is not one of this fabric's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    /// The other side speaks another protocol.
    #[error("no fabric answers there: it began with {0:02x?}")]
    Stranger([u8; 4]),
    /// The other side speaks another version.
    #[error("it speaks version {0} of the fabric's protocol, this process speaks {VERSION}")]
    Version(u16),
    /// The bytes were damaged.
    #[error("its hello is damaged")]
    Damaged,
    /// The process there is not the wanted one.
    #[error("peer {wanted} was wanted there, but it is peer {found}: check the addresses")]
    WrongPeer {
        /// The peer that the connecting side wanted.
        wanted: PeerId,
        /// The peer that is there.
        found: PeerId,
    },
    /// The right process, on another fabric.
    #[error("its fabric is {}, this process's is {}: all nodes need the same", describe(*.theirs), describe(*.ours))]
    OtherReach {
        /// How this process reaches memory.
        ours: u32,
        /// How the other one does.
        theirs: u32,
    },
}

/// The hello of `own` to `wanted`; memory is reached by `reach`.
pub(crate) fn hello(own: PeerId, wanted: PeerId, reach: u32, connection: Connection) -> [u8; HELLO] {
    encode(connection as u16, own, wanted, reach)
}

/// Why a hello was refused, and its bytes, if it came as a whole.
type Refused = (HelloError, Option<[u8; HELLO]>);

/// Checks a hello to `own`. Returns the peer that sent it, and what the connection is for; or the error, with a reply if
/// the other side may understand it.
pub(crate) fn check_hello(own: PeerId, reach: u32, bytes: &[u8; HELLO]) -> Result<(PeerId, Connection), Refused> {
    match decode(bytes) {
        Ok(Hello { wanted, .. }) if wanted != own => {
            Err((HelloError::WrongPeer { wanted, found: own }, Some(encode(NOT_ME, own, wanted, reach))))
        }
        Ok(Hello { reach: theirs, .. }) if theirs != reach => {
            Err((HelloError::OtherReach { ours: reach, theirs }, Some(encode(OTHER_REACH, own, own, reach))))
        }
        Ok(Hello { own: from, verdict, .. }) => match verdict {
            0 => Ok((from, Connection::Link)),
            1 => Ok((from, Connection::Urgent)),
            _ => Err((HelloError::Damaged, None)),
        },
        Err(error @ HelloError::Version(_)) => Err((error, Some(encode(OTHER_VERSION, own, own, reach)))),
        Err(error) => Err((error, None)),
    }
}

/// The reply by which `own` accepts a connection.
pub(crate) fn welcome(own: PeerId, reach: u32) -> [u8; HELLO] {
    encode(WELCOME, own, own, reach)
}

/// Checks the reply to a hello that wanted `wanted`.
pub(crate) fn check_reply(wanted: PeerId, reach: u32, bytes: &[u8; HELLO]) -> Result<(), HelloError> {
    let Hello { verdict, own: found, reach: theirs, .. } = decode(bytes)?;
    match verdict {
        WELCOME | OTHER_REACH if theirs != reach => Err(HelloError::OtherReach { ours: reach, theirs }),
        WELCOME if found == wanted => Ok(()),
        WELCOME | NOT_ME => Err(HelloError::WrongPeer { wanted, found }),
        _ => Err(HelloError::Damaged),
    }
}

fn encode(verdict: u16, own: PeerId, wanted: PeerId, reach: u32) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&verdict.to_le_bytes());
    bytes[8..12].copy_from_slice(&own.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&wanted.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&reach.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The content of a hello or a reply.
struct Hello {
    verdict: u16,
    own: PeerId,
    wanted: PeerId,
    reach: u32,
}

fn decode(bytes: &[u8; HELLO]) -> Result<Hello, HelloError> {
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
    Ok(Hello { verdict: short(6), own: PeerId(half(8)), wanted: PeerId(half(12)), reach: half(16) })
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
