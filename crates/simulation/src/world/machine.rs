//! Machines: a disk, a clock, and a process that starts, runs and ends.

use super::{Event, NodeId, World, server_id};
use crate::HERE;
use crate::coordinator::SimCoordinator;
use crate::expiring::SKEW;
use leeward_cluster::ClusterOptions;
use leeward_engine::{Error, Volume, VolumeOptions};
use leeward_fabric::PeerId;
use leeward_format::cluster::{Member, ServerInfo};
use leeward_format::{Epoch, Lsn, RegionId, UnixMs, VolumeId};
use leeward_platform::disk::FaultPlan;
use leeward_platform::{Disk, Nanos, Rng, SimDisk};
use leeward_server::client_memory::ClientMemory;
use leeward_server::node::{Input, Job, Node, NodeParts, NodeTiming, Outbox, link};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Wall time at which every simulation begins.
const WALL_AT_START_MS: u64 = 1_700_000_000_000;

pub(super) const DISK_BYTES: u64 = 256 << 20;
/// Small, so that a few thousand writes fill levels.
pub(crate) const SEGMENT_BYTES: usize = 32 << 10;
/// What an empty disk has.
const NO_VOLUME: VolumeId = VolumeId(0);

/// See the module.
pub(super) struct Machine {
    pub(super) disk: SimDisk,
    pub(super) node: Option<Node>,
    /// Raised when a process ends: what belongs to an earlier one is void.
    pub(super) life: u64,
    /// Life of the disk when the process started: another one means that it died in the middle of a disk operation.
    disk_life: u64,
    /// Such a death takes the power with it.
    pub(super) dies_with_power: bool,
    pub(super) paused: bool,
    pub(super) slow_disk: bool,
    /// The volume on its disk.
    pub(super) volume: VolumeId,
    /// Disks that were taken out, and the volumes on them: kept until no region may need them any more.
    pub(super) shelf: Vec<(VolumeId, SimDisk)>,
    /// A copy of its disk, of an earlier state.
    pub(super) copy: Option<DiskCopy>,
    /// Such a copy is in it; the disk itself is on the shelf.
    pub(super) has_copy: bool,
    /// What arrives while it is paused.
    inbox: VecDeque<Input>,
    /// When its clock began to stand, where it does.
    stands_since: Option<Nanos>,
    clock_offset: Nanos,
    clock_ppm: u64,
    /// How far its wall clock is ahead of the last one; another with each life.
    wall_ahead: Nanos,
}

/// What was on a disk at some moment.
pub(super) struct DiskCopy {
    pub(super) disk: SimDisk,
    /// How far its copy of each region reaches.
    pub(super) reaches: BTreeMap<RegionId, (Epoch, Lsn)>,
}

impl DiskCopy {
    /// One of a disk as a process would read it now.
    fn of(disk: &SimDisk, seed: u64) -> DiskCopy {
        let copy = |seed| {
            let copy = SimDisk::new(seed, DISK_BYTES);
            let file = copy.open("volume").expect("a simulated disk opens files");
            file.write_buffered_at(&disk.contents("volume"), 0).and_then(|()| file.sync()).expect("there is room");
            drop(file);
            copy
        };
        // To open a volume changes it.
        let file = copy(seed).open("volume").expect("a simulated disk opens files");
        let opened = Volume::open(
            file,
            VolumeId(seed),
            VolumeOptions { segment_bytes: SEGMENT_BYTES, ..VolumeOptions::default() },
        );
        let copies = opened.map(|(_, copies)| copies).unwrap_or_default();
        let reaches = copies.iter().map(|copy| (copy.region(), copy.position())).collect();
        DiskCopy { disk: copy(seed.wrapping_add(1)), reaches }
    }
}

impl Machine {
    /// Somebody makes a copy of its disk.
    pub(super) fn make_copy(&mut self, seed: u64) {
        self.copy = Some(DiskCopy::of(&self.disk, seed));
    }

