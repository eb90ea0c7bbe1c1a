//! A run, from its first process to its report. One thread strikes and heals. Each client has its own thread.

use crate::clients::native::Native;
use crate::clients::resp::Resp;
use crate::clients::{ClientRun, Log, Store, work};
use crate::cluster::coordinator::CoordinatorKind;
use crate::cluster::{self, Cluster, Plan, disk, table_options};
use crate::error::ChaosError;
use crate::faults::kind::{Class, FaultKind};
use crate::faults::schedule::{Round, Schedule};
use crate::faults::{self, Means};
use crate::gaps::{Longest, Successes};
use crate::groups;
use crate::place::{self, RunResources};
use crate::report::{KindReport, Report, RoundReport};
use crate::{tool, verdict, workload};
use leeward_format::cluster::{Acknowledge, TableOptions};
use leeward_platform::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients of each region that use the client library; one more uses Redis commands.
const NATIVE_CLIENTS: usize = 2;
/// How long clients work before the first fault.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long the cluster may take to become whole by itself after all faults are healed.
const WHOLE_WITHIN: Duration = Duration::from_secs(45);
/// Pause between checks.
const LOOK: Duration = Duration::from_millis(100);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long faults strike.
    pub lasts: Duration,
    /// Chooses the faults.
    pub seed: u64,
    /// Processes of servers: 3 to 5.
    pub servers: usize,
    /// Kinds of faults; empty: all.
    pub faults: Vec<FaultKind>,
    /// Which coordinator.
    pub coordinator: CoordinatorKind,
    /// The binary under test.
    pub leeward: PathBuf,
    /// Where directories are made.
    pub directory: PathBuf,
    /// When the table acknowledges a write. With `last-flush` some may be lost, and a run should find that.
    pub acknowledge: Acknowledge,
    /// Uses the loopback interface, without namespaces and separate disks. Only faults of processes can strike.
    pub alone: bool,
    /// Every connection is encrypted, every process has a certificate, and clients are a user.
    pub tls: bool,
    /// How much servers log: `info`, `debug`.
    pub log: String,
    /// Keeps the servers' logs even if nothing is wrong.
    pub keep: bool,
}

/// Runs it. `interrupted` ends it early, without a verdict.
///
/// # Errors
/// This machine cannot run it, or the cluster did not come up. What the store did wrong is in the report.
pub fn run(options: &Options, interrupted: &AtomicBool) -> Result<Report, ChaosError> {
    let means = means(options)?;
    let wanted: Vec<FaultKind> = match &options.faults[..] {
        [] => FaultKind::ALL.to_vec(),
        some => some.to_vec(),
    };
    let (possible, impossible): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|kind| means.refusal(*kind).is_none());
    let left_out = impossible.iter().map(|kind| format!("{kind}: {}", means.refusal(*kind).unwrap_or_default()));
    let mut report = Report {
        seed: options.seed,
        servers: options.servers,
        coordinator: format!("{:?}", options.coordinator).to_lowercase(),
        namespaces: means.namespaces,
        left_out: left_out.collect(),
        ..Report::default()
    };
    report.left_out.iter().for_each(|left_out| eprintln!("left out: {left_out}"));
    if possible.is_empty() {
        return Err(ChaosError::Refused("none of these faults can strike on this machine".into()));
    }
    let mut place = RunResources::new(&options.directory)?;
    if options.keep {
        place.keep();
        report.logs = Some(place::kept(&place));
    }
    let place = Arc::new(place);
    let plan = Plan {
        leeward: options.leeward.clone(),
        servers: options.servers,
        coordinator: options.coordinator,
        alone: options.alone,
        tls: options.tls,
        log: options.log.clone(),
        table: TableOptions { acknowledge: options.acknowledge, ..table_options() },
        settings: format!("segment_bytes = {}\n", cluster::SEGMENT_BYTES),
    };
    let is_wanted = || !interrupted.load(Ordering::SeqCst);
    let outcome = Cluster::start(&place, plan, &is_wanted).and_then(|cluster| {
        let mut run = Run { options, cluster, struck: Vec::new(), interrupted };
        run.go(possible, &mut report)
    });
    let is_evidence =
        (!report.is_clean() || !report.restarts.is_empty()) && !matches!(outcome, Err(ChaosError::Interrupted));
    if let Some(place) = Arc::into_inner(place).as_mut().filter(|_| is_evidence) {
        place.keep();
        report.logs = Some(place::kept(place));
    }
    outcome.map(|()| report)
}

/// Refuses a cluster that cannot run, with the reason.
pub(crate) fn check(servers: usize, leeward: &Path) -> Result<(), ChaosError> {
    if !(3..=5).contains(&servers) {
        return Err(ChaosError::Refused(format!("--servers {servers}: 3 to 5")));
    }
    if !leeward.is_file() {
        let path = leeward.display();
        return Err(ChaosError::Refused(format!(
            "{path} is not there: `cargo build -p leeward-cli`, or --leeward PATH"
        )));
    }
    Ok(())
}

