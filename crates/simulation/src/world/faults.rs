//! Faults: how each kind strikes, how long it lasts, and how it heals.

use super::machine::DISK_BYTES;
use super::{Event, NodeId, World, node_of, server_id};
use crate::CONTEXT;
use crate::scenario::Durability;
use leeward_fabric::PeerId;
use leeward_format::cluster::{Acknowledge, GroupConfig, Member};
use leeward_format::status::NodeStatus;
use leeward_platform::Nanos;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_server::node::{Node, links};

/// A kind of thing that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// A process is killed; what it wrote is in the page cache.
    Kill,
    /// All processes are killed at once.
    KillAll,
    /// The processes of all nodes but one are killed at once. A primary among the survivors is left alone with its requests.
    KillOthers,
    /// A machine loses power; what was not synced is lost or torn. All nodes that stand there die with it.
    PowerLoss,
    /// All machines lose power at once.
    PowerLossAll,
    /// A process is killed by one of its next disk operations, in the middle of it.
    DiskKill,
    /// A machine loses power in one of its next disk operations.
    DiskPowerLoss,
    /// One of the next disk operations fails. Later the process is restarted.
    DiskError,
    /// A disk accepts no more bytes than it has.
    DiskFull,
    /// A disk is replaced by an empty one; the old one is put back if a region waits for it.
    ReplaceDisk,
    /// All processes are killed, and one is started with an earlier copy of its disk. The disk itself is put back if a region
    /// waits for it.
    RestoreCopy,
    /// A device answers forty times slower.
    SlowDisk,
    /// A node is cut off from the others, and mostly from the coordinator too. Clients still reach it.
    Isolate,
    /// No message gets from one node to another one.
    CutOneWay,
    /// A link is slow one way.
    SlowLink,
    /// A node is cut off from the coordinator only.
    CutCoordinator,
    /// The coordinator does not run.
    CoordinatorDown,
    /// A process stops running for a while. Its memory can still be written, and messages to it wait.
    Pause,
    /// A virtual machine is suspended: its process and its boot clock stop. When they run again, the wall clock is right.
    SuspendMachine,
    /// A node is cut off from the others, and the others from the coordinator. It matters where every member answers
    /// reads: the answers of the others become stale together.
    Strand,
}

impl FaultKind {
    /// Every kind except [`FaultKind::Strand`].
    pub(crate) const ALL: [FaultKind; 19] = [
        FaultKind::Kill,
        FaultKind::KillAll,
        FaultKind::KillOthers,
        FaultKind::PowerLoss,
        FaultKind::PowerLossAll,
        FaultKind::DiskKill,
        FaultKind::DiskPowerLoss,
        FaultKind::DiskError,
        FaultKind::DiskFull,
        FaultKind::ReplaceDisk,
        FaultKind::SlowDisk,
        FaultKind::Isolate,
        FaultKind::CutOneWay,
        FaultKind::SlowLink,
        FaultKind::CutCoordinator,
        FaultKind::CoordinatorDown,
        FaultKind::Pause,
        FaultKind::SuspendMachine,
        FaultKind::RestoreCopy,
    ];

    /// Whether it can happen to so many nodes without breaking the durability that the seed demands.
    pub(crate) fn is_possible(self, nodes: usize, durability: Durability) -> bool {
        match self {
            FaultKind::PowerLossAll => nodes > 1 && durability != Durability::Everything,
            FaultKind::DiskPowerLoss => durability != Durability::Everything,
            // A paused process flushes nothing, however long the pause is.
            FaultKind::Pause | FaultKind::SuspendMachine => durability == Durability::Everything,
            FaultKind::KillAll | FaultKind::Isolate | FaultKind::CutOneWay | FaultKind::SlowLink => nodes > 1,
            FaultKind::Strand | FaultKind::KillOthers => nodes > 2,
            _ => true,
        }
    }

