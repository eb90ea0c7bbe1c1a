//! Splitting a region by reference: a second region gets everything that the first has at an instant. No byte is
//! copied. Both name the same segments from then on, and each continues independently.
//!
//! The child begins as a checkpoint. The engine does not know which side has which keys: each side deletes the other's
//! keys, by ranges, and compactions collect them.

use super::Region;
use super::tails::seal;
use crate::error::{Error, Result};
use crate::volume::Owner;
use leeward_format::cluster::TableOptions;
use leeward_format::manifest::{Change, Parent};
use leeward_format::{Epoch, Lsn, RegionId, SegmentId};

/// A region that was split off, on the volume.
pub(crate) struct Child {
    pub(crate) owner: Owner,
    pub(crate) options: TableOptions,
    /// Its term and its last LSN.
    pub(crate) position: (Epoch, Lsn),
    pub(crate) parent: Parent,
    /// An id above those of all segments that it shares with its parent.
    pub(crate) below: SegmentId,
}

impl Region {
    /// What [`Region::split`] makes on the volume.
    ///
    /// # Errors
    /// Those of [`Region::split`].
    pub(crate) fn put_child(&self, child: RegionId) -> Result<Child> {
        if child == self.id() {
            return Err(Error::Invalid(format!("region {child} cannot be split into itself")));
        }
        let pinned = {
            let mut writer = self.writer.lock();
            seal(&mut writer);
            self.pin_base(&writer)
        };
        let (commit, last_lsn) = (pinned.base.commit, pinned.base.last_lsn);
        if commit < last_lsn {
            let detail = format!("region {}: committed up to LSN {commit} of {last_lsn}, split it later", self.id());
            return Err(Error::Invalid(detail));
        }
        self.sync_tails()?;
        let state = pinned.base.region_state(child);
        let change = Change::Region(Box::new(state.clone()));
        self.volume.check_room(&change)?;
        let (options, position) = (state.options.clone(), (state.term, last_lsn));
        let owner = self.volume.put_region(state, &pinned.named())?;
        let parent = Parent { region: self.id(), term: self.term, last_lsn };
        Ok(Child { owner, options, position, parent, below: (self.ids)()? })
    }

    /// Checks that the manifest has room for `child`, with everything that is here now.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it has none; [`Error::Superseded`].
    pub fn check_room_for(&self, child: RegionId) -> Result<()> {
        let mut state = self.volume.copied_region(&self.owner)?;
        (state.region, state.checkpoints) = (child, Default::default());
        self.volume.check_room(&Change::Region(Box::new(state)))
    }

    /// Notes that this region was split from `parent`.
    pub(crate) fn set_parent(&self, parent: Parent) {
        assert!(self.parent.set(parent).is_ok(), "a region has one parent");
    }
}
