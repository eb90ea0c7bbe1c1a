//! Time, nodes, and what happens next.
//!
//! One queue of events in simulated time, ties broken by the order in which they were made, beside the network's own.
//! A node is the real [`Node`] over a volume on a [`SimDisk`]; its jobs run a while after they were asked for, each at one
//! instant, and their results arrive a while after that.

use crate::Report;
use crate::coordinator::{Host, SimCoordinator, Submitted, Travelling};
use crate::faults::{Fault, Faults};
use crate::load::Load;
use bytes::Bytes;
use leeward_cluster::{ClusterOptions, bootstrap_op};
use leeward_engine::{Volume, VolumeOptions};
use leeward_fabric::{LinkEvent, PeerId, SimNetwork, SimOptions};
use leeward_format::cluster::{GroupConfig, Member, Placement, ServerInfo, TableOptions, decode_value};
use leeward_format::op::{Op, OpResult};
use leeward_format::{RegionId, ServerId};
use leeward_platform::disk::{self, FaultPlan};
use leeward_platform::{Disk, Nanos, Rng, SimDisk};
use leeward_server::node::{Input, Job, JobDone, Node, NodeParts, NodeTiming, Outbox, Token, link};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// A node: its place in the world's list.
pub type NodeId = usize;

/// How many nodes there are.
pub const NODES: usize = 3;
const TICK: Nanos = Nanos::from_millis(20);
const DISK_BYTES: u64 = 256 << 20;
const SEGMENT_BYTES: usize = 32 << 10;
/// Time in which everything must be well again after the last fault.
const HEALING: Nanos = Nanos::from_secs(40);

pub(crate) struct Event {
    at: Nanos,
    kind: Kind,
}

enum Kind {
    Tick { node: NodeId, life: u64 },
    Job { node: NodeId, life: u64, job: Job },
    JobDone { node: NodeId, life: u64, done: JobDone },
    Coordinator { node: NodeId, travelling: Travelling },
    CoordinatorTick,
    /// A client is ready for its next operation.
    Client { client: usize },
    /// A client has waited long enough for an answer.
    Patience { client: usize, token: Token },
    Fault,
    Restart { node: NodeId },
    Resume { node: NodeId },
    Mend,
}

impl Event {
    pub(crate) fn coordinator(at: Nanos, node: NodeId, travelling: Travelling) -> Event {
        Event { at, kind: Kind::Coordinator { node, travelling } }
    }
}

