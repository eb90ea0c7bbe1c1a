//! The part of ZooKeeper's wire protocol that Leeward uses: the messages of a client of an ensemble (3.6 or newer).
//!
//! ```text
//! packet    length i32, body                     big-endian throughout; a string or buffer is a length i32 and bytes,
//! connect   protocol, zxid, timeout, session, password, read_only             where -1 stands for none
//!           <- protocol, timeout, session, password, ...
//! request   xid, type, body                      xid -2: ping, -4: credentials
//!           <- xid, zxid, error, body            xid -1: a watched path changed
//! multi     (type, done, error, body)* , end     <- (type, done, error, result)* , end; of changes, or of reads
//! ```
//! The structures are those of ZooKeeper's own `zookeeper.jute`; golden bytes of each are in this module's tests.
//! Decoding bounds every length by the bytes at hand. The types are plain data; any thread may use them.

use crate::DecodeError;
use crate::coordinator::MAX_NODE_BYTES;
use bytes::Bytes;

/// Longest packet that a server takes by default (`jute.maxbuffer`), in bytes of body.
pub const MAX_REQUEST_BYTES: usize = 0xf_ffff;
/// Longest packet that is read, in bytes of body: values, or the names beneath a path.
pub const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// Most paths that are read at once, so that the answer is no longer than [`MAX_REPLY_BYTES`], however long the values.
pub const MAX_READS: usize = 64;
/// Bytes before a packet's body.
pub const LENGTH_BYTES: usize = 4;
/// Bytes of the secret that continues a session.
pub const PASSWORD_BYTES: usize = 16;

const MULTI_HEADER_BYTES: usize = 9;
const STAT_BYTES: usize = 68;
const _: () = assert!(MAX_READS * (MULTI_HEADER_BYTES + 4 + MAX_NODE_BYTES + STAT_BYTES) + 64 <= MAX_REPLY_BYTES);

/// Xid of a ping and its answer.
pub const PING_XID: i32 = -2;
/// Xid of credentials and their answer.
pub const AUTH_XID: i32 = -4;
/// Xid of an event of a watch.
pub const WATCH_XID: i32 = -1;

/// Error codes of replies.
pub mod error {
    /// Done.
    pub const OK: i32 = 0;
    /// The server does not know the request.
    pub const UNIMPLEMENTED: i32 = -6;
    /// The path does not exist.
    pub const NO_NODE: i32 = -101;
    /// These credentials may not do that.
    pub const NO_AUTH: i32 = -102;
    /// The path has another version.
    pub const BAD_VERSION: i32 = -103;
    /// An ephemeral path holds no others.
    pub const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    /// The path exists already.
    pub const NODE_EXISTS: i32 = -110;
    /// There are paths beneath it.
    pub const NOT_EMPTY: i32 = -111;
    /// The session is over.
    pub const SESSION_EXPIRED: i32 = -112;
    /// The server refuses the credentials.
    pub const AUTH_FAILED: i32 = -115;
    /// The session has moved to another server.
    pub const SESSION_MOVED: i32 = -118;
    /// A session that only one server knows holds no ephemeral paths.
    pub const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;
    /// The server takes only clients that have authenticated, and closes the connection.
    pub const CLOSED_REQUIRES_AUTHENTICATION: i32 = -124;
    /// The quota of a path is exceeded.
    pub const QUOTA_EXCEEDED: i32 = -125;
    /// The request waited for too long, and was not executed.
    pub const THROTTLED: i32 = -127;
}

/// The access rights of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A client with the credentials of the session that makes it may do everything, others nothing.
    Creator,
    /// Every client may do everything.
    Anyone,
}

