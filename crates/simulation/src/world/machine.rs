//! Machines: a disk, a clock, and a process that starts, runs and ends.

use super::{Event, NodeId, World, node_of, server_id};
use crate::CONTEXT;
use crate::coordinator::SimCoordinator;
use crate::expiring::SKEW;
use crate::scenario::{Durability, SyncTime};
use leeward_cluster::{ClusterOptions, CoordinatorOp};
use leeward_engine::{Encryption, Error, Replica, Volume, VolumeOptions};
use leeward_fabric::{Fabric, LinkEvent, PeerId};
use leeward_format::cluster::{Member, ServerInfo};
use leeward_format::control::{Control, MAX_CONTROL_BYTES};
use leeward_format::frame::{FrameKind, read_frame};
use leeward_format::op::OpResult;
use leeward_format::superblock::Superblock;
use leeward_format::{Epoch, Lsn, RegionId, UnixMs, VolumeId};
use leeward_platform::disk::FaultPlan;
use leeward_platform::{Disk, Entropy, Nanos, Rng, Secrets, SimDisk};
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::{Naming, ReplyTo, Request};
use leeward_server::node::{Input, Job, Node, NodeParts, NodeTiming, Outbox, Token, links};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Wall time at which every simulation begins.
const WALL_AT_START_MS: u64 = 1_700_000_000_000;

pub(super) const DISK_BYTES: u64 = 256 << 20;
/// Small, so that a few thousand writes fill levels.
pub(crate) const SEGMENT_BYTES: usize = 32 << 10;
/// A job waits no longer for its syncs: some make many.
const MOST_SYNCING: Nanos = Nanos::from_secs(5);
/// The volume of an empty disk.
const NO_VOLUME: VolumeId = VolumeId(0);

/// A disk, a clock, and the process on it, if one runs.
pub(super) struct Machine {
    pub(super) disk: SimDisk,
    pub(super) node: Option<Node>,
    /// Incremented when a process ends. Events of an earlier incarnation are dropped.
    pub(super) incarnation: u64,
    /// How often it lost power.
    boots: u64,
    /// Incarnation of the disk when the process started. If it has changed, the process died in the middle of a disk operation.
    disk_incarnation: u64,
    /// A death in a disk operation is a loss of power.
    pub(super) dies_with_power: bool,
    pub(super) paused: bool,
    pub(super) slow_disk: bool,
    /// A sync has failed since the process started: its volume takes no more writes.
    sync_has_failed: bool,
    /// The volume on its disk.
    pub(super) volume: VolumeId,
    /// Removed disks and the volumes on them. They are kept until no region can need them any more.
    pub(super) saved_copies: Vec<(VolumeId, SimDisk)>,
    /// A copy of an earlier state of its disk.
    pub(super) copy: Option<DiskCopy>,
    /// While it has a copy of an older state of its disk, and the newest disk is saved: the processes that ran on the copy.
    pub(super) on_copy: Option<Vec<Member>>,
    /// Inputs that arrive while it is paused, or in the middle of a turn.
    inbox: VecDeque<Input>,
    /// What a turn has left to do once its stores have landed.
    unsent: Option<Unsent>,
    /// When its clock stopped, if it is stopped.
    stopped_since: Option<Nanos>,
    clock_offset: Nanos,
    clock_ppm: u64,
    /// How far its wall clock is ahead of the one that is furthest behind. Each incarnation has another value.
    wall_ahead: Nanos,
}

/// What a turn asks for, and the operations for the coordinator of these nodes.
type Unsent = (Outbox, Vec<(NodeId, u64, CoordinatorOp)>);

/// The content of a disk at some moment.
pub(super) struct DiskCopy {
    pub(super) disk: SimDisk,
    /// How far its replica of each region reaches.
    pub(super) reaches: BTreeMap<RegionId, (Epoch, Lsn)>,
}

/// Keys for the volume of `disk`, if it is encrypted. One in three new volumes is: `new` has been drawn at random, and
/// gives the nonces their seed.
fn encryption(disk: &SimDisk, new: VolumeId) -> Option<Arc<Encryption>> {
    let is_encrypted = match Superblock::decode(&disk.contents("volume")) {
        Ok(superblock) => superblock.is_encrypted(),
        Err(_) => new.0.is_multiple_of(3),
    };
    let secrets = || Secrets::parse(&format!("simulated {}", "5c".repeat(32)), "keys").expect("a key");
    is_encrypted.then(|| Encryption::with_entropy(secrets(), Entropy::seeded(new.0)))
}

