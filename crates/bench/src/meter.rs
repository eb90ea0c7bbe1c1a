//! What the servers spent: CPU and device bytes from the kernel's accounting of the processes (`/proc`), device and
//! network bytes and compaction figures from `/status`, summed over nodes and over the incarnations of a restarted
//! node.
//!
//! A figure is `None` if a node did not report it, because the sum would be wrong. Before a process is killed, the
//! thread that kills it takes a last sample.

use crate::process::{Amount, ProcessSpent};
use leeward_client::Access;
use leeward_format::status::{CpuSpent, NodeStatus, RegionCounters, RegionStatus, Role};
use leeward_format::{RegionId, ServerId};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;

/// Time limit for a node's answer, so that no node delays the run.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What one process spent since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) user_ticks: Amount,
    pub(crate) system_ticks: Amount,
    pub(crate) read_bytes: Amount,
    pub(crate) written_bytes: Amount,
    pub(crate) engine_read_bytes: Amount,
    pub(crate) engine_written_bytes: Amount,
    pub(crate) fabric_bytes: Amount,
    pub(crate) stale_reads: Amount,
}

/// The work that was done in one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleSpent {
    pub(crate) compactions: u64,
    pub(crate) compaction_bytes_read: u64,
    pub(crate) compaction_bytes_written: u64,
    pub(crate) run_merges: u64,
    pub(crate) user_bytes: u64,
    pub(crate) index_bytes_shipped: u64,
    pub(crate) index_bytes_received: u64,
    pub(crate) index_bytes_rewritten: u64,
    pub(crate) index_bytes_read: u64,
    pub(crate) sync_bytes_shipped: u64,
    pub(crate) stall_ns: u64,
}

/// What all servers spent in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) all: Spent,
    pub(crate) primaries: RoleSpent,
    /// Backups and learners.
    pub(crate) backups: RoleSpent,
    /// Levels of the deepest region.
    pub(crate) levels: u32,
    /// Most memory that the L0s of all replicas of all regions had together.
    pub(crate) l0_bytes: u64,
    /// The same of backups and learners.
    pub(crate) backup_l0_bytes: u64,
    /// Bytes of the segments of all nodes, as of the last sample in which all have answered.
    pub(crate) space_bytes: Amount,
    /// Memory of compactions, of all nodes, as of the last sample: more than 0 while one runs.
    pub(crate) compaction_memory: u64,
    /// Copies in the role of backup, and regions with a primary, most in one sample.
    pub(crate) backup_copies: u64,
    pub(crate) regions: u64,
    /// Most sorted runs of a backup's copy.
    pub(crate) sorted_runs: u64,
    /// Fewest merges of all runs of a backup's copy.
    pub(crate) least_run_merges: u64,
}

/// CPU time in nanoseconds by activity and role; `None` if a node does not report it.
pub(crate) type CpuTime = Option<BTreeMap<(String, String), u64>>;

/// Samples the servers, and sums what they spent.
#[derive(Debug)]
pub(crate) struct Meter {
    access: Access,
    addresses: Vec<String>,
    /// By (server, process): the last sample.
    seen: HashMap<(ServerId, Option<u32>), Sample>,
    primed: bool,
    totals: Totals,
    cpu: CpuTime,
    /// Merges of all runs, by copy of a backup.
    merges: HashMap<(ServerId, RegionId), u64>,
}

#[derive(Clone, Debug, Default)]
struct Sample {
    spent: Spent,
    cpu: CpuTime,
    regions: HashMap<RegionId, RoleSpent>,
}

impl Meter {
    /// Takes the first sample of the nodes at these admin addresses. What they spent before it does not count.
    pub(crate) fn new(access: Access, addresses: Vec<String>) -> Meter {
        let mut meter = Meter {
            access,
            addresses,
            seen: HashMap::new(),
            primed: false,
            totals: zero(),
            cpu: Some(BTreeMap::new()),
            merges: HashMap::new(),
        };
        meter.sample();
        meter.primed = true;
        meter
    }

