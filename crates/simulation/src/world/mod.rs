//! Time, machines, and what happens next.
//!
//! The world has one queue of events in simulated time, beside the network's own. Events of the same instant keep the order in
//! which they were pushed. A node is the real [`leeward_server::node::Node`] over a volume on a simulated disk. Each of its jobs
//! runs some time after the node asked for it, at one instant. The result arrives some time after that.
//!
//! | module | holds |
//! |---|---|
//! | [`answering`] | how many members have an acknowledged write |
//! | [`bounds`] | the key ranges of regions |
//! | [`cloning`] | copies of a volume beside a process that runs on it |
//! | [`machine`] | processes that start, run and end |
//! | [`direct`] | clients that read hash indexes by one-sided reads |
//! | [`copies`] | copies that are compared while clients write |
//! | [`faults`] | what breaks |
//! | [`filling`] | disks that fill and empty |
//! | [`forgetting`] | a coordinator that forgets, and its restoration |
//! | [`saved_copies`] | disks that are replaced and put back |
//! | [`verdict`] | what must be true after the faults |

mod answering;
mod bounds;
mod cloning;
mod copies;
mod direct;
mod faults;
mod filling;
mod forgetting;
mod machine;
mod saved_copies;
mod verdict;

pub(crate) use faults::FaultKind;
pub(crate) use forgetting::Forget;
pub(crate) use machine::SEGMENT_BYTES;

use crate::coordinator::{Host, Sent, Submitted, Travelling};
use crate::load::{Load, Request};
use crate::queue::Queue;
use crate::scenario::{Cloning, Filling, Scenario};
use crate::{DirectReads, Report};
use answering::Answering;
use bounds::Bounds;
use cloning::{CloneEvent, Clones};
use direct::{Direct, DirectEvent};
use faults::FaultState;
use filling::DiskFills;
use forgetting::Forgetting;
use leeward_cluster::bootstrap_op;
use leeward_fabric::{LinkEvent, SimNetwork};
use leeward_format::cluster::{Acknowledge, GroupConfig, Member, decode_value};
use leeward_format::hash_index::narrow_tags;
use leeward_format::op::{Op, OpResult};
use leeward_format::request::Once;
use leeward_format::status::RegionStatus;
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_format::{Epoch, RegionId, ServerId, TableId};
use leeward_platform::planted::set_most_index_bytes;
use leeward_platform::{Nanos, Rng};
use leeward_region::request::Request as Operation;
use leeward_server::node::{Input, Job, JobDone, Node, Token};
use machine::Machine;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node: its place in the world's list.
pub(crate) type NodeId = usize;

const TICK: Nanos = Nanos::from_millis(20);
const COORDINATOR_TICK: Nanos = Nanos::from_millis(50);

/// Something that happens.
enum Event {
    Tick {
        node: NodeId,
        incarnation: u64,
    },
    Job {
        node: NodeId,
        incarnation: u64,
        job: Job,
    },
    JobDone {
        node: NodeId,
        incarnation: u64,
        done: JobDone,
    },
    /// Something from a process reaches the coordinator, or the other way round.
    Coordinator {
        node: NodeId,
        incarnation: u64,
        travelling: Travelling,
    },
    CoordinatorTick,
    /// A client is ready for its next operation.
    Client {
        client: usize,
    },
    /// A client's wait for an answer times out.
    Timeout {
        client: usize,
        token: Token,
    },
    Direct {
        reader: usize,
        event: DirectEvent,
    },
    Fault,
    /// The coordinator forgets something.
    Forget {
        forget: Forget,
    },
    /// A volume is copied.
    CloneDisk {
        cloning: Cloning,
    },
    /// Something of a process on a copy, by the number of the process.
    Clone {
        serial: u64,
        event: CloneEvent,
    },
    /// Others than the store fill disks.
    Fill {
        filling: Filling,
    },
    /// They take and give back room.
    TakeRoom,
    /// The coordinator's tree is saved, or the operator looks whether it is to be restored.
    LookAtTree,
    /// A process dies at a chosen moment.
    Die {
        node: NodeId,
    },
    /// The operator changes how the table is replicated, or where regions are.
    Operate {
        op: Op,
    },
    /// The operator requests the merge of two neighbours.
    Merge {
        number: usize,
    },
    Restart {
        node: NodeId,
    },
    Resume {
        node: NodeId,
    },
    /// A disk that failed is replaced by one that works, with the same content.
    MendDisk {
        node: NodeId,
    },
    /// The operator checks whether a region waits for a removed disk.
    SavedCopies {
        node: NodeId,
    },
    /// Every cut or slowed link and device is as before, unless a later fault lasts longer.
    Mend,
}

