//! A minimal HTTP client for a node's admin port: one GET, one answer, blocking, with a time limit.

use crate::access::Access;
use crate::address::connect;
use leeward_format::status::NodeStatus;
use std::io::{self, Read, Write};
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest accepted answer, in bytes.
const LONGEST_ANSWER: u64 = 64 << 20;

impl Access {
    /// Gets `path` from the admin port at `address` (`host:port`). Returns the HTTP status and the body.
    ///
    /// # Errors
    /// The node cannot be reached, does not answer within `timeout`, or does not speak HTTP.
    pub fn get(&self, address: &str, path: &str, timeout: Duration) -> io::Result<(u16, Vec<u8>)> {
        let stream = connect(address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut channel = self.channel(address, stream)?;
        channel.establish().map_err(too_late)?;
        let header = self.credentials().map(|credentials| credentials.header());
        let header = header.as_ref().map_or_else(String::new, |header| format!("Authorization: {}\r\n", **header));
        let header = Zeroizing::new(header);
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n");
        let request = Zeroizing::new(format!("{head}{}Connection: close\r\n\r\n", *header));
        channel.write_all(request.as_bytes()).map_err(too_late)?;
        let mut answer = Vec::new();
        channel.take(LONGEST_ANSWER).read_to_end(&mut answer).map_err(too_late)?;
        let why = match answer.first() {
            Some(&TLS_ALERT) => "it speaks TLS only: give --connect an address with +tls",
            _ => "the answer is not HTTP",
        };
        parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// The status of the node whose admin port is at `address` (`host:port`).
    ///
    /// # Errors
    /// The node cannot be reached, does not answer within `timeout`, or does not answer with a status.
    pub fn status(&self, address: &str, timeout: Duration) -> io::Result<NodeStatus> {
        match self.get(address, "/status", timeout)? {
            (200, body) => {
                serde_json::from_slice(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            (401 | 403, body) => {
                let why = String::from_utf8_lossy(&body).trim_end().to_owned();
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            (code, _) => Err(io::Error::other(format!("/status answers {code}"))),
        }
    }
}

/// First byte of what a side with TLS answers to one without.
const TLS_ALERT: u8 = 21;

/// Replaces the system's error of a read that timed out by a clear one.
pub(crate) fn too_late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
        }
        _ => error,
    }
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let head_end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[head_end + 4..].to_vec()))
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