/// What this machine offers, or why the run is refused.
fn means(options: &Options) -> Result<Means, ChaosError> {
    check(options.servers, &options.leeward)?;
    options.coordinator.refusal().map_or(Ok(()), |why| Err(ChaosError::Refused(why)))?;
    let (clock_offsets, spare_servers) =
        (faults::has_clock_offsets(), options.servers > table_options().replicas as usize);
    if options.alone {
        return Ok(Means { namespaces: false, slow_disks: false, clock_offsets, spare_servers });
    }
    let advice = "; or --alone for the faults that need none of this";
    if !rustix::process::geteuid().is_root() {
        return Err(ChaosError::Refused(format!("namespaces, bridges and mounts are root's: run it as root{advice}")));
    }
    let packages =
        [("ip", "iproute2"), ("ss", "iproute2"), ("nft", "nftables"), ("mkfs.ext4", "e2fsprogs"), ("mount", "mount")];
    let missing: Vec<&str> =
        packages.iter().filter(|(tool, _)| !tool::is_installed(tool)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        let packages = missing.join(" ");
        return Err(ChaosError::Refused(format!("tools are missing: apt-get install {packages}{advice}")));
    }
    Ok(Means { namespaces: true, slow_disks: disk::can_be_slow(), clock_offsets, spare_servers })
}

/// A round that is over.
struct Struck {
    kinds: Vec<FaultKind>,
    /// Descriptions of the faults.
    what: Vec<String>,
    /// When the first fault struck, and when the cluster was whole again.
    from: u64,
    to: u64,
    /// Changes of primaries and members; `None` if no server answered.
    changes: Option<Vec<String>>,
}

struct Run<'a> {
    options: &'a Options,
    cluster: Cluster,
    struck: Vec<Struck>,
    interrupted: &'a AtomicBool,
}