struct Queued {
    at: Nanos,
    number: u64,
    kind: Kind,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        self.number == other.number
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct Machine {
    disk: SimDisk,
    node: Option<Node>,
    /// Raised when a process ends: what belongs to an earlier one is void.
    life: u64,
    disk_life: u64,
    paused: bool,
    slow_disk: bool,
    inbox: VecDeque<Input>,
    clock_offset: Nanos,
    clock_ppm: u64,
}

type Arrivals = Arc<Mutex<Vec<(NodeId, u64, ServerId, LinkEvent)>>>;

/// The world of one seed.
pub struct World {
    seed: u64,
    pub(crate) now: Nanos,
    pub(crate) rng: Rng,
    queue: BinaryHeap<Reverse<Queued>>,
    next_number: u64,
    network: SimNetwork,
    arrivals: Arrivals,
    submitted: Submitted,
    host: Host,
    machines: Vec<Machine>,
    load: Load,
    faults: Faults,
    promotions: BTreeMap<RegionId, u32>,
}

fn server_id(node: NodeId) -> ServerId {
    ServerId(node as u32 + 1)
}

fn node_of(server: ServerId) -> NodeId {
    server.0 as usize - 1
}

impl World {
    /// The world before anything has happened.
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let options = SimOptions {
            min_delay: Nanos::from_micros(20),
            max_delay: Nanos::from_micros(rng.between(100, 2_000)),
            min_detect: Nanos::from_millis(20),
            max_detect: Nanos::from_millis(300),
            retry_pause: Nanos::from_millis(50),
        };
        let machine = |rng: &mut Rng| Machine {
            disk: SimDisk::new(rng.u64(), DISK_BYTES),
            node: None,
            life: 0,
            disk_life: 0,
            paused: false,
            slow_disk: false,
            inbox: VecDeque::new(),
            clock_offset: Nanos::from_secs(rng.below(1_000)),
            clock_ppm: rng.between(990_000, 1_010_000),
        };
        let machines = (0..NODES).map(|_| machine(&mut rng)).collect();
        let mut host = Host::new(NODES);
        let table = TableOptions {
            placement: if rng.one_in(4) { Placement::Separated } else { Placement::Threshold(200) },
            l0_bytes: 16 << 10,
            growth_factor: 4,
            ..TableOptions::default()
        };
        let splits = if rng.one_in(2) { vec![Bytes::from_static(b"m")] } else { Vec::new() };
        host.tree.apply(None, &bootstrap_op(&table, RegionId(1), &splits)).expect("an empty tree takes a table");
        World {
            seed,
            now: Nanos::ZERO,
            network: SimNetwork::new(rng.u64(), options),
            faults: Faults::new(&mut rng),
            load: Load::new(&mut rng),
            rng,
            queue: BinaryHeap::new(),
            next_number: 0,
            arrivals: Arc::default(),
            submitted: Arc::default(),
            host,
            machines,
            promotions: BTreeMap::new(),
        }
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Report {
        for node in 0..NODES {
            self.start(node);
        }
        self.push(self.now, Kind::CoordinatorTick);
        for client in 0..self.load.clients() {
            self.push(Nanos::from_millis(100), Kind::Client { client });
        }
        let first_fault = self.faults.pause(&mut self.rng);
        self.push(first_fault, Kind::Fault);
        let failure = self.live().err();
        Report {
            seed: self.seed,
            answered: self.load.answered,
            unknown: self.load.unknown,
            compactions: self.compactions(),
            promotions: self.promotions.values().map(|terms| u64::from(*terms)).sum(),
            faults: self.faults.struck,
            failure,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        let end = self.faults.end;
        self.advance_until(end, |_| false);
        self.mend_everything();
        self.load.stop_writing();
        self.heal("after the faults")?;
        self.read_everything()?;
        // Every copy must be as good as the one that was read: the next primary is another one.
        let victim = self.rng.index(NODES);
        self.crash(victim, false);
        self.push(self.now + Nanos::from_millis(300), Kind::Restart { node: victim });
        self.advance_until(self.now + Nanos::from_secs(2), |_| false);
        self.heal("after the last failover")?;
        self.read_everything()?;
        self.load.check()
    }

    fn heal(&mut self, when: &str) -> Result<(), String> {
        let deadline = self.now + HEALING;
        self.advance_until(deadline, World::is_well);
        if self.is_well() { Ok(()) } else { Err(format!("the cluster is not well {when}: {}", self.describe())) }
    }

    fn read_everything(&mut self) -> Result<(), String> {
        self.load.read_everything();
        let deadline = self.now + HEALING;
        self.advance_until(deadline, |world| world.load.is_idle());
        if self.load.is_idle() { Ok(()) } else { Err(format!("reads were not answered: {}", self.describe())) }
    }

    fn push(&mut self, at: Nanos, kind: Kind) {
        self.next_number += 1;
        self.queue.push(Reverse(Queued { at: at.max(self.now), number: self.next_number, kind }));
    }

    fn push_all(&mut self, events: Vec<Event>) {
        for event in events {
            self.push(event.at, event.kind);
        }
    }

    fn advance_until(&mut self, end: Nanos, mut reached: impl FnMut(&World) -> bool) {
        let mut looked = self.now;
        loop {
            let event = self.queue.peek().map_or(Nanos::MAX, |Reverse(queued)| queued.at);
            let arrival = self.network.next_event_time().unwrap_or(Nanos::MAX);
            let next = event.min(arrival);
            if next > end {
                self.now = end;
                self.network.advance(end);
                return;
            }
            self.now = next;
            if arrival <= event {
                self.network.step();
                self.deliver_arrivals();
            } else {
                self.network.advance(next);
                self.deliver_arrivals();
                let Reverse(queued) = self.queue.pop().expect("just peeked");
                self.happen(queued.kind);
            }
            if self.now - looked > Nanos::from_millis(50) {
                looked = self.now;
                if reached(self) {
                    return;
                }
            }
        }
    }

    fn happen(&mut self, kind: Kind) {
        match kind {
            Kind::Tick { node, life } if self.machines[node].life == life => {
                self.input(node, Input::Tick);
                self.push(self.now + TICK, Kind::Tick { node, life });
            }
            Kind::Job { node, life, job } if self.machines[node].life == life => self.run_job(node, life, job),
            Kind::JobDone { node, life, done } if self.machines[node].life == life => {
                self.input(node, Input::Job(done));
            }
            Kind::Tick { .. } | Kind::Job { .. } | Kind::JobDone { .. } => {}
            Kind::Coordinator { node, travelling } => self.travel(node, travelling),
            Kind::CoordinatorTick => {
                let alive: Vec<bool> = self.machines.iter().map(|m| m.node.is_some() && !m.paused).collect();
                let mut out = Vec::new();
                self.host.tick(self.now, &alive, &mut self.rng, &mut out);
                self.push_all(out);
                self.push(self.now + Nanos::from_millis(50), Kind::CoordinatorTick);
            }
            Kind::Client { client } => self.next_operation(client),
            Kind::Patience { client, token } => {
                if self.load.give_up(client, token) {
                    self.push(self.now, Kind::Client { client });
                }
            }
            Kind::Fault => self.strike(),
            Kind::Restart { node } => self.start(node),
            Kind::Resume { node } => self.resume(node),
            Kind::Mend => {
                self.network.heal();
                self.host.reachable = vec![true; NODES];
                self.machines.iter_mut().for_each(|machine| machine.slow_disk = false);
            }
        }
    }

    // ---- nodes ---------------------------------------------------------------------------------------------------

    fn start(&mut self, node: NodeId) {
        if self.machines[node].node.is_some() {
            return;
        }
        let life = self.machines[node].life;
        let arrivals = self.arrivals.clone();
        let sink = Arc::new(move |peer: PeerId, event| arrivals.lock().push((node, life, link::server(peer), event)));
        let fabric = self.network.node(link::peer(server_id(node)), sink);
        let disk = self.machines[node].disk.clone();
        self.machines[node].disk_life = disk.life();
        let options = VolumeOptions { segment_bytes: SEGMENT_BYTES, cache_bytes: 64 << 10, ..VolumeOptions::default() };
        let opened = disk.open("volume").map_err(|error| error.to_string());
        let opened = opened.and_then(|file| Volume::open(file, options).map_err(|error| error.to_string()));
        let (volume, copies) = match opened {
            Ok(opened) => opened,
            Err(_) if disk.died_since(self.machines[node].disk_life) => {
                // It died again while it started.
                self.crash(node, false);
                return self.push(self.now + Nanos::from_millis(100), Kind::Restart { node });
            }
            Err(error) => panic!("node {node} cannot open its volume: {error}"),
        };
        let member = Member { server: server_id(node), incarnation: volume.incarnation() };
        let address = format!("node-{node}");
        let info = ServerInfo {
            member,
            fabric_address: address.clone(),
            native_address: address.clone(),
            resp_address: address.clone(),
            admin_address: address,
            copies: Vec::new(),
        };
        let parts = NodeParts {
            info,
            volume,
            copies,
            fabric,
            coordinator: Arc::new(SimCoordinator { node, submitted: self.submitted.clone() }),
            cluster: ClusterOptions::default(),
            timing: NodeTiming::default(),
        };
        let now = self.clock(node);
        self.machines[node].node = Some(Node::new(now, parts));
        self.push(self.now, Kind::Tick { node, life });
    }

    /// The process of a node ends; with `power`, its machine too.
    pub(crate) fn crash(&mut self, node: NodeId, power: bool) {
        let machine = &mut self.machines[node];
        machine.life += 1;
        machine.node = None;
        machine.inbox.clear();
        machine.paused = false;
        match power {
            true => machine.disk.lose_power(&mut self.rng),
            false => machine.disk.kill_process(),
        }
        self.network.kill(link::peer(server_id(node)));
        self.host.process_ended(node);
        for client in self.load.node_died(node) {
            self.push(self.now, Kind::Client { client });
        }
    }

    fn clock(&self, node: NodeId) -> Nanos {
        let machine = &self.machines[node];
        machine.clock_offset + Nanos(self.now.0 / 1_000_000 * machine.clock_ppm)
    }

    fn input(&mut self, node: NodeId, input: Input) {
        let now = self.clock(node);
        let machine = &mut self.machines[node];
        if machine.paused {
            machine.inbox.push_back(input);
            return;
        }
        let Some(running) = &mut machine.node else { return };
        let mut outbox = Outbox::default();
        running.handle(now, input);
        running.finish_batch(now, &mut outbox);
        self.after_turn(node, outbox);
    }

    fn after_turn(&mut self, node: NodeId, outbox: Outbox) {
        let life = self.machines[node].life;
        for job in outbox.jobs {
            let at = self.now + self.device_delay(node);
            self.push(at, Kind::Job { node, life, job });
        }
        let submitted = std::mem::take(&mut *self.submitted.lock());
        for (submitter, id, op) in submitted {
            let event = self.host.submit(self.now, submitter, id, op, &mut self.rng);
            self.push(event.at, event.kind);
        }
        for (token, result) in outbox.replies {
            self.answered(token, result);
        }
        self.crash_if_disk_died(node);
    }

    fn crash_if_disk_died(&mut self, node: NodeId) {
        if self.machines[node].disk.died_since(self.machines[node].disk_life) {
            self.crash(node, false);
            let at = self.now + Nanos::from_millis(self.rng.between(50, 2_000));
            self.push(at, Kind::Restart { node });
        }
    }

    fn device_delay(&mut self, node: NodeId) -> Nanos {
        let usual = Nanos::from_micros(self.rng.between(30, 1_000));
        match self.machines[node].slow_disk || self.rng.one_in(50) {
            true => Nanos(usual.0 * 40),
            false => usual,
        }
    }

    fn run_job(&mut self, node: NodeId, life: u64, job: Job) {
        let done = job();
        let delay = Nanos::from_micros(self.rng.between(1, 200));
        self.push(self.now + delay, Kind::JobDone { node, life, done });
        self.crash_if_disk_died(node);
    }

    fn resume(&mut self, node: NodeId) {
        self.machines[node].paused = false;
        while let Some(input) = self.machines[node].inbox.pop_front() {
            self.input(node, input);
        }
    }

    fn deliver_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.arrivals.lock());
        for (node, life, from, event) in arrivals {
            if self.machines[node].life == life {
                self.input(node, Input::Link(from, event));
            }
        }
    }

