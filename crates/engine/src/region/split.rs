//! Splitting a region by reference: a second region gets everything that the first has at an instant. No byte is copied; both
//! name the same segments from then on, and each continues independently.
//!
//! It is a checkpoint that becomes a region. The engine does not know which side has which keys: each side deletes, by ranges,
//! what is not its own, and compactions collect it.

use super::Region;
use super::tails::seal;
use crate::error::{Error, Result};
use crate::replica::Replica;
use leeward_format::manifest::{Change, Parent, RegionState};
use leeward_format::{RegionId, SegmentId};

impl Region {
    /// Makes the region `child`, on this volume, of all that is here, durably. It replaces what the volume has of `child`. Seals
    /// the tails. Answers the child's copy, and an id that is above those of all segments that the two share.
    ///
    /// Requires that nothing is appended meanwhile, and that everything is committed. The copy has this region's term and last
    /// LSN. It must serve in a term above this one's: then no segment that it makes has the name of one that it has.
    ///
    /// As long as the copy, or the region that it serves as, is in memory, its bases say what they were split from
    /// ([`leeward_format::manifest::Base::parent`]). A backup of this region that has sealed and installed all that was, up to
    /// here and nothing beyond, then has the child without a byte being shipped ([`Replica::begin_base`]); one that has not is
    /// shipped what it lacks, or, if it builds its own index, all levels.
    ///
    /// The caller tells this region of the id by [`Region::set_inherited_below`], and the child of the first id of the term that
    /// it serves in.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something is not committed, or `child` is this region; [`Error::NoSpace`] if the manifest has no
    /// room for another; those of writing. The region continues to serve, and may be split again, into the same child too.
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

    /// Whether the manifest has room for `child`, made of all that is here now.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: it has none; [`Error::Superseded`].
    pub fn check_room_for(&self, child: RegionId) -> Result<()> {
        let mut state = self.volume.with_region(&self.owner, RegionState::clone)?;
        (state.region, state.checkpoints) = (child, Default::default());
        self.volume.check_room(&Change::Region(Box::new(state)))
    }

    /// This region was split from `parent`.
    pub(crate) fn set_parent(&self, parent: Parent) {
        assert!(self.parent.set(parent).is_ok(), "a region has one parent");
    }
}