/// Arrivals from the network in a step: the node and its incarnation, the sender, and the event.
type Arrivals = Arc<Mutex<Vec<(NodeId, u64, ServerId, LinkEvent)>>>;

/// The world of one seed.
pub(crate) struct World {
    seed: u64,
    scenario: Scenario,
    now: Nanos,
    rng: Rng,
    queue: Queue<Event>,
    network: SimNetwork,
    arrivals: Arrivals,
    submitted: Submitted,
    host: Host,
    machines: Vec<Machine>,
    load: Load,
    direct: Direct,
    /// Clients start operations.
    is_loaded: bool,
    fault_state: FaultState,
    forgetting: Forgetting,
    disk_fills: DiskFills,
    clones: Clones,
    /// The first term of each region, and the number of terms that began since.
    promotions: BTreeMap<RegionId, (u32, u32)>,
    /// With last-flush: terms that began and are not served yet.
    appointed: Vec<(RegionId, Epoch)>,
    /// The regions so far, and what was wrong with their bounds.
    bounds: Bounds,
    answering: Answering,
    /// The first time that a node was late because nothing had woken a region.
    missed_wakeup: Option<String>,
    /// The first time that a node's turn waited for a sync.
    waited_for_sync: Option<String>,
    /// Questions of the verdict, and their answers.
    questions: BTreeMap<Token, Option<OpResult>>,
    next_question: u64,
    /// Of each lease grant, the time from its request to its arrival, by the clock of the holder; where a test asks for it.
    lease_round_trips: Option<Vec<Nanos>>,
    /// Copies of backups that were found to be equal to the primary's by their digests.
    compared: u64,
    /// Reads that backups answered as of an instant after their call.
    fresh: u64,
    /// Promotions, and splits, of regions with pieces of a two-layer log.
    with_pieces: (u64, u64),
}

fn server_id(node: NodeId) -> ServerId {
    ServerId(node as u32 + 1)
}

fn node_of(server: ServerId) -> NodeId {
    server.0 as usize - 1
}

impl World {
    /// The world before anything has happened.
    pub(crate) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::choose(seed, &mut rng);
        set_most_index_bytes(Some(scenario.index_bytes));
        narrow_tags(1);
        let nodes = scenario.nodes;
        // And a place for an intruder.
        let mut host = Host::new(nodes + 1, seed);
        let tables = bootstrap_op(&scenario.table, TableId(1), &scenario.splits);
        host.tree.apply(None, &tables).expect("an empty tree takes a table");
        let network = SimNetwork::new(rng.u64(), scenario.network.clone());
        let arrivals = Arrivals::default();
        let direct = Direct::new(scenario.direct_readers, nodes, &network, &arrivals, Rng::new(!seed));
        World {
            seed,
            now: Nanos::ZERO,
            network,
            direct,
            machines: (0..nodes).map(|_| Machine::new(&mut rng)).collect(),
            load: Load::new(
                scenario.client_mix.clone(),
                nodes,
                scenario.table.partition,
                scenario.durability.window(scenario.table.acknowledge),
                &mut rng,
            ),
            scenario,
            rng,
            queue: Queue::new(),
            arrivals,
            submitted: Arc::default(),
            host,
            is_loaded: true,
            fault_state: FaultState::default(),
            forgetting: Forgetting::default(),
            disk_fills: DiskFills::new(nodes, Rng::new(seed.wrapping_add(1).rotate_left(56))),
            clones: Clones::default(),
            promotions: BTreeMap::new(),
            appointed: Vec::new(),
            bounds: Bounds::default(),
            answering: Answering::default(),
            missed_wakeup: None,
            waited_for_sync: None,
            questions: BTreeMap::new(),
            next_question: 1 << 48,
            lease_round_trips: None,
            compared: 0,
            fresh: 0,
            with_pieces: (0, 0),
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self) -> Report {
        tracing::info!(seed = self.seed, scenario = self.scenario.name(), "the world begins");
        self.set_distances();
        for node in self.nodes() {
            self.start(node);
        }
        self.push(self.now, Event::CoordinatorTick);
        for client in 0..self.load.clients() {
            self.push(Nanos::from_millis(100), Event::Client { client });
        }
        self.begin_direct_reads();
        let first_fault = self.until_next_fault();
        self.push(first_fault, Event::Fault);
        self.begin_forgetting();
        for filling in self.scenario.fillings.clone() {
            self.push(filling.at, Event::Fill { filling });
        }
        for cloning in self.scenario.clonings.clone() {
            self.push(cloning.at, Event::CloneDisk { cloning });
        }
        let alterations = self.scenario.alterations().into_iter();
        let alterations = alterations.map(|(at, change)| (at, Op::AlterTable { change: Box::new(change) }));
        for (at, op) in alterations.chain(self.scenario.desired()) {
            self.push(at, Event::Operate { op });
        }
        for (number, at) in self.scenario.merges().into_iter().enumerate() {
            self.push(at, Event::Merge { number });
        }
        self.advance(self.scenario.fault_schedule.end);
        let regions = self.region_statuses();
        let failure = self.judge().err().or(self.missed_wakeup.take()).or(self.waited_for_sync.take());
        let failure = failure.or(self.answering.failure.take()).or(self.clones.failure.take());
        self.report(&regions, failure)
    }

