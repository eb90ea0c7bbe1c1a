//! Proof that replicas hold the same data: a digest of each complete segment, equal on all replicas of a region, on any
//! volume; and the repair of a damaged segment from another replica's copy.
//!
//! The digest covers a segment with pointers in logical addressing. With that addressing it covers the segment as
//! stored. With physical addressing the pointers are rewritten first, as a backup rewrites shipped segments, and all
//! checksums are checked on the way. A segment's content never changes, so replicas may be read at different times,
//! while they serve. Only segments that a backup built by itself (build-index) have no equal on another replica.
//!
//! Any thread; segments are pinned while they are read.

use crate::error::{Error, Result};
use crate::verify::walk_bytes;
use crate::volume::{Segment, Volume};
use bytes::Bytes;
use leeward_format::cluster::Addressing;
use leeward_format::leaf_segment::translate;
use leeward_format::manifest::{RegionState, SegmentState};
use leeward_format::node::Address;
use leeward_format::op::SegmentDigest;
use leeward_format::{DecodeError, RegionId, SegmentId, SegmentName, wire};
use std::collections::HashMap;
use std::sync::Arc;

/// A region's state on a volume at an instant, its segments pinned.
struct Pinned {
    state: RegionState,
    segments: HashMap<SegmentId, Arc<Segment>>,
}

impl Pinned {
    /// The segment with these local `bytes` in its canonical form, which is the same on every replica.
    fn canonical(&self, segment: &SegmentState, bytes: Vec<u8>) -> Result<Vec<u8>, DecodeError> {
        self.renamed(segment, bytes, |of| (of.no.name(), of.id.name()))
    }

    /// `bytes` with each segment name replaced. `naming` returns the old and the new name of a segment.
    fn renamed(
        &self,
        segment: &SegmentState,
        mut bytes: Vec<u8>,
        naming: impl Fn(&SegmentState) -> (SegmentName, SegmentName),
    ) -> Result<Vec<u8>, DecodeError> {
        if segment.kind.is_index() && self.state.options.addressing == Addressing::Physical {
            let names: HashMap<SegmentName, SegmentName> = self.state.segments.values().map(naming).collect();
            let mut map = |name: SegmentName| names.get(&name).copied();
            let address = Address { region: segment.origin, segment: segment.id, offset: 0 };
            translate(segment.kind, address, &mut bytes, &mut map)?;
        }
        Ok(bytes)
    }
}

impl Volume {
    fn pinned(&self, region: RegionId) -> Result<Pinned> {
        let found = self.state_and_segments(region);
        let (state, segments) = found.ok_or_else(|| Error::Invalid(format!("this volume has no region {region}")))?;
        Ok(Pinned { state, segments })
    }

    /// Digests of the complete segments of `region` after `after`, in id order, `most` at most. Reads each segment
    /// completely.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume does not have the region.
    pub fn digests(&self, region: RegionId, after: Option<SegmentId>, most: usize) -> Result<Vec<SegmentDigest>> {
        let pinned = self.pinned(region)?;
        let is_next = |segment: &&SegmentState| segment.bytes.is_some() && after.is_none_or(|after| segment.id > after);
        let chosen = pinned.state.segments.values().filter(is_next).take(most);
        Ok(chosen.map(|segment| self.digest(&pinned, segment)).collect())
    }

    fn digest(&self, pinned: &Pinned, segment: &SegmentState) -> SegmentDigest {
        let (id, kind, bytes) = (segment.id, segment.kind, segment.bytes.unwrap_or(0));
        let found = self.read_whole(segment).map_err(|error| error.to_string()).and_then(|content| {
            let content = Bytes::from(content);
            self.check_whole(pinned, segment, content.clone())?;
            pinned.canonical(segment, content.into()).map_err(|error| error.to_string())
        });
        match found {
            Ok(content) => SegmentDigest { id, kind, bytes, crc: wire::checksum(&content), damage: None },
            Err(damage) => SegmentDigest { id, kind, bytes, crc: 0, damage: Some(damage) },
        }
    }

    fn read_whole(&self, segment: &SegmentState) -> Result<Vec<u8>> {
        let mut content = vec![0; segment.bytes.unwrap_or(0) as usize];
        self.read(segment.no, 0, &mut content)?;
        Ok(content)
    }

    /// The first damage in a segment with this `content`, as an error.
    fn check_whole(&self, pinned: &Pinned, segment: &SegmentState, content: Bytes) -> Result<(), String> {
        let start = self.file_offset(segment.no, 0);
        let damage = walk_bytes(pinned.state.options.addressing, segment, start, content, &mut |_| {}).damage;
        match damage.into_iter().next() {
            Some(damage) => Err(format!("at byte {} of the volume: {}", damage.offset, damage.detail)),
            None => Ok(()),
        }
    }

    /// A segment in its canonical form, for [`Volume::repair`] of another replica.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume has no such segment, or only a part of it; [`Error::Damaged`]; [`Error::Io`].
    pub fn content(&self, region: RegionId, id: SegmentId) -> Result<Vec<u8>> {
        let pinned = self.pinned(region)?;
        let segment = whole_segment(&pinned, id)?;
        let content = self.read_whole(segment)?;
        let canonical = pinned.canonical(segment, content);
        canonical.map_err(|error| Error::damaged(self.name(), self.file_offset(segment.no, 0), &error))
    }

    /// Overwrites a damaged segment durably with `content`, which another replica's [`Volume::content`] returned.
    /// Returns `false`, and changes nothing, if the segment is sound.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the volume has no such segment, or `content` is not it; those of writing.
    pub fn repair(&self, region: RegionId, id: SegmentId, content: &[u8]) -> Result<bool> {
        let pinned = self.pinned(region)?;
        let segment = whole_segment(&pinned, id)?;
        if self.digest(&pinned, segment).damage.is_none() {
            return Ok(false);
        }
        let refused = |why: String| Error::Invalid(format!("segment {id} of region {region} cannot be that: {why}"));
        if segment.bytes != Some(content.len() as u32) {
            let (found, wanted) = (content.len(), segment.bytes.unwrap_or(0));
            return Err(refused(format!("it has {wanted} bytes, and {found} came")));
        }
        let local = pinned.renamed(segment, content.to_vec(), |of| (of.id.name(), of.no.name()));
        let local = Bytes::from(local.map_err(|error| refused(error.to_string()))?);
        self.check_whole(&pinned, segment, local.clone()).map_err(refused)?;
        tracing::warn!(%region, segment = %id, kind = %segment.kind, "a damaged segment is repaired");
        self.write_again(segment.no, 0, &local)?;
        self.sync()?;
        Ok(true)
    }
}

fn whole_segment(pinned: &Pinned, id: SegmentId) -> Result<&SegmentState> {
    let found = pinned.state.segments.get(&id).filter(|segment| {
        let is_held = pinned.segments.contains_key(&id);
        segment.bytes.is_some() && is_held
    });
    let region = pinned.state.region;
    found.ok_or_else(|| Error::Invalid(format!("this volume has no complete segment {id} of region {region}")))
}
