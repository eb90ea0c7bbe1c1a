//! What the copies on a volume belong to: which cluster, which table, which keys, by which configuration. A node looks at
//! this before it trusts a coordinator's tree: one that was lost or restored from an older state says something else.
//!
//! Invariant: what is known of a copy only changes with a newer configuration, and goes with the copy. Any thread; a
//! write may wait for the manifest.

use super::{Durability, Volume};
use crate::error::Result;
use crate::memory::Purpose;
use leeward_format::RegionId;
use leeward_format::cluster::CopyIdentity;
use leeward_format::manifest::Change;

impl Volume {
    /// What the copy of `region` belongs to; `None` if there is no copy, or it is not known.
    pub fn identity(&self, region: RegionId) -> Option<CopyIdentity> {
        self.registry.lock().state.identities.get(&region).cloned()
    }

    /// Notes what the copy of `region` belongs to. It survives the death of the process, and is durable with the next
    /// sync. Returns whether there is a copy.
    ///
    /// # Errors
    /// Those of writing; [`Error::NoSpace`](crate::Error::NoSpace) if the manifest has no room.
    pub fn identify(&self, region: RegionId, identity: CopyIdentity) -> Result<bool> {
        let reservation = self.memory.reserve(Purpose::Levels);
        let owner = {
            let registry = self.registry.lock();
            let Some(owner) = registry.owner(region, reservation) else { return Ok(false) };
            if registry.state.identities.get(&region) == Some(&identity) {
                return Ok(true);
            }
            owner
        };
        let change = Change::Identify { region, identity: Box::new(identity) };
        self.commit(&owner, vec![change], &[], Durability::Lazy)?;
        Ok(true)
    }
}