/// A copy of a disk as a process would read it now.
pub(super) fn copy_of(disk: &SimDisk, seed: u64) -> SimDisk {
    let copy = SimDisk::new(seed, DISK_BYTES);
    let file = copy.open("volume").expect("a simulated disk opens files");
    file.write_buffered_at(&disk.contents("volume"), 0).and_then(|()| file.sync()).expect("there is room");
    copy
}

/// Opens the volume on a disk, which is `new` if there is none.
pub(super) fn open_volume(
    disk: &SimDisk,
    new: VolumeId,
    memory_budget: u64,
) -> Result<(Arc<Volume>, Vec<Replica>), Error> {
    let (encryption, segment_bytes) = (encryption(disk, new), SEGMENT_BYTES);
    let options = VolumeOptions { segment_bytes, memory_budget, encryption, ..VolumeOptions::default() };
    Volume::open(disk.open("volume").expect("a simulated disk opens files"), new, options)
}

impl DiskCopy {
    fn of(disk: &SimDisk, seed: u64) -> DiskCopy {
        // Opening a volume changes it, so a second copy is opened.
        let (opened, new) = (copy_of(disk, seed), VolumeId(seed));
        let encryption = encryption(&opened, new);
        let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, encryption, ..VolumeOptions::default() };
        let opened = Volume::open(opened.open("volume").expect("a simulated disk opens files"), new, options);
        let copies = opened.map(|(_, copies)| copies).unwrap_or_default();
        let reaches = copies.iter().map(|copy| (copy.region(), copy.position())).collect();
        DiskCopy { disk: copy_of(disk, seed.wrapping_add(1)), reaches }
    }
}

impl Machine {
    /// The operator makes a copy of its disk.
    pub(super) fn make_copy(&mut self, seed: u64) {
        self.copy = Some(DiskCopy::of(&self.disk, seed));
    }

    pub(super) fn new(rng: &mut Rng) -> Machine {
        Machine {
            disk: SimDisk::new(rng.u64(), DISK_BYTES),
            node: None,
            incarnation: 0,
            boots: 0,
            disk_incarnation: 0,
            dies_with_power: false,
            paused: false,
            slow_disk: false,
            sync_has_failed: false,
            volume: NO_VOLUME,
            saved_copies: Vec::new(),
            copy: None,
            on_copy: None,
            inbox: VecDeque::new(),
            unsent: None,
            stopped_since: None,
            // A virtual machine may be suspended, for up to minutes in total.
            clock_offset: Nanos::from_secs(1_000 + rng.below(1_000)),
            clock_ppm: rng.between(900_000, 1_100_000),
            wall_ahead: Nanos(rng.below(SKEW.0)),
        }
    }

    /// Proves the host and the boot of its process.
    pub(super) fn lock(&self, node: NodeId) -> String {
        format!("{} {node}", self.boots)
    }

    /// Its disk, or a copy of it, is in another host.
    pub(super) fn moves(&mut self) {
        self.boots += 1;
        self.copy = None;
    }

    fn died(&self) -> bool {
        self.disk.died_since(self.disk_incarnation)
    }

    /// Replaces its disk by `disk`, which has `volume` on it. The old disk becomes one of the `saved_copies`, unless it is a
    /// copy.
    pub(super) fn change_disk(&mut self, volume: VolumeId, disk: SimDisk) {
        assert!(self.node.is_none(), "a disk is changed while nothing runs on it");
        let old = (std::mem::replace(&mut self.volume, volume), std::mem::replace(&mut self.disk, disk));
        self.copy = None;
        if self.on_copy.take().is_none() {
            self.saved_copies.push(old);
        }
        self.disk_incarnation = self.disk.incarnation();
        self.disk.set_capacity(DISK_BYTES);
        self.disk.leave_room(None);
    }

    /// Replaces its disk by an empty one.
    pub(super) fn replace_disk(&mut self, rng: &mut Rng) {
        self.change_disk(NO_VOLUME, SimDisk::new(rng.u64(), DISK_BYTES));
    }

    /// Its boot clock, which is not quite as fast as simulated time.
    fn clock(&self, now: Nanos) -> Nanos {
        self.clock_offset + Nanos(now.0 / 1_000_000 * self.clock_ppm)
    }

