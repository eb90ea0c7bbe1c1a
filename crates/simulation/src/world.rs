//! Time, machines, and what happens next.
//!
//! One queue of events in simulated time, ties broken by the order in which they were made, beside the network's own. A
//! node is the real [`leeward_server::node::Node`] over a volume on a simulated disk; its jobs run a while after they were
//! asked for, each at one instant, and their results arrive a while after that.
//!
//! - [`answering`]: how many members have what is acknowledged. - [`bounds`]: what regions hold. - [`machine`]: processes that start, run and end. - [`faults`]: what breaks. - [`shelf`]: disks that are replaced. - [`verdict`]: what must be true when
//!   nothing breaks any more.

mod answering;
mod bounds;
mod faults;
mod machine;
mod shelf;
mod verdict;

pub(crate) use faults::FaultKind;
pub(crate) use machine::SEGMENT_BYTES;

use crate::Report;
use crate::character::Character;
use crate::coordinator::{Host, Sent, Submitted, Travelling};
use crate::load::{Load, Request};
use crate::queue::Queue;
use answering::Answering;
use bounds::Bounds;
use faults::Trouble;
use leeward_cluster::bootstrap_op;
use leeward_fabric::{LinkEvent, SimNetwork};
use leeward_format::cluster::{Acknowledge, GroupConfig, Member, decode_value};
use leeward_format::op::{Op, OpResult};
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
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
        life: u64,
    },
    Job {
        node: NodeId,
        life: u64,
        job: Job,
    },
    JobDone {
        node: NodeId,
        life: u64,
        done: JobDone,
    },
    /// Something reaches the coordinator, or comes from there to a process.
    Coordinator {
        node: NodeId,
        life: u64,
        travelling: Travelling,
    },
    CoordinatorTick,
    /// A client is ready for its next operation.
    Client {
        client: usize,
    },
    /// A client has waited long enough for an answer.
    Patience {
        client: usize,
        token: Token,
    },
    Fault,
    /// A process dies at a moment that was chosen.
    Die {
        node: NodeId,
    },
    /// An operator changes how the table is replicated, or where regions are.
    Operate {
        op: Op,
    },
    /// He wishes that two neighbours become one.
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
    /// The operator looks whether a disk that was taken out is missed.
    Shelf {
        node: NodeId,
    },
    /// Everything that was cut or slowed is as before, unless something was broken for longer.
    Mend,
}

/// Arrivals from the network in a step: for which node and life of it, from whom, what.
type Arrivals = Arc<Mutex<Vec<(NodeId, u64, ServerId, LinkEvent)>>>;

/// The world of one seed.
pub(crate) struct World {
    seed: u64,
    character: Character,
    now: Nanos,
    rng: Rng,
    queue: Queue<Event>,
    network: SimNetwork,
    arrivals: Arrivals,
    submitted: Submitted,
    host: Host,
    machines: Vec<Machine>,
    load: Load,
    /// Clients make operations.
    is_loaded: bool,
    trouble: Trouble,
    /// The first term of each region, and how many were begun since.
    promotions: BTreeMap<RegionId, (u32, u32)>,
    /// With last-flush: terms that were begun and are not served yet.
    appointed: Vec<(RegionId, Epoch)>,
    /// The regions that were there, and what was found wrong with their bounds.
    bounds: Bounds,
    answering: Answering,
    /// The first time that a node was late, since nothing had woken a region.
    forgotten: Option<String>,
    /// Questions of the verdict, and their answers.
    questions: BTreeMap<Token, Option<OpResult>>,
    next_question: u64,
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
        let character = Character::choose(&mut rng);
        let nodes = character.nodes;
        let mut host = Host::new(nodes, seed);
        let tables = bootstrap_op(&character.table, &character.splits);
        host.tree.apply(None, &tables).expect("an empty tree takes a table");
        World {
            seed,
            now: Nanos::ZERO,
            network: SimNetwork::new(rng.u64(), character.network.clone()),
            machines: (0..nodes).map(|_| Machine::new(&mut rng)).collect(),
            load: Load::new(
                character.habits.clone(),
                nodes,
                character.table.partition,
                character.promise.window(character.table.acknowledge),
                &mut rng,
            ),
            character,
            rng,
            queue: Queue::new(),
            arrivals: Arc::default(),
            submitted: Arc::default(),
            host,
            is_loaded: true,
            trouble: Trouble::default(),
            promotions: BTreeMap::new(),
            appointed: Vec::new(),
            bounds: Bounds::default(),
            answering: Answering::default(),
            forgotten: None,
            questions: BTreeMap::new(),
            next_question: 1 << 48,
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self) -> Report {
        tracing::info!(seed = self.seed, character = self.character.name(), "the world begins");
        self.set_distances();
        for node in self.nodes() {
            self.start(node);
        }
        self.push(self.now, Event::CoordinatorTick);
        for client in 0..self.load.clients() {
            self.push(Nanos::from_millis(100), Event::Client { client });
        }
        let first_fault = self.until_next_fault();
        self.push(first_fault, Event::Fault);
        let alterations = self.character.alterations().into_iter();
        let alterations = alterations.map(|(at, change)| (at, Op::AlterTable { change: Box::new(change) }));
        for (at, op) in alterations.chain(self.character.wishes()) {
            self.push(at, Event::Operate { op });
        }
        for (number, at) in self.character.merges().into_iter().enumerate() {
            self.push(at, Event::Merge { number });
        }
        self.advance(self.character.troubles.end);
        let compactions = self.compactions();
        let failure = self.judge().err().or(self.forgotten.take()).or(self.answering.failure.take());
        Report {
            seed: self.seed,
            character: self.character.name(),
            answered: self.load.answered,
            unknown: self.load.unknown,
            again: self.load.again,
            stale: self.load.stale,
            compactions,
            promotions: self.promotions.values().map(|(_, begun)| u64::from(*begun)).sum(),
            divisions: self.bounds.divisions,
            merges: self.bounds.merges,
            faults: self.trouble.struck,
            digest: self.network.digest() ^ self.queue.made().rotate_left(32) ^ self.rng.u64(),
            failure,
        }
    }