    fn travel(&mut self, node: NodeId, travelling: Travelling) {
        match travelling {
            Travelling::Op { connection, id, op } => {
                let mut out = Vec::new();
                self.host.apply(self.now, node, (connection, id, op), &mut self.rng, &mut out);
                self.push_all(out);
                self.count_promotions();
            }
            Travelling::Event { connection, event } => {
                if self.host.is_current(node, connection) && self.machines[node].node.is_some() {
                    self.input(node, Input::Coordinator(event));
                }
            }
        }
    }

    // ---- clients -------------------------------------------------------------------------------------------------

    fn next_operation(&mut self, client: usize) {
        let up: Vec<NodeId> = (0..NODES).filter(|node| self.machines[*node].node.is_some()).collect();
        if up.is_empty() {
            return self.push(self.now + Nanos::from_millis(50), Kind::Client { client });
        }
        let node = up[self.rng.index(up.len())];
        let Some((token, op)) = self.load.next(self.now, client, node, &mut self.rng) else {
            return self.push(self.now + Nanos::from_millis(20), Kind::Client { client });
        };
        self.push(self.now + Nanos::from_secs(8), Kind::Patience { client, token });
        self.submit(node, token, op);
    }

    fn submit(&mut self, node: NodeId, token: Token, op: Op) {
        self.input(node, Input::Submit { token, op, direct: false });
    }

