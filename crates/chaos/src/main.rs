//! `leeward-chaos`: the command of the chaos suite, which `cargo xtask chaos` builds and runs. In a run it is also the process
//! that hosts the embedded coordinator.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use leeward_chaos::{CoordinatorKind, FaultKind, Options, StressOptions, run, stress};
use leeward_cluster::embedded::{Host, HostOptions};
use leeward_format::cluster::Acknowledge;
use leeward_security::certificates::COORDINATOR_NAME;
use leeward_security::tls::{NodeTls, TlsFiles};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Breaks a cluster of real processes in every way, and judges what its clients saw.
#[derive(Parser)]
#[command(name = "cargo xtask chaos", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    chaos: Chaos,
}

#[derive(Subcommand)]
enum Other {
    /// Measures a healthy cluster under hostile clients: memory, leases, how long others wait.
    Stress(Stress),
    /// Hosts the embedded coordinator until the standard input ends.
    #[command(hide = true)]
    HostCoordinator {
        #[arg(long)]
        directory: PathBuf,
        #[arg(long)]
        listen: SocketAddr,
        /// Authorities, certificate and key.
        #[arg(long, num_args = 3)]
        tls: Vec<PathBuf>,
    },
}

#[derive(Args)]
struct Stress {
    /// Which: flood, hoard, giants or garbage; with --tls also guesses.
    kind: FaultKind,
    /// Connections of hostile clients, together.
    #[arg(long, default_value_t = 1_000)]
    connections: usize,
    /// All of them to one server; otherwise to all in turn.
    #[arg(long)]
    at_one: bool,
    /// For how long, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The setting memory_budget of each server, in bytes.
    #[arg(long, default_value_t = 128 << 20)]
    memory_budget: u64,
    #[command(flatten)]
    binary: Binary,
    /// Writes the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The servers of a run, their binary and directory.
#[derive(Args)]
struct Binary {
    /// Processes of servers, 3 to 5; regions have 3 replicas.
    #[arg(long, default_value_t = 3)]
    servers: usize,
    /// The binary under test; by default the one beside this program.
    #[arg(long, value_name = "PATH")]
    leeward: Option<PathBuf>,
    /// Where the cluster's directory is made.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
    /// Encrypts every connection, gives every process a certificate, and makes a user, whom clients connect as.
    #[arg(long)]
    tls: bool,
    /// How much servers log, as `leeward --log`.
    #[arg(long, default_value = "info")]
    log: String,
    /// Keeps the servers' logs even if nothing is wrong.
    #[arg(long)]
    keep: bool,
}

impl Binary {
    fn path(&self) -> std::io::Result<PathBuf> {
        let beside = std::env::current_exe()?.with_file_name("leeward");
        Ok(self.leeward.clone().unwrap_or(beside))
    }
}

#[derive(Args)]
struct Chaos {
    /// For how long faults strike.
    #[arg(long, default_value_t = 2.0, value_parser = minutes)]
    minutes: f64,
    /// Writes the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Repeats the faults of the run with this seed; by default a new seed, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these kinds of faults, separated by commas.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<FaultKind>,
    /// Lists the kinds of faults.
    #[arg(long)]
    list: bool,
    /// Which coordinator.
    #[arg(long, value_enum, default_value = "embedded")]
    coordinator: CoordinatorKind,
    /// When the table acknowledges a write: last-write, or last-flush, which may lose some: a run that must fail.
    #[arg(long, default_value = "last-write")]
    acknowledge: Acknowledge,
    /// Without network namespaces and disks of its own for each server, which need root: only faults of processes.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    binary: Binary,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let is_sensible = (0.1..=10_000.0).contains(&minutes);
    if is_sensible { Ok(minutes) } else { Err("0.1 to 10000 minutes".into()) }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.other {
        Some(Other::HostCoordinator { directory, listen, tls }) => host(directory, listen, tls),
        Some(Other::Stress(arguments)) => stressed(&arguments),
        None => chaos(&arguments.chaos),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}

fn chaos(arguments: &Chaos) -> Result<bool, Box<dyn Error>> {
    if arguments.list {
        FaultKind::ALL.iter().for_each(|kind| println!("{kind:18} {}", kind.what()));
        return Ok(true);
    }
    let interrupted = interrupted()?;
    let binary = &arguments.binary;
    let options = Options {
        lasts: Duration::from_secs_f64(arguments.minutes * 60.0),
        seed: arguments.seed.unwrap_or_else(|| leeward_platform::Rng::from_entropy().below(1_000_000)),
        servers: binary.servers,
        faults: arguments.faults.clone(),
        coordinator: arguments.coordinator,
        leeward: binary.path()?,
        directory: binary.directory.clone(),
        acknowledge: arguments.acknowledge,
        alone: arguments.alone,
        tls: binary.tls,
        log: binary.log.clone(),
        keep: binary.keep,
    };
    eprintln!("seed {}", options.seed);
    let report = run(&options, &interrupted)?;
    println!("{report}");
    write_json(arguments.json.as_deref(), &report)?;
    Ok(report.is_clean())
}

fn stressed(arguments: &Stress) -> Result<bool, Box<dyn Error>> {
    let binary = &arguments.binary;
    let options = StressOptions {
        kind: arguments.kind,
        connections: arguments.connections,
        at_one: arguments.at_one,
        lasts: Duration::from_secs(arguments.seconds),
        memory_budget: arguments.memory_budget,
        servers: binary.servers,
        leeward: binary.path()?,
        directory: binary.directory.clone(),
        tls: binary.tls,
        log: binary.log.clone(),
        keep: binary.keep,
    };
    let report = stress(&options, &*interrupted()?)?;
    println!("{report}");
    write_json(arguments.json.as_deref(), &report)?;
    Ok(report.is_clean())
}

/// Set by Ctrl-C.
fn interrupted() -> std::io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

fn write_json(path: Option<&Path>, report: &impl Serialize) -> Result<(), Box<dyn Error>> {
    if let Some(path) = path {
        let text = serde_json::to_string_pretty(report)? + "\n";
        std::fs::write(path, text).map_err(|error| format!("--json {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Hosts the embedded coordinator until the process that started this one is gone.
fn host(directory: PathBuf, listen: SocketAddr, files: Vec<PathBuf>) -> Result<bool, Box<dyn Error>> {
    let tls = match <[PathBuf; 3]>::try_from(files) {
        Ok([ca, certificate, key]) => {
            Some(Arc::new(NodeTls::load(TlsFiles { ca, certificate, key }, COORDINATOR_NAME)?))
        }
        Err(_) => None,
    };
    let _host = Host::start(HostOptions { directory, listen, tls })?;
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored)? > 0 {}
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leeward_chaos::ChaosError;

    #[test]
    fn arguments_are_understood_or_refused() {
        let parsed = |line: &str| Arguments::try_parse_from(line.split(' '));
        let arguments = parsed("chaos --minutes 60 --seed 7 --faults kill,one-way").expect("as in the documents");
        assert_eq!(arguments.chaos.faults, [FaultKind::Kill, FaultKind::OneWay]);
        for wrong in ["chaos --minutes 0", "chaos --faults drought", "chaos --coordinator etcd"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let options = Options {
            lasts: Duration::from_secs(1),
            seed: 1,
            servers: 9,
            faults: Vec::new(),
            coordinator: CoordinatorKind::Embedded,
            leeward: "/nowhere/leeward".into(),
            directory: std::env::temp_dir(),
            acknowledge: Acknowledge::LastWrite,
            alone: true,
            tls: false,
            log: "info".into(),
            keep: false,
        };
        let refused = |options: &Options| match run(options, &AtomicBool::new(false)) {
            Err(error @ ChaosError::Refused(_)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(refused(&options).contains("3 to 5"));
        assert!(refused(&Options { servers: 3, ..options.clone() }).contains("/nowhere/leeward is not there"));
    }
}