    pub(super) fn new(rng: &mut Rng) -> Machine {
        Machine {
            disk: SimDisk::new(rng.u64(), DISK_BYTES),
            node: None,
            life: 0,
            disk_life: 0,
            dies_with_power: false,
            paused: false,
            slow_disk: false,
            volume: NO_VOLUME,
            shelf: Vec::new(),
            copy: None,
            has_copy: false,
            inbox: VecDeque::new(),
            stands_since: None,
            // A guest may be stopped, for up to minutes altogether.
            clock_offset: Nanos::from_secs(1_000 + rng.below(1_000)),
            clock_ppm: rng.between(900_000, 1_100_000),
            wall_ahead: Nanos(rng.below(SKEW.0)),
        }
    }

    fn died(&self) -> bool {
        self.disk.died_since(self.disk_life)
    }

    /// Puts a disk, with the volume on it, in place of the one it has, which goes to the shelf.
    pub(super) fn change_disk(&mut self, volume: VolumeId, disk: SimDisk) {
        assert!(self.node.is_none(), "a disk is changed while nothing runs on it");
        let old = (std::mem::replace(&mut self.volume, volume), std::mem::replace(&mut self.disk, disk));
        self.copy = None;
        if !std::mem::take(&mut self.has_copy) {
            self.shelf.push(old);
        }
        self.disk_life = self.disk.life();
        self.disk.set_capacity(DISK_BYTES);
    }

    /// Puts an empty disk in place of the one it has.
    pub(super) fn replace_disk(&mut self, rng: &mut Rng) {
        self.change_disk(NO_VOLUME, SimDisk::new(rng.u64(), DISK_BYTES));
    }

    /// Its boot clock, which is not quite as fast as time.
    fn clock(&self, now: Nanos) -> Nanos {
        self.clock_offset + Nanos(now.0 / 1_000_000 * self.clock_ppm)
    }

    /// Its process does not run from now on; nor does its clock, if that `stands`.
    pub(super) fn pause(&mut self, now: Nanos, stands: bool) {
        self.paused = true;
        self.stands_since = stands.then_some(now);
    }

    /// Whatever stood goes on.
    fn go_on(&mut self, now: Nanos) {
        self.paused = false;
        if let Some(since) = self.stands_since.take() {
            // But for an instant: nothing that comes now came before.
            let stood = (self.clock(now) - self.clock(since)) - Nanos(1);
            self.clock_offset = self.clock_offset - stood;
        }
    }
}

/// The wall clock of a machine that is so far ahead of the last one.
fn wall(now: Nanos, ahead: Nanos) -> UnixMs {
    UnixMs(WALL_AT_START_MS + (now + ahead).as_millis())
}