    /// What happened; `regions` are those of the processes that lived at the end of the faults.
    fn report(&mut self, regions: &[RegionStatus], failure: Option<String>) -> Report {
        let sum = |of: fn(&RegionStatus) -> u64| regions.iter().map(of).sum();
        Report {
            seed: self.seed,
            scenario: self.scenario.name(),
            answered: self.load.answered,
            unknown: self.load.unknown,
            again: self.load.again,
            stale: self.load.stale,
            fresh: self.fresh,
            direct: DirectReads { evicted: sum(|of| of.hash_index.evicted), ..self.direct.counts() },
            compactions: sum(|of| of.counters.compactions),
            promotions: self.promotions.values().map(|(_, begun)| u64::from(*begun)).sum(),
            splits: self.bounds.splits,
            merges: self.bounds.merges,
            compared: self.compared,
            piece_merges: sum(|of| of.counters.piece_merges),
            run_merges: sum(|of| of.counters.run_merges),
            promotions_with_pieces: self.with_pieces.0,
            splits_with_pieces: self.with_pieces.1,
            faults: self.fault_state.struck,
            digest: self.network.digest() ^ self.queue.made().rotate_left(32) ^ self.rng.u64(),
            failure,
        }
    }

    fn nodes(&self) -> std::ops::Range<NodeId> {
        0..self.scenario.nodes
    }

