//! `kill -9` of a primary at intervals: which server is killed, how long its regions were unavailable, and when all groups
//! were whole again. Runs on a thread of its own beside the workers of a phase.
//!
//! Each of the last kills of a run may come with a change of the table, so that a change, the death of a primary and
//! the rebuild of a member meet in every order. Of three kills, the first change comes before the kill, the second
//! during the failover, and the third before the kill, which follows as soon as the second node has been restarted.

use crate::ledger::Ledger;
use crate::meter::Meter;

use crate::options::{BenchError, Options, UNBOUNDED, client_options};
use bytes::{BufMut, BytesMut};
use indicatif::ProgressBar;
use leeward_client::{
    ClientOptions, Condition, GroupConfig, Lifetime, Op, OpError, OpResult, RegionMap, Session, TableOptions, Ticket,
};
use leeward_format::cluster::Acknowledge;
use leeward_format::table::TableChange;
use leeward_operate::dev::NodeProcesses;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "kills_tests.rs"]
mod tests;

/// One `kill -9`.
#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    /// Id of the server whose process was killed.
    pub server: u32,
    /// Regions that it was primary of.
    pub regions: Vec<u32>,
    /// For each, seconds from the kill to the first acknowledged write; `null` if there was none in time.
    pub unavailable_seconds: Vec<Option<f64>>,
    /// In a cluster of one node: seconds from the kill until it served all of its regions again. `None` in other
    /// clusters.
    pub recovery_seconds: Option<f64>,
    /// Seconds from its restart until every group was in sync again.
    pub in_sync_seconds: f64,
    /// How the table was changed at about the same time, as options of `leeward table alter`.
    pub changed: Option<String>,
}

/// Why there is no [`victim`].
pub(crate) const NO_PRIMARY: &str = "no region has a primary that could be killed";
/// Time limit until a killed node is in sync again.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(180);
/// A killed node is restarted after at most this time: a region may be unable to continue without it.
const RESTART_WITHIN: Duration = Duration::from_secs(5);
/// How long groups must stay whole to count as settled: after a change of the table, members leave them one by one.
const SETTLED_FOR: Duration = Duration::from_secs(2);
/// Pause between looks at the region map.
const LOOK: Duration = Duration::from_millis(50);
/// Pause before an unanswered probe is sent again. The unavailable time is exact to this, within a factor of 16.
const PROBE_PAUSE: Duration = Duration::from_millis(1);

/// The kills of a run.
pub(crate) struct Kills<'a> {
    cluster: &'a Mutex<Box<dyn NodeProcesses>>,
    ledger: &'a Ledger,
    session: Session,
    every: Duration,
    /// How long a region is probed after a kill.
    deadline: Duration,
    /// Kills still to be made; `None` for as many as the time allows.
    left: Option<u32>,
    /// Members in sync over all groups when the run began. After every kill there must be as many again.
    whole: usize,
    made: Vec<Kill>,
    /// Changes still to be made, one with each of the last kills.
    changes: VecDeque<TableChange>,
    /// The options of the table by now.
    table: TableOptions,
    /// When nodes were restarted after the last kills; only nodes that are not known to be in sync again.
    rebuilding: Vec<Instant>,
}

/// A change of the table that comes with a kill.
struct Alteration {
    change: TableChange,
    /// The change comes after the node was killed.
    comes_after: bool,
}

impl<'a> Kills<'a> {
    pub(crate) fn new(
        cluster: &'a Mutex<Box<dyn NodeProcesses>>,
        ledger: &'a Ledger,
        every: Duration,
        options: &Options,
    ) -> Result<Self, BenchError> {
        let client_options = ClientOptions { retry_pause: PROBE_PAUSE, ..client_options(options) };
        let mut session = Session::connect(&options.seeds, client_options)?;
        let map = session.fetch_map()?;
        Ok(Kills {
            cluster,
            ledger,
            session,
            every,
            deadline: options.deadline,
            left: options.kills,
            whole: members_in_sync(&map),
            made: Vec::new(),
            changes: options.changes.iter().cloned().collect(),
            table: map.table(&options.table).cloned().unwrap_or_default(),
            rebuilding: Vec::new(),
        })
    }

    /// Whether the run asked for more kills than were made.
    pub(crate) fn wants_more(&self) -> bool {
        self.left.is_some_and(|left| left > 0)
    }

    pub(crate) fn into_made(self) -> Vec<Kill> {
        self.made
    }