    /// Whether it leaves every node its disk and its way to the coordinator.
    pub(crate) fn leaves_knowledge(self) -> bool {
        match self {
            FaultKind::Kill | FaultKind::KillAll | FaultKind::KillOthers | FaultKind::DiskKill => true,
            FaultKind::SlowDisk | FaultKind::DiskFull | FaultKind::CutOneWay | FaultKind::SlowLink => true,
            FaultKind::Pause | FaultKind::SuspendMachine => true,
            FaultKind::PowerLoss | FaultKind::PowerLossAll | FaultKind::DiskPowerLoss | FaultKind::DiskError => false,
            FaultKind::ReplaceDisk | FaultKind::RestoreCopy => false,
            FaultKind::Isolate | FaultKind::CutCoordinator | FaultKind::CoordinatorDown | FaultKind::Strand => false,
        }
    }

    /// Whether it takes writes that are not durable.
    pub(crate) fn loses_power(self) -> bool {
        matches!(self, FaultKind::PowerLoss | FaultKind::PowerLossAll | FaultKind::DiskPowerLoss)
    }
}

/// The faults so far, and what is broken now.
#[derive(Debug, Default)]
pub(super) struct FaultState {
    /// Faults that struck.
    pub(super) struck: u64,
    /// A machine lost power, and not every region was whole again since. Some member in sync must stay alive.
    power_lost: bool,
    /// Deaths of processes and failed syncs, where power may be lost anywhere: writes that a process had not synced stay in the
    /// page cache until it restarts. And with last-flush: another member may be appointed long after a primary has died.
    deaths: Vec<Death>,
    /// Until then no cut or slowed link or device is mended.
    broken_until: Nanos,
    /// When the last disk was put back.
    pub(super) disk_put_back: Nanos,
}

/// The death of a process.
#[derive(Debug)]
struct Death {
    at: Nanos,
    /// When every region was seen to be whole again.
    healed: Option<Nanos>,
}

/// Asserts that no region is broken for lack of space: work that a full device stopped must continue when there is
/// room.
pub(super) fn assert_not_broken_for_room(node: Option<&Node>) {
    let regions = node.into_iter().flat_map(|node| node.status().regions);
    for region in regions {
        let is_broken = region.state.starts_with("broken") && region.state.contains("no space");
        assert!(!is_broken, "region {}: {}", region.region, region.state);
    }
}

impl World {
    /// A process is about to die, or its disk makes nothing durable any more.
    pub(super) fn note_death(&mut self) {
        let is_last_flush = self.scenario.table.acknowledge == Acknowledge::LastFlush;
        if self.scenario.durability == Durability::AllButTheLastSecond || is_last_flush {
            if self.is_well() {
                self.fault_state.deaths.iter_mut().for_each(|death| _ = death.healed.get_or_insert(self.now));
            }
            self.fault_state.deaths.push(Death { at: self.now, healed: None });
        }
    }

    pub(super) fn until_next_fault(&mut self) -> Nanos {
        let gap = self.scenario.fault_schedule.gap.0;
        Nanos(self.rng.between(gap / 4, gap * 2))
    }

    /// How long the next fault lasts: less than a lease and a session, or more than both.
    fn fault_length(&mut self) -> Nanos {
        Nanos::from_millis(match self.rng.below(100) < self.scenario.fault_schedule.long {
            true => self.rng.between(1_500, 4_000),
            false => self.rng.between(10, 800),
        })
    }

    /// The node that the next fault strikes: the node of a primary, more often than not.
    fn choose_victim(&mut self) -> NodeId {
        let primaries: Vec<NodeId> =
            self.configs().iter().filter_map(|config| Some(node_of(config.primary?.server))).collect();
        match self.rng.one_in(2) || primaries.is_empty() {
            true => self.rng.index(self.scenario.nodes),
            false => primaries[self.rng.index(primaries.len())],
        }
    }

    /// Whether faults may still strike.
    pub(super) fn faults_continue(&self) -> bool {
        self.now < self.scenario.fault_schedule.end
    }