impl Run<'_> {
    /// Everything from the first operation to the verdict.
    fn go(&mut self, kinds: Vec<FaultKind>, report: &mut Report) -> Result<(), ChaosError> {
        let shared = ClientRun::new();
        let mut rng = Rng::new(self.options.seed ^ 0x5eed);
        let mut log = Log::default();
        let stores = self.stores();
        let struck = thread::scope(|scope| {
            let clients: Vec<_> = stores
                .into_iter()
                .map(|(region, reader, mut store)| {
                    let (shared, rng) = (&shared, rng.fork());
                    scope.spawn(move || work(shared, region, &mut *store, reader, rng))
                })
                .collect();
            // Clients end even if a fault could not strike.
            let struck = self.strike(kinds, &shared, report);
            shared.end();
            clients.into_iter().for_each(|client| log.merge(client.join().expect("a client does not panic")));
            struck
        });
        struck?;
        (report.refused, report.unknown, report.direct_reads) = (log.refused, log.unknown, log.direct_reads);
        report.operations = log.successes.len() as u64;
        self.report_gaps(&Successes::new(&log.successes, workload::regions(), shared.now()), report);
        let judged = match self.cluster.lacks() {
            None => verdict::judge(&self.cluster, &shared, &mut log, report),
            Some(lack) => Err(ChaosError::NotReady(format!("not whole at the end: {lack}"))),
        };
        if let Err(error) = judged {
            report.findings.push(error.to_string());
        }
        verdict::judge_histories(&log, report);
        Ok(())
    }

    /// The clients: the region of each, whether it only reads, and its way to the store.
    fn stores(&self) -> Vec<(usize, bool, Box<dyn Store + Send>)> {
        let mut stores: Vec<(usize, bool, Box<dyn Store + Send>)> = Vec::new();
        for region in 0..workload::regions() {
            let table = workload::table_of(region);
            if table.is_hybrid() {
                let native = |addresses, name: &str| Native::new(addresses, name.into(), table.name(), false);
                stores.push((region, true, Box::new(native(self.cluster.addresses(), "chaos-scans").with_scans())));
                if let Some(addresses) = self.cluster.ring_addresses() {
                    stores.push((region, true, Box::new(native(addresses, "chaos-direct"))));
                }
            }
            for client in 0..NATIVE_CLIENTS {
                let name = format!("chaos-{region}-{client}");
                let table = workload::table_of(region).name();
                let native = Native::new(self.cluster.addresses(), name, table, client % 2 == 0);
                stores.push((region, false, Box::new(native)));
            }
            let table = workload::table_of(region).name();
            stores.push((region, false, Box::new(Resp::new(&self.cluster, table, region))));
        }
        stores
    }

    /// Runs rounds of faults until the time is over or the cluster does not heal.
    fn strike(&mut self, kinds: Vec<FaultKind>, shared: &ClientRun, report: &mut Report) -> Result<(), ChaosError> {
        let mut schedule = Schedule::new(self.options.seed, kinds);
        let begun = Instant::now();
        self.pass(WARM_UP, report)?;
        while begun.elapsed() < self.options.lasts {
            let Round { faults, between, lasts, quiet } = schedule.next_round();
            let before = self.cluster.groups();
            let from = shared.now();
            let mut what = Vec::new();
            for (number, fault) in faults.iter().enumerate() {
                if number > 0 {
                    self.pass(between, report)?;
                }
                let struck = faults::strike(&mut self.cluster, *fault)?;
                eprintln!("{:8.1} s  {}: {struck}", seconds(shared.now()), fault.kind);
                what.push(format!("{}: {struck}", fault.kind));
            }
            self.pass(lasts, report)?;
            faults::heal(&mut self.cluster)?;
            let healed = shared.now();
            let is_whole = self.become_whole(shared, report)?;
            let to = shared.now();
            eprintln!("{:8.1} s  settled {:.1} s after healing", seconds(to), seconds(to - healed));
            let changes = groups::changes(before.as_deref(), self.cluster.groups().as_deref());
            changes.iter().flatten().for_each(|change| eprintln!("            {change}"));
            self.struck.push(Struck {
                kinds: faults.iter().map(|fault| fault.kind).collect(),
                what,
                from,
                to,
                changes,
            });
            if !is_whole {
                break;
            }
            self.pass(quiet, report)?;
        }
        report.minutes = begun.elapsed().as_secs_f64() / 60.0;
        Ok(())
    }

    /// Reports the gaps by kind of fault, and by round.
    fn report_gaps(&self, successes: &Successes, report: &mut Report) {
        report.lease_lateness = self.cluster.lease_lateness();
        for kind in FaultKind::ALL {
            let rounds: Vec<&Struck> = self.struck.iter().filter(|round| round.kinds.contains(&kind)).collect();
            let longest = |only: bool| {
                let rounds = rounds.iter().filter(|round| !only || round.kinds.len() == 1);
                rounds.map(|round| successes.longest(round.from, round.to)).reduce(Longest::or)
            };
            if let Some(of_all) = longest(false) {
                report.faults.push(KindReport::new(kind, rounds.len() as u64, of_all, longest(true)));
            }
        }
        report.rounds = self
            .struck
            .iter()
            .map(|round| {
                let longest = successes.longest(round.from, round.to);
                let changes = round.changes.clone();
                let is_hostile = round.kinds.iter().all(|kind| kind.class() == Class::Client);
                let report =
                    RoundReport::new(seconds(round.from), seconds(round.to - round.from), round.what.clone(), longest);
                RoundReport { changes, is_hostile, ..report }
            })
            .collect();
    }

    /// Waits, and reports processes that end by themselves.
    fn pass(&mut self, time: Duration, report: &mut Report) -> Result<(), ChaosError> {
        let until = Instant::now() + time;
        loop {
            if self.interrupted.load(Ordering::SeqCst) {
                return Err(ChaosError::Interrupted);
            }
            for death in self.cluster.deaths() {
                eprintln!("{death}");
                report.findings.push(death);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK));
        }
    }

    /// Waits until all regions have had all of their members for a while, and answers whether they have. If that takes too long,
    /// all servers are restarted, as an operator would do, and the report says so.
    fn become_whole(&mut self, shared: &ClientRun, report: &mut Report) -> Result<bool, ChaosError> {
        for attempt in 0..2 {
            let until = Instant::now() + WHOLE_WITHIN;
            let mut lack = String::new();
            let mut whole_since = None;
            while Instant::now() < until {
                self.pass(LOOK, report)?;
                faults::heal(&mut self.cluster)?;
                match self.cluster.lacks() {
                    None => {
                        let since = *whole_since.get_or_insert_with(Instant::now);
                        if since.elapsed() > self.cluster.settled_after() {
                            return Ok(true);
                        }
                    }
                    Some(what) => (lack, whole_since) = (what, None),
                }
            }
            self.cluster.note_status(seconds(shared.now()));
            if attempt == 0 {
                eprintln!("not whole {WHOLE_WITHIN:?} after healing: {lack}; all servers are restarted");
                report.restarts.push(format!("all servers, {WHOLE_WITHIN:?} after healing: {lack}"));
                (0..self.cluster.servers()).for_each(|server| self.cluster.process(server).kill());
            } else {
                report.findings.push(format!("not whole {WHOLE_WITHIN:?} after all servers were restarted: {lack}"));
            }
        }
        Ok(false)
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
