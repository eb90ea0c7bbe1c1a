//! Asks one given node for its identity and its view of the cluster: blocking, on a connection of its own. For tools
//! that must show nodes outside of the cluster, where a [`Session`](crate::Session) would ask another node.

use crate::access::{Access, auth};
use crate::address::{Address, connect};
use crate::admin::too_late;
use leeward_format::cluster::RegionMap;
use leeward_format::frame::{FrameKind, PROTOCOL_VERSION, read_frame, write_frame};
use leeward_format::op::{MAX_MESSAGE_BYTES, Op, OpResult, Reply, Request};
use leeward_format::table::TableName;
use leeward_format::{DecodeError, ServerId};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// The answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// As its operator numbered it.
    pub server: ServerId,
    /// Where operators reach it.
    pub admin_address: String,
    /// Its region map, without regions if it knows none.
    pub map: RegionMap,
}

impl Access {
    /// Asks the node at `address` (a native [address](Address)), over TCP, as the client `name`.
    ///
    /// # Errors
    /// It cannot be reached, does not answer within `timeout`, or does not speak the native protocol.
    pub fn shake_hands(&self, address: &str, name: &str, timeout: Duration) -> io::Result<Handshake> {
        let mut map = None;
        self.converse(address, name, &[Request::Map, Request::Identify], timeout, |reply| {
            match (reply, map.take()) {
                (Reply::Routes(_), None) => {}
                (Reply::Map(newer), _) => map = Some(newer),
                (Reply::Node { server, admin_address }, Some(map)) => {
                    return Ok(Some(Handshake { server, admin_address, map }));
                }
                _ => return Err(unasked()),
            }
            Ok(None)
        })
    }

    /// Lets the node at `address` execute an operation about its own data.
    ///
    /// # Errors
    /// As [`Access::shake_hands`].
    pub fn ask_node(&self, address: &str, name: &str, op: Op, timeout: Duration) -> io::Result<OpResult> {
        let request = Request::Ops { id: 1, direct: true, table: TableName::default(), ops: vec![op] };
        self.converse(address, name, &[request], timeout, |reply| match reply {
            Reply::Routes(_) => Ok(None),
            Reply::Results { id: 1, mut results } if results.len() == 1 => Ok(results.pop()),
            _ => Err(unasked()),
        })
    }

    /// Says hello and sends `requests`. `hear` gets each reply until it returns a result.
    fn converse<T>(
        &self,
        address: &str,
        name: &str,
        requests: &[Request],
        timeout: Duration,
        mut hear: impl FnMut(Reply) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let until = Instant::now() + timeout;
        let address =
            Address::parse(address).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?.host_port;
        let stream = connect(&*address, timeout)?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_read_timeout(Some(timeout))?;
        let mut stream = self.channel(&address, stream)?;
        stream.establish().map_err(too_late)?;
        let mut out = Vec::new();
        // This client does not route, so it claims to know all routes.
        if let Some(credentials) = self.credentials() {
            write_frame(FrameKind::Request, &auth(credentials), &mut out);
        }
        write_frame(FrameKind::Request, &Request::Hello { client: name.into(), known: u64::MAX }, &mut out);
        requests.iter().for_each(|request| write_frame(FrameKind::Request, request, &mut out));
        stream.write_all(&out).map_err(too_late)?;
        let (mut input, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            while let Some((reply, bytes)) =
                read_frame(FrameKind::Reply, &input, MAX_MESSAGE_BYTES).map_err(odd_reply)?
            {
                input.drain(..bytes);
                let reply = match reply {
                    Reply::Auth { refused: None } => continue,
                    Reply::Auth { refused: Some(error) } => {
                        return Err(io::Error::new(ErrorKind::PermissionDenied, error));
                    }
                    reply => reply,
                };
                if let Some(heard) = hear(reply)? {
                    return Ok(heard);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(too_late(ErrorKind::TimedOut.into()));
            }
            stream.stream().set_read_timeout(Some(left))?;
            match stream.read(&mut piece) {
                Ok(0) => {
                    let hint = match stream.is_encrypted() || !input.is_empty() {
                        true => "",
                        false => "; if it has TLS, the address begins with leeward+tls://",
                    };
                    let why = format!("the node closed the connection{hint}");
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
                }
                Ok(bytes) => input.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(too_late(error)),
            }
        }
    }
}

fn unasked() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "an answer to a question that was not asked")
}

/// The error for bytes that are no reply, or one of another protocol version.
pub(crate) fn odd_reply(error: DecodeError) -> io::Error {
    let why = match error.other_version() {
        Some(found) => format!(
            "not a node, or one of another version of Leeward: it speaks version {found} of the protocol, this program version \
             {PROTOCOL_VERSION}; use the program of the cluster's version"
        ),
        None => format!("no native port of a node: {error}"),
    };
    io::Error::new(ErrorKind::InvalidData, why)
}