    /// Its process stops running. So does its clock, if `stops_clock`.
    pub(super) fn pause(&mut self, now: Nanos, stops_clock: bool) {
        self.paused = true;
        self.stopped_since = stops_clock.then_some(now);
    }

    /// Its process and its clock run again.
    fn resume(&mut self, now: Nanos) {
        self.paused = false;
        if let Some(since) = self.stopped_since.take() {
            // All but one nanosecond is taken back, so that this instant differs from that of the pause.
            let stopped = (self.clock(now) - self.clock(since)) - Nanos(1);
            self.clock_offset = self.clock_offset - stopped;
        }
    }
}

/// The wall clock of a machine that is this far ahead of the one that is furthest behind.
fn wall(now: Nanos, ahead: Nanos) -> UnixMs {
    UnixMs(WALL_AT_START_MS + (now + ahead).as_millis())
}

impl World {
    /// Starts the process of a node, if it has none.
    pub(super) fn start(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            return;
        }
        CONTEXT.set((self.now, Some(node)));
        self.machines[node].sync_has_failed = false;
        if self.machines[node].disk.take_failed_sync() {
            self.writes_were_lost();
        }
        if self.scenario.durability == Durability::Everything && !self.is_held_without(&[node]) {
            // The page cache of this machine has the only copy of some writes. A sync that fails as the volume is opened loses it.
            self.machines[node].disk.forget_failures();
        }
        let machine = &mut self.machines[node];
        machine.disk_incarnation = machine.disk.incarnation();
        let (disk, incarnation, now) = (machine.disk.clone(), machine.incarnation, machine.clock(self.now));
        // Every second incarnation has less memory than its L0s could use, and catches learners up slowly.
        let (memory_budget, catch_up_bytes) = if incarnation % 2 == 0 { (256 << 10, 512 << 10) } else { (4 << 20, 0) };
        let new = VolumeId(self.rng.u64());
        let (volume, copies) = match open_volume(&disk, new, memory_budget) {
            Ok(opened) => opened,
            Err(_) if self.machines[node].died() => return self.crash_if_disk_died(node),
            Err(Error::Io { .. } | Error::VolumeFailed { .. } | Error::NoSpace { .. }) => {
                return self.push(self.now + Nanos::from_millis(100), Event::Restart { node });
            }
            Err(error) => panic!("node {node} cannot open its volume: {error}"),
        };
        let arrivals = self.arrivals.clone();
        let sink =
            Arc::new(move |peer: PeerId, event| arrivals.lock().push((node, incarnation, links::server(peer), event)));
        let member = Member { server: server_id(node), volume: volume.id(), incarnation: volume.incarnation() };
        self.machines[node].volume = volume.id();
        if let Some(processes) = &mut self.machines[node].on_copy {
            processes.push(member);
        }
        tracing::info!(?member, "the process starts");
        let fabric = self.network.node(links::peer(server_id(node)), sink);
        let timing = NodeTiming { catch_up_bytes, ..self.scenario.timing(node, incarnation) };
        let lock = self.machines[node].lock(node);
        let parts = self.parts(node, node, (volume, copies), fabric, timing, lock);
        self.machines[node].node = Some(Node::new(now, parts));
        self.push(self.now, Event::Tick { node, incarnation });
    }

    /// A process of a node, which `coordinated` is at the coordinator.
    pub(super) fn parts(
        &self,
        node: NodeId,
        coordinated: NodeId,
        (volume, copies): (Arc<Volume>, Vec<Replica>),
        fabric: Arc<dyn Fabric>,
        timing: NodeTiming,
        lock: String,
    ) -> NodeParts {
        let member = Member { server: server_id(node), volume: volume.id(), incarnation: volume.incarnation() };
        let address = || format!("node-{coordinated}");
        NodeParts {
            info: ServerInfo {
                fabric_address: address(),
                native_address: address(),
                resp_address: address(),
                admin_address: address(),
                lock,
                location: self.scenario.location(node),
                ..ServerInfo::of(member)
            },
            volume,
            copies,
            clients: ClientMemory::unlimited(),
            readable: (self.scenario.direct_readers > 0).then(|| fabric.clone()),
            fabric,
            coordinator: Arc::new(SimCoordinator { node: coordinated, submitted: self.submitted.clone() }),
            cluster: ClusterOptions {
                expected_servers: self.scenario.nodes as u32,
                balance: self.scenario.balance(),
                ..ClusterOptions::default()
            },
            timing,
            settings: BTreeMap::new(),
            checkpoints: None,
        }
    }

    /// The process of a node dies; with `power`, its machine loses power.
    pub(super) fn crash(&mut self, node: NodeId, power: bool) {
        CONTEXT.set((self.now, Some(node)));
        tracing::info!(power, "the process dies");
        self.note_death();
        let machine = &mut self.machines[node];
        machine.incarnation += 1;
        machine.resume(self.now);
        machine.wall_ahead = Nanos(self.rng.below(SKEW.0));
        // The memory of a killed process may outlive it. That of a machine without power does not.
        let peer = links::peer(server_id(node));
        let is_read = self.scenario.direct_readers > 0 || self.scenario.network.maps_memory;
        match is_read && !power {
            true => self.network.kill_slowly(peer, self.direct.until_unmapped()),
            false => self.network.kill(peer),
        }
        machine.node = None;
        machine.inbox.clear();
        machine.unsent = None;
        machine.dies_with_power = false;
        match power {
            true => {
                machine.boots += 1;
                machine.disk.lose_power(&mut self.rng);
            }
            false => machine.disk.kill_process(),
        }
        machine.disk.set_faults(FaultPlan::default());
        self.host.process_ended(node);
        for client in self.load.node_died(node) {
            self.push(self.now, Event::Client { client });
        }
    }

    /// Ends a process that died in a disk operation. It restarts later.
    fn crash_if_disk_died(&mut self, node: NodeId) {
        if self.machines[node].died() {
            let power = self.machines[node].dies_with_power;
            self.crash(node, power);
            if power {
                self.power_was_lost();
            }
            let at = self.now + Nanos::from_millis(self.rng.between(50, 2_000));
            self.push(at, Event::Restart { node });
        }
    }

    /// Gives `input` to a node, and executes what the node then asks for.
    pub(super) fn input(&mut self, node: NodeId, input: Input) {
        let machine = &mut self.machines[node];
        if machine.paused || machine.unsent.is_some() {
            machine.inbox.push_back(input);
        } else {
            self.take_turn(node, [input]);
        }
    }

    /// Gives `inputs` to a node in one batch.
    fn take_turn(&mut self, node: NodeId, inputs: impl IntoIterator<Item = Input>) {
        CONTEXT.set((self.now, Some(node)));
        let machine = &mut self.machines[node];
        let (now, ahead) = (machine.clock(self.now), machine.wall_ahead);
        let Some(running) = &mut machine.node else { return };
        let (mut outbox, fresh_before) = (Outbox::default(), running.fresh_reads());
        running.set_wall(now, wall(self.now, ahead));
        let syncs_before = machine.disk.syncs();
        for input in inputs {
            match at_once(running, now, &input) {
                Some(reply) => outbox.replies.push_back(reply),
                None => running.handle(now, input),
            }
        }
        running.finish_batch(now, &mut outbox);
        self.fresh += running.fresh_reads() - fresh_before;
        if machine.disk.syncs() > syncs_before && self.waited_for_sync.is_none() {
            let when = self.now.as_millis();
            self.waited_for_sync = Some(format!("at {when} ms a turn of node {node} waited for a sync"));
        }
        if running.missed_wakeups() > 0 && self.missed_wakeup.is_none() {
            let when = self.now.as_millis();
            self.missed_wakeup =
                Some(format!("at {when} ms node {node} had work for an idle region that nothing had woken"));
        }
        let submitted = std::mem::take(&mut *self.submitted.lock());
        let machine = &mut self.machines[node];
        // What the turn asks for comes after its stores. A process that died in the turn asks for nothing.
        match self.network.has_stores(links::peer(server_id(node))) && !machine.died() {
            true => {
                machine.unsent = Some((outbox, submitted));
                self.wake_readers(node);
            }
            false => self.after_turn(node, (outbox, submitted)),
        }
    }

    /// Ends the turns whose stores have landed.
    pub(super) fn finish_turns(&mut self) {
        for node in self.nodes() {
            let has_stores = || self.network.has_stores(links::peer(server_id(node)));
            let machine = &mut self.machines[node];
            if machine.paused || machine.unsent.is_none() || has_stores() {
                continue;
            }
            let unsent = machine.unsent.take();
            CONTEXT.set((self.now, Some(node)));
            unsent.into_iter().for_each(|unsent| self.after_turn(node, unsent));
            let waiting = std::mem::take(&mut self.machines[node].inbox);
            if !waiting.is_empty() {
                self.take_turn(node, waiting);
            }
        }
    }

    fn after_turn(&mut self, node: NodeId, (outbox, submitted): Unsent) {
        let incarnation = self.machines[node].incarnation;
        for job in outbox.jobs {
            let at = self.now + self.device_delay(node);
            let sync = self.sync_time(node);
            let at = if sync.is_behind { at + sync.time } else { at };
            self.push(at, Event::Job { node, incarnation, job });
        }
        for (submitter, id, op) in submitted {
            let sent = self.host.submit(self.now, submitter, id, op, &mut self.rng);
            self.send(vec![sent]);
        }
        let machine = &mut self.machines[node];
        if !machine.sync_has_failed && machine.disk.has_failed_sync() {
            machine.sync_has_failed = true;
            // Nothing becomes durable from now on.
            self.note_death();
        }
        // A process that died in this batch has sent no answers.
        if self.machines[node].died() {
            return self.crash_if_disk_died(node);
        }
        for (token, result) in outbox.replies {
            self.answered(node, token, result);
        }
        self.aim(node);
    }

    fn device_delay(&mut self, node: NodeId) -> Nanos {
        let usual = Nanos::from_micros(self.rng.between(30, 1_000));
        match self.machines[node].slow_disk || self.rng.one_in(50) {
            true => Nanos(usual.0 * 40),
            false => usual,
        }
    }

    /// How long a sync of a node's disk takes now.
    fn sync_time(&self, node: NodeId) -> SyncTime {
        match self.faults_continue() {
            true => self.scenario.sync_time(node, self.now),
            false => SyncTime::default(),
        }
    }

    pub(super) fn run_job(&mut self, node: NodeId, incarnation: u64, job: Job) {
        CONTEXT.set((self.now, Some(node)));
        let syncs_before = self.machines[node].disk.syncs();
        let done = job.run();
        let syncs = self.machines[node].disk.syncs() - syncs_before;
        let delay = Nanos::from_micros(self.rng.between(1, 200));
        let syncing = Nanos(self.sync_time(node).time.0 * syncs).min(MOST_SYNCING);
        self.push(self.now + delay + syncing, Event::JobDone { node, incarnation, done });
        self.crash_if_disk_died(node);
    }

    /// A paused process runs again, and gets everything that arrived meanwhile.
    pub(super) fn resume(&mut self, node: NodeId) {
        let machine = &mut self.machines[node];
        machine.resume(self.now);
        if machine.unsent.is_some() {
            return;
        }
        let waiting = std::mem::take(&mut machine.inbox);
        self.take_turn(node, waiting);
    }

    pub(super) fn deliver_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock());
        for (node, incarnation, from, event) in arrivals {
            if let Some(reader) = node.checked_sub(self.machines.len()) {
                self.reader_hears(reader, node_of(from), event);
            } else if self.machines[node].incarnation == incarnation {
                self.note_lease(node, &event);
                self.input(node, Input::Link(from, event));
            }
        }
    }

    /// Notes how long a lease grant took, if that is asked for.
    fn note_lease(&mut self, node: NodeId, event: &LinkEvent) {
        let Some(round_trips) = &mut self.lease_round_trips else { return };
        if let LinkEvent::Message(bytes) = event
            && let Ok(Some((Control::LeaseGrant { sent, .. }, _))) =
                read_frame(FrameKind::Control, bytes, MAX_CONTROL_BYTES)
        {
            round_trips.push(self.machines[node].clock(self.now) - Nanos(sent));
        }
    }
}

/// The answer to a read of a client that the node gives at once, as to Redis clients. Every second read goes the usual way.
fn at_once(node: &Node, now: Nanos, input: &Input) -> Option<(Token, OpResult)> {
    let Input::Submit(Request {
        to: ReplyTo::Client(token), table, op, naming: Naming::Unnamed, is_direct: false, ..
    }) = input
    else {
        return None;
    };
    let result = token.0.is_multiple_of(2).then(|| node.read_at_once(now, table, op))?;
    Some((*token, result?))
}
