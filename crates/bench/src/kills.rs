//! `kill -9` of a primary now and then: who is killed, how long its regions were unavailable, and when all groups
//! were whole again. Runs on a thread of its own beside the workers of a phase.

use crate::meter::Meter;
use crate::report::Kill;
use crate::ycsb::{BenchError, DevCluster, Options, client_options};
use bytes::{BufMut, BytesMut};
use indicatif::ProgressBar;
use leeward_client::{ClientOptions, Condition, GroupConfig, Lifetime, Op, OpResult, RegionMap, Session};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "kills_tests.rs"]
mod tests;

/// How long a killed node has to be in sync again.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(180);
/// Pause between looks at the region map.
const LOOK: Duration = Duration::from_millis(50);
/// Pause before an unanswered probe is sent again: what the unavailable time is exact to, within a factor of 16.
const PROBE_PAUSE: Duration = Duration::from_millis(1);

/// The kills of a run.
pub(crate) struct Kills<'a> {
    cluster: &'a Mutex<Box<dyn DevCluster>>,
    session: Session,
    every: Duration,
    /// Kills still to be made; `None` for as many as the time allows.
    left: Option<u32>,
    /// Members in sync over all groups when the run began: what every kill must return to.
    whole: usize,
    made: Vec<Kill>,
}

impl<'a> Kills<'a> {
    pub(crate) fn new(
        cluster: &'a Mutex<Box<dyn DevCluster>>,
        every: Duration,
        options: &Options,
    ) -> Result<Self, BenchError> {
        let client_options = ClientOptions { retry_pause: PROBE_PAUSE, ..client_options(options) };
        let mut session = Session::connect(&options.seeds, client_options)?;
        let whole = members_in_sync(&*session.fetch_map()?);
        Ok(Kills { cluster, session, every, left: options.kills, whole, made: Vec::new() })
    }

    /// The run asked for a number of kills that are not all made.
    pub(crate) fn wants_more(&self) -> bool {
        self.left.is_some_and(|left| left > 0)
    }

    pub(crate) fn into_made(self) -> Vec<Kill> {
        self.made
    }

    /// Kills until the phase is over or all kills are made. A kill that has begun is seen through to the end.
    pub(crate) fn run(&mut self, over: &AtomicBool, meter: &Mutex<Meter>, bar: &ProgressBar) -> Result<(), BenchError> {
        while self.left != Some(0) {
            let next = Instant::now() + self.every;
            while Instant::now() < next {
                if over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(10));
            }
            let kill = self.kill_one(meter)?;
            bar.suspend(|| println!("kill {}: {kill}", self.made.len() + 1));
            self.made.push(kill);
            self.left = self.left.map(|left| left - 1);
        }
        Ok(())
    }

    fn kill_one(&mut self, meter: &Mutex<Meter>) -> Result<Kill, BenchError> {
        let map = self.session.fetch_map()?;
        let Some(server) = victim(&map) else {
            return Err(BenchError::Option("no region has a primary that could be killed".into()));
        };
        let lone = map.servers.len() <= 1;
        let regions: Vec<&GroupConfig> = map
            .regions
            .iter()
            .filter(|group| group.primary.is_some_and(|primary| primary.server.0 == server))
            .collect();
        let fault = |source| BenchError::Node { server, source };
        meter.lock().sample();
        let killed = Instant::now();
        self.cluster.lock().kill(server).map_err(fault)?;
        let restart = || {
            self.cluster.lock().restart(server).map_err(fault)?;
            Ok::<_, BenchError>(Instant::now())
        };
        // Nobody else would serve: the unavailable time of a lone node is its own recovery.
        let restarted = if lone { Some(restart()?) } else { None };
        let unavailable_seconds = probe(&mut self.session, &regions, killed)?;
        let restarted = restarted.map_or_else(restart, Ok)?;
        self.wait_until_whole(server, restarted)?;
        Ok(Kill {
            server,
            regions: regions.iter().map(|group| group.region.0).collect(),
            recovery_seconds: lone.then(|| unavailable_seconds.iter().flatten().copied().fold(0.0, f64::max)),
            unavailable_seconds,
            in_sync_seconds: restarted.elapsed().as_secs_f64(),
        })
    }

    fn wait_until_whole(&mut self, server: u32, since: Instant) -> Result<(), BenchError> {
        while members_in_sync(&*self.session.fetch_map()?) < self.whole {
            if since.elapsed() > IN_SYNC_WITHIN {
                return Err(BenchError::NotInSync { number: self.made.len() + 1, server, after: IN_SYNC_WITHIN });
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Seconds from `killed` to the first acknowledged write to each region; `None` where none was within the deadline.
fn probe(session: &mut Session, regions: &[&GroupConfig], killed: Instant) -> Result<Vec<Option<f64>>, BenchError> {
    let mut tickets = HashMap::new();
    for (at, group) in regions.iter().enumerate() {
        let op = Op::Put {
            key: probe_key(group),
            value: "probe".into(),
            when: Condition::Always,
            want_old: false,
            lifetime: Lifetime::Forever,
        };
        tickets.insert(session.submit(vec![op]), at);
    }
    let mut seconds = vec![None; regions.len()];
    while !tickets.is_empty() {
        for done in session.poll(Duration::from_secs(1))? {
            let Some(at) = tickets.remove(&done.ticket) else { continue };
            if matches!(done.results[..], [OpResult::Put { .. }]) {
                seconds[at] = Some(killed.elapsed().as_secs_f64());
            }
        }
    }
    Ok(seconds)
}

/// The server that is primary of the most regions.
fn victim(map: &RegionMap) -> Option<u32> {
    let mut regions: HashMap<u32, usize> = HashMap::new();
    for primary in map.regions.iter().filter_map(|group| group.primary) {
        *regions.entry(primary.server.0).or_default() += 1;
    }
    regions.into_iter().max_by_key(|(server, regions)| (*regions, std::cmp::Reverse(*server))).map(|(server, _)| server)
}

/// Members in sync that are alive, over all groups.
fn members_in_sync(map: &RegionMap) -> usize {
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
    // Only a region as narrow as a few keys has no room for it; its first key is in any region.
    if group.contains(&key) { key } else { group.start.clone() }
}