    /// Adds what was spent since the last sample. If a node does not answer, the next sample includes what it spent.
    pub(crate) fn sample(&mut self) {
        let (mut now, mut space_bytes) = (Totals::default(), Some(0));
        for address in self.addresses.clone() {
            let Ok(status) = self.access.status(&address, TIMEOUT) else {
                space_bytes = None;
                continue;
            };
            space_bytes = plus(space_bytes, status.device.map(|device| device.segment_bytes_used));
            now.compaction_memory += status.memory.compactions;
            status.regions.iter().for_each(|region| now.look_at(region));
            let pid = status.pid.filter(|_| is_local(&address));
            let spent = pid.map_or_else(Spent::default, process_spent);
            self.take(&status, spent);
        }
        self.totals.keep_most(&now);
        self.totals.space_bytes = space_bytes.or(self.totals.space_bytes);
        self.totals.compaction_memory = now.compaction_memory;
    }

    /// What was spent since the last call.
    pub(crate) fn take_totals(&mut self) -> Totals {
        let least_run_merges = self.merges.drain().map(|(_, merges)| merges).min().unwrap_or(0);
        Totals { least_run_merges, ..std::mem::replace(&mut self.totals, zero()) }
    }

    /// CPU time since the last call.
    pub(crate) fn take_cpu(&mut self) -> CpuTime {
        self.cpu.replace(BTreeMap::new())
    }

    /// What was spent since the last call of [`Meter::take_totals`], as of the last sample.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    fn take(&mut self, status: &NodeStatus, process: Spent) {
        let spent = Spent {
            engine_read_bytes: status.device.map(|device| device.bytes_read),
            engine_written_bytes: status.device.map(|device| device.bytes_written),
            fabric_bytes: status.network.map(|network| network.bytes_sent + network.bytes_received),
            stale_reads: Some(status.stale_reads),
            ..process
        };
        let regions = status.regions.iter().map(|region| (region.region, RoleSpent::from(region.counters)));
        let cpu = status.cpu.as_ref().map(|cpu| cpu.spent.iter().map(cpu_time).collect());
        let now = Sample { spent, cpu, regions: regions.collect() };
        let deepest = status.regions.iter().flat_map(|region| &region.levels).map(|level| level.level).max();
        self.totals.levels = self.totals.levels.max(deepest.unwrap_or(0));
        let incarnation = (status.server, status.pid);
        let before = match self.seen.insert(incarnation, now.clone()) {
            Some(before) => before,
            // A process that started during the run counts from 0. What one from before the run had spent does not
            // count.
            None if self.primed => Sample { spent: zero().all, cpu: Some(BTreeMap::new()), regions: HashMap::new() },
            None => now.clone(),
        };
        self.cpu = add_cpu(self.cpu.take(), now.cpu, &before.cpu);
        self.totals.all = self.totals.all.plus(now.spent.minus(before.spent));
        for region in &status.regions {
            let counters = now.regions[&region.region];
            let past = before.regions.get(&region.region).copied().unwrap_or_default();
            let spent = counters.since(past);
            let role = if region.role == Role::Primary { &mut self.totals.primaries } else { &mut self.totals.backups };
            *role = role.plus(spent);
            if region.role == Role::Backup {
                *self.merges.entry((status.server, region.region)).or_default() += spent.run_merges;
            }
        }
    }
}

impl Totals {
    /// Adds a copy to what one sample shows.
    fn look_at(&mut self, region: &RegionStatus) {
        self.l0_bytes += region.l0_bytes;
        match region.role {
            Role::Primary => self.regions += 1,
            Role::Backup => {
                self.backup_copies += 1;
                self.backup_l0_bytes += region.l0_bytes;
                self.sorted_runs = self.sorted_runs.max(region.runs());
            }
            Role::Learner => self.backup_l0_bytes += region.l0_bytes,
            Role::None => {}
        }
    }

    /// Keeps the most that this and another sample show.
    fn keep_most(&mut self, other: &Totals) {
        let pairs = [
            (&mut self.l0_bytes, other.l0_bytes),
            (&mut self.backup_l0_bytes, other.backup_l0_bytes),
            (&mut self.backup_copies, other.backup_copies),
            (&mut self.regions, other.regions),
            (&mut self.sorted_runs, other.sorted_runs),
        ];
        pairs.into_iter().for_each(|(most, now)| *most = (*most).max(now));
    }
}

fn zero() -> Totals {
    let nothing = Spent::default().map(Spent::default(), |_, _| Some(0));
    Totals { all: nothing, ..Totals::default() }
}

fn cpu_time(spent: &CpuSpent) -> ((String, String), u64) {
    ((spent.activity.clone(), spent.role.clone()), spent.nanos)
}

