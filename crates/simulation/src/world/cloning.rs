//! Clones: a copy of a server's volume, or the volume itself, is started elsewhere while another process has its number.
//!
//! Two processes that share no host cannot tell which of them is the copy. What proves something is the session of the
//! one that is registered: while it lasts, the other one is refused, and changes nothing at the coordinator. Once it has
//! ended, either may register. So the operator of this world stops the refused one as soon as the other is not registered
//! any more.
//!
//! The refused process, here the *intruder*, reaches the coordinator and nobody else.

use super::machine::{copy_of, open_volume};
use super::{Event, NodeId, World, server_id};
use crate::CONTEXT;
use crate::scenario::{Cloning, Origin};
use leeward_cluster::CoordinatorEvent;
use leeward_fabric::{SimNetwork, SimOptions};
use leeward_format::cluster::{Member, ServerInfo, decode_value};
use leeward_format::{UnixMs, VolumeId};
use leeward_platform::{Nanos, SimDisk};
use leeward_server::node::{Input, Job, JobDone, Node, Outbox, links};
use std::sync::Arc;

const TICK: Nanos = Nanos::from_millis(20);
/// How long its jobs wait for their device, and their answers for them.
const JOB: Nanos = Nanos::from_micros(300);
const MEMORY: u64 = 1 << 20;

/// Something that happens to an intruder.
pub(super) enum CloneEvent {
    Starts { cloning: Cloning, disk: SimDisk, lock: String },
    Tick,
    Job(Job),
    JobDone(JobDone),
    Stops,
}

/// The process that is refused.
pub(super) struct Intruder {
    /// The node whose number it has.
    of: NodeId,
    node: Node,
    /// Its number among intruders. Events of earlier ones are dropped.
    pub(super) serial: u64,
    /// Its network has no other nodes.
    _network: SimNetwork,
}

/// The intruder, if there is one.
#[derive(Default)]
pub(super) struct Clones {
    pub(super) intruder: Option<Intruder>,
    last_serial: u64,
    /// The first time that one was not refused.
    pub(super) failure: Option<String>,
}

impl World {
    /// The place of intruders at the coordinator.
    pub(super) fn intruders_place(&self) -> NodeId {
        self.scenario.nodes
    }

    /// The operator copies a disk, and two processes are to run on the two.
    pub(super) fn clone_disk(&mut self, cloning: Cloning) {
        let node = cloning.node;
        if !self.faults_continue() || self.clones.intruder.is_some() || self.registered(node).is_none() {
            return;
        }
        CONTEXT.set((self.now, None));
        let (machine, elsewhere) = (&self.machines[node], "elsewhere".to_owned());
        let copy = copy_of(&machine.disk, self.seed ^ self.now.0);
        let (disk, lock, wait) = match cloning.origin {
            Origin::Running => (copy, elsewhere, 0),
            _ if machine.disk.has_failed_sync() || !self.may_crash(&[node], false) => return,
            Origin::Stopped => {
                self.crash(node, false);
                self.push(self.now + Nanos::from_millis(cloning.pause_ms), Event::Restart { node });
                (copy, elsewhere, cloning.pause_ms / 3)
            }
            Origin::Moved => {
                self.crash(node, false);
                let machine = &mut self.machines[node];
                let lock = machine.lock(node);
                let original = std::mem::replace(&mut machine.disk, copy);
                machine.moves();
                self.push(self.now + Nanos::from_millis(cloning.pause_ms), Event::Restart { node });
                (original, lock, cloning.pause_ms + 2_000)
            }
        };
        tracing::info!(node, origin = ?cloning.origin, "a volume is copied");
        self.fault_state.struck += 1;
        let at = self.now + Nanos::from_millis(wait);
        self.push(at, Event::Clone { serial: 0, event: CloneEvent::Starts { cloning, disk, lock } });
    }

    /// The process that is registered as the server of a node, if it is that of the node, or was.
    fn registered(&self, node: NodeId) -> Option<Member> {
        let path = format!("/leeward/server/{}", server_id(node));
        let value = self.host.tree.changes().find(|change| change.path == path)?.value?;
        let info: ServerInfo = decode_value("server", &value).expect("the tree holds what was written");
        (!self.forgetting.is_restoring).then_some(info.member)
    }