    /// The next fault strikes, if it is time for faults.
    pub(super) fn strike(&mut self) {
        if !self.faults_continue() {
            return;
        }
        let next = self.now + self.until_next_fault();
        self.push(next, Event::Fault);
        let kinds = &self.scenario.fault_schedule.kinds;
        let kind = kinds[self.rng.index(kinds.len())];
        let node = self.choose_victim();
        let mend_at = self.now + self.fault_length();
        CONTEXT.set((self.now, None));
        let struck = match kind {
            FaultKind::Kill
            | FaultKind::KillAll
            | FaultKind::KillOthers
            | FaultKind::PowerLoss
            | FaultKind::PowerLossAll
            | FaultKind::DiskKill
            | FaultKind::DiskPowerLoss => self.strike_process(kind, node, mend_at),
            FaultKind::DiskError | FaultKind::DiskFull | FaultKind::SlowDisk => self.strike_disk(kind, node, mend_at),
            FaultKind::ReplaceDisk => self.replace_disk(node, mend_at),
            FaultKind::RestoreCopy => self.restore_copy(node, mend_at),
            FaultKind::Pause | FaultKind::SuspendMachine => self.pause(kind, node, mend_at),
            _ => self.strike_network(kind, node, mend_at),
        };
        self.fault_state.struck += u64::from(struck);
    }

    pub(super) fn log(&self, kind: FaultKind, node: NodeId, mend_at: Nanos) {
        CONTEXT.set((self.now, None));
        tracing::info!(?kind, node, until_ms = mend_at.as_millis(), "a fault strikes");
    }

    fn strike_process(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        let everywhere = matches!(kind, FaultKind::KillAll | FaultKind::PowerLossAll);
        let victims: Vec<NodeId> = match kind {
            FaultKind::KillOthers => self.nodes().filter(|other| *other != node).collect(),
            _ if everywhere => self.nodes().collect(),
            FaultKind::PowerLoss if self.scenario.has_locations() => self.nodes_beside(node),
            _ => vec![node],
        };
        if !self.may_crash(&victims, kind.loses_power()) {
            return false;
        }
        self.log(kind, node, mend_at);
        if matches!(kind, FaultKind::DiskKill | FaultKind::DiskPowerLoss) {
            let plan = match self.rng.one_in(2) {
                true => FaultPlan { at: vec![(self.rng.between(1, 200), Fault::Kill)], ..FaultPlan::default() },
                false => FaultPlan { at_sync: vec![(self.rng.between(1, 10), Fault::Kill)], ..FaultPlan::default() },
            };
            self.machines[node].dies_with_power = kind == FaultKind::DiskPowerLoss;
            self.machines[node].disk.set_faults(plan);
            return true;
        }
        for victim in victims {
            self.crash(victim, kind.loses_power());
            let later = if everywhere { self.rng.below(300) } else { 0 };
            self.push(mend_at + Nanos::from_millis(later), Event::Restart { node: victim });
        }
        if kind.loses_power() {
            self.power_was_lost();
        }
        true
    }

    /// The nodes at the location of this one.
    fn nodes_beside(&self, node: NodeId) -> Vec<NodeId> {
        let here = self.scenario.location(node);
        self.nodes().filter(|other| self.scenario.location(*other) == here).collect()
    }

    /// The store guarantees to survive `kill -9` of all processes, and the loss of the memory of all members but one;
    /// with a quorum, of one member fewer than the quorum. After a power loss enough members in sync must stay alive
    /// until every region is whole again. Otherwise the newest writes may be lost. When a process dies after a failed
    /// sync, it loses as much as a machine that loses power.
    pub(super) fn may_crash(&mut self, victims: &[NodeId], power: bool) -> bool {
        if victims.iter().all(|victim| self.machines[*victim].node.is_none()) {
            return false;
        }
        if self.fault_state.power_lost && self.is_well() {
            self.fault_state.power_lost = false;
        }
        let has_failed_sync = victims.iter().any(|victim| self.machines[*victim].disk.has_failed_sync());
        let may_lose = power || self.fault_state.power_lost || has_failed_sync;
        if self.scenario.durability != Durability::Everything || !may_lose {
            return true;
        }
        self.is_held_without(victims)
    }

