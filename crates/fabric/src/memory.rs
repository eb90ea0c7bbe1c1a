//! Registered memory on the heap, the table in which a transport finds it, and the content of descriptors.
//!
//! Used by the transports whose remote side is a thread or a simulator of this process. A remote access holds the only
//! lock, shared, during one copy. [`Memory::revoke`] takes it exclusively, so no copy is under way once it returns.

use crate::{Descriptor, Memory, Readable, sparse::Sparse, words};
use leeward_platform::Rng;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// What peers may do with a memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Permission {
    /// Write and read it.
    ReadWrite = 0,
    /// Only read it.
    ReadOnly = 1,
}

impl Permission {
    /// Both.
    pub(crate) const ALL: [Permission; 2] = [Permission::ReadWrite, Permission::ReadOnly];
}

/// A memory as a peer asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MemoryId {
    /// Number of the memory at its owner.
    pub(crate) id: u64,
    /// Proves that the peer's descriptor is of this incarnation.
    pub(crate) key: u64,
    /// The permission that the peer expects. An owner refuses another than the memory's.
    pub(crate) permission: Permission,
}

/// The content of a descriptor: the memory's number at its owner, and a key, which proves that the descriptor is of
/// this incarnation.
///
/// ```text
///  0      1         9         17        25
///  | kind | id u64  | key u64 | len u64 |      little endian
/// ```
/// The kind is the transport, plus 16 if peers may only read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle {
    /// Number of the memory at its owner, never reused within an incarnation.
    pub(crate) id: u64,
    /// Random, so that a descriptor of another incarnation does not match.
    pub(crate) key: u64,
    /// Bytes of the memory.
    pub(crate) len: u64,
    /// What peers may do with it.
    pub(crate) permission: Permission,
}

/// The transport of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Transport {
    Tcp = 1,
    Shm = 2,
    Sim = 3,
    Libfabric = 4,
}

impl Transport {
    /// The first byte of descriptors.
    fn kind(self, permission: Permission) -> u8 {
        self as u8 | (permission as u8) << 4
    }
}

impl Handle {
    const BYTES: usize = 25;

    /// Encodes it for peers.
    pub(crate) fn descriptor(self, transport: Transport) -> Descriptor {
        let mut bytes = Vec::with_capacity(Handle::BYTES);
        bytes.push(transport.kind(self.permission));
        for field in [self.id, self.key, self.len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        Descriptor(bytes)
    }

    /// Decodes the bytes from a peer; `None` if they are not a descriptor of `transport`.
    pub(crate) fn to_read(descriptor: &dyn Readable, transport: Transport) -> Option<Handle> {
        let bytes: &[u8; Handle::BYTES] = descriptor.descriptor_bytes().try_into().ok()?;
        let (kind, fields) = bytes.split_first().expect("it has 25 bytes");
        let (fields, _) = fields.as_chunks::<8>();
        let [id, key, len] = [0, 1, 2].map(|i| u64::from_le_bytes(fields[i]));
        let permission = Permission::ALL.into_iter().find(|permission| transport.kind(*permission) == *kind)?;
        Some(Handle { id, key, len, permission })
    }

    /// [`Handle::to_read`], if the memory may be written as well.
    pub(crate) fn to_write(descriptor: &Descriptor, transport: Transport) -> Option<Handle> {
        Handle::to_read(descriptor, transport).filter(|handle| handle.permission == Permission::ReadWrite)
    }

    pub(crate) fn memory(self) -> MemoryId {
        MemoryId { id: self.id, key: self.key, permission: self.permission }
    }
}

/// Every registered memory of one incarnation of one fabric, by id. A memory removes itself when it is dropped.
pub(crate) struct Registry<M> {
    next: Mutex<(u64, Rng)>,
    memory: RwLock<HashMap<u64, (u64, Weak<M>)>>,
}

impl<M> Registry<M> {
    /// An empty table whose keys come from `keys`.
    pub(crate) fn new(keys: Rng) -> Registry<M> {
        Registry { next: Mutex::new((1, keys)), memory: RwLock::new(HashMap::new()) }
    }

    /// A handle for a new memory of `len` bytes.
    pub(crate) fn handle(&self, permission: Permission, len: usize) -> Handle {
        let mut next = self.next.lock();
        let handle = Handle { id: next.0, key: next.1.u64(), len: len as u64, permission };
        next.0 += 1;
        handle
    }

    /// Makes `memory` known under `handle`.
    pub(crate) fn insert(&self, handle: Handle, memory: &Arc<M>) {
        self.memory.write().insert(handle.id, (handle.key, Arc::downgrade(memory)));
    }

    /// The memory with this id and key.
    pub(crate) fn find(&self, id: u64, key: u64) -> Option<Arc<M>> {
        let memory = self.memory.read();
        let (expected, memory) = memory.get(&id)?;
        if *expected == key { memory.upgrade() } else { None }
    }

    /// Forgets the memory with this id.
    pub(crate) fn remove(&self, id: u64) {
        self.memory.write().remove(&id);
    }

