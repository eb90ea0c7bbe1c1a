//! How long a region pauses when its primary role is transferred, or a member dies or stops. Each kind runs many times, on a
//! cluster of three nodes of its own, and has a budget that its pauses should keep.
//!
//! One thread writes one key repeatedly, each write after the answer to the last. The pause is the longest time between
//! two answers around the event. Another thread writes at a moderate rate. Where the primary is killed, an L0 is filled
//! first, and the time counts from when the other nodes learn that the primary's session is over. Call it from any
//! thread.

use crate::figures::verdict;
use crate::json::{check_json, write_json};
use crate::options::{Failure, NODES};
use crate::starter::{Link, Started, Starter, WantedCluster};
use bytes::Bytes;
use clap::{Args, value_parser};
use leeward_client::{ClientOptions, Condition, GroupConfig, Lifetime, Op, OpResult, RegionMap, Session};
use leeward_format::ServerId;
use leeward_format::cluster::{BackupMode, RegionRequest, TableOptions};
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "pauses_tests.rs"]
mod tests;

/// The event that makes a region pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseKind {
    /// Its primary hands over the primary role.
    HandOver,
    /// The process of a backup is killed.
    DeadBackup,
    /// The process of a backup is stopped (SIGSTOP), and resumed after a while.
    StoppedBackup,
    /// The process of the primary is killed; L0s of 16 MiB.
    DeadPrimary,
    /// The same with L0s of 64 MiB.
    DeadPrimaryLargeL0,
}

impl PauseKind {
    /// Every kind.
    pub const ALL: [PauseKind; 5] = [
        PauseKind::HandOver,
        PauseKind::DeadBackup,
        PauseKind::StoppedBackup,
        PauseKind::DeadPrimary,
        PauseKind::DeadPrimaryLargeL0,
    ];

    /// Its name on the command line and in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            PauseKind::HandOver => "hand-over",
            PauseKind::DeadBackup => "dead-backup",
            PauseKind::StoppedBackup => "stopped-backup",
            PauseKind::DeadPrimary => "dead-primary",
            PauseKind::DeadPrimaryLargeL0 => "dead-primary-64",
        }
    }

    /// The longest pause that is allowed; for hand-overs, for 99 of 100.
    fn budget(self) -> Duration {
        Duration::from_millis(match self {
            PauseKind::HandOver => 50,
            PauseKind::DeadBackup | PauseKind::StoppedBackup => 500,
            PauseKind::DeadPrimary => 300,
            PauseKind::DeadPrimaryLargeL0 => 1_200,
        })
    }

    fn l0_bytes(self) -> u64 {
        if self == PauseKind::DeadPrimaryLargeL0 { 64 << 20 } else { 16 << 20 }
    }
}

/// Options of the measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only these kinds
    #[arg(long, value_delimiter = ',', value_name = "KINDS")]
    pub only: Vec<String>,
    /// Rounds of each kind; five times as many hand-overs
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// How backups keep their copies
    #[arg(long, default_value_t = BackupMode::SendIndex)]
    pub backups: BackupMode,
    /// Write the results to this file as JSON; its names are stable
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One kind, measured. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Pauses {
    /// `hand-over`, `dead-backup`, `stopped-backup`, `dead-primary` or `dead-primary-64`.
    pub kind: &'static str,
    /// Median of the pauses.
    pub median_ms: f64,
    /// 99th percentile of the pauses; with fewer than 100 rounds, the longest.
    pub p99_ms: f64,
    /// The longest of all. It must be within the budget, except for hand-overs.
    pub worst_ms: f64,
    /// The budget of this kind.
    pub budget_ms: f64,
    /// The largest number of bytes that a new primary had to replay.
    pub promotion_bytes: u64,
    /// All pauses, in the order of the rounds.
    pub all_ms: Vec<f64>,
}

impl Pauses {
    fn of(kind: PauseKind, pauses: &[Duration], promotion_bytes: u64) -> Pauses {
        let all_ms: Vec<f64> = pauses.iter().map(|pause| pause.as_secs_f64() * 1e3).collect();
        let mut sorted = all_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        let budget_ms = kind.budget().as_secs_f64() * 1e3;
        let [median_ms, p99_ms, worst_ms] = [50, 99, 100].map(rank);
        Pauses { kind: kind.name(), median_ms, p99_ms, worst_ms, budget_ms, promotion_bytes, all_ms }
    }

