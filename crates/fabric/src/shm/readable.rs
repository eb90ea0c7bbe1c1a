//! Peers' memory that is mapped here for reading, and the table in which any thread finds it.
//!
//! A link maps the memory when its owner has passed the file, and lists it for as long as the mapping belongs to the
//! connection ([`Listed`]). A reader takes neither the link's lock nor another that is held while bytes are copied: the
//! table's own is held for a look-up, an insertion or a removal. A reader keeps the mapping alive while it copies, so
//! no removal waits for it, and none takes pages from under it.
//!
//! The owner writes, revokes, drops and dies as it likes. The size is sealed, so the pages stay until they are
//! unmapped.

use super::{
    mapping::ReadMapping,
    memory::{HEADER, REVOKED, peer_file_bytes},
};
use crate::{PeerId, memory::Handle, words};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::{io, ops::Deref, os::fd::OwnedFd, sync::Arc};

/// The peer, and the id and key of the memory.
pub(super) type RemotePlace = (PeerId, u64, u64);

/// Memory of a peer that this process may only read.
pub(super) struct PeerReadable {
    mapping: ReadMapping,
    len: usize,
}

impl PeerReadable {
    /// Maps the file of the memory that `handle` names.
    pub(super) fn map(file: &OwnedFd, handle: Handle) -> io::Result<PeerReadable> {
        Ok(PeerReadable { mapping: ReadMapping::new(file, peer_file_bytes(handle)?)?, len: handle.len as usize })
    }

    /// Whether its owner has revoked or dropped it.
    pub(super) fn is_revoked(&self) -> bool {
        self.mapping.word(REVOKED) != 0
    }

    /// Reads. Returns false if it is refused; then some bytes may have been copied.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        if !self.admits(offset, bytes.len() as u64) {
            return false;
        }
        self.mapping.copy_out(HEADER + offset as usize, bytes);
        !self.is_revoked()
    }

    /// Reads into new memory; `None` if it is refused.
    pub(super) fn read_new(&self, offset: u64, len: u32) -> Option<Vec<u8>> {
        if !self.admits(offset, u64::from(len)) {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        self.read(offset, &mut bytes).then_some(bytes)
    }

    fn admits(&self, offset: u64, len: u64) -> bool {
        words::within(offset, len, self.len) && !self.is_revoked()
    }
}

/// The memory that all links of a fabric have mapped for reading.
#[derive(Default)]
pub(super) struct Readables {
    mapped: RwLock<FxHashMap<RemotePlace, Arc<PeerReadable>>>,
}

impl Readables {
    /// The memory there, if it is mapped.
    pub(super) fn find(&self, place: RemotePlace) -> Option<Arc<PeerReadable>> {
        self.mapped.read().get(&place).map(Arc::clone)
    }

    /// Lists `memory` until the answer is dropped, or until another connection lists the same memory.
    pub(super) fn list(self: &Arc<Readables>, place: RemotePlace, memory: PeerReadable) -> Listed {
        let memory = Arc::new(memory);
        self.mapped.write().insert(place, Arc::clone(&memory));
        Listed { readables: Arc::clone(self), place, memory }
    }
}

/// Memory that threads find as long as this lives.
pub(super) struct Listed {
    readables: Arc<Readables>,
    place: RemotePlace,
    memory: Arc<PeerReadable>,
}

impl Deref for Listed {
    type Target = PeerReadable;
    fn deref(&self) -> &PeerReadable {
        &self.memory
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut mapped = self.readables.mapped.write();
        // An earlier connection may end after a later one has listed the same memory.
        if mapped.get(&self.place).is_some_and(|listed| Arc::ptr_eq(listed, &self.memory)) {
            mapped.remove(&self.place);
        }
    }
}

#[cfg(test)]
#[path = "readable_tests.rs"]
mod tests;
