//! Memory of other nodes that a node has mapped, as over shared memory: the first posted read of a memory maps it, until the
//! link is down.
//!
//! Belongs to the simulation's thread.

use super::world::{Kind, Pair, World};
use crate::ReadNow;
use crate::memory::{Framed, Handle, HeapMemory};
use std::sync::{Arc, Weak};

/// The memory that is mapped over one connection.
#[derive(Default)]
pub(super) struct Mapped {
    memories: Vec<(Handle, Weak<HeapMemory>)>,
    /// Memory whose owner was killed slowly: it stays mapped.
    left: Vec<Arc<HeapMemory>>,
}

impl Mapped {
    fn add(&mut self, memory: &Arc<HeapMemory>) {
        if self.find(memory.handle()).is_none() {
            self.memories.push((memory.handle(), Arc::downgrade(memory)));
        }
    }

    /// A memory. The inner `None`: its owner has dropped it.
    fn find(&self, handle: Handle) -> Option<Option<Arc<HeapMemory>>> {
        let (_, memory) = self.memories.iter().find(|(one, _)| *one == handle)?;
        Some(memory.upgrade())
    }

    /// The owner dies, and still has its memory.
    pub(super) fn owner_dies(&mut self) {
        self.left = self.memories.iter().filter_map(|(_, memory)| memory.upgrade()).collect();
    }
}

impl World {
    /// The answer to an operation arrives. If it is a read, the node has its memory mapped from now on.
    pub(super) fn map(&mut self, pair: Pair, number: u64) {
        let operation = self.link(pair).operations.get(&number);
        let is_read = operation.is_some_and(|one| one.kind == Kind::Read && !one.refused && !one.orphan);
        if !self.options.maps_memory || !is_read {
            return;
        }
        if let Some(Some(memory)) = self.memory_of(pair, number) {
            self.link(pair).mapped.add(&memory);
        }
    }

    /// Copies from the memory of `pair.1` that `pair.0` has mapped, also if its owner is cut off, or dead.
    pub(super) fn read_now(&mut self, pair: Pair, from: Option<Handle>, offset: u64, bytes: &mut [u8]) -> ReadNow {
        let Some(handle) = from else { return ReadNow::Refused };
        let Some(link) = self.links.get(&pair).filter(|link| link.up) else { return ReadNow::NotMapped };
        let Some(memory) = link.mapped.find(handle) else { return ReadNow::NotMapped };
        let Some(memory) = memory else { return ReadNow::Refused };
        if !memory.admits(offset, bytes.len() as u64) || !memory.remote_read(offset, bytes) {
            return ReadNow::Refused;
        }
        self.count_received(pair.0, bytes.len());
        ReadNow::Copied
    }
}
