//! Whole clusters of agents over one tree, with delays, lost connections, expired sessions, kills and restarts. The tests check
//! every change of a replica group, and that no acknowledged data is lost.
//!
//! The data of a region is modelled by two numbers for each process: the last LSN in its memory, and the last on its disk. A
//! write is acknowledged only while every in-sync member runs. A killed primary keeps on disk everything that it had
//! acknowledged. A killed backup keeps any part of what it had not flushed, even if it was promoted but did not serve yet.
//!
//! - `quiet`: clusters without faults. - `tables`: tables that are made and dropped, and copies that no group needs.
//!
//! `LEEWARD_SEED=n cargo test -p leeward-cluster --test simulation` replays one seed.

mod quiet;
mod tables;

use bytes::Bytes;
use leeward_cluster::{
    Agent, ClusterOptions, CoordinatorEvent, CoordinatorOp, Deadlines, Outcome, ProposalId, SessionId, Tree,
    bootstrap_op,
};
use leeward_format::cluster::{ClusterPath, CopyFound, GroupConfig, Member, ServerInfo, TableOptions, decode_value};
use leeward_format::coordinator::Change;
use leeward_format::{Epoch, Incarnation, Lsn, RegionId, ServerId, TableId, VolumeId};
use leeward_platform::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tables::Tables;

const REGIONS: u32 = 4;
const SEEDS: u64 = 150;
const SESSION: Nanos = Nanos::from_millis(1000);

/// The data of a region in a process's memory or disk: everything up to an LSN, last in sync in a term.
type Copy = (Epoch, Lsn);

/// One incarnation of a server's process.
struct Process {
    member: Member,
    agent: Agent,
    session: Option<SessionId>,
    /// Whether it is connected to the coordinator now.
    up: bool,
    /// Events on their way to it, in order.
    inbox: VecDeque<(Nanos, CoordinatorEvent)>,
    /// Operations on their way to the coordinator, in order.
    outbox: VecDeque<(Nanos, u64, CoordinatorOp)>,
    memory: BTreeMap<RegionId, Copy>,
    proposals: BTreeMap<ProposalId, GroupConfig>,
    /// Tables that it was asked to make or to drop.
    requests: BTreeMap<ProposalId, String>,
    /// Copies that it is about to destroy.
    leaving: BTreeSet<RegionId>,
    /// Stopped, but not dead: it acts on old knowledge once it continues.
    paused_until: Nanos,
}

struct Cluster {
    seed: u64,
    random: fastrand::Rng,
    now: Nanos,
    tree: Tree,
    deadlines: Deadlines,
    processes: BTreeMap<ServerId, Process>,
    down: BTreeSet<ServerId>,
    incarnations: BTreeMap<ServerId, u64>,
    disks: BTreeMap<(ServerId, RegionId), Copy>,
    /// Regions as the coordinator holds them.
    truth: BTreeMap<RegionId, GroupConfig>,
    /// Last LSN acknowledged to a client.
    acknowledged: BTreeMap<RegionId, Lsn>,
    /// Every configuration that was ever made.
    made: BTreeSet<(RegionId, Epoch, Vec<u8>)>,
    tables: Tables,
    promotions: u32,
    all_restarted: u32,
}

fn fingerprint(config: &GroupConfig) -> (RegionId, Epoch, Vec<u8>) {
    (config.region, config.epoch, leeward_format::cluster::encode_value(config).to_vec())
}