    /// All memories.
    pub(crate) fn all(&self) -> Vec<Arc<M>> {
        self.memory.read().values().filter_map(|(_, memory)| memory.upgrade()).collect()
    }
}

/// Memory that a thread of this process writes and reads for peers, which ask by frames.
pub(crate) trait Framed: Send + Sync {
    /// Whether `len` bytes at `offset` are of the memory, and it is not revoked.
    fn admits(&self, offset: u64, len: u64) -> bool;
    /// Writes a peer's bytes to a range within the memory. Returns false if peers may only read it, or it is revoked:
    /// then the bytes are never read.
    fn remote_write(&self, offset: u64, bytes: &[u8]) -> bool;
    /// Reads a range within the memory for a peer. Returns false if the memory is revoked.
    fn remote_read(&self, offset: u64, bytes: &mut [u8]) -> bool;
}

/// Registered memory in this process's heap.
pub(crate) struct HeapMemory {
    handle: Handle,
    transport: Transport,
    /// Held shared during a copy.
    state: RwLock<HeapState>,
    registry: Arc<Registry<HeapMemory>>,
}

struct HeapState {
    pages: Sparse,
    revoked: bool,
}

impl HeapMemory {
    /// `len` zeroed bytes, known to `registry`.
    pub(crate) fn register(
        registry: &Arc<Registry<HeapMemory>>,
        transport: Transport,
        permission: Permission,
        len: usize,
    ) -> Arc<HeapMemory> {
        let handle = registry.handle(permission, len);
        let memory = Arc::new(HeapMemory {
            handle,
            transport,
            state: RwLock::new(HeapState { pages: Sparse::new(len), revoked: false }),
            registry: Arc::clone(registry),
        });
        registry.insert(handle, &memory);
        memory
    }

    /// What its descriptor has.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Allocates the pages of a range, and returns the memory for writing there.
    fn present(&self, offset: usize, len: usize) -> RwLockReadGuard<'_, HeapState> {
        let state = self.state.read();
        if state.pages.has(offset, len) {
            return state;
        }
        drop(state);
        let mut state = self.state.write();
        state.pages.take(offset, len);
        RwLockWriteGuard::downgrade(state)
    }
}

impl Framed for HeapMemory {
    fn admits(&self, offset: u64, len: u64) -> bool {
        words::within(offset, len, self.len()) && !self.state.read().revoked
    }
    fn remote_write(&self, offset: u64, bytes: &[u8]) -> bool {
        if self.handle.permission == Permission::ReadOnly {
            return false;
        }
        let state = self.present(offset as usize, bytes.len());
        if !state.revoked {
            state.pages.copy_in(offset as usize, bytes);
        }
        !state.revoked
    }
    fn remote_read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let state = self.state.read();
        if !state.revoked {
            state.pages.copy_out(offset as usize, bytes);
        }
        !state.revoked
    }
}

impl Memory for HeapMemory {
    fn descriptor(&self) -> Descriptor {
        self.handle.descriptor(self.transport)
    }
    fn len(&self) -> usize {
        self.handle.len as usize
    }
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert_range(self.len(), offset, bytes.len());
        self.state.read().pages.copy_out(offset, bytes);
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_range(self.len(), offset, bytes.len());
        self.present(offset, bytes.len()).pages.copy_in(offset, bytes);
    }
    fn load_u64(&self, offset: usize) -> u64 {
        assert_range(self.len(), offset, words::WORD);
        self.state.read().pages.load(offset)
    }
    fn store_u64(&self, offset: usize, value: u64) {
        assert_range(self.len(), offset, words::WORD);
        self.present(offset, words::WORD).pages.store(offset, value);
    }
    fn release(&self, range: Range<usize>) {
        assert_range(self.len(), range.start, range.len());
        self.state.write().pages.release(range);
    }
    fn revoke(&self) {
        self.state.write().revoked = true;
    }
}

impl Registry<HeapMemory> {
    /// The memories that peers may only read.
    pub(crate) fn readable(&self) -> Vec<Arc<HeapMemory>> {
        let mut memories = self.all();
        memories.retain(|memory| memory.handle.permission == Permission::ReadOnly);
        memories
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        self.registry.remove(self.handle.id);
    }
}

/// Asserts that an access of the owner is within the memory.
pub(crate) fn assert_range(available: usize, offset: usize, len: usize) {
    assert!(
        words::within(offset as u64, len as u64, available),
        "{len} bytes at {offset} of a memory of {available} bytes"
    );
}

/// Bytes sent and received by one fabric.
#[derive(Default)]
pub(crate) struct Counters {
    /// Towards peers.
    pub(crate) sent: AtomicU64,
    /// From peers.
    pub(crate) received: AtomicU64,
}

impl Counters {
    /// Counts bytes sent.
    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    /// Counts bytes received.
    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    /// The present numbers.
    pub(crate) fn snapshot(&self) -> crate::FabricCounters {
        crate::FabricCounters {
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
        }
    }
}