    /// Hand-overs are judged at the 99th percentile, the rest by the worst.
    fn is_met(&self) -> bool {
        self.budget_ms >= if self.kind == PauseKind::HandOver.name() { self.p99_ms } else { self.worst_ms }
    }
}

/// How long a cluster may take to be whole.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);
/// How long a request may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// Between two requests: a group takes one change of an operator a second, after a burst.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// How long a pause may last before the run is given up.
const PAUSE_WITHIN: Duration = Duration::from_secs(30);
/// How long a stopped process stays stopped.
const STOPPED_FOR: Duration = Duration::from_secs(2);
/// Pause between looks at the region map.
const LOOK: Duration = Duration::from_millis(1);
/// Writes per second while no L0 has to be filled.
const MODERATE: u64 = 2_000;
/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Memory of a node.
const MEMORY_BYTES: u64 = 1 << 30;

/// Measures, prints a table, and writes what `options` ask for. Returns whether every budget was kept.
///
/// # Errors
/// Invalid options, a file that cannot be written, or a cluster that does not recover.
pub fn run(options: &Options, starter: &Starter) -> Result<bool, Failure> {
    check_json(options.json.as_deref())?;
    let unknown = options.only.iter().find(|name| !PauseKind::ALL.iter().any(|kind| kind.name() == **name));
    if let Some(unknown) = unknown {
        let names = PauseKind::ALL.map(PauseKind::name).join(", ");
        return Err(format!("--only {unknown}: must be one of {names}").into());
    }
    let wanted = |kind: &PauseKind| options.only.is_empty() || options.only.iter().any(|name| name == kind.name());
    let mut measured = Vec::new();
    for kind in PauseKind::ALL.into_iter().filter(wanted) {
        let rounds = if kind == PauseKind::HandOver { 5 * options.rounds } else { options.rounds };
        eprintln!("{}: {rounds} rounds", kind.name());
        let (backups, l0_bytes) = (options.backups, kind.l0_bytes());
        let table = TableOptions { replicas: 3, min_in_sync: 2, l0_bytes, backups, ..TableOptions::default() };
        let wanted = WantedCluster {
            table,
            link: Link::Shm,
            regions: 1,
            nodes: NODES,
            late: 0,
            memory_bytes: MEMORY_BYTES,
            segment_bytes: None,
        };
        let mut field = LoadedCluster::new(starter.start(wanted)?)?;
        measured.push(field.measure(kind, rounds)?);
    }
    print!("{}", table(&measured));
    write_json(options.json.as_deref(), &serde_json::json!({ "pauses": measured }))?;
    Ok(measured.iter().all(Pauses::is_met))
}

fn table(measured: &[Pauses]) -> String {
    let mut text =
        "| what happens | rounds | median, ms | 99 of 100 | worst | budget | | bytes to replay, at most |\n|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for one in measured {
        let verdict = verdict(one.is_met());
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {:.1} | {:.0} | {verdict} | {} |",
            one.kind,
            one.all_ms.len(),
            one.median_ms,
            one.p99_ms,
            one.worst_ms,
            one.budget_ms,
            one.promotion_bytes
        )
        .expect("writing to memory");
    }
    text
}

/// Instants at which the probe was answered, and the rate of the other writer.
#[derive(Default)]
pub(crate) struct Probe {
    answers: Mutex<Vec<Instant>>,
    /// Writes a second.
    rate: AtomicU64,
    is_over: AtomicBool,
}

impl Probe {
    /// Ends both writers.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The longest time between two answers, of which the later one came after `from`; `None`: none has come since.
    fn longest_gap(&self, from: Instant) -> Option<Duration> {
        let answers = self.answers.lock();
        let first = answers.partition_point(|at| *at <= from);
        let late = &answers[first.saturating_sub(1)..];
        late.windows(2).map(|pair| pair[1] - pair[0]).max()
    }

    /// The first answer after `from`.
    fn first_after(&self, from: Instant) -> Option<Instant> {
        let answers = self.answers.lock();
        answers.get(answers.partition_point(|at| *at <= from)).copied()
    }
}

/// A cluster under load.
struct LoadedCluster {
    started: Started,
    session: Session,
    /// The most bytes that a new primary had to replay.
    promotion_bytes: u64,
}

