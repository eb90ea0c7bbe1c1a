//! What breaks, when, and for how long.

use super::machine::DISK_BYTES;
use super::{Event, NodeId, World, node_of, server_id};
use crate::HERE;
use crate::character::Promise;
use leeward_fabric::PeerId;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_platform::Nanos;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_server::node::status::NodeStatus;
use leeward_server::node::{Node, link};

/// A kind of thing that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// A process is killed; what it wrote is in the page cache.
    Kill,
    /// All processes are killed at once.
    KillAll,
    /// The processes of all nodes but one are killed at once: a primary that was struck is left alone with what it was asked for.
    KillOthers,
    /// A machine loses power; what was not synced is lost or torn.
    PowerLoss,
    /// All machines lose power at once.
    PowerLossAll,
    /// A process is killed by one of its next disk operations, in the middle of it.
    DiskKill,
    /// A machine loses power in one of its next disk operations.
    DiskPowerLoss,
    /// One of the next disk operations fails; later the process is started anew.
    DiskError,
    /// A disk takes no more than it has.
    DiskFull,
    /// A disk is replaced by an empty one; the old one is put back if a region waits for it.
    ReplaceDisk,
    /// All processes are killed, and one is started with a copy of its disk that was made earlier; the newest one is put back if a
    /// region waits for it.
    RestoreCopy,
    /// A device answers forty times slower.
    SlowDisk,
    /// A node is cut off from the others, and mostly from the coordinator too. Clients still reach it.
    Isolate,
    /// Nothing gets from one node to another.
    CutOneWay,
    /// A link is slow one way.
    SlowLink,
    /// A node is cut off from the coordinator only.
    CutCoordinator,
    /// The coordinator does not run.
    CoordinatorDown,
    /// A process stops running for a while; its memory can be written, and what it is sent waits.
    Pause,
    /// A guest is stopped: its process does not run, and its boot clock stands. When it goes on, its wall clock is right.
    SuspendMachine,
    /// A node is cut off from the others, and they from the coordinator. Only where every member answers reads: those of the others
    /// grow old together.
    Strand,
}

impl FaultKind {
    /// Every kind, but for [`FaultKind::Strand`].
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

    /// Whether it can happen to so many nodes without breaking the promise by itself.
    pub(crate) fn is_possible(self, nodes: usize, promise: Promise) -> bool {
        match self {
            FaultKind::PowerLossAll => nodes > 1 && promise != Promise::Everything,
            FaultKind::DiskPowerLoss => promise != Promise::Everything,
            // A process that does not run flushes nothing, however long it is.
            FaultKind::Pause | FaultKind::SuspendMachine => promise == Promise::Everything,
            FaultKind::KillAll | FaultKind::Isolate | FaultKind::CutOneWay | FaultKind::SlowLink => nodes > 1,
            FaultKind::Strand | FaultKind::KillOthers => nodes > 2,
            _ => true,
        }
    }

    /// Whether it takes what is not durable.
    pub(crate) fn loses_power(self) -> bool {
        matches!(self, FaultKind::PowerLoss | FaultKind::PowerLossAll | FaultKind::DiskPowerLoss)
    }
}

/// What is broken.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub(super) struck: u64,
    /// A machine lost power, and not every region was whole since: some member in sync must stay alive.
    power_lost: bool,
    /// Where power may be lost anywhere: the deaths of processes. What one had not synced waits in a page cache until it is started again.
    deaths: Vec<Death>,
    /// Until then nothing that was cut or slowed is mended.
    broken_until: Nanos,
    /// When a disk was put back last.
    pub(super) disk_put_back: Nanos,
}

/// The death of a process.
#[derive(Debug)]
struct Death {
    at: Nanos,
    /// When all was seen to be well again.
    healed: Option<Nanos>,
}

/// What a full device is in the way of goes on when there is room: no operator must act.
fn assert_not_broken_for_room(node: Option<&Node>) {
    let regions = node.into_iter().flat_map(|node| node.status().regions);
    for region in regions {
        let is_broken = region.state.starts_with("broken") && region.state.contains("no space");
        assert!(!is_broken, "region {}: {}", region.region, region.state);
    }
}