    /// Whether the processes of other nodes certainly have all committed writes.
    pub(super) fn is_held_without(&self, nodes: &[NodeId]) -> bool {
        let survives = |member: &Member| !nodes.contains(&node_of(member.server)) && self.is_alive(*member);
        self.configs().iter().all(|config| config.epoch.0 == 0 || self.is_held_by(config, survives))
    }

    /// Whether the members of `config` that are among `some` certainly have all committed writes.
    pub(super) fn is_held_by(&self, config: &GroupConfig, some: impl Fn(&Member) -> bool) -> bool {
        let in_sync = config.in_sync().count();
        match config.recovery_quorum as usize {
            0 => config.in_sync().filter(some).count() + self.scenario.table.needed_of(in_sync) > in_sync,
            must => config.candidates().filter(|one| config.kept_running(*one) && some(one)).count() >= must,
        }
    }

    /// A machine has lost power.
    pub(super) fn power_was_lost(&mut self) {
        self.writes_were_lost();
        if self.scenario.durability == Durability::Everything {
            self.fault_state.power_lost = true;
            // From now on no process may die in a disk operation.
            self.machines.iter().for_each(|machine| machine.disk.set_faults(FaultPlan::default()));
        }
    }

    /// A disk lost what was not durable: its machine lost power, or a sync failed and the process starts anew.
    pub(super) fn writes_were_lost(&mut self) {
        if self.scenario.durability == Durability::AllButTheLastSecond {
            self.newest_were_lost();
        }
    }

    /// The newest writes may be gone, also those just before deaths of processes that were not mended for long.
    pub(super) fn newest_were_lost(&mut self) {
        let window = self.load.window();
        let is_felt = |death: &&Death| death.healed.is_none_or(|healed| healed + window > self.now);
        let deaths: Vec<Nanos> = self.fault_state.deaths.iter().filter(is_felt).map(|death| death.at).collect();
        self.load.newest_lost(self.now, &deaths);
    }

    fn strike_disk(&mut self, kind: FaultKind, node: NodeId, mut mend_at: Nanos) -> bool {
        match kind {
            FaultKind::DiskError => {
                let at = vec![(self.rng.between(1, 300), Fault::Fail)];
                self.machines[node].disk.set_faults(FaultPlan { at, ..FaultPlan::default() });
                self.push(mend_at, Event::MendDisk { node });
            }
            FaultKind::DiskFull => {
                let no_room_one_in = [0, 1, 3][self.rng.below(3) as usize];
                // Or the disks of all other nodes, which take over regions that they have no room for when this process dies.
                let is_elsewhere = self.rng.one_in(2);
                for node in self.nodes().filter(|other| (*other == node) != is_elsewhere) {
                    let disk = &self.machines[node].disk;
                    disk.set_capacity(disk.contents("volume").len() as u64);
                    disk.set_faults(FaultPlan { no_room_one_in, ..FaultPlan::default() });
                }
                if is_elsewhere {
                    let dies_at = self.now + Nanos::from_millis(self.rng.below(400));
                    self.push(dies_at, Event::Die { node });
                    // Until the others have taken over, or for so long that they step aside.
                    mend_at = mend_at.max(self.now + Nanos::from_millis(self.rng.between(1_500, 7_000)));
                }
                self.push_mend(mend_at);
            }
            _ => {
                self.machines[node].slow_disk = true;
                self.push_mend(mend_at);
            }
        }
        self.log(kind, node, mend_at);
        true
    }

    /// The disk works again. The operator restarts the process if its status asks for that: its volume failed, it could
    /// not open a region, or it has stepped aside. After a failed sync the operator waits while the process serves data
    /// that the others do not have.
    pub(super) fn mend_disk(&mut self, node: NodeId) {
        let machine = &self.machines[node];
        machine.disk.set_faults(FaultPlan::default());
        let is_broken = |status: NodeStatus| {
            status.volume_failure.is_some()
                || status.not_joined.is_some_and(|why| why.contains("has stepped aside"))
                || status.regions.iter().any(|region| region.state.starts_with("broken"))
        };
        if !machine.node.as_ref().is_some_and(|node| is_broken(node.status())) {
            return;
        }
        if self.machines[node].disk.has_failed_sync() && self.is_needed(node) {
            return self.push(self.now + Nanos::from_millis(200), Event::MendDisk { node });
        }
        self.crash(node, false);
        self.start(node);
    }

