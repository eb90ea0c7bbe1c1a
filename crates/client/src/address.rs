//! The address of a node and the way to reach it, parsed from one string.

use crate::options::ClientError;
use leeward_format::user::UserName;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Longest spin time that an address may set, in microseconds: a tenth of a second, as for nodes.
const MOST_SPIN_US: u64 = 100_000;

/// How requests and answers are transported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPath {
    /// Over a TCP connection.
    Tcp,
    /// Through rings in registered memory (Tebis 3.4): one-sided writes into the node's memory, and back into the
    /// client's. The node says which fabric it offers; by default that is shared memory, for clients on its host. The
    /// TCP connection remains for the handshake, for waking a side that sleeps, and for messages that no ring can hold.
    Rings {
        /// How long a call spins for answers before it sleeps, in place of
        /// [`ClientOptions::ring_spin`](crate::ClientOptions::ring_spin).
        spin: Option<Duration>,
    },
    /// As [`RequestPath::Rings`], in memory that is shared with the node, so that the client can answer gets by [direct
    /// reads](crate::ClientOptions::direct_reads). Connecting fails if it is not.
    Direct {
        /// As in [`RequestPath::Rings`].
        spin: Option<Duration>,
    },
}

/// A node's native address, as users write it.
///
/// ```
/// use leeward_client::{Address, RequestPath};
///
/// let address = Address::parse("leeward+ring://127.0.0.1:7479?spin_us=50")?;
/// let spin = Some(std::time::Duration::from_micros(50));
/// assert_eq!((address.way, &*address.host_port), (RequestPath::Rings { spin }, "127.0.0.1:7479"));
/// assert_eq!(Address::parse("127.0.0.1:7479")?, Address::parse("leeward://127.0.0.1:7479")?);
/// # Ok::<(), leeward_client::ClientError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The way to reach it.
    pub way: RequestPath,
    /// The file with the certificates of the authorities that sign those of nodes, in PEM; `None` without TLS.
    pub tls_ca: Option<PathBuf>,
    /// The user to connect as, if any.
    pub user: Option<String>,
    /// The file with its password.
    pub password_file: Option<PathBuf>,
    /// `host:port`.
    pub host_port: String,
}

/// Connects to the first of the addresses of a host that takes the connection within `timeout`.
///
/// # Errors
/// None does. The error is that of the last.
pub(crate) fn connect(host_port: impl ToSocketAddrs, timeout: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in host_port.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Addresses of one cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) way: RequestPath,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    /// `host:port` of each.
    pub(crate) addresses: Vec<String>,
}

/// What may come behind `host:port`.
#[derive(Default)]
struct Choices {
    spin: Option<Duration>,
    tls_ca: Option<PathBuf>,
    password_file: Option<PathBuf>,
}

