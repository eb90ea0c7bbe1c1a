//! Where copies come from: a volume that is opened, a region that stops serving, and one that is split.

use super::Replica;
use crate::error::{Error, Result};
use crate::region::{Child, Region};
use crate::volume::{Volume, VolumeOptions};
use leeward_format::{RegionId, SegmentId, VolumeId};
use leeward_platform::File;
use std::sync::Arc;

impl Volume {
    /// Opens the volume in `file`; creates one with the id `new` if the file is empty. Returns the copies that it
    /// holds, in order of their ids. `new` must be drawn at random for each call: no two volumes may ever share an id,
    /// and no two processes an incarnation, because replica groups would mistake one for the other.
    ///
    /// # Errors
    /// [`Error::OtherVersion`] and [`Error::NotAVolume`] for files that this program cannot read, [`Error::Key`] for an
    /// encrypted volume whose key is missing or wrong, [`Error::Damaged`]
    /// for a volume that is cut short or whose manifest is damaged, [`Error::Invalid`] for options out of range.
    pub fn open(file: Arc<dyn File>, new: VolumeId, options: VolumeOptions) -> Result<(Arc<Volume>, Vec<Replica>)> {
        let volume = Volume::open_alone(file, new, options)?;
        let replicas = volume.regions().into_iter().map(|region| Replica::open(&volume, region));
        let replicas = replicas.filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
        Ok((volume, replicas))
    }
}

impl Region {
    /// Stops serving; returns the copy as it is on the device. Readers that still hold the region see its last state.
    /// Writes and installs through it are refused.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn into_replica(self: Arc<Self>) -> Result<Replica> {
        if let Err(error) = self.write_tails() {
            tracing::warn!(region = %self.id(), %error, "the last records are lost on this copy, as in a crash");
        }
        Replica::open(self.volume(), self.id())?.ok_or(Error::Superseded(self.id()))
    }

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
        let Child { owner, options, position, parent, below } = self.put_child(child)?;
        let copy = Replica::new(self.volume(), owner, options, position);
        Ok((Replica { parent: Some(parent), ..copy }, below))
    }
}