    /// A node serves a region whose other members do not certainly have all of it, and no write may be lost.
    fn is_needed(&self, node: NodeId) -> bool {
        let is_other = |member: &Member| node_of(member.server) != node && self.is_alive(*member);
        let serves = |config: &GroupConfig| {
            let node = self.machines[node].node.as_ref();
            node.is_some_and(|node| node.is_serving(config.region, config.term))
        };
        self.scenario.durability == Durability::Everything
            && self.configs().iter().any(|config| serves(config) && !self.is_held_by(config, is_other))
    }

    fn pause(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        if self.machines[node].node.is_none() || self.machines[node].paused {
            return false;
        }
        self.log(kind, node, mend_at);
        self.ask_before_pause(node);
        let now = self.now;
        self.machines[node].pause(now, kind == FaultKind::SuspendMachine);
        self.push(mend_at, Event::Resume { node });
        true
    }

    fn strike_network(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        if kind == FaultKind::Strand && self.now < self.fault_state.broken_until {
            return false;
        }
        self.log(kind, node, mend_at);
        let peer = |node: NodeId| links::peer(server_id(node));
        let others: Vec<NodeId> = self.nodes().filter(|other| *other != node).collect();
        match kind {
            FaultKind::Isolate => {
                let others: Vec<PeerId> = others.into_iter().map(peer).collect();
                self.network.partition(&[&[peer(node)], &others]);
                self.host.reachable[node] &= self.rng.one_in(3);
            }
            FaultKind::Strand => {
                others.iter().for_each(|other| self.host.reachable[*other] = false);
                let others: Vec<PeerId> = others.into_iter().map(peer).collect();
                self.network.partition(&[&[peer(node)], &others]);
            }
            FaultKind::CutOneWay => self.network.cut(peer(node), peer(others[self.rng.index(others.len())])),
            FaultKind::SlowLink => {
                let extra = Nanos::from_millis(self.rng.between(1, 100));
                self.network.slow(peer(node), peer(others[self.rng.index(others.len())]), extra);
            }
            FaultKind::CutCoordinator => self.host.reachable[node] = false,
            _ => self.host.down = true,
        }
        self.push_mend(mend_at);
        true
    }

    fn push_mend(&mut self, at: Nanos) {
        self.fault_state.broken_until = self.fault_state.broken_until.max(at);
        self.push(at, Event::Mend);
    }

    /// Heals everything that was cut, full or slow, once the last such fault is over.
    pub(super) fn mend(&mut self) {
        if self.now < self.fault_state.broken_until {
            return;
        }
        CONTEXT.set((self.now, None));
        tracing::info!("network and devices are healed");
        self.network.heal();
        self.set_distances();
        self.host.reachable.fill(true);
        self.host.down = false;
        for node in self.nodes() {
            let machine = &mut self.machines[node];
            assert_not_broken_for_room(machine.node.as_ref());
            machine.slow_disk = false;
            machine.disk.set_capacity(DISK_BYTES);
            self.mend_disk(node);
        }
    }

    /// Sets the usual delay of each link.
    pub(super) fn set_distances(&mut self) {
        let far = self.scenario.far();
        for from in self.nodes() {
            for to in self.nodes().filter(|to| *to != from) {
                let extra = far.filter(|(far, _)| *far == to).map_or(Nanos::ZERO, |(_, extra)| extra);
                self.network.slow(links::peer(server_id(from)), links::peer(server_id(to)), extra);
            }
        }
    }

    /// Heals everything except failed volumes, and starts every process.
    pub(super) fn mend_connections(&mut self) {
        self.fault_state.broken_until = Nanos::ZERO;
        self.stop_intruder();
        self.empty_disks();
        self.mend();
        for node in self.nodes() {
            self.resume(node);
            self.start(node);
        }
    }

    /// Heals failed volumes.
    pub(super) fn mend_disks(&mut self) {
        for node in self.nodes() {
            self.mend_disk(node);
        }
    }
}