pub(crate) fn connect(seeds: &[String]) -> Result<Session, Failure> {
    let options = ClientOptions {
        retry_pause: Duration::from_millis(1),
        deadline: PAUSE_WITHIN,
        retry_puts: true,
        ..ClientOptions::default()
    };
    Ok(Session::connect(seeds, options)?)
}

fn put(key: impl Into<Bytes>, value: Bytes) -> Op {
    Op::Put { key: key.into(), value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever }
}

impl LoadedCluster {
    fn new(started: Started) -> Result<LoadedCluster, Failure> {
        let session = connect(&started.seeds)?;
        Ok(LoadedCluster { started, session, promotion_bytes: 0 })
    }

    fn measure(&mut self, kind: PauseKind, rounds: u32) -> Result<Pauses, Failure> {
        let probe = Probe::default();
        let (probing, load) = (connect(&self.started.seeds)?, connect(&self.started.seeds)?);
        let pauses = thread::scope(|scope| {
            let probing = scope.spawn(|| keep_probing(probing, &probe));
            let loading = scope.spawn(|| keep_loading(load, &probe));
            let pauses = (0..rounds).map(|_| self.round(kind, &probe)).collect::<Result<Vec<_>, _>>();
            probe.end();
            let threads = [probing.join(), loading.join()];
            for ended in threads {
                ended.expect("it does not panic").map_err(|error| error.to_string())?;
            }
            pauses
        })?;
        self.started.cluster.check()?;
        Ok(Pauses::of(kind, &pauses, self.promotion_bytes))
    }

    fn round(&mut self, kind: PauseKind, probe: &Probe) -> Result<Duration, Failure> {
        probe.rate.store(MODERATE, Ordering::Relaxed);
        self.wait_until_whole()?;
        match kind {
            PauseKind::HandOver => self.hand_over(probe),
            PauseKind::DeadBackup | PauseKind::StoppedBackup => self.harm_backup(kind, probe),
            PauseKind::DeadPrimary | PauseKind::DeadPrimaryLargeL0 => self.kill_primary(kind, probe),
        }
    }

    /// Transfers the primary role to the member with the next number.
    fn hand_over(&mut self, probe: &Probe) -> Result<Duration, Failure> {
        thread::sleep(REQUEST_INTERVAL);
        let group = self.group()?;
        let server = primary(&group)?;
        let target = ServerId(server.0 % 3 + 1);
        let begun = Instant::now();
        let request = Op::RequestRegion { region: group.region, request: RegionRequest::Primary(target) };
        let answers = self.session.execute(vec![request])?;
        if answers != [OpResult::Done] {
            return Err(format!("the request is answered by {answers:?}").into());
        }
        self.look_until("hands over the primary role", REQUEST_WITHIN, |map| {
            map.regions[0].primary.is_some_and(|primary| primary.server == target)
        })?;
        settle(probe, begun)
    }

    fn harm_backup(&mut self, kind: PauseKind, probe: &Probe) -> Result<Duration, Failure> {
        let backup = self.group()?.backups.first().ok_or("the region has no backup")?.server.0;
        let begun = Instant::now();
        match kind {
            PauseKind::StoppedBackup => {
                self.started.cluster.halt(backup)?;
                thread::sleep(STOPPED_FOR);
                self.started.cluster.resume(backup)?;
            }
            _ => {
                self.started.cluster.kill(backup)?;
                self.look_until("notices that a backup is dead", REQUEST_WITHIN, |map| {
                    map.regions[0].backups.iter().all(|member| member.server.0 != backup)
                })?;
                self.started.cluster.restart(backup)?;
            }
        }
        settle(probe, begun)
    }

    fn kill_primary(&mut self, kind: PauseKind, probe: &Probe) -> Result<Duration, Failure> {
        self.fill(kind, probe)?;
        let server = primary(&self.group()?)?;
        self.started.cluster.kill(server.0)?;
        let is_gone = |map: &RegionMap| map.servers.iter().all(|info| info.member.server != server);
        let told = self.look_until("notices that a primary is dead", REQUEST_WITHIN, is_gone)?;
        let begun = Instant::now();
        let answered = loop {
            if let Some(answered) = probe.first_after(told) {
                break answered;
            }
            if begun.elapsed() > PAUSE_WITHIN {
                return Err(format!("no write is answered for {PAUSE_WITHIN:?}").into());
            }
            thread::sleep(LOOK);
        };
        self.started.cluster.restart(server.0)?;
        Ok(answered - told)
    }

