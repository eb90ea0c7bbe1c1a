//! Regions on simulated disks, with all that a node does for them: jobs run when the test says so, and what one region sends is an
//! input for another when the test says so. What a region asks for is noted in words, in order.

use leeward_engine::{Volume, VolumeOptions};
use leeward_fabric::{Fabric, LinkEvent, PeerId, SimNetwork, SimOptions};
use leeward_format::cluster::{GroupConfig, Member, TableOptions};
use leeward_format::control::{Control, ToBackup, ToPrimary};
use leeward_format::op::{Condition, Lifetime, Op, OpResult};
use leeward_format::table::TableName;
use leeward_format::{ClusterId, Epoch, RegionId, ServerId, VolumeId};
use leeward_platform::disk::SimDisk;
use leeward_platform::{Disk, Nanos};
use leeward_region::client_memory::ClientMemory;
use leeward_region::effects::{Effect, Effects, Facts, NodeResources, ProposedChange, Wall};
use leeward_region::input::{Input, Turn};
use leeward_region::job::{Job, JobClass, Outcome, ReshapeDone};
use leeward_region::machine::RegionMachine;
use leeward_region::request::{ReplyTo, Request, Token};
use leeward_region::safe_lsn_lines::SafeLsnLines;
use leeward_replication::Timing;
use leeward_replication::backup::PrimarySession;
use leeward_replication::lease::Grants;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

pub(crate) const REGION: RegionId = RegionId(1);
pub(crate) const TABLE: &str = "default";

/// What a node knows.
struct Known {
    grants: Grants,
    table: TableOptions,
    linked: Vec<ServerId>,
}

impl Facts for Known {
    fn cluster(&self) -> Option<ClusterId> {
        Some(ClusterId(7))
    }
    fn table(&self, name: &str) -> Option<&TableOptions> {
        (name == TABLE).then_some(&self.table)
    }
    fn grants(&self) -> &Grants {
        &self.grants
    }
    fn linked(&self) -> Vec<ServerId> {
        self.linked.clone()
    }
    fn can_succeed(&self, server: ServerId) -> bool {
        self.linked.contains(&server)
    }
}

/// A node: its regions, and what they have asked for and was not done yet.
pub(crate) struct Host {
    pub(crate) me: Member,
    resources: Arc<NodeResources>,
    /// What its fabric has told.
    events: Arc<Mutex<Vec<LinkEvent>>>,
    known: Known,
    pub(crate) regions: BTreeMap<RegionId, RegionMachine>,
    jobs: VecDeque<Job>,
    sent: VecDeque<(RegionId, Effect)>,
    /// What was asked for since the last look, in words.
    said: Vec<String>,
    pub(crate) answers: Vec<OpResult>,
    operations: u64,
}

/// Some nodes, one clock and one network.
pub(crate) struct Group {
    pub(crate) now: Nanos,
    network: SimNetwork,
    pub(crate) hosts: BTreeMap<ServerId, Host>,
}

/// What an effect asks for, in words.
fn words(effect: &Effect) -> String {
    match effect {
        Effect::RouteAgain(_) => "route again".into(),
        Effect::Send { to, message } => format!("send {to} {}", name_of(message)),
        Effect::SendUrgent { to, message } => format!("send urgently {to} {}", name_of(message)),
        Effect::Mirror { to, .. } => format!("mirror {to}"),
        Effect::WriteSegment { to, .. } => format!("write segment {to}"),
        Effect::WantSegment(wanted) => format!("want segment {}", wanted.server),
        Effect::AskLease { server, term } => format!("ask lease {server} term {term}"),
        Effect::AskPlaces { servers, .. } => {
            servers.iter().map(|(server, _)| format!("ask place {server}")).collect::<Vec<_>>().join(", ")
        }
        Effect::CountSessions { before, after } => {
            format!("count sessions {} instead of {}", after.len(), before.len())
        }
        Effect::Propose(proposal) => match &proposal.change {
            ProposedChange::Replace(new) => {
                let primary = new.primary.map_or(ServerId(0), |primary| primary.server);
                format!("propose term {} primary {primary}, {} backups", new.term, new.backups.len())
            }
            ProposedChange::Split { right, .. } => format!("propose split into {}", right.region),
            ProposedChange::Merge { source, .. } => format!("propose merge of {}", source.region),
        },
        Effect::Spawn(job) if job.class == JobClass::Foreground => "job".into(),
        Effect::Spawn(_) => "background job".into(),
        Effect::GaveWork => "gave work".into(),
        Effect::WantsTurn => "wants turn".into(),
        Effect::IsReshaped => "is reshaped".into(),
        Effect::ChildMade { result, .. } => format!("child made {}", result.is_ok()),
        Effect::Register(_) => "register".into(),
    }
}

