//! The owner's stores to readable memory, one at a time: peers see any prefix of them, as if they read while the owner
//! is between two stores.
//!
//! ```text
//!  store --> the owner's copy                      the owner reads what it has stored
//!    '-----> waiting: word, word, ... --landing--> the memory that peers read
//! ```
//! The words of all readable memories of a node land in the order in which they were stored. What the node posts after
//! a store leaves after that has landed, and a revocation lands all that waits first. So a peer that hears of something
//! finds all that was stored before. A process that is killed leaves what has landed.
//!
//! Belongs to the simulation's thread.

use super::world::World;
use crate::memory::{Handle, HeapMemory, assert_range};
use crate::sparse::Sparse;
use crate::words::WORD;
use crate::{Descriptor, Memory, PeerId};
use leeward_platform::{Nanos, Rng};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// One in so many steps takes long.
const LONG_STEPS: u64 = 5;

/// A word that has not landed.
pub(super) struct Store {
    memory: Arc<HeapMemory>,
    offset: usize,
    word: u64,
}

/// Stores of a node that have not landed, oldest first.
#[derive(Default)]
pub(super) struct Stores {
    waiting: VecDeque<Store>,
    /// An event that lands some is scheduled.
    pub(super) is_landing: bool,
    /// No store lands before this.
    pub(super) held_until: Nanos,
    /// The node has flushed its posts, which leave after the last store.
    pub(super) holds_posts: bool,
}

impl Stores {
    pub(super) fn push(&mut self, store: Store) {
        self.waiting.push_back(store);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a store to these bytes of a memory waits.
    pub(super) fn are_to(&self, memory: Handle, bytes: Range<u64>) -> bool {
        self.waiting.iter().any(|store| store.memory.handle() == memory && bytes.contains(&(store.offset as u64)))
    }

    /// Lands so many.
    fn land(&mut self, stores: usize) {
        for Store { memory, offset, word } in self.waiting.drain(..stores) {
            memory.store_u64(offset, word);
        }
    }

    /// Lands all but the last `left`.
    pub(super) fn land_all_but(&mut self, left: usize) {
        self.land(self.waiting.len().saturating_sub(left));
    }

    /// Lands all.
    pub(super) fn land_all(&mut self) {
        self.land(self.waiting.len());
    }

    /// Lands some, and stops anywhere between two: often after the first, or before one of the last.
    pub(super) fn land_some(&mut self, rng: &mut Rng) {
        let most = self.waiting.len();
        let stores = match rng.below(3) {
            0 => 1,
            1 => most.saturating_sub(rng.index(4)).max(1),
            _ => 1 + rng.index(most.max(1)),
        };
        self.land(stores.min(most));
    }
}

/// How long the owner takes for its next stores: mostly `gap` at most, and sometimes so long that peers read several
/// times meanwhile.
pub(super) fn step_time(gap: Nanos, most_delay: Nanos, rng: &mut Rng) -> Nanos {
    let most = if rng.one_in(LONG_STEPS) { most_delay.0 << rng.below(5) } else { gap.0 };
    Nanos(rng.below(most))
}

/// Readable memory whose stores land one at a time.
pub(super) struct StoredMemory {
    world: Arc<Mutex<World>>,
    owner: PeerId,
    incarnation: u64,
    /// What the owner reads.
    own: Mutex<Sparse>,
    /// What peers read.
    shown: Arc<HeapMemory>,
}

impl StoredMemory {
    pub(super) fn new(
        world: Arc<Mutex<World>>,
        (owner, incarnation): (PeerId, u64),
        shown: Arc<HeapMemory>,
    ) -> StoredMemory {
        let own = Mutex::new(Sparse::new(shown.len()));
        StoredMemory { world, owner, incarnation, own, shown }
    }

    /// Lands all that waits.
    fn land_all(&self) {
        if let Some(node) = self.world.lock().node_mut(self.owner, self.incarnation) {
            node.stores.land_all();
        }
    }
}

impl Memory for StoredMemory {
    fn descriptor(&self) -> Descriptor {
        self.shown.descriptor()
    }
    fn len(&self) -> usize {
        self.shown.len()
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert_range(self.len(), offset, bytes.len());
        self.own.lock().copy_out(offset, bytes);
    }
    /// Lands at once, since its words have no order.
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_range(self.len(), offset, bytes.len());
        let mut own = self.own.lock();
        own.take(offset, bytes.len());
        own.copy_in(offset, bytes);
        self.land_all();
        self.shown.write(offset, bytes);
    }
    fn load_u64(&self, offset: usize) -> u64 {
        assert_range(self.len(), offset, WORD);
        self.own.lock().load(offset)
    }
    fn store_u64(&self, offset: usize, word: u64) {
        assert_range(self.len(), offset, WORD);
        let mut own = self.own.lock();
        own.take(offset, WORD);
        own.store(offset, word);
        let store = Store { memory: Arc::clone(&self.shown), offset, word };
        self.world.lock().store(self.owner, self.incarnation, store);
    }
    fn release(&self, range: Range<usize>) {
        self.land_all();
        self.own.lock().release(range.clone());
        self.shown.release(range);
    }
    fn revoke(&self) {
        self.land_all();
        self.shown.revoke();
    }
}