    /// The processes that run.
    fn running(&self) -> impl Iterator<Item = &Node> {
        self.machines.iter().filter_map(|machine| machine.node.as_ref())
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    fn send(&mut self, sent: Vec<Sent>) {
        for (at, node, travelling) in sent {
            let intruder = || self.clones.intruder.as_ref().map_or(0, |intruder| intruder.serial);
            let incarnation = self.machines.get(node).map_or_else(intruder, |machine| machine.incarnation);
            self.push(at, Event::Coordinator { node, incarnation, travelling });
        }
    }

    /// Lets time pass until `end`.
    fn advance(&mut self, end: Nanos) {
        while self.turn(end) {}
    }

    /// Lets time pass until `reached`, checked every 50 ms, or until `end`. Answers whether it was reached.
    fn advance_until(&mut self, end: Nanos, mut reached: impl FnMut(&World) -> bool) -> bool {
        loop {
            if reached(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.advance(end.min(self.now + Nanos::from_millis(50)));
        }
    }

    /// Lets the next event happen. Answers false if there is none until `end`.
    fn turn(&mut self, end: Nanos) -> bool {
        let event = self.queue.next_time().unwrap_or(Nanos::MAX);
        let arrival = self.network.next_event_time().unwrap_or(Nanos::MAX);
        let next = event.min(arrival);
        if next > end {
            self.now = end;
            self.network.advance(end);
            return false;
        }
        self.now = next;
        if arrival <= event {
            self.network.step();
            self.deliver_arrivals();
        } else {
            self.network.advance(next);
            self.deliver_arrivals();
            let event = self.queue.pop().expect("just seen");
            self.happen(event);
        }
        self.finish_turns();
        if !self.appointed.is_empty() {
            self.look_at_appointed();
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick { node, incarnation } if self.machines[node].incarnation == incarnation => {
                self.input(node, Input::Tick);
                self.push(self.now + TICK, Event::Tick { node, incarnation });
            }
            Event::Job { node, incarnation, job } if self.machines[node].incarnation == incarnation => {
                self.run_job(node, incarnation, job)
            }
            Event::JobDone { node, incarnation, done } if self.machines[node].incarnation == incarnation => {
                self.input(node, Input::Job(done));
            }
            Event::Tick { .. } | Event::Job { .. } | Event::JobDone { .. } => {}
            Event::Coordinator { node, incarnation, travelling } => self.travel(node, incarnation, travelling),
            Event::CoordinatorTick => {
                let answers = |machine: &Machine| machine.node.is_some() && !machine.paused;
                let mut alive: Vec<bool> = self.machines.iter().map(answers).collect();
                alive.push(self.clones.intruder.is_some());
                let mut sent = Vec::new();
                self.host.tick(self.now, &alive, &mut self.rng, &mut sent);
                self.look_at_intruder();
                self.send(sent);
                self.push(self.now + COORDINATOR_TICK, Event::CoordinatorTick);
            }
            Event::Client { client } => self.next_operation(client),
            Event::Timeout { client, token } => {
                if self.load.give_up(client, token) {
                    self.push(self.now, Event::Client { client });
                }
            }
            Event::Direct { reader, event } => self.happen_to_reader(reader, event),
            Event::Fault => self.strike(),
            Event::Forget { forget } => self.forget(forget),
            Event::CloneDisk { cloning } => self.clone_disk(cloning),
            Event::Clone { serial, event } => self.happen_to_intruder(serial, event),
            Event::Fill { filling } => self.fill(&filling),
            Event::TakeRoom => self.take_room(),
            Event::LookAtTree => self.look_at_tree(),
            Event::Die { node } => self.die(node),
            Event::Operate { op } => self.operate(op),
            Event::Merge { number } => self.request_merge(number),
            Event::Restart { node } => self.start(node),
            Event::Resume { node } => self.resume(node),
            Event::MendDisk { node } => self.mend_disk(node),
            Event::SavedCopies { node } => self.look_at_saved_copies(node),
            Event::Mend => self.mend(),
        }
    }

    fn travel(&mut self, node: NodeId, incarnation: u64, travelling: Travelling) {
        match travelling {
            Travelling::Op { connection, id, op } => {
                let (mut sent, before) = (Vec::new(), self.host.tree.version());
                self.host.apply(self.now, node, (connection, id, op), &mut self.rng, &mut sent);
                self.look_at_change(node, before);
                self.send(sent);
                self.count_promotions();
                self.note_merges();
                if !self.forgetting.is_restoring {
                    self.look_at_bounds();
                }
            }
            Travelling::Event { connection, event } if node == self.intruders_place() => {
                let is_its = self.clones.intruder.as_ref().is_some_and(|intruder| intruder.serial == incarnation);
                if is_its && self.host.is_current(node, connection) {
                    self.tell_intruder(event);
                }
            }
            Travelling::Event { connection, event } => {
                if self.machines[node].incarnation == incarnation && self.host.is_current(node, connection) {
                    self.input(node, Input::Coordinator(event));
                }
            }
        }
    }

    /// The operator sends `op` to the first node that runs, and tries again later if none does. The answer is ignored.
    fn operate(&mut self, op: Op) {
        let up = self.nodes().find(|node| self.machines[*node].node.is_some() && !self.machines[*node].paused);
        match up {
            Some(node) => {
                let token = self.question(node, op);
                self.questions.remove(&token);
            }
            None if self.is_loaded => self.push(self.now + Nanos::from_millis(100), Event::Operate { op }),
            None => {}
        }
    }

    // ---- clients -------------------------------------------------------------------------------------------------

    fn next_operation(&mut self, client: usize) {
        if !self.is_loaded {
            return;
        }
        let up: Vec<NodeId> = self.nodes().filter(|node| self.machines[*node].node.is_some()).collect();
        let machines = &self.machines;
        let region_of = |node: NodeId, op: &Op| {
            let known = machines[node].node.as_ref().and_then(|node| op.region_in(node.routes(), DEFAULT_TABLE));
            known.map_or(RegionId(0), |config| config.region)
        };
        let Some(request) = self.load.next(self.now, client, &up, region_of, &mut self.rng) else {
            return self.push(self.now + Nanos::from_millis(50), Event::Client { client });
        };
        self.push(self.now + self.load.timeout(), Event::Timeout { client, token: request.token });
        let Request { token, node, op, once } = request;
        self.note_asked(node, token, &op);
        self.submit(node, token, op, once, false);
    }

    /// A client's operation comes to a node.
    fn submit(&mut self, node: NodeId, token: Token, op: Op, once: Option<Once>, is_direct: bool) {
        let request = Operation::of_client(token, TableName::default(), op, once);
        self.input(node, Input::Submit(Operation { is_direct, ..request }));
    }

    fn answered(&mut self, node: NodeId, token: Token, result: OpResult) {
        if let Some(reader) = self.direct.reader_of(token) {
            return self.reader_answered(reader, token, result);
        }
        self.look_at_answer(node, token, &result);
        let node = self.machines[node].node.as_ref();
        let committed = |region| node.and_then(|node| node.committed(region));
        if let Some(answer) = self.questions.get_mut(&token) {
            *answer = Some(result);
        } else if let Some((client, pause)) = self.load.answered(self.now, token, result, committed, &mut self.rng) {
            self.push(self.now + pause, Event::Client { client });
        }
    }

    // ---- the state of the world -----------------------------------------------------------------------------------

    fn configs(&self) -> Vec<GroupConfig> {
        let regions = self.host.tree.changes().filter(|change| change.path.contains("/region/"));
        regions
            .map(|change| decode_value("region", &change.value.expect("a snapshot holds values")))
            .map(|config| config.expect("the tree holds what was written"))
            .collect()
    }

    /// The regions of the running processes.
    fn region_statuses(&self) -> Vec<RegionStatus> {
        self.running().map(Node::status).flat_map(|status| status.regions).collect()
    }

    /// Whether a node's copy of a region has pieces of a two-layer log.
    fn has_pieces(&self, node: NodeId, region: RegionId) -> bool {
        let status = self.machines[node].node.as_ref().map(Node::status);
        status.is_some_and(|status| status.regions.iter().any(|copy| copy.region == region && copy.pieces() > 0))
    }

    fn count_promotions(&mut self) {
        let count =
            |promotions: &BTreeMap<RegionId, (u32, u32)>| promotions.values().map(|(_, begun)| begun).sum::<u32>();
        let before = count(&self.promotions);
        // A region whose configuration was lost has no term until it gets a primary.
        for config in self.configs().into_iter().filter(|config| config.primary.is_some()) {
            let (first, begun) = self.promotions.entry(config.region).or_insert((config.term.0.max(1), 0));
            let (terms, before) = (config.term.0.saturating_sub(*first), *begun);
            *begun = before.max(terms);
            let promoted = config.primary.filter(|_| terms > before);
            let had = promoted.is_some_and(|primary| self.has_pieces(node_of(primary.server), config.region));
            self.with_pieces.0 += u64::from(had);
        }
        let is_new = before < count(&self.promotions);
        if is_new && self.scenario.table.acknowledge == Acknowledge::LastFlush {
            self.newest_were_lost();
            self.appointed = self.configs().iter().map(|config| (config.region, config.term)).collect();
        }
    }

    /// With last-flush a deposed primary acknowledges writes that will be lost, until it learns of its successor. That is before
    /// the successor serves.
    fn look_at_appointed(&mut self) {
        let serves = |region, term| {
            let mut nodes = self.machines.iter().filter_map(|machine| machine.node.as_ref());
            nodes.any(|node| node.is_serving(region, term))
        };
        let begun = self.appointed.extract_if(.., |(region, term)| serves(*region, *term)).count();
        if begun > 0 {
            self.newest_were_lost();
        }
    }

    fn is_alive(&self, member: Member) -> bool {
        let machine = &self.machines[node_of(member.server)];
        machine.node.as_ref().is_some_and(|node| node.member() == member)
    }
}

#[cfg(test)]
mod narrow_tests;
#[cfg(test)]
mod outage_tests;