    /// Writes until nearly all of an L0 would have to be replayed.
    fn fill(&mut self, kind: PauseKind, probe: &Probe) -> Result<(), Failure> {
        let begun = Instant::now();
        probe.rate.store(u64::MAX, Ordering::Relaxed);
        loop {
            let map = self.session.fetch_map()?;
            let server = primary(&map.regions[0])?;
            let info = map.server(server).ok_or("the primary is not registered")?;
            let status = self.session.access().status(&info.admin_address, Duration::from_secs(2))?;
            let bytes = status.regions.first().map_or(0, |region| region.promotion_bytes);
            if (kind.l0_bytes() / 10 * 8..=kind.l0_bytes()).contains(&bytes) {
                probe.rate.store(MODERATE / 10, Ordering::Relaxed);
                self.promotion_bytes = self.promotion_bytes.max(bytes);
                return Ok(());
            }
            if begun.elapsed() > WHOLE_WITHIN {
                return Err(format!("an L0 of {} bytes does not fill; it has {bytes}", kind.l0_bytes()).into());
            }
            thread::sleep(LOOK);
        }
    }

    fn group(&mut self) -> Result<GroupConfig, Failure> {
        Ok(self.session.fetch_map()?.regions.first().cloned().ok_or("there is no region")?)
    }

    fn wait_until_whole(&mut self) -> Result<(), Failure> {
        let is_whole = |map: &RegionMap| {
            let group = &map.regions[0];
            group.in_sync().count() == 3 && group.in_sync().all(|member| map.member(member.server) == Some(member))
        };
        self.look_until("is whole", WHOLE_WITHIN, is_whole).map(drop)
    }

    /// Waits until the map is so, and returns the time at which that was seen.
    fn look_until(
        &mut self,
        what: &str,
        within: Duration,
        is_so: impl Fn(&RegionMap) -> bool,
    ) -> Result<Instant, Failure> {
        let begun = Instant::now();
        loop {
            let map = self.session.fetch_map()?;
            if is_so(&map) {
                return Ok(Instant::now());
            }
            if begun.elapsed() > within {
                return Err(format!("after {within:?} the cluster still never {what}: {:?}", map.regions).into());
            }
            thread::sleep(LOOK);
        }
    }
}

fn primary(group: &GroupConfig) -> Result<ServerId, Failure> {
    Ok(group.primary.ok_or("the region has no primary")?.server)
}

/// Returns the longest pause since `begun`, once answers come again.
pub(crate) fn settle(probe: &Probe, begun: Instant) -> Result<Duration, Failure> {
    thread::sleep(Duration::from_millis(100));
    let now = Instant::now();
    while probe.first_after(now).is_none() {
        if now.elapsed() > PAUSE_WITHIN {
            return Err(format!("no write is answered for {PAUSE_WITHIN:?}").into());
        }
        thread::sleep(LOOK);
    }
    Ok(probe.longest_gap(begun).unwrap_or_default())
}

/// Writes one key until the probe is over, and notes when each write was answered.
pub(crate) fn keep_probing(mut session: Session, probe: &Probe) -> Result<(), Failure> {
    while !probe.is_over.load(Ordering::Relaxed) {
        let answers = session.execute(vec![put("\0leeward-probe", Bytes::from_static(b"probe"))])?;
        match answers[..] {
            [OpResult::Put { .. }] => probe.answers.lock().push(Instant::now()),
            _ => return Err(format!("the probe is answered by {answers:?}").into()),
        }
    }
    Ok(())
}

/// Writes new keys until the probe is over, at the wanted rate.
fn keep_loading(mut session: Session, probe: &Probe) -> Result<(), Failure> {
    const BATCH: u64 = 16;
    let mut written = 0_u64;
    while !probe.is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let ops = (written..written + BATCH).map(|number| {
            // Scattered, so that compactions have something to merge.
            let key = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            put(key, Bytes::from(vec![b'v'; VALUE_BYTES]))
        });
        session.execute(ops.collect())?;
        written += BATCH;
        let rate = probe.rate.load(Ordering::Relaxed);
        if rate != u64::MAX {
            thread::sleep(Duration::from_secs_f64(BATCH as f64 / rate.max(1) as f64).saturating_sub(begun.elapsed()));
        }
    }
    Ok(())
}