    fn answered(&mut self, token: Token, result: OpResult) {
        if let Some((client, pause)) = self.load.answered(self.now, token, result, &mut self.rng) {
            self.push(self.now + pause, Kind::Client { client });
        }
    }

    // ---- faults --------------------------------------------------------------------------------------------------

    fn strike(&mut self) {
        if self.now < self.faults.end {
            let at = self.now + self.faults.pause(&mut self.rng);
            self.push(at, Kind::Fault);
            let fault = self.faults.choose(&mut self.rng);
            self.suffer(fault);
        }
    }

    fn suffer(&mut self, fault: Fault) {
        self.faults.struck += 1;
        let mend_at = self.now + self.faults.length(&mut self.rng);
        match fault {
            Fault::Kill(node) if self.may_crash(node, false) => {
                self.crash(node, false);
                self.push(mend_at, Kind::Restart { node });
            }
            Fault::PowerLoss(node) if self.may_crash(node, true) => {
                self.faults.power_lost = true;
                self.machines.iter().for_each(|machine| machine.disk.set_faults(FaultPlan::default()));
                self.crash(node, true);
                self.push(mend_at, Kind::Restart { node });
            }
            Fault::KillAll if !self.faults.power_lost => {
                for node in 0..NODES {
                    self.crash(node, false);
                    let at = mend_at + Nanos::from_millis(self.rng.below(300));
                    self.push(at, Kind::Restart { node });
                }
            }
            Fault::DiskKill(node) if self.may_crash(node, false) && !self.faults.power_lost => {
                let at = vec![(self.rng.between(1, 200), disk::Fault::Kill)];
                let plan = FaultPlan { at, ..Default::default() };
                self.machines[node].disk.set_faults(plan);
            }
            Fault::Isolate(node) => {
                let others: Vec<PeerId> =
                    (0..NODES).filter(|other| *other != node).map(|n| link::peer(server_id(n))).collect();
                self.network.partition(&[&[link::peer(server_id(node))], &others]);
                self.host.reachable[node] = self.rng.one_in(3);
                self.push(mend_at, Kind::Mend);
            }
            Fault::CutOneWay(from, to) => {
                self.network.cut(link::peer(server_id(from)), link::peer(server_id(to)));
                self.push(mend_at, Kind::Mend);
            }
            Fault::CutCoordinator(node) => {
                self.host.reachable[node] = false;
                self.push(mend_at, Kind::Mend);
            }
            Fault::Pause(node) if self.machines[node].node.is_some() => {
                self.machines[node].paused = true;
                self.push(mend_at, Kind::Resume { node });
            }
            Fault::SlowDisk(node) => {
                self.machines[node].slow_disk = true;
                self.push(mend_at, Kind::Mend);
            }
            Fault::SlowLink(from, to) => {
                let extra = Nanos::from_millis(self.rng.between(1, 100));
                self.network.slow(link::peer(server_id(from)), link::peer(server_id(to)), extra);
                self.push(mend_at, Kind::Mend);
            }
            _ => self.faults.struck -= 1,
        }
    }