/// `sum`, plus the growth from `before` to `now`.
fn add_cpu(sum: CpuTime, now: CpuTime, before: &CpuTime) -> CpuTime {
    let (mut sum, before) = (sum?, before.as_ref()?);
    for (account, nanos) in now? {
        let past = before.get(&account).copied().unwrap_or(0);
        *sum.entry(account).or_default() += nanos.saturating_sub(past);
    }
    Some(sum)
}

fn plus(a: Amount, b: Amount) -> Amount {
    Some(a? + b?)
}

fn minus(a: Amount, b: Amount) -> Amount {
    Some(a?.saturating_sub(b?))
}

impl Spent {
    fn map(self, other: Spent, f: fn(Amount, Amount) -> Amount) -> Spent {
        Spent {
            user_ticks: f(self.user_ticks, other.user_ticks),
            system_ticks: f(self.system_ticks, other.system_ticks),
            read_bytes: f(self.read_bytes, other.read_bytes),
            written_bytes: f(self.written_bytes, other.written_bytes),
            engine_read_bytes: f(self.engine_read_bytes, other.engine_read_bytes),
            engine_written_bytes: f(self.engine_written_bytes, other.engine_written_bytes),
            fabric_bytes: f(self.fabric_bytes, other.fabric_bytes),
            stale_reads: f(self.stale_reads, other.stale_reads),
        }
    }
    fn plus(self, other: Spent) -> Spent {
        self.map(other, plus)
    }
    fn minus(self, other: Spent) -> Spent {
        self.map(other, minus)
    }
}

impl RoleSpent {
    fn map(self, other: RoleSpent, f: fn(u64, u64) -> u64) -> RoleSpent {
        RoleSpent {
            compactions: f(self.compactions, other.compactions),
            compaction_bytes_read: f(self.compaction_bytes_read, other.compaction_bytes_read),
            compaction_bytes_written: f(self.compaction_bytes_written, other.compaction_bytes_written),
            run_merges: f(self.run_merges, other.run_merges),
            user_bytes: f(self.user_bytes, other.user_bytes),
            index_bytes_shipped: f(self.index_bytes_shipped, other.index_bytes_shipped),
            index_bytes_received: f(self.index_bytes_received, other.index_bytes_received),
            index_bytes_rewritten: f(self.index_bytes_rewritten, other.index_bytes_rewritten),
            index_bytes_read: f(self.index_bytes_read, other.index_bytes_read),
            sync_bytes_shipped: f(self.sync_bytes_shipped, other.sync_bytes_shipped),
            stall_ns: f(self.stall_ns, other.stall_ns),
        }
    }
    fn plus(self, other: RoleSpent) -> RoleSpent {
        self.map(other, |a, b| a + b)
    }
    /// What was added since `past`. Some counters start again at 0 when a node becomes primary or stops being primary.
    fn since(self, past: RoleSpent) -> RoleSpent {
        self.map(past, |now, past| if now < past { now } else { now - past })
    }
}

impl From<RegionCounters> for RoleSpent {
    fn from(counters: RegionCounters) -> RoleSpent {
        RoleSpent {
            compactions: counters.compactions,
            compaction_bytes_read: counters.compaction_bytes_read,
            compaction_bytes_written: counters.compaction_bytes_written,
            run_merges: counters.run_merges,
            user_bytes: counters.user_bytes,
            index_bytes_shipped: counters.index_bytes_shipped,
            index_bytes_received: counters.index_bytes_received,
            index_bytes_rewritten: counters.index_bytes_rewritten,
            index_bytes_read: counters.index_bytes_read,
            sync_bytes_shipped: counters.sync_bytes_shipped,
            stall_ns: counters.stall_l0_full_ns + counters.stall_tail_ns,
        }
    }
}

/// Whether the address is of this machine: `/proc` has only this machine's processes.
fn is_local(address: &str) -> bool {
    let mut resolved = address.to_socket_addrs().into_iter().flatten();
    resolved.all(|address| match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    })
}

/// What the process spent, as a sample of a node.
fn process_spent(pid: u32) -> Spent {
    let ProcessSpent { user_ticks, system_ticks, read_bytes, written_bytes } = ProcessSpent::of(pid);
    Spent { user_ticks, system_ticks, read_bytes, written_bytes, ..Spent::default() }
}