impl Cluster {
    fn new(seed: u64, servers: u32) -> Cluster {
        let mut tree = Tree::new();
        let splits: Vec<Bytes> = (1..REGIONS).map(|number| Bytes::from(format!("{number:04}"))).collect();
        let op = bootstrap_op(&TableOptions::default(), TableId(1), &splits);
        let applied = tree.apply(None, &op).unwrap();
        let mut cluster = Cluster {
            seed,
            random: fastrand::Rng::with_seed(seed),
            now: Nanos::from_secs(1),
            tree,
            deadlines: Deadlines::default(),
            processes: BTreeMap::new(),
            down: (1..=servers).map(ServerId).collect(),
            incarnations: BTreeMap::new(),
            disks: BTreeMap::new(),
            truth: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            made: BTreeSet::new(),
            tables: Tables::default(),
            promotions: 0,
            all_restarted: 0,
        };
        for change in applied.changes {
            if let Some(ClusterPath::Region(id)) = ClusterPath::parse(&change.path) {
                cluster.truth.insert(id, decode_value("region", &change.value.unwrap()).unwrap());
                cluster.tables.given.insert(id);
            }
        }
        cluster
    }

    fn delay(&mut self) -> Nanos {
        // Mostly short, sometimes longer than a session timeout.
        let slow = self.random.u32(..100) < 3;
        Nanos::from_millis(self.random.u64(1..if slow { 1500 } else { 10 }))
    }

    fn start(&mut self, server: ServerId) {
        assert!(self.down.remove(&server));
        let incarnation = self.incarnations.entry(server).or_default();
        *incarnation += 1;
        let member = Member { server, volume: VolumeId(server.0.into()), incarnation: Incarnation(*incarnation) };
        let on_disk = self.disks.iter().filter(|((owner, _), _)| *owner == server);
        let memory: BTreeMap<RegionId, Copy> = on_disk.map(|((_, region), copy)| (*region, *copy)).collect();
        let copies = memory.iter().map(|(region, (term, lsn))| CopyFound::new(*region, *term, *lsn)).collect();
        // After a power loss nothing proves that the last process is gone: its session has to end.
        let boot = if self.random.u32(..4) == 0 { *incarnation } else { 0 };
        let info = ServerInfo { copies, lock: format!("{boot} {server}"), ..ServerInfo::of(member) };
        let process = Process {
            member,
            agent: Agent::new(info, ClusterOptions::default()),
            session: None,
            up: false,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            memory,
            proposals: BTreeMap::new(),
            requests: BTreeMap::new(),
            leaving: BTreeSet::new(),
            paused_until: self.now,
        };
        self.processes.insert(server, process);
    }

    fn kill(&mut self, server: ServerId) {
        let Some(process) = self.processes.remove(&server) else { return };
        self.down.insert(server);
        for (region, (term, lsn)) in process.memory {
            let disk = self.disks.get(&(server, region)).copied().unwrap_or_default();
            // What is on disk may be longer than what a new primary cut the memory to.
            let kept = self.random.u64(disk.1.0.min(lsn.0)..=lsn.0);
            self.disks.insert((server, region), (term, Lsn(kept)));
        }
    }

    /// Breaks a process's connection. Operations that it had sent may have arrived.
    fn disconnect(&mut self, server: ServerId) {
        while self.random.bool() {
            let Some((_, id, op)) = self.processes.get_mut(&server).and_then(|process| process.outbox.pop_front())
            else {
                break;
            };
            self.execute(server, id, &op);
        }
        let now = self.now;
        let Some(process) = self.processes.get_mut(&server) else { return };
        process.up = false;
        process.inbox.clear();
        process.outbox.clear();
        process.agent.handle(now, CoordinatorEvent::Down);
        assert!(process.agent.take_ops().is_empty(), "nothing is asked for while the coordinator is out of reach");
    }

    fn connect(&mut self, server: ServerId) {
        let Some(process) = self.processes.get_mut(&server) else { return };
        if process.session.is_some_and(|session| self.tree.timeout_ms(session).is_none()) {
            process.session = None;
            process.agent.handle(self.now, CoordinatorEvent::Expired);
        }
        let session = process.session.unwrap_or_else(|| self.tree.open(SESSION.as_millis() as u32).unwrap());
        process.session = Some(session);
        process.up = true;
        self.deadlines.open(self.now, session, SESSION);
        let mut events = vec![CoordinatorEvent::Up { session }];
        events.extend(self.tree.changes().map(|change| CoordinatorEvent::Changed(vec![change])));
        events.push(CoordinatorEvent::Synced { version: self.tree.version() });
        for event in events {
            self.send(server, event);
        }
    }