impl World {
    /// Starts the process of a node, if it has none.
    pub(super) fn start(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            return;
        }
        HERE.set((self.now, Some(node)));
        if self.machines[node].disk.take_failed_sync() {
            self.writes_were_lost();
        }
        let machine = &mut self.machines[node];
        machine.disk_life = machine.disk.life();
        let (disk, life, now) = (machine.disk.clone(), machine.life, machine.clock(self.now));
        // Every second life has less memory than its L0s would like to have, and is in no hurry with learners.
        let (memory_budget, catch_up_bytes) = if life % 2 == 0 { (256 << 10, 512 << 10) } else { (4 << 20, 0) };
        let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, memory_budget, ..VolumeOptions::default() };
        let new = VolumeId(self.rng.u64());
        let opened = disk.open("volume").expect("a simulated disk opens files");
        let (volume, copies) = match Volume::open(opened, new, options) {
            Ok(opened) => opened,
            Err(_) if self.machines[node].died() => return self.crash_if_disk_died(node),
            Err(Error::Io { .. } | Error::VolumeFailed { .. } | Error::NoSpace { .. }) => {
                return self.push(self.now + Nanos::from_millis(100), Event::Restart { node });
            }
            Err(error) => panic!("node {node} cannot open its volume: {error}"),
        };
        let arrivals = self.arrivals.clone();
        let sink = Arc::new(move |peer: PeerId, event| arrivals.lock().push((node, life, link::server(peer), event)));
        let member = Member { server: server_id(node), volume: volume.id(), incarnation: volume.incarnation() };
        self.machines[node].volume = volume.id();
        tracing::info!(?member, "the process starts");
        let address = format!("node-{node}");
        let parts = NodeParts {
            info: ServerInfo {
                member,
                fabric_address: address.clone(),
                native_address: address.clone(),
                resp_address: address.clone(),
                admin_address: address,
                copies: Vec::new(),
            },
            volume,
            copies,
            clients: ClientMemory::unlimited(),
            fabric: self.network.node(link::peer(server_id(node)), sink),
            coordinator: Arc::new(SimCoordinator { node, submitted: self.submitted.clone() }),
            cluster: ClusterOptions {
                expected_servers: self.character.nodes as u32,
                balance: self.character.balance(),
                ..ClusterOptions::default()
            },
            timing: NodeTiming { catch_up_bytes, ..self.character.timing() },
            checkpoints: None,
        };
        self.machines[node].node = Some(Node::new(now, parts));
        self.push(self.now, Event::Tick { node, life });
    }

    /// The process of a node ends; with `power`, its machine too.
    pub(super) fn crash(&mut self, node: NodeId, power: bool) {
        HERE.set((self.now, Some(node)));
        tracing::info!(power, "the process dies");
        self.note_death();
        let machine = &mut self.machines[node];
        machine.life += 1;
        machine.go_on(self.now);
        machine.wall_ahead = Nanos(self.rng.below(SKEW.0));
        machine.node = None;
        machine.inbox.clear();
        machine.dies_with_power = false;
        match power {
            true => machine.disk.lose_power(&mut self.rng),
            false => machine.disk.kill_process(),
        }
        machine.disk.set_faults(FaultPlan::default());
        self.network.kill(link::peer(server_id(node)));
        self.host.process_ended(node);
        for client in self.load.node_died(node) {
            self.push(self.now, Event::Client { client });
        }
    }

    /// A process that died in a disk operation is gone; it comes back later.
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

    /// Something happens to a node; what it answers and asks for follows.
    pub(super) fn input(&mut self, node: NodeId, input: Input) {
        let machine = &mut self.machines[node];
        if machine.paused {
            machine.inbox.push_back(input);
        } else {
            self.take_turn(node, [input]);
        }
    }

    /// So much happens to a node before it looks again what follows.
    fn take_turn(&mut self, node: NodeId, inputs: impl IntoIterator<Item = Input>) {
        HERE.set((self.now, Some(node)));
        let machine = &mut self.machines[node];
        let (now, ahead) = (machine.clock(self.now), machine.wall_ahead);
        let Some(running) = &mut machine.node else { return };
        let mut outbox = Outbox::default();
        running.set_wall(now, wall(self.now, ahead));
        inputs.into_iter().for_each(|input| running.handle(now, input));
        running.finish_batch(now, &mut outbox);
        if running.unforeseen() > 0 && self.forgotten.is_none() {
            let when = self.now.as_millis();
            self.forgotten =
                Some(format!("at {when} ms node {node} had something to do for an idle region that nothing had told"));
        }
        self.after_turn(node, outbox);
    }

    fn after_turn(&mut self, node: NodeId, outbox: Outbox) {
        let life = self.machines[node].life;
        for job in outbox.jobs {
            let at = self.now + self.device_delay(node);
            self.push(at, Event::Job { node, life, job });
        }
        let submitted = std::mem::take(&mut *self.submitted.lock());
        for (submitter, id, op) in submitted {
            let sent = self.host.submit(self.now, submitter, id, op, &mut self.rng);
            self.send(vec![sent]);
        }
        // A process that died in this turn has answered nobody.
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

    pub(super) fn run_job(&mut self, node: NodeId, life: u64, job: Job) {
        HERE.set((self.now, Some(node)));
        let done = job.run();
        let delay = Nanos::from_micros(self.rng.between(1, 200));
        self.push(self.now + delay, Event::JobDone { node, life, done });
        self.crash_if_disk_died(node);
    }

    /// A paused process goes on, with everything that arrived meanwhile.
    pub(super) fn resume(&mut self, node: NodeId) {
        let machine = &mut self.machines[node];
        machine.go_on(self.now);
        let waiting = std::mem::take(&mut machine.inbox);
        self.take_turn(node, waiting);
    }

    pub(super) fn deliver_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock());
        for (node, life, from, event) in arrivals {
            if self.machines[node].life == life {
                self.input(node, Input::Link(from, event));
            }
        }
    }
}
