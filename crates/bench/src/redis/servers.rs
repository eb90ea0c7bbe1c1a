//! Redis servers of this machine: one with replicas, in memory, as processes of `redis-server`.
//!
//! Dropping [`Servers`] ends the processes, and so does the end of this process. Belongs to the main thread: the kernel
//! ends them with the thread that started them.

use crate::options::Failure;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PROGRAM: &str = "redis-server";
/// How long servers may take until all replicas are in sync.
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// Most bytes of an answer to INFO.
const MOST_INFO_BYTES: u64 = 64 << 10;

/// Running servers, of which the first is replicated by the others.
pub(super) struct Servers {
    address: SocketAddr,
    processes: Vec<Child>,
}

impl Servers {
    /// Starts one server and so many replicas, which write nothing to disk, and waits until all are in sync.
    ///
    /// # Errors
    /// `redis-server` is not installed, or a server does not start in time.
    pub(super) fn start(replicas: usize, directory: &Path) -> Result<Servers, Failure> {
        check_installed()?;
        let addresses = free_addresses(replicas + 1)?;
        let mut servers = Servers { address: addresses[0], processes: Vec::new() };
        for address in &addresses {
            // The kernel ends it with this process, however that ends.
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", PROGRAM]);
            command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(directory);
            if *address != servers.address {
                command.args(["--replicaof", &servers.address.ip().to_string(), &servers.address.port().to_string()]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            servers.processes.push(command.spawn().map_err(|error| format!("setpriv (package util-linux): {error}"))?);
        }
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(error) = servers.check() {
            if Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(LOOK);
        }
        Ok(servers)
    }

    /// Checks that all replicas are in sync.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (wanted, found) = (self.processes.len() - 1, replicas_in_sync(&info(self.address)?));
        match found == wanted {
            true => Ok(()),
            false => Err(format!("{found} of {wanted} replicas of {PROGRAM} are in sync").into()),
        }
    }

    /// Where the first listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Process ids of all.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // One that has ended already cannot be killed.
            process.kill().ok();
            process.wait().ok();
        }
    }
}

fn check_installed() -> Result<(), Failure> {
    match Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{PROGRAM} is not installed: it is Redis (package redis-server)").into())
        }
        Err(error) => Err(format!("{PROGRAM}: {error}").into()),
    }
}

/// Loopback addresses that were free a moment ago.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, Failure> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}

/// What a server says about its replicas.
fn info(address: SocketAddr) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(READY_WITHIN))?;
    stream.write_all(b"INFO replication\r\n")?;
    let mut reader = BufReader::new(stream).take(MOST_INFO_BYTES);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let bytes = line.trim_end().strip_prefix('$').and_then(|len| len.parse().ok());
    let bytes = bytes.ok_or_else(|| format!("{PROGRAM} answers INFO by {}", line.trim_end()))?;
    let mut text = String::new();
    reader.take(bytes).read_to_string(&mut text)?;
    Ok(text)
}

/// Replicas in the answer to `INFO replication` that have all data.
fn replicas_in_sync(info: &str) -> usize {
    let is_replica = |line: &&str| line.starts_with("slave") && line.contains(":ip=");
    info.lines().filter(is_replica).filter(|line| line.contains("state=online")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_that_have_all_data_count() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
             slave0:ip=127.0.0.1,port=4001,state=online,offset=14,lag=0\r\n\
             slave1:ip=127.0.0.1,port=4002,state=wait_bgsave,offset=0,lag=0\r\nmaster_repl_offset:14\r\n";
        assert_eq!(replicas_in_sync(info), 1);
        assert_eq!(replicas_in_sync(&info.replace("wait_bgsave", "online")), 2);
        assert_eq!(replicas_in_sync("role:master\r\nconnected_slaves:0\r\n"), 0);
    }
}