    pub(super) fn happen_to_intruder(&mut self, serial: u64, event: CloneEvent) {
        let place = self.intruders_place();
        CONTEXT.set((self.now, Some(place)));
        if let CloneEvent::Starts { cloning, disk, lock } = event {
            return self.start_intruder(cloning, &disk, lock);
        }
        if self.clones.intruder.as_ref().is_none_or(|intruder| intruder.serial != serial) {
            return;
        }
        match event {
            CloneEvent::Starts { .. } => unreachable!("dealt with above"),
            CloneEvent::Stops => self.stop_intruder(),
            CloneEvent::Tick => {
                self.intruder_turn(Input::Tick);
                self.push(self.now + TICK, Event::Clone { serial, event: CloneEvent::Tick });
            }
            CloneEvent::Job(job) => {
                let done = CloneEvent::JobDone(job.run());
                self.push(self.now + JOB, Event::Clone { serial, event: done });
            }
            CloneEvent::JobDone(done) => self.intruder_turn(Input::Job(done)),
        }
    }

    fn start_intruder(&mut self, cloning: Cloning, disk: &SimDisk, lock: String) {
        let (of, place) = (cloning.node, self.intruders_place());
        if !self.faults_continue() || self.clones.intruder.is_some() || self.registered(of).is_none() {
            return;
        }
        let own = self.machines[of].node.as_ref().map(Node::member);
        if matches!(cloning.origin, Origin::Moved) && self.registered(of) != own {
            // The volume's last process is registered still, which ran on the host of this one.
            return;
        }
        let Ok(opened) = open_volume(disk, VolumeId(self.now.0), MEMORY) else { return };
        let network = SimNetwork::new(self.now.0, SimOptions::default());
        let fabric = network.node(links::peer(server_id(of)), Arc::new(|_, _| ()));
        let timing = self.scenario.timing(of, 0);
        let parts = self.parts(of, place, opened, fabric, timing, lock);
        tracing::info!(node = of, member = ?parts.info.member, "a process starts on a copy");
        let node = Node::new(self.now, parts);
        self.clones.last_serial += 1;
        let serial = self.clones.last_serial;
        self.clones.intruder = Some(Intruder { of, node, serial, _network: network });
        self.push(self.now, Event::Clone { serial, event: CloneEvent::Tick });
        let stops = self.now + Nanos::from_millis(cloning.lasts_ms);
        self.push(stops, Event::Clone { serial, event: CloneEvent::Stops });
    }

    /// Something from the coordinator reaches the intruder.
    pub(super) fn tell_intruder(&mut self, event: CoordinatorEvent) {
        CONTEXT.set((self.now, Some(self.intruders_place())));
        self.intruder_turn(Input::Coordinator(event));
    }

    fn intruder_turn(&mut self, input: Input) {
        let now = self.now;
        let Some(intruder) = &mut self.clones.intruder else { return };
        let mut outbox = Outbox::default();
        intruder.node.set_wall(now, UnixMs(now.as_millis()));
        intruder.node.handle(now, input);
        intruder.node.finish_batch(now, &mut outbox);
        let serial = intruder.serial;
        for job in outbox.jobs {
            self.push(now + JOB, Event::Clone { serial, event: CloneEvent::Job(job) });
        }
        let submitted = std::mem::take(&mut *self.submitted.lock());
        for (submitter, id, op) in submitted {
            let sent = self.host.submit(self.now, submitter, id, op, &mut self.rng);
            self.send(vec![sent]);
        }
    }

    /// The operator stops the intruder.
    pub(super) fn stop_intruder(&mut self) {
        if self.clones.intruder.take().is_some() {
            tracing::info!("the process on a copy is stopped");
            let place = self.intruders_place();
            self.host.process_ended(place);
        }
    }

    /// The operator stops the intruder where the other process is not registered any more.
    pub(super) fn look_at_intruder(&mut self) {
        let is_alone = |intruder: &Intruder| self.registered(intruder.of).is_none();
        if self.clones.intruder.as_ref().is_some_and(is_alone) {
            self.stop_intruder();
        }
    }

    /// An operation of `node` was executed at the coordinator's tree, which had this version before.
    pub(super) fn look_at_change(&mut self, node: NodeId, before: u64) {
        if node == self.intruders_place() && self.host.tree.version() != before && self.clones.failure.is_none() {
            let when = self.now.as_millis();
            self.clones.failure = Some(format!(
                "at {when} ms a process on a copy of a volume changed the coordinator's tree, while another one was registered"
            ));
        }
        self.look_at_intruder();
    }
}
