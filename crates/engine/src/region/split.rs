//! Splitting a region by reference: a second region gets everything that the first has at an instant. No byte is
//! copied. Both name the same segments from then on, and each continues independently.
//!
//! The child begins as a checkpoint. The engine does not know which side has which keys: each side deletes the other's
//! keys, by ranges, and compactions collect them.

use super::Region;
use super::tails::seal;
use crate::error::{Error, Result};
use crate::replica::Replica;
use leeward_format::manifest::{Change, Parent};
use leeward_format::{RegionId, SegmentId};

impl Region {
    /// Creates the region `child` on this volume, with everything that is here, durably. It replaces the volume's copy
    /// of `child`, if any. Seals the tails. Returns the child's copy, and an id above those of all segments that the
    /// two share.
    ///
    /// Requires that nothing is appended meanwhile, and that everything is committed. The copy has this region's term
    /// and last LSN. It must serve in a higher term: then no segment that it makes has the name of one that it has.
    ///
    /// While the copy, or the region that it serves as, is in memory, its bases name their parent
    /// ([`leeward_format::manifest::Base::parent`]). A backup of this region that has sealed and installed everything
    /// up to here, and nothing beyond, then gets the child without a shipped byte ([`Replica::begin_base`]). Any other
    /// backup is shipped the segments that it lacks, or all levels if it builds its own index.
    ///
    /// The caller passes the id to [`Region::set_inherited_below`] of this region; for the child it passes the first id
    /// of the term that the child serves in.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a write is not committed, or `child` is this region; [`Error::NoSpace`] if the manifest
    /// has no room for another; those of writing. The region continues to serve, and may be split again, into the same
    /// child too.
    pub fn split(&self, child: RegionId) -> Result<(Replica, SegmentId)> {
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
        let copy = Replica::split(&self.volume, owner, options, position, parent);
        Ok((copy, (self.ids)()?))
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