    /// Sends an event to a process, behind the earlier ones.
    fn send(&mut self, server: ServerId, event: CoordinatorEvent) {
        let delay = self.delay();
        let is_together = self.random.bool();
        let Some(process) = self.processes.get_mut(&server).filter(|process| process.up) else { return };
        // Changes on their way may be told together with later ones: of each path only the last.
        if let (CoordinatorEvent::Changed(new), Some((_, CoordinatorEvent::Changed(changes)))) =
            (&event, process.inbox.back_mut().filter(|_| is_together))
        {
            changes.retain(|change| new.iter().all(|other| other.path != change.path));
            changes.extend(new.iter().cloned());
            return;
        }
        let last = process.inbox.back().map_or(Nanos::ZERO, |(at, _)| *at);
        process.inbox.push_back(((self.now + delay).max(last), event));
    }

    fn broadcast(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.observe(&change);
            let servers: Vec<ServerId> = self.processes.keys().copied().collect();
            for server in servers {
                self.send(server, CoordinatorEvent::Changed(vec![change.clone()]));
            }
        }
    }

    /// The coordinator does an operation.
    fn execute(&mut self, server: ServerId, id: u64, op: &CoordinatorOp) {
        let Some(session) = self.processes.get(&server).and_then(|process| process.session) else { return };
        let result = match self.tree.apply(Some(session), op) {
            Ok(applied) => {
                self.broadcast(applied.changes);
                if matches!(op, CoordinatorOp::All(_)) {
                    self.check_tables();
                }
                Ok(applied.version)
            }
            Err(error) => Err(error),
        };
        if self.tree.timeout_ms(session).is_some() {
            self.send(server, CoordinatorEvent::Reply { id, result });
        }
    }

    /// Checks a change of a region against the rules, and lets the data follow it.
    fn observe(&mut self, change: &Change) {
        let Some(ClusterPath::Region(region)) = ClusterPath::parse(&change.path) else {
            return self.observe_table(change);
        };
        let new = change.value.as_ref().map(|value| decode_value::<GroupConfig>("region", value).unwrap());
        let (Some(old), Some(new)) = (self.truth.get(&region).cloned(), new.clone()) else {
            return self.observe_creation_or_removal(region, new);
        };
        self.truth.insert(region, new.clone());
        let seed = self.seed;
        assert_eq!(new.epoch, old.epoch.next(), "seed {seed}: {old:?} -> {new:?}");
        assert_eq!(new.term == old.term, new.primary == old.primary, "seed {seed}: {old:?} -> {new:?}");
        let servers: BTreeSet<ServerId> = new.members().map(|member| member.server).collect();
        assert_eq!(servers.len(), new.members().count(), "seed {seed}: a server is in a group once: {new:?}");
        assert!(servers.len() <= 3, "seed {seed}: {new:?}");
        self.made.insert(fingerprint(&new));
        let primary = new.primary.expect("a region that has a primary keeps one");
        if new.primary == old.primary {
            for backup in new.backups.iter().filter(|backup| !old.backups.contains(backup)) {
                assert!(old.learners.contains(backup), "seed {seed}: {old:?} -> {new:?}");
            }
            return;
        }
        assert_eq!(new.term, new.epoch, "seed {seed}");
        let is_first = old.epoch == Epoch(0);
        for backup in &new.backups {
            assert!(
                is_first || old.backups.contains(backup),
                "seed {seed}: a new term keeps only members that were in sync: {old:?} -> {new:?}"
            );
        }
        let was_in_sync = old.backups.contains(&primary);
        if !was_in_sync && old.primary.is_some() {
            assert!(new.backups.is_empty(), "seed {seed}");
            for member in old.in_sync() {
                assert!(
                    self.incarnations[&member.server] > member.incarnation.0,
                    "seed {seed}: {member:?} may be live: {old:?} -> {new:?}"
                );
            }
            self.all_restarted += 1;
        }
        self.promotions += u32::from(old.primary.is_some());
        // Its process may have died in the meantime: then only its disk counts.
        let acknowledged = self.acknowledged.get(&region).copied().unwrap_or_default();
        let process = self.processes.get_mut(&primary.server).filter(|process| process.member == primary);
        let held = match &process {
            Some(process) => process.memory.get(&region).copied().unwrap_or_default().1,
            None => return,
        };
        assert!(
            held >= acknowledged,
            "seed {seed}: {primary:?} has {held}, {acknowledged} was acknowledged: {old:?} -> {new:?}"
        );
    }

    /// A new primary starts to serve, some time after its promotion. First it makes the data that it took over durable, under its
    /// term, and brings every survivor to that prefix.
    fn become_primary(&mut self, region: RegionId) {
        let config = &self.truth[&region];
        let Some(process) = config.primary.and_then(|primary| self.running(primary)) else { return };
        let (term, held) = process.memory.get(&region).copied().unwrap_or_default();
        if term == config.term || !config.in_sync().all(|member| self.running(member).is_some()) {
            return;
        }
        for member in config.in_sync().collect::<Vec<_>>() {
            let copy = (self.truth[&region].term, held);
            self.processes.get_mut(&member.server).expect("it runs").receive(region, copy);
            self.disks.insert((member.server, region), copy);
        }
    }

    /// Whether the primary of `region` serves.
    fn serves(&self, region: RegionId) -> bool {
        let config = &self.truth[&region];
        let process = config.primary.and_then(|primary| self.running(primary));
        process.is_some_and(|process| process.memory.get(&region).is_some_and(|(term, _)| *term == config.term))
    }

    fn running(&self, member: Member) -> Option<&Process> {
        self.processes.get(&member.server).filter(|process| process.member == member)
    }

    /// A client writes to a region, if its primary and every backup run.
    fn write(&mut self, region: RegionId) {
        let config = &self.truth[&region];
        if !self.serves(region) || !config.in_sync().all(|member| self.running(member).is_some()) {
            return;
        }
        let members: Vec<Member> = config.in_sync().collect();
        let term = config.term;
        let primary = members[0].server;
        let lsn = self.processes[&primary].memory.get(&region).copied().unwrap_or_default().1.next();
        for member in members {
            let process = self.processes.get_mut(&member.server).expect("it runs");
            process.receive(region, (term, lsn));
        }
        self.disks.insert((primary, region), (term, lsn));
        self.acknowledged.insert(region, lsn);
    }

    /// Primaries make learners backups and drop dead backups.
    fn propose(&mut self, server: ServerId) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&server) else { return };
        if !process.agent.view().is_synced() {
            return;
        }
        let mine: Vec<GroupConfig> =
            process.agent.view().regions().filter(|config| config.primary == Some(process.member)).cloned().collect();
        for old in mine {
            let dead = old.backups.iter().copied().find(|backup| self.running(*backup).is_none());
            let ready = old.learners.first().copied().filter(|learner| self.running(*learner).is_some());
            let serves = self.truth.get(&old.region) == Some(&old) && self.serves(old.region);
            let new = match (dead, ready) {
                (Some(dead), _) => old.without(dead),
                _ if serves && !old.prior_members.is_empty() && self.random.bool() => old.settled(),
                (None, Some(learner)) if serves => {
                    // The learner has the data of its primary before the primary proposes it.
                    let copy = self.processes[&server].memory.get(&old.region).copied().unwrap_or((old.term, Lsn(0)));
                    let copy = (old.term, copy.1);
                    self.processes.get_mut(&learner.server).expect("it runs").receive(old.region, copy);
                    self.disks.insert((learner.server, old.region), copy);
                    old.with_backup(learner)
                }
                _ => continue,
            };
            let process = self.processes.get_mut(&server).expect("it was just there");
            let id = process.agent.propose(now, old, new.clone());
            process.proposals.insert(id, new);
        }
    }

    /// A learner that becomes a backup has mirrored everything since it had caught up with its primary.
    fn mirror_to_learners(&mut self) {
        let mut mirrored = Vec::new();
        for config in self.truth.values() {
            let Some(primary) = config.primary else { continue };
            let Some(process) = self.processes.get(&primary.server).filter(|process| process.member == primary) else {
                continue;
            };
            let Some(copy) = process.memory.get(&config.region).copied() else { continue };
            for learner in config.learners.iter().filter(|_| self.serves(config.region)) {
                if self
                    .running(*learner)
                    .is_some_and(|process| process.memory.get(&config.region).is_some_and(|had| had.0 == copy.0))
                {
                    mirrored.push((learner.server, config.region, copy));
                }
            }
        }
        for (server, region, copy) in mirrored {
            self.processes.get_mut(&server).expect("it runs").receive(region, copy);
        }
    }

    fn step(&mut self) {
        self.now += Nanos::from_millis(1);
        let now = self.now;
        for server in self.processes.keys().copied().collect::<Vec<_>>() {
            while let Some((_, id, op)) = self.processes.get_mut(&server).and_then(|process| {
                process.outbox.front().is_some_and(|(at, ..)| *at <= now).then(|| process.outbox.pop_front()).flatten()
            }) {
                self.execute(server, id, &op);
            }
            let process = self.processes.get_mut(&server).expect("no process is killed here");
            if let Some(session) = process.session.filter(|_| process.up && process.paused_until <= now) {
                self.deadlines.heard(now, session);
            }
            if process.paused_until > now {
                continue;
            }
            while process.inbox.front().is_some_and(|(at, _)| *at <= now) {
                let (_, event) = process.inbox.pop_front().expect("it is there");
                process.agent.handle(now, event);
            }
            if now.as_millis().is_multiple_of(100) {
                process.agent.tick(now);
            }
            self.destroy_unneeded(server);
            let process = self.processes.get_mut(&server).expect("no process is killed here");
            let ops = process.agent.take_ops();
            for (proposal, outcome) in process.agent.take_outcomes() {
                if let Some(table) = process.requests.remove(&proposal) {
                    self.tables.judge(self.seed, &table, outcome);
                    continue;
                }
                let config = process.proposals.remove(&proposal).expect("one outcome a proposal");
                let made = self.made.contains(&fingerprint(&config));
                let seen = process.agent.view().region(config.region) == Some(&config);
                match outcome {
                    Outcome::Accepted => assert!(made, "seed {}: {config:?}", self.seed),
                    Outcome::Rejected => assert!(!seen, "seed {}: {config:?}", self.seed),
                    Outcome::Refused(reason) => unreachable!("a proposal is made or is not: {reason}"),
                }
            }
            for (id, op) in ops {
                let delay = self.delay();
                let process = self.processes.get_mut(&server).expect("no process is killed here");
                assert!(process.up, "nothing is asked for while the coordinator is out of reach");
                let last = process.outbox.back().map_or(Nanos::ZERO, |(at, ..)| *at);
                process.outbox.push_back(((now + delay).max(last), id, op));
            }
        }
        for session in self.deadlines.expired(now) {
            self.deadlines.close(session);
            let changes = self.tree.close(session);
            self.broadcast(changes);
            let owner = self.processes.iter().find(|(_, process)| process.session == Some(session) && process.up);
            if let Some(server) = owner.map(|(server, _)| *server) {
                self.disconnect(server);
            }
        }
    }

    fn fault(&mut self) {
        let servers: Vec<ServerId> = self.incarnations.keys().copied().collect();
        let Some(server) = self.random.choice(servers) else { return };
        match self.random.u32(..100) {
            0..12 => self.kill(server),
            12..14 => {
                for server in self.processes.keys().copied().collect::<Vec<_>>() {
                    self.kill(server);
                }
            }
            14..50 if self.down.contains(&server) => self.start(server),
            50..62 => self.disconnect(server),
            62..70 => {
                let until = self.now + Nanos::from_millis(self.random.u64(1..3000));
                if let Some(process) = self.processes.get_mut(&server) {
                    process.paused_until = until;
                }
            }
            _ => {}
        }
    }

    fn run(&mut self, millis: u64, faults: bool) {
        for _ in 0..millis {
            self.step();
            let chance = self.random.u32(..1000);
            if faults && chance < 4 {
                self.fault();
            }
            if faults && chance == 999 {
                self.request_tables();
            }
            for server in self.processes.keys().copied().collect::<Vec<_>>() {
                if !self.processes[&server].up && self.random.u32(..200) == 0 {
                    self.connect(server);
                }
                if self.random.u32(..100) == 0 {
                    self.propose(server);
                }
            }
            for _ in 0..self.truth.len().div_ceil(REGIONS as usize) {
                let region = self.random.usize(..self.truth.len());
                let region = *self.truth.keys().nth(region).expect("the first table stays");
                self.write(region);
                if self.random.u32(..50) == 0 {
                    self.become_primary(region);
                }
            }
            self.mirror_to_learners();
        }
    }

    /// Every process runs and there are no more faults: the cluster must become complete.
    fn settle(&mut self) {
        for server in self.down.clone() {
            self.start(server);
        }
        self.run(12_000, false);
        let seed = self.seed;
        let masters: Vec<ServerId> =
            self.processes.iter().filter(|(_, process)| process.agent.is_master()).map(|(id, _)| *id).collect();
        assert_eq!(masters.len(), 1, "seed {seed}");
        let mut maps = BTreeSet::new();
        for process in self.processes.values_mut() {
            assert!(process.agent.is_registered(), "seed {seed}");
            assert!(process.proposals.is_empty(), "seed {seed}: every proposal has its outcome");
            assert!(process.requests.is_empty(), "seed {seed}: every request has its outcome");
            maps.insert(format!("{:?}", process.agent.view().routes().region_map()));
        }
        assert_eq!(maps.len(), 1, "seed {seed}: every process has the same map");
        for config in self.truth.values() {
            assert_eq!((config.backups.len(), config.learners.len()), (2, 0), "seed {seed}: {config:?}");
            for member in config.members() {
                assert_eq!(self.processes[&member.server].member, member, "seed {seed}: {config:?}");
            }
        }
        self.check_that_nothing_is_left();
    }
}

