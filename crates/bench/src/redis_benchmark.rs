//! Sends commands of Redis with `redis-benchmark`, which comes with Redis. Blocks the calling thread until it ends.

use crate::options::Failure;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;

/// Keys, all with the prefix `key:`.
pub(crate) const KEYS: u64 = 100_000;
/// Bytes of a value.
const VALUE_BYTES: u32 = 100;
/// Connections.
const CONNECTIONS: u32 = 50;
const DRIVER: &str = "redis-benchmark";

/// Commands of one kind, of random keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands {
    /// The kind, as `redis-benchmark` names it: `get` or `set`.
    pub(crate) test: &'static str,
    /// How many.
    pub(crate) count: u64,
    /// How many are in flight on each connection.
    pub(crate) depth: u32,
}

/// Sends the commands to a node, as a user with a password if one is given. Returns the commands per second.
///
/// # Errors
/// `redis-benchmark` is not installed, or fails.
pub(crate) fn drive(node: SocketAddr, commands: Commands, user: Option<(&str, &str)>) -> Result<f64, Failure> {
    let Commands { test, count, depth } = commands;
    let mut command = Command::new(DRIVER);
    command.args(["-h", &node.ip().to_string(), "-p", &node.port().to_string(), "-t", test, "--csv"]);
    command.args(["-n", &count.to_string(), "-c", &CONNECTIONS.to_string(), "-P", &depth.to_string()]);
    command.args(["-d", &VALUE_BYTES.to_string(), "-r", &KEYS.to_string()]);
    if let Some((user, password)) = user {
        command.args(["--user", user, "-a", password]);
    }
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{DRIVER} is not installed: it comes with Redis (package redis-tools)"),
        _ => format!("{DRIVER}: {error}"),
    })?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let rate = rate_of(&text, test).filter(|_| output.status.success());
    Ok(rate.ok_or_else(|| format!("{DRIVER} has no result: {text}{errors}"))?)
}

/// The rate in the CSV of `redis-benchmark`: the second field of the line of this test.
fn rate_of(csv: &str, test: &str) -> Option<f64> {
    let fields = |line: &str| line.split(',').map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let line =
        csv.lines().map(fields).find(|fields| fields.first().is_some_and(|name| name.eq_ignore_ascii_case(test)));
    line?.get(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_test() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"1.50\",\"2\"\n\"GET\",\"123456.78\",\"0.5\"\n";
        assert_eq!((rate_of(csv, "get"), rate_of(csv, "set")), (Some(123_456.78), Some(1.5)));
        for odd in ["", "\"GET\"\n", "\"GET\",\"many\"\n", "ERR\n"] {
            assert_eq!(rate_of(odd, "get"), None, "{odd}");
        }
    }
}
