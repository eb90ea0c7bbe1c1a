//! Rotates passwords and certificates under load: three nodes with TLS serve YCSB A to a user whose password, and with
//! certificates that, are replaced again and again. No request may fail.
//!
//! Each round is what `docs/security.md` and `docs/users.md` tell an operator to do. All nodes get new certificates. The user
//! gets another password. Clients that use the new one start beside those that use the old one, which then end. The old
//! password is removed, and must not be accepted any more. Call it from any thread.

use crate::json::{check_json, write_json};
use crate::keys::even_split_points;
use crate::loaded::{Load, Requests, while_working};
use crate::operator::{IN_FORCE_WITHIN, LOOK, Made, Operator, Verdict, as_user, wait_until};
use crate::options::{self, Failure, NODES};
use crate::starter::temporary;
use crate::worker::Measured;
use crate::workload::Workload;
use crate::ycsb;
use clap::{Args, value_parser};
use leeward_client::{Grant, UserRule};
use leeward_format::cluster::TableOptions;
use leeward_operate::dev::{Cluster, DevError, NodeProcesses, Plan};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "rotation_tests.rs"]
mod tests;

/// The user that the load is of, and its rights.
const USER: &str = "load";
const GRANT: &str = "read,write@default";
/// How long nodes that are not behind take to follow a change of users.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// Line of a node's log when it uses new certificates.
const RELOADED: &str = "new certificates count for new connections";

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rounds, in each of which certificates and password are replaced
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Pair sizes and threads of the clients, memory of nodes, and where results go.
    #[command(flatten)]
    pub load: Load,
}

/// The result of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Passwords that were replaced.
    pub passwords: u32,
    /// Certificates that nodes replaced while they ran.
    pub certificates: u32,
    /// From the first round to the end of the last, in seconds.
    pub seconds: f64,
    /// The outcome of the clients' requests.
    #[serde(flatten)]
    pub requests: Requests,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { passwords, certificates, seconds, requests } = self;
        writeln!(f, "{passwords} passwords and {certificates} certificates were replaced in {seconds:.1} s")?;
        write!(f, "{requests}")
    }
}

/// Measures, prints the result, and writes what `options` ask for. Returns whether no request failed. Nodes are processes of
/// `program`; their data is below `data`, as of [`temporary`].
///
/// # Errors
/// A cluster that does not start, a file that cannot be written, new certificates that are not used, a new password that is
/// refused, or an old one that is still accepted.
pub fn run(options: &Options, program: PathBuf, data: Option<&Path>) -> Result<bool, Failure> {
    check_json(options.load.json.as_deref())?;
    let directory = temporary(data)?;
    let plan = Plan {
        tls: true,
        table: TableOptions { replicas: NODES, min_in_sync: 2, ..TableOptions::default() },
        settings: vec![("memory_budget".into(), (options.load.memory_mib << 20).to_string())],
        ..Plan::new(program, NODES, even_split_points(2 * NODES), directory.path().to_path_buf())?
    };
    let mut cluster = Cluster::start(plan)?;
    cluster.wait_until_ready(true, || false)?;
    let report = rotate(options, &mut cluster)?;
    print!("{report}");
    write_json(options.load.json.as_deref(), &report)?;
    Ok(report.requests.is_lossless())
}

fn rotate(options: &Options, cluster: &mut Cluster) -> Result<Report, Failure> {
    let addresses = cluster.addresses();
    let operator = Operator::make(&addresses)?;
    let first = Made::new();
    operator.add(USER, &first, &[GRANT.parse::<Grant>()?])?;
    thread::sleep(FOLLOWED_WITHIN);
    wait_until(&addresses, USER, &first, Verdict::Accepted)?;
    let load = options.load.of_seeds(seeds(cluster.plan(), &first)?);
    ycsb::run(&options::Options { workloads: vec![Workload::Load], ..load }, None)?;
    let begun = Instant::now();
    let mut measured = Measured::new();
    let mut clients = Clients::start(options, cluster.plan(), first)?;
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}", options.rounds);
        replace_certificates(cluster.plan())?;
        let made = Made::new();
        operator.change(USER, vec![made.rule()])?;
        thread::sleep(FOLLOWED_WITHIN);
        wait_until(&addresses, USER, &made, Verdict::Accepted)?;
        let before = std::mem::replace(&mut clients, Clients::start(options, cluster.plan(), made)?);
        let old = before.end(&mut measured)?;
        operator.change(USER, vec![UserRule::RemovePassword(old.id())])?;
        wait_until(&addresses, USER, &old, Verdict::Refused)?;
    }
    clients.end(&mut measured)?;
    cluster.check()?;
    Ok(Report {
        passwords: options.rounds,
        certificates: options.rounds * NODES,
        seconds: begun.elapsed().as_secs_f64(),
        requests: Requests::of(&measured),
    })
}

/// Addresses as the user with this password, which is in a file of its own.
fn seeds(plan: &Plan, made: &Made) -> Result<Vec<String>, Failure> {
    let file = plan.directory.join(format!("password-{}", made.id()));
    fs::write(&file, made.password.bytes())?;
    let of = |node| format!("{}&password_file={}", as_user(&plan.address(node, false), USER), file.display());
    Ok((1..=NODES).map(of).collect())
}

/// Clients that use one password, on a thread of their own.
struct Clients {
    made: Made,
    /// Dropping it ends them.
    goes_on: Sender<()>,
    thread: JoinHandle<Result<Measured, Failure>>,
}

impl Clients {
    /// Starts them, and waits until they are connected.
    fn start(options: &Options, plan: &Plan, made: Made) -> Result<Clients, Failure> {
        let load = options.load.of_seeds(seeds(plan, &made)?);
        let (goes_on, end) = channel();
        let (connected, are_connected) = channel();
        let thread = thread::Builder::new().name("clients".into()).spawn(move || {
            let (_, measured) = while_working(&load, Workload::A, |_| {
                connected.send(())?;
                // An error is the end.
                end.recv().unwrap_or_default();
                Ok(())
            })?;
            Ok(measured)
        })?;
        match are_connected.recv() {
            Ok(()) => Ok(Clients { made, goes_on, thread }),
            Err(_) => Err(thread.join().expect("clients do not panic").err().unwrap_or("clients have ended".into())),
        }
    }

    /// Ends them when all of their requests are answered. Returns their password.
    fn end(self, sum: &mut Measured) -> Result<Made, Failure> {
        drop(self.goes_on);
        sum.add(self.thread.join().expect("clients do not panic")?);
        Ok(self.made)
    }
}

/// Replaces the certificates of all nodes, and waits until all use the new ones.
fn replace_certificates(plan: &Plan) -> Result<(), Failure> {
    let reloads = |node| -> Result<usize, DevError> {
        let log = plan.log_path(node);
        let text = fs::read(&log).map_err(|source| DevError::File(log, source))?;
        Ok(String::from_utf8_lossy(&text).matches(RELOADED).count())
    };
    let counts = || (1..=NODES).map(reloads).collect::<Result<Vec<usize>, DevError>>();
    let (before, begun) = (counts()?, Instant::now());
    plan.renew_certificates()?;
    while !counts()?.iter().zip(&before).all(|(now, before)| now > before) {
        if begun.elapsed() > IN_FORCE_WITHIN {
            return Err(format!("after {IN_FORCE_WITHIN:?} a node does not use its new certificate").into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