fn name_of(message: &Control) -> String {
    let debug = match message {
        Control::ToBackup { body, .. } => format!("{body:?}"),
        Control::ToPrimary { body, .. } => format!("{body:?}"),
        other => format!("{other:?}"),
    };
    debug.split([' ', '(']).next().unwrap_or_default().to_owned()
}

impl Group {
    /// Nodes 1 to `servers`, all linked, which know a table with these options.
    pub(crate) fn new(servers: u32, table: &TableOptions) -> Group {
        let network = SimNetwork::new(1, SimOptions::default());
        let all: Vec<ServerId> = (1..=servers).map(ServerId).collect();
        let hosts = all.iter().map(|server| {
            let others: Vec<ServerId> = all.iter().copied().filter(|other| other != server).collect();
            (*server, Host::new(*server, others, table.clone(), &network))
        });
        let hosts: BTreeMap<ServerId, Host> = hosts.collect();
        let group = Group { now: Nanos::from_secs(100), network, hosts };
        for (one, host) in &group.hosts {
            for other in all.iter().filter(|other| *other != one) {
                host.resources.fabric.connect(PeerId(other.0), "simulated");
                host.resources.fabric.admit(PeerId(other.0));
            }
        }
        group.network.advance(Nanos::from_secs(50));
        group
    }

    pub(crate) fn member(&self, server: u32) -> Member {
        self.hosts[&ServerId(server)].me
    }

    /// The region's first configuration: term 1, an empty copy everywhere.
    pub(crate) fn config(&self, primary: u32, backups: &[u32]) -> GroupConfig {
        GroupConfig {
            epoch: Epoch(1),
            term: Epoch(1),
            primary: Some(self.member(primary)),
            backups: backups.iter().map(|server| self.member(*server)).collect(),
            ..GroupConfig::unassigned(REGION, TABLE)
        }
    }

    /// Gives a region an input. Answers what it asks for, in words.
    pub(crate) fn give(&mut self, server: u32, region: RegionId, input: Input) -> Vec<String> {
        let now = self.now;
        let host = self.hosts.get_mut(&ServerId(server)).expect("a node of the group");
        host.said.clear();
        host.give(now, region, input);
        host.said.clone()
    }

    pub(crate) fn configure(&mut self, server: u32, config: &GroupConfig) -> Vec<String> {
        self.give(server, config.region, Input::Configuration(Arc::new(config.clone())))
    }

    /// A turn of the node ends. Answers what the region asks for.
    pub(crate) fn end_turn(&mut self, server: u32, region: RegionId) -> Vec<String> {
        let turn = Turn { is_synced: true, is_alone: true, obstacle: None };
        self.give(server, region, Input::EndOfTurn(turn))
    }