impl World {
    /// A process is about to die.
    pub(super) fn note_death(&mut self) {
        if self.character.promise == Promise::AllButTheLastSecond {
            if self.is_well() {
                self.trouble.deaths.iter_mut().for_each(|death| _ = death.healed.get_or_insert(self.now));
            }
            self.trouble.deaths.push(Death { at: self.now, healed: None });
        }
    }

    pub(super) fn until_next_fault(&mut self) -> Nanos {
        let gap = self.character.troubles.gap.0;
        Nanos(self.rng.between(gap / 4, gap * 2))
    }

    /// How long the next fault lasts: less than a lease and a session, or more than both.
    fn fault_length(&mut self) -> Nanos {
        Nanos::from_millis(match self.rng.below(100) < self.character.troubles.long {
            true => self.rng.between(1_500, 4_000),
            false => self.rng.between(10, 800),
        })
    }

    /// The node that is struck next: a primary's, more often than not.
    fn choose_victim(&mut self) -> NodeId {
        let primaries: Vec<NodeId> =
            self.configs().iter().filter_map(|config| Some(node_of(config.primary?.server))).collect();
        match self.rng.one_in(2) || primaries.is_empty() {
            true => self.rng.index(self.character.nodes),
            false => primaries[self.rng.index(primaries.len())],
        }
    }

    /// Whether it is still time for faults.
    pub(super) fn faults_go_on(&self) -> bool {
        self.now < self.character.troubles.end
    }

    /// The next fault strikes, if it is time for faults.
    pub(super) fn strike(&mut self) {
        if !self.faults_go_on() {
            return;
        }
        let next = self.now + self.until_next_fault();
        self.push(next, Event::Fault);
        let kinds = &self.character.troubles.kinds;
        let kind = kinds[self.rng.index(kinds.len())];
        let node = self.choose_victim();
        let mend_at = self.now + self.fault_length();
        HERE.set((self.now, None));
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
        self.trouble.struck += u64::from(struck);
    }

    pub(super) fn log(&self, kind: FaultKind, node: NodeId, mend_at: Nanos) {
        HERE.set((self.now, None));
        tracing::info!(?kind, node, until_ms = mend_at.as_millis(), "a fault strikes");
    }

