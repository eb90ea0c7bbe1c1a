//! The address of a node and the way to reach it, parsed from one string.

use crate::options::ClientError;
use std::time::Duration;

/// Longest spin time that an address may set, in microseconds: a tenth of a second, as for nodes.
const MOST_SPIN_US: u64 = 100_000;

/// How requests and answers are transported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
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
    /// As [`Way::Rings`], in memory that is shared with the node, so that the client can answer gets by [direct
    /// reads](crate::ClientOptions::direct_reads). Connecting fails if it is not.
    Direct {
        /// As in [`Way::Rings`].
        spin: Option<Duration>,
    },
}

/// A node's native address, as users write it.
///
/// ```
/// use leeward_client::{Address, Way};
///
/// let address = Address::parse("leeward+ring://127.0.0.1:7479?spin_us=50")?;
/// let spin = Some(std::time::Duration::from_micros(50));
/// assert_eq!((address.way, &*address.host_port), (Way::Rings { spin }, "127.0.0.1:7479"));
/// assert_eq!(Address::parse("127.0.0.1:7479")?, Address::parse("leeward://127.0.0.1:7479")?);
/// # Ok::<(), leeward_client::ClientError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The way to reach it.
    pub way: Way,
    /// `host:port`.
    pub host_port: String,
}

impl Address {
    /// Parses `host:port`, `leeward://host:port`, `leeward+ring://host:port` or `leeward+direct://host:port`; the last
    /// two may have `?spin_us=N`, up to 100,000 microseconds.
    ///
    /// # Errors
    /// [`ClientError::Address`]: the text has none of these forms.
    pub fn parse(text: &str) -> Result<Address, ClientError> {
        let bad = |reason: &str| ClientError::Address { address: text.to_string(), reason: reason.into() };
        let bad_spin = || bad("expected ?spin_us=N behind host:port, N up to 100000");
        let (way, rest) = match text.split_once("://") {
            None => (Way::Tcp, text),
            Some(("leeward", rest)) => (Way::Tcp, rest),
            Some(("leeward+ring", rest)) => {
                let (spin, rest) = split_spin(rest).ok_or_else(bad_spin)?;
                (Way::Rings { spin }, rest)
            }
            Some(("leeward+direct", rest)) => {
                let (spin, rest) = split_spin(rest).ok_or_else(bad_spin)?;
                (Way::Direct { spin }, rest)
            }
            Some(_) => return Err(bad("expected leeward://, leeward+ring:// or leeward+direct://host:port")),
        };
        let host_port = rest.strip_suffix('/').unwrap_or(rest);
        match host_port.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(1..))) if !host.is_empty() && !host.contains('/') => {
                Ok(Address { way, host_port: host_port.to_string() })
            }
            _ => Err(bad("expected host:port, such as 127.0.0.1:7479")),
        }
    }

    /// Parses all of `texts`, which must have the same way.
    pub(crate) fn parse_all<S: AsRef<str>>(texts: &[S]) -> Result<(Way, Vec<String>), ClientError> {
        let mut all = texts.iter().map(|text| Address::parse(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let way = all.first().map_or(Way::Tcp, |first| first.way);
        if let Some(other) = all.iter().find(|address| address.way != way) {
            let reason =
                "the addresses of one cluster are alike: all leeward+ring://, or all leeward+direct://, with the same options, or none".into();
            return Err(ClientError::Address { address: other.host_port.clone(), reason });
        }
        Ok((way, all.drain(..).map(|address| address.host_port).collect()))
    }
}

/// The spin time that an option behind `host:port` sets, if there is one, and the text before it. `None` for another
/// option.
fn split_spin(rest: &str) -> Option<(Option<Duration>, &str)> {
    let Some((rest, option)) = rest.split_once('?') else { return Some((None, rest)) };
    let us = option.strip_prefix("spin_us=")?.parse().ok().filter(|us| *us <= MOST_SPIN_US)?;
    Some((Some(Duration::from_micros(us)), rest))
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
