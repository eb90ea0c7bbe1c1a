//! What must be true after the faults: the cluster heals, no acknowledged write is lost, and every history could be that of a
//! single copy. Each replica has the same content when it serves alone. After a pause without writes, all of it survives a loss
//! of power everywhere.

use super::{NodeId, World, node_of, server_id};
use crate::expiring;
use bytes::Bytes;
use leeward_format::cluster::{Member, RegionRequest};
use leeward_format::merge::{self, Page};
use leeward_format::op::{Condition, Lifetime, Op, OpError, OpResult, RangeOp, ScanRange};
use leeward_platform::Nanos;
use leeward_platform::disk::{Fault, FaultPlan};
use leeward_server::node::{Node, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Within this time after the last fault the cluster must be well, or learners must have received more segments. In every second
/// incarnation a process sends them 512 KiB a second.
const HEALING: Nanos = Nanos::from_secs(40);
/// After this time without writes every answer has arrived, and every write is durable.
const PAUSE: Nanos = Nanos::from_secs(6);
/// A server gets no copy for so long after its disk was full.
const STAYS_FULL: Nanos = Nanos::from_secs(60);
/// Operations of the verdict that are in flight at a time.
const QUESTIONS: usize = 100;

/// All keys and values of the store.
type Content = BTreeMap<Bytes, Bytes>;

impl World {
    /// Ends the faults and the load, and checks the result.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        self.mend_connections();
        self.compare_copies()?;
        self.is_loaded = false;
        if self.nodes().any(|node| self.takes_writes(node)) {
            // The operator repairs a failed volume only after its primaries have moved elsewhere.
            self.advance_to("free of primaries on failed volumes", World::is_moved_off_failed)?;
        }
        if self.scenario.desired().is_empty() {
            // The master leaves what an operator has moved alone for a while.
            self.advance_to("free of primaries on full volumes", World::is_moved_off_full)?;
        }
        self.mend_disks();
        self.advance_to("restored", |world| !world.forgetting.is_restoring)?;
        self.forget_desired()?;
        // Other requests may have been in flight.
        self.advance(self.now + PAUSE);
        self.forget_desired()?;
        self.heal("after the faults")?;
        self.fill_and_empty()?;
        self.advance(self.now + PAUSE);
        if !self.is_split() {
            // No region is merged into one whose primary counts as full.
            self.await_roles_everywhere();
        }
        self.advance_to("split as it should be", World::is_split)?;
        self.forget_plans()?;
        self.heal("after its splits")?;
        self.advance_to("trimmed", World::is_trimmed)?;
        self.heal_apart()?;
        if let Some(failure) = &self.bounds.failure {
            return Err(failure.clone());
        }
        if !self.load.is_idle() {
            self.advance(self.now + self.load.timeout());
        }
        let node = self.rng.index(self.scenario.nodes);
        let began = self.now;
        let splits = self.first_keys();
        self.load.ledger.set_splits(self.scenario.table.partition, splits);
        let content = self.content(node)?;
        self.compare_gets(node, &content)?;
        self.load.check(began, content.clone())?;
        let content = lasting(content);
        for node in self.nodes() {
            self.compare_alone(node, &content)?;
        }
        self.compare_after_power_loss(&content)
    }

    /// Clears every request of the operator to servers and regions.
    fn forget_desired(&mut self) -> Result<(), String> {
        if self.scenario.desired().is_empty() {
            return Ok(());
        }
        let servers = self.nodes().map(server_id).map(|server| Op::Intend { server, intent: None });
        let regions = self.configs().into_iter().map(|config| config.region);
        let regions = regions.map(|region| Op::RequestRegion { region, request: RegionRequest::KeepMembers });
        let node = self.rng.index(self.scenario.nodes);
        self.ask(node, servers.chain(regions).collect()).map(drop)
    }

    /// Clears the plans of regions that could not be split.
    fn forget_plans(&mut self) -> Result<(), String> {
        let planned = self.configs().into_iter().filter(|config| config.desired.plan.is_some());
        let whole =
            planned.map(|config| Op::RequestRegion { region: config.region, request: RegionRequest::KeepBounds });
        self.ask(0, whole.collect()).map(drop)
    }

    pub(super) fn heal(&mut self, when: &str) -> Result<(), String> {
        let mut sent = 0;
        loop {
            let healed = self.advance_to(&format!("well {when}"), World::is_well);
            let before = std::mem::replace(&mut sent, self.segments_sent());
            if healed.is_ok() || sent <= before {
                return healed;
            }
        }
    }

    /// Waits until no region has all its copies on one host where another one has a server. Where nobody balances the servers,
    /// nobody does that.
    fn heal_apart(&mut self) -> Result<(), String> {
        if self.scenario.balance().is_none() || !self.scenario.has_locations() {
            return Ok(());
        }
        self.await_roles_everywhere();
        self.advance_to("spread over the hosts", World::is_apart)?;
        self.heal("after its copies moved apart")
    }

    /// Waits until no server counts as full.
    fn await_roles_everywhere(&mut self) {
        let gets_roles = |world: &World| world.running().all(|node| node.status().gets_no_roles.is_none());
        self.advance_until(self.now + STAYS_FULL, gets_roles);
    }

    fn is_apart(&self) -> bool {
        let hosts = self.nodes().map(|node| self.scenario.location(node)).collect::<BTreeSet<_>>().len();
        self.configs().iter().all(|config| {
            let places = config.members().map(|member| self.scenario.location(node_of(member.server)));
            places.collect::<BTreeSet<_>>().len() >= hosts.min(config.members().count())
        })
    }

    /// Segments that were sent to learners.
    fn segments_sent(&self) -> u64 {
        let peers = self.region_statuses().into_iter().flat_map(|region| region.peers);
        peers.map(|peer| peer.segments_sent).sum()
    }

    fn advance_to(&mut self, what: &str, is_there: impl Fn(&World) -> bool) -> Result<(), String> {
        match self.advance_until(self.now + HEALING, is_there) {
            true => Ok(()),
            false => Err(format!("the cluster is not {what}: {}", self.describe())),
        }
    }

    /// Whether a process runs on the node, and its volume has not failed.
    pub(super) fn takes_writes(&self, node: NodeId) -> bool {
        self.machines[node].node.as_ref().is_some_and(|node| node.status().volume_failure.is_none())
    }

    /// No region has its primary on a failed volume.
    fn is_moved_off_failed(&self) -> bool {
        self.configs()
            .iter()
            .filter_map(|config| config.primary)
            .all(|primary| self.takes_writes(node_of(primary.server)))
    }

    /// No region has its primary on a server that has said that it is full, and a member in sync on one with room.
    fn is_moved_off_full(&self) -> bool {
        let is_full = |member: &Member| {
            let node = self.machines[node_of(member.server)].node.as_ref();
            node.is_some_and(|node| node.status().gets_no_roles.is_some())
        };
        let has_room = |member: &Member| self.is_alive(*member) && !is_full(member);
        self.configs()
            .iter()
            .all(|config| !config.primary.as_ref().is_some_and(is_full) || !config.backups.iter().any(has_room))
    }

    /// Every region has a serving primary and all its replicas in sync.
    pub(super) fn is_well(&self) -> bool {
        let replicas = self.scenario.table.replicas as usize;
        self.is_served() && self.configs().iter().all(|config| config.in_sync().count() == replicas)
    }

    /// Every region has a serving primary, and all of its members in sync are alive.
    fn is_served(&self) -> bool {
        !self.forgetting.is_restoring
            && self.configs().iter().all(|config| {
                config.in_sync().all(|member| self.is_alive(member))
                    && config.primary.is_some_and(|primary| {
                        let node = self.machines[node_of(primary.server)].node.as_ref();
                        node.is_some_and(|node| node.is_serving(config.region, config.term))
                    })
            })
    }

    /// The other processes die, and this one serves all regions alone, whether it was a backup or a primary. If it does not have
    /// all regions, it dies instead, and the others serve. As each node is primary of some regions, each replica serves in turn.
    fn compare_alone(&mut self, node: NodeId, content: &Content) -> Result<(), String> {
        let has_all = self.scenario.table.replicas as usize == self.scenario.nodes;
        let (dying, left): (Vec<NodeId>, Vec<NodeId>) = self.nodes().partition(|other| (*other != node) == has_all);
        for dying in &dying {
            self.crash(*dying, false);
            // With a quorum the last member may lack writes. So each dying member leaves the group before the next one dies.
            if self.scenario.table.quorum.is_some() {
                self.advance_to("served by those that are left", World::is_served)?;
            }
        }
        if dying.is_empty() {
            self.crash(node, false);
            self.start(node);
        }
        if !self.advance_until(self.now + HEALING, World::is_served) {
            return Err(format!("nodes {left:?} do not serve alone: {}", self.describe()));
        }
        let found = lasting(self.content(left[0])?);
        if has_all && !dying.is_empty() && self.rng.one_in(3) {
            self.fail_volume(node, content);
        }
        dying.iter().for_each(|other| self.start(*other));
        if !dying.is_empty() {
            self.advance_to("free of primaries on the volume that served alone", World::is_moved_off_failed)?;
        }
        self.mend_disk(node);
        self.heal("after a part of it served alone")?;
        same(content, &found).map_err(|failure| format!("nodes {left:?}, which served alone: {failure}"))
    }

    /// Makes the next write of this node fail. The write changes nothing, and is made only if the node may write alone.
    fn fail_volume(&mut self, node: NodeId, content: &Content) {
        let Some((key, value)) = content.iter().next() else { return };
        let (key, value) = (key.clone(), value.clone());
        let put = Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever };
        self.machines[node].disk.set_faults(FaultPlan { at: vec![(1, Fault::Fail)], ..FaultPlan::default() });
        self.question(node, put);
        self.advance(self.now + Nanos::from_secs(1));
        self.questions.clear();
    }

    /// After a pause without writes everything is durable.
    fn compare_after_power_loss(&mut self, content: &Content) -> Result<(), String> {
        self.advance(self.now + PAUSE);
        for node in self.nodes() {
            self.crash(node, true);
        }
        for node in self.nodes() {
            self.start(node);
        }
        self.heal("after the power was lost everywhere")?;
        let node = self.rng.index(self.scenario.nodes);
        same(content, &lasting(self.content(node)?))
            .map_err(|failure| format!("after a pause and a loss of power: {failure}"))
    }

    /// Gets of each key find the same content as the scan.
    fn compare_gets(&mut self, node: NodeId, content: &Content) -> Result<(), String> {
        let keys: Vec<Bytes> = self.load.ledger.keys().collect();
        for keys in keys.chunks(QUESTIONS) {
            let answers = self.ask(node, keys.iter().map(|key| Op::Get { key: key.clone() }).collect())?;
            for (key, answer) in keys.iter().zip(answers) {
                let OpResult::Value(value) = answer else { return Err(format!("a get was answered by {answer:?}")) };
                if value.as_ref() != content.get(key) {
                    let (got, scanned) = (brief(value.as_ref()), brief(content.get(key)));
                    return Err(format!("a get of {key:?} answered {got:?}, and a scan {scanned:?}"));
                }
            }
        }
        Ok(())
    }

    /// All keys and values, as scans through `node` find them.
    fn content(&mut self, node: NodeId) -> Result<Content, String> {
        let mut content = Content::new();
        let mut from = Some(Bytes::new());
        while let Some(start) = from {
            let Page { entries, resume } = self.page(node, start)?;
            content.extend(entries);
            from = resume;
        }
        Ok(content)
    }

    /// Some keys and values from `start` on: of the region that has `start`; of all regions, if keys are partitioned by hash.
    fn page(&mut self, node: NodeId, start: Bytes) -> Result<Page, String> {
        let scan = |limit| {
            RangeOp::Scan(ScanRange { start: start.clone(), end: None, reverse: false, limit, keys_only: false })
        };
        let partition = self.scenario.table.partition;
        if !partition.is_hash() {
            return part(self.ask(node, vec![scan(1_000).into()])?.pop());
        }
        let configs = self.configs();
        // Few, so that scans are continued often.
        let ops = configs.iter().map(|config| scan(merge::share(60, configs.len())).within(config.region)).collect();
        let parts = self.ask(node, ops)?.into_iter().map(|answer| part(Some(answer)));
        let parts: Vec<Page> = parts.collect::<Result<_, _>>()?;
        for (config, part) in configs.iter().zip(&parts) {
            let is_foreign = |(key, _): &&(Bytes, Bytes)| !config.contains(&partition.place(key));
            if let Some((key, _)) = part.entries.iter().find(is_foreign) {
                return Err(format!("{key:?} is in region {}, which does not have its token", config.region));
            }
        }
        Ok(merge::page(parts, 60, false))
    }

    /// Asks a node until each of the operations is answered. They must be idempotent.
    pub(super) fn ask(&mut self, node: NodeId, ops: Vec<Op>) -> Result<Vec<OpResult>, String> {
        let deadline = self.now + HEALING;
        let mut answers: Vec<Option<OpResult>> = vec![None; ops.len()];
        while answers.iter().any(Option::is_none) {
            if self.now > deadline {
                return Err(format!("operations through node {node} were not answered: {}", self.describe()));
            }
            let mut asked = Vec::new();
            for (position, op) in ops.iter().enumerate().filter(|(position, _)| answers[*position].is_none()) {
                asked.push((position, self.question(node, op.clone())));
            }
            let end = self.now + Nanos::from_secs(8);
            while self.questions.values().any(Option::is_none) && self.turn(end) {}
            for (position, token) in asked {
                let answer = self.questions.remove(&token).expect("a question is asked once");
                // A region that was merged into another one has no requests any more.
                let is_over =
                    |error: &OpError| matches!(error, OpError::Invalid(why) if why.starts_with("there is no region"));
                answers[position] =
                    answer.filter(|answer| !matches!(answer, OpResult::Error(error) if !is_over(error)));
            }
            if answers.iter().any(Option::is_none) {
                self.advance(self.now + Nanos::from_millis(50));
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    pub(super) fn question(&mut self, node: NodeId, op: Op) -> Token {
        let token = Token(self.next_question);
        self.next_question += 1;
        self.questions.insert(token, None);
        self.submit(node, token, op, None, false);
        token
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for config in self.configs() {
            text += &format!("\n  {config:?}");
        }
        for (node, machine) in self.machines.iter().enumerate() {
            let status = machine.node.as_ref().map(Node::status);
            let Some(status) = status else {
                text += &format!("\n  node {node} does not run");
                continue;
            };
            if let Some(why) = &status.gets_no_roles {
                text += &format!("\n  node {node} gets no roles: {why}");
            }
            for region in status.regions {
                text += &format!(
                    "\n  node {node} region {} {:?} {} term {} lsn {} commit {} plan {:?} peers {:?}",
                    region.region,
                    region.role,
                    region.state,
                    region.term,
                    region.last_lsn,
                    region.commit_lsn,
                    region.plan,
                    region.peers
                );
            }
        }
        text
    }
}

fn part(answer: Option<OpResult>) -> Result<Page, String> {
    match answer {
        Some(OpResult::Entries { entries, resume }) => Ok(Page { entries, resume }),
        other => Err(format!("a scan was answered by {other:?}")),
    }
}

/// All keys except those that expire, which may be gone meanwhile.
fn lasting(content: Content) -> Content {
    content.into_iter().filter(|(key, _)| !expiring::is_one(key)).collect()
}

/// Fails with the first difference between the `right` content and the one that was `found`.
fn same(right: &Content, found: &Content) -> Result<(), String> {
    let keys = right.keys().chain(found.keys());
    match keys.filter(|key| right.get(*key) != found.get(*key)).min() {
        None => Ok(()),
        Some(key) => Err(format!("{key:?} reads as {:?}, and was {:?}", brief(found.get(key)), brief(right.get(key)))),
    }
}

fn brief(value: Option<&Bytes>) -> Option<Bytes> {
    value.map(|value| value.slice(..value.len().min(20)))
}