    /// A key is written, in a turn of its own.
    pub(crate) fn put(&mut self, server: u32, key: &'static str, value: &'static str) {
        let (key, value) = (key.into(), value.into());
        let op = Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever };
        self.execute(server, op);
    }

    pub(crate) fn execute(&mut self, server: u32, op: Op) {
        let now = self.now;
        let host = self.hosts.get_mut(&ServerId(server)).expect("a node of the group");
        host.operations += 1;
        let to = ReplyTo::Client(Token(host.operations));
        let operation = Request::new(now, to, TABLE.parse::<TableName>().expect("a name"), op, None);
        host.regions.get_mut(&REGION).expect("a region of the node").execute(now, operation);
        self.end_turn(server, REGION);
    }

    pub(crate) fn answers(&mut self, server: u32) -> Vec<OpResult> {
        std::mem::take(&mut self.hosts.get_mut(&ServerId(server)).expect("a node of the group").answers)
    }

    /// Runs jobs and carries what was sent until nothing is left to be done. What nodes in `lost` send, and what is sent to them, is
    /// lost.
    pub(crate) fn settle(&mut self, lost: &[u32]) {
        let is_lost = |server: ServerId| lost.contains(&server.0);
        for _ in 0..10_000 {
            let Some((from, region, effect)) = self.next_effect() else {
                if !self.run_a_job(&is_lost) {
                    return;
                }
                continue;
            };
            if !is_lost(from) {
                self.execute_effect(from, region, effect, &is_lost);
            }
        }
        panic!("it goes on for ever");
    }

    /// Takes the first foreground job of a node.
    pub(crate) fn take_job(&mut self, server: u32) -> Job {
        let jobs = &mut self.hosts.get_mut(&ServerId(server)).expect("a node of the group").jobs;
        let first = jobs.iter().position(|job| job.class == JobClass::Foreground).expect("it was asked for");
        jobs.remove(first).expect("just seen")
    }

    fn next_effect(&mut self) -> Option<(ServerId, RegionId, Effect)> {
        self.hosts.iter_mut().find_map(|(server, host)| {
            let (region, effect) = host.sent.pop_front()?;
            Some((*server, region, effect))
        })
    }

    fn run_a_job(&mut self, is_lost: &impl Fn(ServerId) -> bool) -> bool {
        let now = self.now;
        let host = self.hosts.iter_mut().find(|(server, host)| !host.jobs.is_empty() && !is_lost(**server));
        let Some((_, host)) = host else { return false };
        let done = host.jobs.pop_front().expect("just seen").run();
        host.give(now, done.region, Input::JobDone(done.outcome));
        let turn = Turn { is_synced: true, is_alone: true, obstacle: None };
        host.give(now, done.region, Input::EndOfTurn(turn));
        true
    }

    fn execute_effect(
        &mut self,
        from: ServerId,
        region: RegionId,
        effect: Effect,
        is_lost: &impl Fn(ServerId) -> bool,
    ) {
        let now = self.now;
        match effect {
            Effect::Send { to, .. } | Effect::SendUrgent { to, .. } if is_lost(to) => {}
            Effect::Send { to, message } | Effect::SendUrgent { to, message } => self.deliver(from, to, message),
            Effect::Mirror { to, buffer, offset, tail, range, op } => {
                let fabric = &self.hosts[&from].resources.fabric;
                fabric.write(PeerId(to.0), &buffer, offset, &tail.bytes()[range], op);
                self.write_ended(from, region, to, op);
            }
            Effect::WriteSegment { to, slot, bytes, op } => {
                let fabric = &self.hosts[&from].resources.fabric;
                fabric.write(PeerId(to.0), &slot, 0, &bytes, op);
                self.write_ended(from, region, to, op);
            }
            Effect::AskPlaces { term, servers } => {
                let places = servers.into_iter().map(|(server, _)| (server, Ok(()))).collect();
                self.give_quietly(from, region, Input::Places { term, places });
            }
            Effect::AskLease { server, term } if !is_lost(server) => {
                let lasts = Timing::default().lease;
                let granter = self.hosts.get_mut(&server).expect("a node of the group");
                if granter.regions.get(&region).is_some_and(|machine| machine.may_grant(from, term)) {
                    granter.known.grants.grant(now, region, term, lasts);
                    self.give_quietly(from, region, Input::LeaseGranted { server, term, lease: (now, lasts) });
                }
            }
            Effect::ChildMade { parent, result } => {
                let done = Outcome::Reshape(ReshapeDone::ParentSplit(result));
                self.give_quietly(from, parent, Input::JobDone(done));
            }
            _ => {}
        }
    }

    fn write_ended(&mut self, from: ServerId, region: RegionId, server: ServerId, op: u64) {
        let host = &self.hosts[&from];
        host.resources.fabric.flush();
        self.network.advance(self.network.now() + Nanos::from_millis(10));
        let ended = std::mem::take(&mut *host.events.lock().expect("one thread"));
        assert!(ended.contains(&LinkEvent::Completed { op }), "{ended:?}");
        self.give_quietly(from, region, Input::WriteEnded { server, op, is_refused: false });
        let turn = Turn { is_synced: true, is_alone: true, obstacle: None };
        self.give_quietly(from, region, Input::EndOfTurn(turn));
    }

    fn deliver(&mut self, from: ServerId, to: ServerId, message: Control) {
        match message {
            Control::ToBackup { region, term, session, body } => {
                self.deliver_to_backup(from, to, region, (term, session), body)
            }
            Control::ToPrimary { region, term, session, body } => {
                self.deliver_to_primary(from, to, region, (term, session), body);
            }
            Control::Released { regions } => {
                for (region, term) in regions {
                    self.hosts.get_mut(&to).expect("a node of the group").known.grants.release(region, term);
                    self.give_quietly(to, region, Input::LeaseReleased);
                }
            }
            other => panic!("no region sends {other:?}"),
        }
    }

    fn deliver_to_backup(
        &mut self,
        from: ServerId,
        to: ServerId,
        region: RegionId,
        (term, session): (Epoch, u64),
        body: ToBackup,
    ) {
        self.hosts.get_mut(&to).expect("a node of the group").add(region);
        self.give_quietly(to, region, Input::FromPrimary(PrimarySession { primary: from, term, session }, body));
    }

    fn deliver_to_primary(
        &mut self,
        server: ServerId,
        to: ServerId,
        region: RegionId,
        (term, session): (Epoch, u64),
        body: ToPrimary,
    ) {
        self.give_quietly(to, region, Input::FromMember { server, term, session, body });
        let turn = Turn { is_synced: true, is_alone: true, obstacle: None };
        self.give_quietly(to, region, Input::EndOfTurn(turn));
    }

    fn give_quietly(&mut self, server: ServerId, region: RegionId, input: Input) {
        let now = self.now;
        self.hosts.get_mut(&server).expect("a node of the group").give(now, region, input);
    }

    /// Time passes, with a tick at its end.
    pub(crate) fn pass(&mut self, server: u32, region: RegionId, time: Nanos) -> Vec<String> {
        self.now += time;
        self.give(server, region, Input::Tick { departing: BTreeMap::new() })
    }

    /// Forgets what was said so far.
    pub(crate) fn forget_said(&mut self) {
        self.hosts.values_mut().for_each(|host| host.said.clear());
    }

    /// What was asked for since then, by all nodes.
    pub(crate) fn said(&mut self, server: u32) -> Vec<String> {
        std::mem::take(&mut self.hosts.get_mut(&ServerId(server)).expect("a node of the group").said)
    }

    pub(crate) fn region(&self, server: u32, region: RegionId) -> &RegionMachine {
        &self.hosts[&ServerId(server)].regions[&region]
    }

    /// Whether the region is served there, and open.
    pub(crate) fn is_open(&self, server: u32, region: RegionId) -> bool {
        self.region(server, region).served().is_some_and(|serving| serving.is_open())
    }
}

