//! Disks that fill and empty. Others than the store take all room, give some back, and take what the store gives back.
//!
//! It strikes between other faults, where only no write may be lost. After the faults it strikes again, alone, while
//! clients write. Then it is known what must succeed:
//!
//! - Deletes, at some time: in these small volumes, of which others take what is given back, that may be late.
//! - Writes, soon after there is room again. Where servers with room have copies, also before.

use super::faults::assert_not_broken_for_room;
use super::{Event, NodeId, World};
use crate::CONTEXT;
use crate::scenario::Filling;
use crate::world::machine::SEGMENT_BYTES;
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Condition, Lifetime, Op};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeSet;

/// How often others take and give back room.
const STEP: Nanos = Nanos::from_millis(50);
/// Within this time a region takes writes and deletes, with the time in which a refused one waited.
const SOON: Nanos = Nanos::from_secs(10);
/// And this long is late.
const LATE: Nanos = Nanos::from_secs(45);
/// Room that is enough for writes: as many segments as 64 MiB in production.
const ENOUGH: u64 = 32 * SEGMENT_BYTES as u64;

/// Until when each disk is full.
#[derive(Debug)]
pub(super) struct DiskFills {
    /// Until when the disk of each node is full.
    until: Vec<Nanos>,
    /// Room is taken and given back at intervals.
    is_stepping: bool,
    /// Keys that were written only to see that writes succeed.
    keys: BTreeSet<Bytes>,
    rng: Rng,
}

impl DiskFills {
    pub(super) fn new(nodes: usize, rng: Rng) -> DiskFills {
        DiskFills { until: vec![Nanos::ZERO; nodes], is_stepping: false, keys: BTreeSet::new(), rng }
    }
}

/// A key of this region that no client uses; `None` for a region of few keys or tokens.
fn key_of(config: &GroupConfig, world: &World) -> Option<Bytes> {
    let partition = world.scenario.table.partition;
    let near = [&config.start[..], b"\0filling"].concat();
    let others = (0..1_000).map(|number| format!("filling {number}").into_bytes());
    let mut keys = std::iter::once(near).chain(others).map(Bytes::from);
    keys.find(|key| config.contains(&partition.place(key)))
}

fn put(key: &Bytes) -> Op {
    let (key, value) = (key.clone(), Bytes::from_static(b"is there"));
    Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever }
}

fn delete(key: &Bytes) -> Op {
    Op::Delete { key: key.clone(), when: Condition::Always }
}

impl World {
    /// Others begin to fill disks.
    pub(super) fn fill(&mut self, filling: &Filling) {
        CONTEXT.set((self.now, None));
        tracing::info!(nodes = ?filling.nodes, until_ms = filling.until.as_millis(), "disks fill");
        for node in &filling.nodes {
            self.disk_fills.until[*node] = self.disk_fills.until[*node].max(filling.until);
            let room = self.disk_fills.rng.below(4) * SEGMENT_BYTES as u64;
            self.machines[*node].disk.leave_room(Some(room));
        }
        self.fault_state.struck += 1;
        if !std::mem::replace(&mut self.disk_fills.is_stepping, true) {
            self.push(self.now + STEP, Event::TakeRoom);
        }
    }

    /// Others take all room, or give some back; or they need none any more.
    pub(super) fn take_room(&mut self) {
        for node in self.nodes() {
            let until = self.disk_fills.until[node];
            if until > self.now {
                let room = match self.disk_fills.rng.below(6) {
                    0 | 1 => 0,
                    2 => self.disk_fills.rng.between(1, 4) * SEGMENT_BYTES as u64,
                    _ => continue,
                };
                self.machines[node].disk.leave_room(Some(room));
            } else if until > Nanos::ZERO {
                self.empty_disk(node, None);
            }
        }
        self.disk_fills.is_stepping = self.disk_fills.until.iter().any(|until| *until > self.now);
        if self.disk_fills.is_stepping {
            self.push(self.now + STEP, Event::TakeRoom);
        }
    }

    /// Others leave so much room of a disk that was full. The operator starts a process that asks for that.
    fn empty_disk(&mut self, node: NodeId, room: Option<u64>) {
        CONTEXT.set((self.now, None));
        tracing::info!(node, "a disk has room again");
        self.disk_fills.until[node] = Nanos::ZERO;
        assert_not_broken_for_room(self.machines[node].node.as_ref());
        self.machines[node].disk.leave_room(room);
        self.push(self.now, Event::MendDisk { node });
    }

    /// Every disk has room.
    pub(super) fn empty_disks(&mut self) {
        for node in self.nodes().filter(|node| self.disk_fills.until[*node] > Nanos::ZERO).collect::<Vec<_>>() {
            self.empty_disk(node, None);
        }
    }

    /// Fills some disks while clients write, and empties them. Checks what must succeed meanwhile and then.
    pub(super) fn fill_and_empty(&mut self) -> Result<(), String> {
        if self.scenario.fillings.is_empty() {
            return Ok(());
        }
        self.succeeds("before the disks are full", SOON, put)?;
        self.is_loaded = true;
        for client in 0..self.load.clients() {
            self.push(self.now, Event::Client { client });
        }
        let one = self.disk_fills.rng.index(self.scenario.nodes);
        let is_one = self.disk_fills.rng.one_in(2);
        let nodes: Vec<NodeId> = self.nodes().filter(|node| *node == one || !is_one).collect();
        let begun = self.now;
        self.fill(&Filling { at: begun, until: Nanos::MAX, nodes: nodes.clone() });
        let end = self.now + Nanos::from_millis(self.disk_fills.rng.between(500, 3_000));
        self.advance(end);
        let table = &self.scenario.table;
        let needs_others = table.min_in_sync > 1 || table.quorum.is_some();
        let with_room = self.scenario.nodes - nodes.len();
        let suffices = table.replicas > 1 && with_room >= table.min_in_sync as usize;
        // A member in sync that has no room at all leaves its group.
        if !needs_others {
            self.succeeds("while disks are full", LATE, delete)?;
        }
        if suffices && self.scenario.desired().is_empty() {
            self.succeeds("while some disks are full", SOON, put)?;
        }
        // Members that have left their group, and without which it takes no writes, lack more than that.
        let lacks =
            |config: &GroupConfig| needs_others && config.in_sync().count() < self.scenario.table.replicas as usize;
        let have_left = self.configs().iter().any(lacks);
        let room = if self.disk_fills.rng.one_in(2) && !have_left { Some(ENOUGH) } else { None };
        nodes.iter().for_each(|node| self.empty_disk(*node, room));
        self.succeeds("after there was room again", SOON, put)?;
        self.is_loaded = false;
        nodes.iter().for_each(|node| self.machines[*node].disk.leave_room(None));
        let keys = std::mem::take(&mut self.disk_fills.keys);
        self.ask(0, keys.iter().map(delete).collect())?;
        self.heal("after disks were full")
    }

    /// A write of each region succeeds within this time.
    fn succeeds(&mut self, when: &str, within: Nanos, write: impl Fn(&Bytes) -> Op) -> Result<(), String> {
        let keys: Vec<Bytes> = self.configs().iter().filter_map(|config| key_of(config, self)).collect();
        self.disk_fills.keys.extend(keys.iter().cloned());
        let begun = self.now;
        let answers = self.ask(0, keys.iter().map(write).collect())?;
        let took = self.now - begun;
        tracing::info!(when, took_ms = took.as_millis(), "writes succeed");
        match took > within {
            true => Err(format!("{when} writes took {} ms: {answers:?}", took.as_millis())),
            false => Ok(()),
        }
    }
}
