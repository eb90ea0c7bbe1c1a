//! `leeward dev`: a cluster of child processes on this machine. Prints a line when a node starts, ends or is restarted.

use crate::Outcome;
use crate::args::DevArgs;
use crate::signals::{self, Event};
use leeward_operate::dev::{Cluster, DEFAULT_BASE, Death, DevError, Plan, Ports};
use leeward_platform::{Backoff, Nanos};
use leeward_security::certificates::CA_CERTIFICATE;
use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Prints a line. Where it cannot be written, on a full disk, the cluster goes on without.
macro_rules! say {
    ($($arg:tt)*) => {
        drop(writeln!(io::stdout(), $($arg)*))
    };
}

/// Default first keys of the second and later regions: words are split at `i`, and records of the benchmark (`user` and 20
/// digits of a number below 2^64) into three parts.
const DEFAULT_SPLITS: [&str; 3] = ["i", "user06", "user12"];
/// Pause before a dead node is restarted, with --restart.
const RESTART: Backoff = Backoff { first: Nanos::from_secs(1), most: Nanos::from_secs(30) };
/// If a node dies sooner than this after its start, the pause doubles.
const SHORT_LIFE: Duration = Duration::from_secs(5);
/// A process that could not even be started is tried again as late as if it had died so many times.
const RESTART_FAILED: u32 = 4;
/// How often the coordinator's health is checked.
const LOOK: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &DevArgs) -> Outcome {
    let events = signals::listen(false)?;
    let splits = match &args.split_at {
        Some(keys) => keys.iter().map(|key| bytes::Bytes::from(key.clone())).collect(),
        None => DEFAULT_SPLITS.map(bytes::Bytes::from).to_vec(),
    };
    let coordinator = args.coordinator.iter().map(|address| ("coordinator".into(), address.clone()));
    let plan = Plan {
        program: env::current_exe()?,
        nodes: args.nodes,
        late: 0,
        directory: args.data.clone(),
        ports: Ports::new(args.base_port),
        splits,
        fabric: args.fabric,
        table: args.table.options(args.nodes),
        tls: args.tls,
        encrypt: args.encrypt,
        settings: args.settings.iter().cloned().chain(coordinator).collect(),
    };
    let mut cluster = Cluster::start(plan)?;
    let mut health = CoordinatorHealth::default();
    let interrupted = || events.try_recv().is_ok_and(Event::ends);
    loop {
        match cluster.wait_until_ready(false, interrupted) {
            Err(DevError::Interrupted) => return Ok(true),
            // It began with a full disk. Nodes become part of the cluster when there is room.
            Err(DevError::NotReady(_)) if cluster.coordinator_failure().is_some() => health.tell(&cluster),
            ready => break ready?,
        }
    }
    if cluster.existed && (args.split_at.is_some() || args.table.is_any()) {
        say!("the data directory already holds regions: --split-at and the options of the table are ignored");
    }
    print_welcome(&cluster);
    let mut restarts = Restarts { wanted: args.restart, due: BTreeMap::new(), short_lives: BTreeMap::new() };
    loop {
        match events.recv_timeout(restarts.next().min(LOOK)) {
            Ok(Event::Stop | Event::Depart) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Child) | Err(RecvTimeoutError::Timeout) => {}
        }
        for death in cluster.reap() {
            restarts.died(&cluster, &death);
        }
        restarts.start_due(&mut cluster);
        health.tell(&cluster);
    }
    say!("stopping {} nodes", args.nodes);
    cluster.stop();
    Ok(true)
}

/// What was told of the coordinator.
#[derive(Default)]
struct CoordinatorHealth {
    failure: Option<String>,
}

impl CoordinatorHealth {
    /// Tells whether it serves, if that has changed.
    fn tell(&mut self, cluster: &Cluster) {
        let failure = cluster.coordinator_failure();
        if failure == self.failure {
            return;
        }
        match &failure {
            Some(reason) => say!(
                "the coordinator cannot write its log: {reason}; regions are served, members cannot change, and a node \
                 that starts waits; it goes on by itself when there is room"
            ),
            None => say!("the coordinator works again"),
        }
        self.failure = failure;
    }
}

/// Nodes that died and are due for a restart.
struct Restarts {
    wanted: bool,
    due: BTreeMap<u32, Instant>,
    /// By node: how many of its last runs, in a row, were shorter than [`SHORT_LIFE`].
    short_lives: BTreeMap<u32, u32>,
}

impl Restarts {
    fn next(&self) -> Duration {
        let next = self.due.values().min();
        next.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()))
    }

    fn died(&mut self, cluster: &Cluster, death: &Death) {
        let Death { node, pid, how, lived, .. } = death;
        let death = format!("node {node} (pid {pid}) {how}");
        if self.wanted {
            let short_lives = self.short_lives.entry(*node).or_insert(0);
            *short_lives = if *lived < SHORT_LIFE { *short_lives + 1 } else { 0 };
            let pause = RESTART.after(*short_lives).duration();
            self.due.insert(*node, Instant::now() + pause);
            say!("{death}; it will be started again in {pause:?}");
        } else {
            let config = cluster.plan().config_path(*node);
            say!("{death}; to start it again: {} serve --config {}", program(), config.display());
        }
    }

    fn start_due(&mut self, cluster: &mut Cluster) {
        let now = Instant::now();
        let due: Vec<u32> = self.due.iter().filter(|(_, at)| **at <= now).map(|(node, _)| *node).collect();
        for node in due {
            self.due.remove(&node);
            match cluster.spawn(node) {
                Ok(()) => say!("node {node} started again (pid {})", cluster.pid(node).unwrap_or(0)),
                Err(error) => {
                    let pause = RESTART.after(RESTART_FAILED).duration();
                    self.due.insert(node, now + pause);
                    say!("node {node} cannot be started: {error}; it will be tried again in {pause:?}");
                }
            }
        }
    }
}

/// This program, as it was called.
fn program() -> String {
    env::args().next().unwrap_or_else(|| "leeward".into())
}

fn print_welcome(cluster: &Cluster) {
    let plan = cluster.plan();
    let http = if plan.tls { "https" } else { "http" };
    say!("leeward: {} nodes, data and logs in {}", plan.nodes, plan.directory.display());
    for node in 1..=plan.nodes {
        say!(
            "  node {node}: redis {}, native {}, admin {http}://{}/status, pid {}",
            plan.ports.resp(node),
            plan.ports.native(node),
            plan.ports.admin(node),
            cluster.pid(node).unwrap_or(0)
        );
    }
    let program = program();
    let connect = match plan.ports.base() {
        DEFAULT_BASE if !plan.tls => String::new(),
        _ => format!(" --connect {}", plan.address(1, false)),
    };
    let redis = match plan.tls {
        true => format!("redis-cli --tls --cacert {}", plan.certificates().join(CA_CERTIFICATE).display()),
        false => "redis-cli".into(),
    };
    let last = plan.ports.resp(plan.nodes.min(2)).port();
    say!("try:");
    say!("  {redis} -p {} set hello world", plan.ports.resp(1).port());
    say!("  {redis} -p {last} krange a z");
    say!("  {program} status{connect}");
    say!("  {program} bench ycsb{connect} --workload a --mix sd --records 100000 --ops 100000");
    say!("  kill -9 {}", cluster.pid(1).unwrap_or(0));
    if plan.encrypt {
        say!("volumes are encrypted with the key in {}: keep it, or the data is gone", plan.key_file().display());
    }
    say!("Ctrl-C stops all nodes");
}