impl Host {
    fn new(server: ServerId, others: Vec<ServerId>, table: TableOptions, network: &SimNetwork) -> Host {
        let disk = SimDisk::new(server.0.into(), u64::MAX);
        let options = VolumeOptions { segment_bytes: 32 << 10, memory_budget: 4 << 20, ..VolumeOptions::default() };
        let file = disk.open("volume").expect("a simulated file opens");
        let (volume, _) = Volume::open(file, VolumeId(server.0.into()), options).expect("an empty disk");
        let events = Arc::<Mutex<Vec<LinkEvent>>>::default();
        let heard = Arc::clone(&events);
        let sink = Arc::new(move |_, event| heard.lock().expect("one thread").push(event));
        let fabric: Arc<dyn Fabric> = network.node(PeerId(server.0), sink);
        let me = Member { server, volume: volume.id(), incarnation: volume.incarnation() };
        let resources = NodeResources {
            me,
            clients: ClientMemory::unlimited(),
            safe_lsn_lines: Arc::new(SafeLsnLines::new(Arc::clone(&fabric), me.incarnation)),
            volume,
            fabric,
            readable: None,
            timing: Timing::default(),
            wall: Wall::default(),
            ops: Default::default(),
            requests: Arc::default(),
            checkpoints: None,
            merge_bytes: 0,
        };
        let known = Known { grants: Grants::default(), table, linked: others };
        let mut host = Host {
            me,
            resources: Arc::new(resources),
            events,
            known,
            regions: BTreeMap::new(),
            jobs: VecDeque::new(),
            sent: VecDeque::new(),
            said: Vec::new(),
            answers: Vec::new(),
            operations: 0,
        };
        host.add(REGION);
        host
    }

    /// The node has this region from now on.
    fn add(&mut self, region: RegionId) {
        let new = || RegionMachine::new(region, None, Arc::clone(&self.resources));
        self.regions.entry(region).or_insert_with(new);
    }

    fn give(&mut self, now: Nanos, region: RegionId, input: Input) {
        self.add(region);
        let machine = self.regions.get_mut(&region).expect("just made");
        let mut effects = Effects::default();
        machine.handle(now, input, &self.known, &mut effects);
        self.answers.extend(effects.answers.into_iter().map(|(_, result)| result));
        for (region, effect) in effects.asked {
            self.said.push(words(&effect));
            match effect {
                Effect::Spawn(job) => self.jobs.push_back(job),
                other => self.sent.push_back((region, other)),
            }
        }
    }
}