/// One change. The version of a path is the number of its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a path.
    Create {
        /// Where.
        path: String,
        /// With which value; `None` is not the empty one.
        value: Option<Bytes>,
        /// It is removed with the session.
        ephemeral: bool,
        /// Its access rights.
        access: Access,
    },
    /// Replace a value.
    Set {
        /// Where.
        path: String,
        /// The new value.
        value: Option<Bytes>,
        /// The version to be replaced; `None`: any.
        version: Option<i32>,
    },
    /// Remove a path.
    Delete {
        /// Where.
        path: String,
        /// The version to be removed; `None`: any.
        version: Option<i32>,
    },
    /// Change nothing, but fail if the version is another.
    Check {
        /// Where.
        path: String,
        /// The version that is expected.
        version: i32,
    },
}

impl Step {
    /// The path that it is about.
    pub fn path(&self) -> &str {
        match self {
            Step::Create { path, .. }
            | Step::Set { path, .. }
            | Step::Delete { path, .. }
            | Step::Check { path, .. } => path,
        }
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Keep the session alive.
    Ping,
    /// Authenticate as `user:password`.
    Digest(&'a str),
    /// Catch up with the leader.
    Sync(&'a str),
    /// Watch this path and all paths beneath it, until the connection ends.
    Watch(&'a str),
    /// Values and numbers of paths, at most [`MAX_READS`].
    Data(&'a [String]),
    /// Names beneath a path.
    Children(&'a str),
    /// All of these, or none.
    Multi(&'a [Step]),
    /// End the session.
    Close,
}

/// Begins a session, or continues one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// The newest change that the client has seen: a server that has not seen it refuses.
    pub last_zxid: i64,
    /// Silence in milliseconds after which the session is to expire.
    pub timeout_ms: i32,
    /// The session to continue; 0: begin a new one.
    pub session: i64,
    /// The password of the session.
    pub password: [u8; PASSWORD_BYTES],
}

/// The answer to [`Connect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The timeout that was granted, in milliseconds; 0: the session is over.
    pub timeout_ms: i32,
    /// The one that was to be continued, or a new one.
    pub session: i64,
    /// The password for continuing it.
    pub password: [u8; PASSWORD_BYTES],
}

/// The header of each later packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Xid of the request.
    pub xid: i32,
    /// Number of the newest change, or of this one; -1 for an event of a watch.
    pub zxid: i64,
    /// One of [`error`].
    pub error: i32,
}

/// The figures of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Number of the change that made it.
    pub czxid: i64,
    /// Number of the change that made its value.
    pub mzxid: i64,
    /// How often its value was replaced since it was made.
    pub version: i32,
    /// How often its access rights were replaced since it was made.
    pub aversion: i32,
    /// How many paths are directly beneath it.
    pub children: i32,
}

/// The value and figures of a path, or one of [`error`].
pub type NodeAnswer = Result<(Option<Bytes>, Stat), i32>;

/// How a watched path changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The path was created, its value was replaced, or it was removed.
    Changed,
    /// An event that does not concern values.
    Other,
}

/// Writes a packet around what `body` writes.
fn packet(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_int(out, 0);
    body(out);
    let length = i32::try_from(out.len() - start - LENGTH_BYTES).expect("a packet is shorter than 2 GiB");
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

/// Writes the first packet of a connection.
pub fn write_connect(connect: &Connect, out: &mut Vec<u8>) {
    packet(out, |out| {
        put_int(out, 0);
        put_long(out, connect.last_zxid);
        put_int(out, connect.timeout_ms);
        put_long(out, connect.session);
        put_buffer(out, Some(&connect.password));
        out.push(0); // Not read-only: refuse a server that has lost the ensemble.
    });
}

/// Writes any later packet.
pub fn write_request(xid: i32, request: &Request<'_>, out: &mut Vec<u8>) {
    let with_path = |out: &mut Vec<u8>, kind: i32, path: &str| {
        put_int(out, kind);
        put_buffer(out, Some(path.as_bytes()));
    };
    packet(out, |out| {
        put_int(out, xid);
        match request {
            Request::Ping => put_int(out, 11),
            Request::Close => put_int(out, -11),
            Request::Digest(digest) => {
                put_int(out, 100);
                put_int(out, 0);
                put_buffer(out, Some(b"digest"));
                put_buffer(out, Some(digest.as_bytes()));
            }
            Request::Sync(path) => with_path(out, 9, path),
            Request::Watch(path) => {
                with_path(out, 106, path);
                put_int(out, 1); // Persistent and recursive.
            }
            Request::Data(paths) => {
                put_int(out, 22);
                for path in *paths {
                    put_multi_header(out, GET_DATA, false);
                    put_buffer(out, Some(path.as_bytes()));
                    out.push(0);
                }
                put_multi_header(out, FAILED, true);
            }
            Request::Children(path) => {
                with_path(out, 8, path);
                out.push(0);
            }
            Request::Multi(steps) => {
                put_int(out, 14);
                for step in *steps {
                    put_multi_header(out, kind_of(step), false);
                    put_step(out, step);
                }
                put_multi_header(out, FAILED, true);
            }
        }
    });
}

/// Kind of a read in a multi, and of its result.
const GET_DATA: i32 = 4;
/// Kind of a result that is an error, and of the end of a multi.
const FAILED: i32 = -1;

fn put_multi_header(out: &mut Vec<u8>, kind: i32, done: bool) {
    put_int(out, kind);
    out.push(done.into());
    put_int(out, -1);
}

fn kind_of(step: &Step) -> i32 {
    match step {
        Step::Create { .. } => 1,
        Step::Delete { .. } => 2,
        Step::Set { .. } => 5,
        Step::Check { .. } => 13,
    }
}

fn put_step(out: &mut Vec<u8>, step: &Step) {
    /// Read, write, create, delete, administer.
    const ALL: i32 = 31;
    match step {
        Step::Create { path, value, ephemeral, access } => {
            put_buffer(out, Some(path.as_bytes()));
            put_buffer(out, value.as_deref());
            put_int(out, 1);
            put_int(out, ALL);
            let (scheme, id) = match access {
                Access::Creator => ("auth", ""),
                Access::Anyone => ("world", "anyone"),
            };
            put_buffer(out, Some(scheme.as_bytes()));
            put_buffer(out, Some(id.as_bytes()));
            put_int(out, (*ephemeral).into());
        }
        Step::Set { path, value, version } => {
            put_buffer(out, Some(path.as_bytes()));
            put_buffer(out, value.as_deref());
            put_int(out, version.unwrap_or(-1));
        }
        Step::Delete { path, version } => {
            put_buffer(out, Some(path.as_bytes()));
            put_int(out, version.unwrap_or(-1));
        }
        Step::Check { path, version } => {
            put_buffer(out, Some(path.as_bytes()));
            put_int(out, *version);
        }
    }
}

fn put_int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_long(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_buffer(out: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(value) = value else { return put_int(out, -1) };
    put_int(out, i32::try_from(value.len()).expect("a buffer is shorter than 2 GiB"));
    out.extend_from_slice(value);
}

/// The body of the first packet in `bytes`, if all of it is there.
///
/// # Errors
/// Its length is not valid.
pub fn read_packet(bytes: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = i32::from_be_bytes(*length);
    match usize::try_from(length) {
        Ok(length) if length <= MAX_REPLY_BYTES => Ok(rest.get(..length)),
        _ => Err(DecodeError::invalid("a packet of ZooKeeper", format!("of {length} bytes"))),
    }
}

/// A reader of a packet's body.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// From what [`read_packet`] found.
    pub fn new(bytes: &'a [u8]) -> Body<'a> {
        Body(bytes)
    }

    fn bytes(&mut self, needed: usize) -> Result<&'a [u8], DecodeError> {
        let available = self.0.len();
        let (taken, rest) = self.0.split_at_checked(needed).ok_or(DecodeError::Short {
            what: "a packet of ZooKeeper",
            needed,
            available,
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes were taken"))
    }

    fn int(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn long(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn buffer(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.int()? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => self.bytes(length).map(Some),
                Err(_) => Err(DecodeError::invalid("a buffer of ZooKeeper", format!("of {length} bytes"))),
            },
        }
    }

    fn string(&mut self) -> Result<String, DecodeError> {
        let bytes = self.buffer()?.unwrap_or_default();
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|error| DecodeError::invalid("a string of ZooKeeper", error.to_string()))?.to_owned())
    }

    fn stat(&mut self) -> Result<Stat, DecodeError> {
        let (czxid, mzxid) = (self.long()?, self.long()?);
        // The times of both changes.
        self.bytes(16)?;
        let version = self.int()?;
        // How often paths directly beneath it came or went.
        self.bytes(4)?;
        let aversion = self.int()?;
        // Its session, and the length of its value.
        self.bytes(12)?;
        let children = self.int()?;
        self.bytes(8)?;
        Ok(Stat { czxid, mzxid, version, aversion, children })
    }

    /// The answer to [`Connect`].
    ///
    /// # Errors
    /// The bytes are none.
    pub fn connected(mut self) -> Result<Connected, DecodeError> {
        self.int()?;
        let (timeout_ms, session) = (self.int()?, self.long()?);
        let found = self.buffer()?.unwrap_or_default();
        let password = found.try_into();
        let password =
            password.map_err(|_| DecodeError::invalid("a session's password", format!("of {} bytes", found.len())))?;
        Ok(Connected { timeout_ms, session, password })
    }

    /// The header of any later packet.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn header(&mut self) -> Result<ReplyHeader, DecodeError> {
        Ok(ReplyHeader { xid: self.int()?, zxid: self.long()?, error: self.int()? })
    }

    /// The event of a watch: its kind and path.
    ///
    /// # Errors
    /// The bytes are no such event.
    pub fn watched(mut self) -> Result<(Watched, String), DecodeError> {
        let kind = self.int()?;
        self.int()?;
        let what = if matches!(kind, 1..=3) { Watched::Changed } else { Watched::Other };
        Ok((what, self.string()?))
    }

    /// The answer to [`Request::Data`]: value and figures of each path, or an error.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn data(mut self) -> Result<Vec<NodeAnswer>, DecodeError> {
        let mut found = Vec::new();
        while let Some(kind) = self.result()? {
            found.push(match kind {
                GET_DATA => Ok((self.buffer()?.map(Bytes::copy_from_slice), self.stat()?)),
                FAILED => Err(self.int()?),
                _ => return Err(unknown_result(kind)),
            });
        }
        Ok(found)
    }

    /// The answer to [`Request::Children`].
    ///
    /// # Errors
    /// The bytes are none.
    pub fn children(mut self) -> Result<Vec<String>, DecodeError> {
        // Each name takes at least four bytes, so a hostile count ends soon.
        (0..self.int()?).map(|_| self.string()).collect()
    }

    /// The answer to [`Request::Multi`]: `None` if all was done, else the first step that failed, and its error.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn multi(mut self) -> Result<Option<(usize, i32)>, DecodeError> {
        let mut index = 0;
        while let Some(kind) = self.result()? {
            match kind {
                1 => drop(self.string()?),
                2 | 13 => {}
                5 => drop(self.stat()?),
                FAILED => match self.int()? {
                    error::OK => {}
                    failed => return Ok(Some((index, failed))),
                },
                _ => return Err(unknown_result(kind)),
            }
            index += 1;
        }
        Ok(None)
    }

    /// The kind of the next result of a multi; `None` at its end.
    fn result(&mut self) -> Result<Option<i32>, DecodeError> {
        let (kind, done, _) = (self.int()?, self.array::<1>()? == [1], self.int()?);
        Ok((!done).then_some(kind))
    }
}

fn unknown_result(kind: i32) -> DecodeError {
    DecodeError::invalid("a result of ZooKeeper", format!("of kind {kind}"))
}

#[cfg(test)]
#[path = "zookeeper_tests.rs"]
mod tests;
