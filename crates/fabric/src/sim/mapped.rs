//! Memory of other nodes that a node has mapped, as over shared memory: the first posted read of a memory maps it, until the
//! link is down.
//!
//! Belongs to the simulation's thread.

use super::world::{Kind, Pair, World};
use crate::ReadNow;
use crate::memory::{Framed, Handle};

impl World {
    /// The answer to an operation arrives. If it is a read, the node has its memory mapped from now on.
    pub(super) fn map(&mut self, pair: Pair, number: u64) {
        let operation = self.link(pair).operations.get(&number);
        let is_read = operation.is_some_and(|one| one.kind == Kind::Read && !one.refused && !one.orphan);
        if !self.options.maps_memory || !is_read {
            return;
        }
        if let Some(Some(memory)) = self.memory_of(pair, number) {
            let mapped = &mut self.link(pair).mapped;
            if mapped.iter().all(|one| one.handle() != memory.handle()) {
                mapped.push(memory);
            }
        }
    }

    /// Copies from the memory of `pair.1` that `pair.0` has mapped, also if its owner is cut off, or dead.
    pub(super) fn read_now(&mut self, pair: Pair, from: Option<Handle>, offset: u64, bytes: &mut [u8]) -> ReadNow {
        let Some(handle) = from else { return ReadNow::Refused };
        let Some(link) = self.links.get(&pair).filter(|link| link.up) else { return ReadNow::NotMapped };
        let memory = link.mapped.iter().find(|memory| memory.handle() == handle).cloned();
        let Some(memory) = memory else { return ReadNow::NotMapped };
        let owner = self.nodes.get(&pair.1).filter(|owner| owner.incarnation == link.target_incarnation);
        let is_kept = owner.is_none_or(|owner| owner.registry.find(handle.id, handle.key).is_some());
        if !is_kept || !memory.admits(offset, bytes.len() as u64) || !memory.remote_read(offset, bytes) {
            return ReadNow::Refused;
        }
        self.count_received(pair.0, bytes.len());
        ReadNow::Copied
    }
}