impl Address {
    /// Parses `host:port`, `leeward://host:port`, `leeward+ring://host:port` or `leeward+direct://host:port`. The last two
    /// may have `?spin_us=N`, up to 100,000 microseconds. With `+tls` before `://`, and `?ca=FILE` behind, connections are
    /// encrypted: `leeward+tls://host:port?ca=FILE`, `leeward+ring+tls://host:port?ca=FILE&spin_us=N`. With `user@` before
    /// the host, connections are those of a user, whose password may be in a file: `leeward+tls://alice@host:port?ca=FILE&
    /// password_file=FILE`. No address has a password.
    ///
    /// # Errors
    /// [`ClientError::Address`]: the text has none of these forms.
    pub fn parse(text: &str) -> Result<Address, ClientError> {
        let bad = |reason: &str| ClientError::Address { address: without_password(text), reason: reason.into() };
        let (scheme, rest) = text.split_once("://").unwrap_or(("leeward", text));
        let (way, has_tls) = match scheme.strip_suffix("+tls") {
            Some(way) => (way, true),
            None => (scheme, false),
        };
        let (rest, behind) = rest.split_once('?').map_or((rest, None), |(rest, behind)| (rest, Some(behind)));
        let wants_spin = matches!(way, "leeward+ring" | "leeward+direct");
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let choices = behind.map_or(Some(Choices::default()), |behind| choices(behind, wants_spin, has_tls));
        let choices = choices.ok_or_else(|| {
            bad(match (wants_spin, has_tls) {
                _ if user.is_some() => {
                    "expected ca=FILE (with TLS), password_file=FILE or spin_us=N (with rings) behind host:port"
                }
                (true, true) => "expected ?ca=FILE&spin_us=N behind host:port, N up to 100000",
                (true, false) => "expected ?spin_us=N behind host:port, N up to 100000",
                (false, true) => "expected ?ca=FILE behind host:port",
                (false, false) => "expected host:port and nothing behind it",
            })
        })?;
        let Choices { spin, tls_ca, password_file } = choices;
        let is_name = |user: &str| user.parse::<UserName>().is_ok();
        if user.is_some_and(|user| !is_name(user)) || user.is_none() && password_file.is_some() {
            return Err(bad("expected USER@ before the host, and no password: that is in ?password_file=FILE, or in \
                 LEEWARD_PASSWORD"));
        }
        if has_tls && tls_ca.is_none() {
            return Err(bad("TLS needs ?ca=FILE behind host:port: the authority that signs the certificates of nodes"));
        }
        let way = match way {
            "leeward" => RequestPath::Tcp,
            "leeward+ring" => RequestPath::Rings { spin },
            "leeward+direct" => RequestPath::Direct { spin },
            _ => {
                return Err(bad(
                    "expected leeward://, leeward+ring:// or leeward+direct://host:port, each with +tls or not",
                ));
            }
        };
        let host_port = rest.strip_suffix('/').unwrap_or(rest);
        match host_port.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(1..))) if !host.is_empty() && !host.contains('/') => {
                let (user, host_port) = (user.map(str::to_string), host_port.to_string());
                Ok(Address { way, tls_ca, user, password_file, host_port })
            }
            _ => Err(bad("expected host:port, such as 127.0.0.1:7479")),
        }
    }

    /// Parses all of `texts`, which must be alike.
    pub(crate) fn parse_all<S: AsRef<str>>(texts: &[S]) -> Result<Seeds, ClientError> {
        let all = texts.iter().map(|text| Address::parse(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let (way, tls_ca, user, password_file) = match all.first().cloned() {
            Some(Address { way, tls_ca, user, password_file, .. }) => (way, tls_ca, user, password_file),
            None => (RequestPath::Tcp, None, None, None),
        };
        let differs = |address: &&Address| {
            (address.way, &address.tls_ca, &address.user, &address.password_file)
                != (way, &tls_ca, &user, &password_file)
        };
        if let Some(other) = all.iter().find(differs) {
            let reason =
                "the addresses of one cluster are alike: all with the same scheme and options, or none with any";
            return Err(ClientError::Address { address: other.host_port.clone(), reason: reason.into() });
        }
        Ok(Seeds {
            way,
            tls_ca,
            user,
            password_file,
            addresses: all.into_iter().map(|address| address.host_port).collect(),
        })
    }
}

/// The address as it may be shown: somebody may have put a password into it.
fn without_password(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let hidden = rest.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host)));
    match hidden {
        Some((user, host)) if scheme.is_empty() => format!("{user}:...@{host}"),
        Some((user, host)) => format!("{scheme}://{user}:...@{host}"),
        None => text.to_string(),
    }
}

/// What is set behind `host:port`, if all of it is known and is set once.
fn choices(behind: &str, wants_spin: bool, has_tls: bool) -> Option<Choices> {
    let mut choices = Choices::default();
    for choice in behind.split('&') {
        match choice.split_once('=')? {
            ("spin_us", us) if wants_spin && choices.spin.is_none() => {
                let us = us.parse().ok().filter(|us| *us <= MOST_SPIN_US)?;
                choices.spin = Some(Duration::from_micros(us));
            }
            ("ca", file) if has_tls && choices.tls_ca.is_none() && !file.is_empty() => {
                choices.tls_ca = Some(file.into())
            }
            ("password_file", file) if choices.password_file.is_none() && !file.is_empty() => {
                choices.password_file = Some(file.into());
            }
            _ => return None,
        }
    }
    Some(choices)
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