    fn strike_process(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        let everywhere = matches!(kind, FaultKind::KillAll | FaultKind::PowerLossAll);
        let victims: Vec<NodeId> = match kind {
            FaultKind::KillOthers => self.nodes().filter(|other| *other != node).collect(),
            _ if everywhere => self.nodes().collect(),
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

    /// What the store promises: it survives the loss of all but one member's memory, with a quorum of one member less than that, and
    /// `kill -9` of all. After a power loss so many members in sync must stay alive until every region is whole again, or the
    /// newest writes may be lost.
    pub(super) fn may_crash(&mut self, victims: &[NodeId], power: bool) -> bool {
        if victims.iter().all(|victim| self.machines[*victim].node.is_none()) {
            return false;
        }
        if self.trouble.power_lost && self.is_well() {
            self.trouble.power_lost = false;
        }
        if self.character.promise != Promise::Everything || !(power || self.trouble.power_lost) {
            return true;
        }
        let survives = |member: &Member| !victims.contains(&node_of(member.server)) && self.is_alive(*member);
        self.configs().iter().all(|config| config.epoch.0 == 0 || self.is_held_by(config, survives))
    }

    /// Whether those of the members of `config` that are among `some` certainly have all that was committed.
    pub(super) fn is_held_by(&self, config: &GroupConfig, some: impl Fn(&Member) -> bool) -> bool {
        let in_sync = config.in_sync().count();
        match config.must_hear as usize {
            0 => config.in_sync().filter(some).count() + self.character.table.needed_of(in_sync) > in_sync,
            must => config.heirs().filter(|heir| config.lived_on(*heir) && some(heir)).count() >= must,
        }
    }

    /// A machine has lost power.
    pub(super) fn power_was_lost(&mut self) {
        self.writes_were_lost();
        if self.character.promise == Promise::Everything {
            self.trouble.power_lost = true;
            // No process is to die by itself now.
            self.machines.iter().for_each(|machine| machine.disk.set_faults(FaultPlan::default()));
        }
    }

    /// What a disk had not made durable is lost: its machine lost power, or a sync has failed and the process is started anew.
    pub(super) fn writes_were_lost(&mut self) {
        if self.character.promise == Promise::AllButTheLastSecond {
            let window = self.load.window();
            let is_felt = |death: &&Death| death.healed.is_none_or(|healed| healed + window > self.now);
            let deaths: Vec<Nanos> = self.trouble.deaths.iter().filter(is_felt).map(|death| death.at).collect();
            self.load.newest_lost(self.now, &deaths);
        }
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
                // Or those of all others, which take over what they have no room for when the process of this one dies.
                let is_elsewhere = self.rng.one_in(2);
                for node in self.nodes().filter(|other| (*other == node) != is_elsewhere) {
                    let disk = &self.machines[node].disk;
                    disk.set_capacity(disk.contents("volume").len() as u64);
                    disk.set_faults(FaultPlan { no_room_one_in, ..FaultPlan::default() });
                }
                if is_elsewhere {
                    let dies_at = self.now + Nanos::from_millis(self.rng.below(400));
                    self.push(dies_at, Event::Die { node });
                    // Until they have taken over, or for so long that they make way.
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

    /// The disk works again. A process whose volume failed, or that could not open a region, or made way for others, says that an
    /// operator must act: it is started anew.
    pub(super) fn mend_disk(&mut self, node: NodeId) {
        let machine = &self.machines[node];
        machine.disk.set_faults(FaultPlan::default());
        let is_broken = |status: NodeStatus| {
            status.volume_failure.is_some()
                || status.absence.is_some_and(|why| why.contains("given up its offices"))
                || status.regions.iter().any(|region| region.state.starts_with("broken"))
        };
        if machine.node.as_ref().is_some_and(|node| is_broken(node.status())) {
            self.crash(node, false);
            self.start(node);
        }
    }

    fn pause(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        if self.machines[node].node.is_none() || self.machines[node].paused {
            return false;
        }
        self.log(kind, node, mend_at);
        let now = self.now;
        self.machines[node].pause(now, kind == FaultKind::SuspendMachine);
        self.push(mend_at, Event::Resume { node });
        true
    }

    fn strike_network(&mut self, kind: FaultKind, node: NodeId, mend_at: Nanos) -> bool {
        if kind == FaultKind::Strand && self.now < self.trouble.broken_until {
            return false;
        }
        self.log(kind, node, mend_at);
        let peer = |node: NodeId| link::peer(server_id(node));
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
        self.trouble.broken_until = self.trouble.broken_until.max(at);
        self.push(at, Event::Mend);
    }

    /// Everything that was cut, full or slow is as before, once the last such fault is over.
    pub(super) fn mend(&mut self) {
        if self.now < self.trouble.broken_until {
            return;
        }
        HERE.set((self.now, None));
        tracing::info!("cuts are healed");
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

    /// Links take as long as they do when nothing is wrong.
    pub(super) fn set_distances(&mut self) {
        let far = self.character.far();
        for from in self.nodes() {
            for to in self.nodes().filter(|to| *to != from) {
                let extra = far.filter(|(far, _)| *far == to).map_or(Nanos::ZERO, |(_, extra)| extra);
                self.network.slow(link::peer(server_id(from)), link::peer(server_id(to)), extra);
            }
        }
    }

    /// Nothing but volumes that failed is broken any more, and every process runs.
    pub(super) fn mend_connections(&mut self) {
        self.trouble.broken_until = Nanos::ZERO;
        self.mend();
        for node in self.nodes() {
            self.resume(node);
            self.start(node);
        }
    }

    /// Nor are volumes.
    pub(super) fn mend_disks(&mut self) {
        for node in self.nodes() {
            self.mend_disk(node);
        }
    }
}