    fn nodes(&self) -> std::ops::Range<NodeId> {
        0..self.character.nodes
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    fn send(&mut self, sent: Vec<Sent>) {
        for (at, node, travelling) in sent {
            let life = self.machines[node].life;
            self.push(at, Event::Coordinator { node, life, travelling });
        }
    }

    /// Lets time pass until `end`.
    fn advance(&mut self, end: Nanos) {
        while self.turn(end) {}
    }

    /// Lets time pass until `reached`, which is looked at every 50 ms, or `end`. Answers whether it was reached.
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

    /// The next thing happens, or nothing does until `end`: then the answer is false.
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
        if !self.appointed.is_empty() {
            self.look_at_appointed();
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick { node, life } if self.machines[node].life == life => {
                self.input(node, Input::Tick);
                self.push(self.now + TICK, Event::Tick { node, life });
            }
            Event::Job { node, life, job } if self.machines[node].life == life => self.run_job(node, life, job),
            Event::JobDone { node, life, done } if self.machines[node].life == life => {
                self.input(node, Input::Job(done));
            }
            Event::Tick { .. } | Event::Job { .. } | Event::JobDone { .. } => {}
            Event::Coordinator { node, life, travelling } => self.travel(node, life, travelling),
            Event::CoordinatorTick => {
                let answers = |machine: &Machine| machine.node.is_some() && !machine.paused;
                let alive: Vec<bool> = self.machines.iter().map(answers).collect();
                let mut sent = Vec::new();
                self.host.tick(self.now, &alive, &mut self.rng, &mut sent);
                self.send(sent);
                self.push(self.now + COORDINATOR_TICK, Event::CoordinatorTick);
            }
            Event::Client { client } => self.next_operation(client),
            Event::Patience { client, token } => {
                if self.load.give_up(client, token) {
                    self.push(self.now, Event::Client { client });
                }
            }
            Event::Fault => self.strike(),
            Event::Die { node } => self.die(node),
            Event::Operate { op } => self.operate(op),
            Event::Merge { number } => self.wish_for_merge(number),
            Event::Restart { node } => self.start(node),
            Event::Resume { node } => self.resume(node),
            Event::MendDisk { node } => self.mend_disk(node),
            Event::Shelf { node } => self.look_at_shelf(node),
            Event::Mend => self.mend(),
        }
    }

    fn travel(&mut self, node: NodeId, life: u64, travelling: Travelling) {
        match travelling {
            Travelling::Op { connection, id, op } => {
                let mut sent = Vec::new();
                self.host.apply(self.now, node, (connection, id, op), &mut self.rng, &mut sent);
                self.send(sent);
                self.count_promotions();
                self.look_at_bounds();
            }
            Travelling::Event { connection, event } => {
                if self.machines[node].life == life && self.host.is_current(node, connection) {
                    self.input(node, Input::Coordinator(event));
                }
            }
        }
    }

    /// By way of the first node that is there; if none is, the operator tries again. Nobody waits for the answer.
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
        self.push(self.now + self.load.patience(), Event::Patience { client, token: request.token });
        let Request { token, node, op, once } = request;
        self.note_asked(node, token, &op);
        self.input(node, Input::Submit { token, table: TableName::default(), op, once, direct: false });
    }

    fn answered(&mut self, node: NodeId, token: Token, result: OpResult) {
        self.look_at_answer(node, token, &result);
        let node = self.machines[node].node.as_ref();
        let committed = |region| node.and_then(|node| node.committed(region));
        if let Some(answer) = self.questions.get_mut(&token) {
            *answer = Some(result);
        } else if let Some((client, rest)) = self.load.answered(self.now, token, result, committed, &mut self.rng) {
            self.push(self.now + rest, Event::Client { client });
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
        let count =
            |promotions: &BTreeMap<RegionId, (u32, u32)>| promotions.values().map(|(_, begun)| begun).sum::<u32>();
        let before = count(&self.promotions);
        for config in self.configs() {
            let (first, begun) = self.promotions.entry(config.region).or_insert((config.term.0.max(1), 0));
            *begun = (*begun).max(config.term.0.saturating_sub(*first));
        }
        let is_new = before < count(&self.promotions);
        if is_new && self.character.table.acknowledge == Acknowledge::LastFlush {
            self.load.newest_lost(self.now, &[]);
            self.appointed = self.configs().iter().map(|config| (config.region, config.term)).collect();
        }
    }

    /// With last-flush a primary that was deposed acknowledges what will be gone until it knows, which is before the next one serves.
    fn look_at_appointed(&mut self) {
        let serves = |region, term| {
            let mut nodes = self.machines.iter().filter_map(|machine| machine.node.as_ref());
            nodes.any(|node| node.is_serving(region, term))
        };
        let begun = self.appointed.extract_if(.., |(region, term)| serves(*region, *term)).count();
        if begun > 0 {
            self.load.newest_lost(self.now, &[]);
        }
    }

    fn is_alive(&self, member: Member) -> bool {
        let machine = &self.machines[node_of(member.server)];
        machine.node.as_ref().is_some_and(|node| node.member() == member)
    }
}

#[cfg(test)]
#[path = "world/outage_tests.rs"]
mod outage_tests;
