//! The owner's side of a connection: its endpoint, and the memory that the peer was granted.
//!
//! It belongs to the thread of the connection. Dropping a [`Granter`] closes its endpoint, which ends all operations of
//! the peer on that connection. This happens before the peer's next link is up.
//!
//! Granted memory stays registered and mapped, even after its owner has revoked or dropped it, until the peer has given
//! it back or the connection is over. So late writes land where nothing is read. The peer learns of a revocation with
//! the next answer, at the latest to its next ping. At that time the connection also ends if its endpoint has failed.

use super::{
    Context,
    device::Device,
    endpoint::{Endpoint, Registration},
    grant::Grant,
};
use crate::{
    memory::{Framed, MemoryId, Permission, Registry, Transport},
    shm::memory::{Attachment, FileMemory, is_revoked},
    stream::target::{Export, Owner},
};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tracing::warn;

/// The probe memory, which has no bytes and is granted to every peer. Its grant tells the peer the address of this
/// process's endpoint. [`Registry`] counts from 1. It is registered for reads, but its Import is all zeroes.
pub(super) const PROBE_MEMORY: MemoryId = MemoryId { id: 0, key: 0, permission: Permission::ReadWrite };

/// A memory's registration, and the counter of revocations.
pub(super) struct Reach {
    registration: Arc<Registration>,
    pins_pages: bool,
    revocations: Arc<AtomicU64>,
}

impl Reach {
    /// For the memory of `registration`.
    pub(super) fn new(registration: Registration, device: &Device, revocations: &Arc<AtomicU64>) -> Reach {
        let (registration, revocations) = (Arc::new(registration), Arc::clone(revocations));
        Reach { registration, pins_pages: device.pins_memory(), revocations }
    }
}

impl Attachment for Reach {
    const TRANSPORT: Transport = Transport::Libfabric;
    fn pins_pages(&self) -> bool {
        self.pins_pages
    }
    fn revoked(&self) {
        self.revocations.fetch_add(1, Ordering::Release);
    }
}

/// The grants to the peer of one connection.
pub(super) struct Granter {
    context: Arc<Context>,
    registry: Arc<Registry<FileMemory<Reach>>>,
    /// Opened with the first grant; with its address. Closed before the granted memory is released.
    endpoint: Option<(Endpoint, Vec<u8>)>,
    granted: HashMap<(u64, u64), Granted>,
    /// Count of revocations when `granted` was last checked.
    seen: u64,
}

struct Granted {
    registration: Arc<Registration>,
    /// The peer knows that it is revoked.
    told: bool,
}

impl Granter {
    /// Nothing is granted yet.
    pub(super) fn new(context: Arc<Context>, registry: Arc<Registry<FileMemory<Reach>>>) -> Granter {
        Granter { context, registry, endpoint: None, granted: HashMap::new(), seen: 0 }
    }

    fn address(&mut self) -> io::Result<Vec<u8>> {
        if self.endpoint.is_none() {
            let endpoint = Endpoint::open(&self.context.device, self.context.next_connection())?;
            let address = endpoint.address()?;
            self.endpoint = Some((endpoint, address));
        }
        let (_, address) = self.endpoint.as_ref().expect("just opened");
        Ok(address.clone())
    }
}

impl Owner for Granter {
    fn framed(&self, id: u64, key: u64) -> Option<Arc<dyn Framed>> {
        Some(self.registry.find(id, key)?)
    }

    fn export(&mut self, wanted: MemoryId) -> io::Result<Option<Export>> {
        let (registration, len) = if wanted == PROBE_MEMORY {
            (Arc::clone(&self.context.probe_memory), 0)
        } else {
            let memory = self.registry.find(wanted.id, wanted.key).filter(|memory| !memory.is_revoked());
            let memory = memory.filter(|memory| memory.permission() == wanted.permission);
            let Some(memory) = memory else { return Ok(None) };
            (Arc::clone(&memory.attachment().registration), crate::Memory::len(&*memory) as u64)
        };
        let address = self.address().inspect_err(|error| warn!(%error, "cannot grant memory to a peer"))?;
        self.context.device.wake();
        let (remote_key, base) = registration.remote();
        self.granted.insert((wanted.id, wanted.key), Granted { registration, told: false });
        // A revocation meanwhile may have been counted before the memory was in `granted`: check again.
        self.seen = 0;
        Ok(Some(Export::Grant(Grant { key: remote_key, base, len, address }.encode())))
    }

    fn release(&mut self, id: u64, key: u64) {
        self.granted.remove(&(id, key));
    }

    fn moved(&mut self, written: u64, read: u64) {
        let counters = &self.context.counters;
        counters.received.fetch_add(written, Ordering::Relaxed);
        counters.sent.fetch_add(read, Ordering::Relaxed);
        // The peer sends this when it has operations, and from time to time while it has.
        self.context.device.wake();
    }

    fn revoked(&mut self) -> io::Result<Vec<u64>> {
        if let Some((endpoint, _)) = &self.endpoint {
            endpoint.check()?;
        }
        let count = self.context.revocations.load(Ordering::Acquire);
        if std::mem::replace(&mut self.seen, count) == count {
            return Ok(Vec::new());
        }
        let untold = |granted: &Granted| !granted.told && is_revoked(granted.registration.memory());
        let revoked = self.granted.iter_mut().filter(|(_, granted)| untold(granted));
        let tell = |((id, _), granted): (&(u64, u64), &mut Granted)| {
            granted.told = true;
            *id
        };
        Ok(revoked.map(tell).collect())
    }
}