    /// What the store promises: it survives the loss of all but one member's memory, and `kill -9` of all. After a power
    /// loss some member in sync must stay alive until every region is whole again.
    fn may_crash(&mut self, node: NodeId, power: bool) -> bool {
        if self.machines[node].node.is_none() {
            return false;
        }
        if self.faults.power_lost && self.is_well() {
            self.faults.power_lost = false;
        }
        if !power && !self.faults.power_lost {
            return true;
        }
        self.configs().iter().all(|config| {
            config.epoch.0 == 0 || config.in_sync().any(|member| node_of(member.server) != node && self.is_alive(member))
        })
    }

    fn is_alive(&self, member: Member) -> bool {
        let machine = &self.machines[node_of(member.server)];
        machine.node.as_ref().is_some_and(|node| node.member() == member)
    }

    fn mend_everything(&mut self) {
        self.happen(Kind::Mend);
        for node in 0..NODES {
            self.machines[node].disk.set_faults(FaultPlan::default());
            self.resume(node);
            self.start(node);
        }
    }

    // ---- what the world looks like -------------------------------------------------------------------------------

    fn configs(&self) -> Vec<GroupConfig> {
        let regions = self.host.tree.changes().filter(|change| change.path.contains("/region/"));
        regions
            .map(|change| decode_value("region", &change.value.expect("a snapshot holds values")))
            .map(|config| config.expect("the tree holds what was written"))
            .collect()
    }

    /// Compactions that the processes which are alive now have installed as primaries.
    fn compactions(&self) -> u64 {
        let statuses = self.machines.iter().filter_map(|machine| machine.node.as_ref()).map(Node::status);
        statuses.flat_map(|status| status.regions).map(|region| region.counters.compactions).sum()
    }

    fn count_promotions(&mut self) {
        for config in self.configs() {
            let terms = self.promotions.entry(config.region).or_default();
            *terms = (*terms).max(config.term.0.saturating_sub(1));
        }
    }

    /// Every region has a serving primary and all its replicas in sync.
    fn is_well(&self) -> bool {
        self.configs().iter().all(|config| {
            config.in_sync().count() == NODES
                && config.in_sync().all(|member| self.is_alive(member))
                && config.primary.is_some_and(|primary| {
                    let node = self.machines[node_of(primary.server)].node.as_ref();
                    node.is_some_and(|node| node.is_serving(config.region, config.term))
                })
        })
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for config in self.configs() {
            text += &format!("\n  {config:?}");
        }
        for (node, machine) in self.machines.iter().enumerate() {
            let status = machine.node.as_ref().map(Node::status);
            let regions = status.map(|status| status.regions).unwrap_or_default();
            for region in regions {
                text += &format!(
                    "\n  node {node} region {} {:?} {} term {} lsn {} commit {} peers {:?}",
                    region.region, region.role, region.state, region.term, region.last_lsn, region.commit_lsn, region.peers
                );
            }
        }
        text
    }
}