    /// Kills until the phase is over or all kills are made. A kill that has begun is completed.
    pub(crate) fn run(&mut self, over: &AtomicBool, meter: &Mutex<Meter>, bar: &ProgressBar) -> Result<(), BenchError> {
        while self.left != Some(0) {
            let pause = if self.rebuilding.is_empty() { self.every } else { Duration::ZERO };
            let next = Instant::now() + pause;
            while Instant::now() < next {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(10));
            }
            let is_next_at_once = self.kill_one(meter)?;
            self.left = self.left.map(|left| left - 1);
            if !(is_next_at_once && self.wants_more()) {
                let first = self.made.len() - self.rebuilding.len();
                self.wait_until_whole(Duration::ZERO)?;
                for (kill, number) in self.made[first..].iter().zip(first + 1..) {
                    bar.suspend(|| println!("kill {number}: {kill}"));
                }
            }
        }
        Ok(())
    }

    /// Kills a node and restarts it. Returns whether the next one is to be killed while this one is brought in sync.
    fn kill_one(&mut self, meter: &Mutex<Meter>) -> Result<bool, BenchError> {
        let (alteration, is_next_at_once) = self.next_alteration();
        let changed = alteration.as_ref().map(|alteration| alteration.change.clone());
        let mut may_lose = self.table.acknowledge == Acknowledge::LastFlush;
        if let Some(change) = &changed {
            self.table = change.apply(&self.table).map_err(BenchError::Option)?;
            may_lose |= self.table.acknowledge == Acknowledge::LastFlush;
        }
        let (before, after) = match alteration {
            Some(Alteration { change, comes_after: true }) => (None, Some(change)),
            other => (other.map(|alteration| alteration.change), None),
        };
        if let Some(change) = before {
            self.session.execute(vec![Op::AlterTable { change: Box::new(change) }])?.iter().try_for_each(is_done)?;
        }
        let map = self.session.fetch_map()?;
        let Some(server) = victim(&map) else {
            return Err(BenchError::Option("no region has a primary that could be killed".into()));
        };
        let is_of_it = |group: &&GroupConfig| group.primary.is_some_and(|primary| primary.server.0 == server);
        let regions: Vec<&GroupConfig> = map.regions.iter().filter(is_of_it).collect();
        let fault = |source| BenchError::Node { server, source };
        meter.lock().sample();
        let killed = Instant::now();
        self.cluster.lock().kill(server).map_err(fault)?;
        if may_lose {
            regions.iter().for_each(|group| self.ledger.newest_lost(&group.start));
        }
        // Where no other node could serve, the unavailable time is the node's own recovery.
        let lone = map.servers.len() <= 1;
        let restart_at = killed + if lone { Duration::ZERO } else { RESTART_WITHIN };
        let mut probes = Probes::new(&mut self.session, &regions, after, killed + self.deadline);
        let mut restarted = None;
        while restarted.is_none() || !probes.is_over() {
            if restarted.is_none() && (probes.is_over() || Instant::now() >= restart_at) {
                self.cluster.lock().restart(server).map_err(fault)?;
                restarted = Some(Instant::now());
            }
            probes.poll(&mut self.session, killed)?;
        }
        let unavailable_seconds = probes.seconds;
        self.rebuilding.extend(restarted);
        self.made.push(Kill {
            server,
            regions: regions.iter().map(|group| group.region.0).collect(),
            recovery_seconds: lone.then(|| unavailable_seconds.iter().flatten().copied().fold(0.0, f64::max)),
            unavailable_seconds,
            in_sync_seconds: 0.0,
            changed: changed.map(|change| describe(&change)),
        });
        Ok(is_next_at_once)
    }

    /// The change that comes with the next kill, and whether the kill after that one follows without a pause.
    fn next_alteration(&mut self) -> (Option<Alteration>, bool) {
        if self.left.is_some_and(|left| left as usize > self.changes.len()) {
            return (None, false);
        }
        let Some(change) = self.changes.pop_front() else { return (None, false) };
        let altered = self.made.iter().filter(|kill| kill.changed.is_some()).count();
        let comes_after = altered % 3 == 1;
        (Some(Alteration { change, comes_after }), comes_after)
    }

    /// Waits until all members are in sync, and stay so for a while.
    pub(crate) fn wait_until_settled(&mut self) -> Result<(), BenchError> {
        self.wait_until_whole(SETTLED_FOR)
    }

    /// Waits until all members have been in sync for `lasting`, and stores how long that took in the kills of
    /// `rebuilding`.
    fn wait_until_whole(&mut self, lasting: Duration) -> Result<(), BenchError> {
        let began = Instant::now();
        let mut since = None;
        loop {
            let is_whole = members_in_sync(&self.session.fetch_map()?) >= self.whole;
            since = is_whole.then(|| since.unwrap_or_else(Instant::now));
            if since.is_some_and(|since: Instant| since.elapsed() >= lasting) {
                break;
            }
            if began.elapsed() > IN_SYNC_WITHIN {
                let server = self.made.last().map_or(0, |kill| kill.server);
                return Err(BenchError::NotInSync { number: self.made.len(), server, after: IN_SYNC_WITHIN });
            }
            thread::sleep(LOOK);
        }
        let first = self.made.len() - self.rebuilding.len();
        for (kill, restarted) in self.made[first..].iter_mut().zip(self.rebuilding.drain(..)) {
            kill.in_sync_seconds = restarted.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

/// Operations that are sent when a primary was killed: a write to each of its regions, and perhaps a change of the table.
pub(crate) struct Probes {
    /// The region of each probe; `None`: the change.
    tickets: HashMap<Ticket, Option<usize>>,
    /// By region.
    writes: Vec<Op>,
    /// Until then a probe with an unknown outcome is sent again. A client that was idle for long may get such an
    /// outcome.
    until: Instant,
    /// Seconds from the kill to the first acknowledged write to each region; `None` where there was none within the deadline.
    pub(crate) seconds: Vec<Option<f64>>,
}

impl Probes {
    pub(crate) fn new(
        session: &mut Session,
        regions: &[&GroupConfig],
        change: Option<TableChange>,
        until: Instant,
    ) -> Probes {
        let mut tickets = HashMap::new();
        if let Some(change) = change {
            let alter = vec![Op::AlterTable { change: Box::new(change) }];
            tickets.insert(session.submit(alter).expect(UNBOUNDED), None);
        }
        let write = |group: &&GroupConfig| Op::Put {
            key: probe_key(group),
            value: "probe".into(),
            when: Condition::Always,
            want_old: false,
            lifetime: Lifetime::Forever,
        };
        let writes: Vec<Op> = regions.iter().map(write).collect();
        for (at, write) in writes.iter().enumerate() {
            tickets.insert(session.submit(vec![write.clone()]).expect(UNBOUNDED), Some(at));
        }
        Probes { tickets, writes, until, seconds: vec![None; regions.len()] }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Polls for answers for a moment.
    pub(crate) fn poll(&mut self, session: &mut Session, killed: Instant) -> Result<(), BenchError> {
        if self.is_over() {
            return Ok(());
        }
        for done in session.poll(Duration::from_millis(500))? {
            match self.tickets.remove(&done.ticket) {
                Some(Some(at)) if matches!(done.results[..], [OpResult::Put { .. }]) => {
                    self.seconds[at] = Some(killed.elapsed().as_secs_f64());
                }
                Some(Some(at)) if is_unknown(&done.results) && Instant::now() < self.until => {
                    let again = session.submit(vec![self.writes[at].clone()]).expect(UNBOUNDED);
                    self.tickets.insert(again, Some(at));
                }
                Some(None) => done.results.iter().try_for_each(is_done)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_unknown(answers: &[OpResult]) -> bool {
    matches!(answers, [OpResult::Error(OpError::Unknown(_))])
}

fn is_done(answer: &OpResult) -> Result<(), BenchError> {
    match answer {
        OpResult::Done => Ok(()),
        OpResult::Error(error) => Err(BenchError::Alter(error.to_string())),
        other => Err(BenchError::Alter(format!("it was answered by {other:?}"))),
    }
}

/// A change as the options of `leeward table alter`.
fn describe(change: &TableChange) -> String {
    let options = [
        ("backups", change.backups.map(|backups| backups.to_string())),
        ("wire", change.wire.map(|wire| wire.to_string())),
        ("acknowledge", change.acknowledge.map(|acknowledge| acknowledge.to_string())),
        ("min-in-sync", change.min_in_sync.map(|members| members.to_string())),
    ];
    let given = options.into_iter().filter_map(|(name, value)| Some(format!("--{name} {}", value?)));
    given.collect::<Vec<_>>().join(" ")
}

/// The server that is primary of the most regions.
pub(crate) fn victim(map: &RegionMap) -> Option<u32> {
    let mut regions: HashMap<u32, usize> = HashMap::new();
    for primary in map.regions.iter().filter_map(|group| group.primary) {
        *regions.entry(primary.server.0).or_default() += 1;
    }
    regions.into_iter().max_by_key(|(server, regions)| (*regions, std::cmp::Reverse(*server))).map(|(server, _)| server)
}

/// Members in sync that are alive, over all groups.
pub(crate) fn members_in_sync(map: &RegionMap) -> usize {
    let alive = |member| map.servers.iter().any(|server| server.member == member);
    map.regions
        .iter()
        .filter(|group| group.primary.is_some())
        .flat_map(GroupConfig::in_sync)
        .filter(|m| alive(*m))
        .count()
}

/// A key in the group's range that no workload uses.
fn probe_key(group: &GroupConfig) -> bytes::Bytes {
    let mut key = BytesMut::from(&group.start[..]);
    key.put_slice(b"\0leeward-probe");
    let key = key.freeze();
    // A region of only a few keys may have no room for it. The first key is always in the region.
    if group.contains(&key) { key } else { group.start.clone() }
}