/// Runs one seed. Returns the cluster in its final state.
fn run_seed(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, if seed.is_multiple_of(3) { 5 } else { 3 });
    for server in cluster.down.clone() {
        cluster.start(server);
    }
    cluster.run(20_000, true);
    cluster.settle();
    cluster
}

#[test]
fn replica_groups_keep_the_rules_and_every_acknowledged_write() {
    if let Ok(seed) = std::env::var("LEEWARD_SEED") {
        run_seed(seed.parse().expect("LEEWARD_SEED is a number"));
        return;
    }
    let (mut promotions, mut all_restarted, mut made, mut destroyed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let cluster = run_seed(seed);
        promotions += cluster.promotions;
        all_restarted += cluster.all_restarted;
        made += cluster.tables.made;
        destroyed += cluster.tables.destroyed;
    }
    assert!(
        promotions > 1000 && all_restarted > 50 && made > 300 && destroyed > 1000,
        "too few events: {promotions} promotions, {all_restarted} after all restarted, {made} tables made, {destroyed} copies \
         destroyed"
    );
}

/// The checks must find a rule that is broken on purpose.
#[cfg(feature = "planted-bugs")]
#[test]
fn promoting_restarted_processes_is_found() {
    use leeward_platform::planted::{Bug, plant};
    let found = (0..SEEDS).any(|seed| {
        let outcome = std::panic::catch_unwind(|| {
            plant(Some(Bug::PromoteRestarted));
            run_seed(seed);
        });
        plant(None);
        outcome.is_err()
    });
    assert!(found);
}
