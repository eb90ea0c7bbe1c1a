//! Brings a copy in sync with a primary: one way for a new backup, a returning one and the survivors of a promotion.
//!
//! The primary names every segment of its state. Segments that this volume has, by id, are kept, and log segments are
//! cut to the primary's length. The rest is shipped, and so are log segments that are damaged here. Then all of it
//! becomes the region's state in one edit; until then the old state is valid. Segments of the region that this one was
//! split from are shared with that region (`found`). A copy that builds its own index, and whose logs reach the
//! beginning of the primary's, keeps its levels and gets only the logs (`keep`).

use super::found::FoundCopy;
use super::{Replica, Shipment, Stored, keep};
use crate::error::{Error, Result};
use crate::volume::{Durability, OfReserve, Segment};
use leeward_format::cluster::Addressing;
use leeward_format::leaf_segment;
use leeward_format::manifest::{
    Base, BaseSegment, Change, LevelState, RegionState, SegmentKind, SegmentState, Shipped,
};
use leeward_format::node::Address;
use leeward_format::wire;
use leeward_format::{LogKind, Lsn, Pointer, SegmentId, SegmentNo};
use leeward_platform::disk::DIRECT_ALIGN;
use leeward_platform::{Bug, planted};
use std::collections::HashMap;
use std::sync::Arc;

/// A base that is not installed yet.
#[derive(Debug)]
pub(super) struct PendingBase {
    base: Base,
    /// State that the copy keeps besides the logs of the base: levels that were built on this volume, and the segments
    /// that they need. `None`: the base has everything.
    kept: Option<RegionState>,
    /// Segments of `kept`.
    held: Named,
    /// Local place of each segment that is taken from the base.
    places: HashMap<SegmentId, SegmentPlace>,
}

/// Segments that a state names.
type Named = Vec<(SegmentId, Arc<Segment>)>;

#[derive(Debug)]
struct SegmentPlace {
    segment: Arc<Segment>,
    /// Valid bytes that the volume has of it.
    bytes: u32,
    /// It must be shipped.
    is_missing: bool,
    before: Before,
}

/// What a place holds before the segment is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Nothing that is needed.
    Nothing,
    /// The segment, or its beginning. Another region may share it, so its bytes are not changed: the shipped ones are
    /// the same.
    Same,
    /// The same, but not all that was durable can be read.
    Damaged,
}

/// Highest LSN up to which the records of a copy with `state` and those of the base are the same.
pub(super) fn shared(state: &RegionState, base: &Base) -> Lsn {
    state.terms.shared(&base.terms).map_or(Lsn(0), |lsn| lsn.min(base.last_lsn))
}

impl Replica {
    /// Begins to bring the copy in sync with `base`; returns the segments that must be shipped. Drops the rest of an
    /// earlier attempt.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an inconsistent base; [`Error::StaleTerm`] if its term is lower than the copy's;
    /// [`Error::NoSpace`] if it has no room here.
    pub fn begin_base(&mut self, base: &Base) -> Result<Vec<SegmentId>> {
        self.begin(base, true)
    }

    /// [`Replica::begin_base`] of a copy that gives up the index that it has built: it takes that of the base.
    ///
    /// # Errors
    /// As [`Replica::begin_base`].
    pub fn begin_base_anew(&mut self, base: &Base) -> Result<Vec<SegmentId>> {
        self.begin(base, false)
    }

    fn begin(&mut self, base: &Base, may_keep: bool) -> Result<Vec<SegmentId>> {
        let (term, shared) = self.volume.with_region(&self.owner, |state| (state.term, shared(state, base)))?;
        if base.term < term {
            // Perhaps the base is of a cluster whose coordinator lost its data: this copy may be the only one.
            return Err(Error::StaleTerm { region: self.region(), term: base.term, seen: term });
        }
        if base.terms.last() > Some(base.term) {
            return Err(Error::protocol(self.region(), format!("a base of term {} from a later one", base.term)));
        }
        self.abandon();
        self.tails.clear();
        self.map = super::SegmentMap::default();
        self.parent = None;
        // After all members lost power, the shared history may be shorter than what was once committed.
        self.committed = self.committed.min(shared);
        let (found, kept) = match self.find(base, may_keep) {
            Err(error) if error.is_unreadable() && !self.is_damaged => {
                self.note_damage(Some(error));
                self.find(base, may_keep)?
            }
            found => found?,
        };
        let mut places = HashMap::new();
        let mut missing = Vec::new();
        let is_taken = |wanted: &&BaseSegment| kept.as_ref().is_none_or(|kept| keep::is_needed(kept, wanted));
        for wanted in base.segments.iter().filter(is_taken) {
            if wanted.bytes == 0 || wanted.bytes as usize > self.volume.segment_bytes() {
                let detail = format!("segment {} of {} bytes in a base", wanted.id, wanted.bytes);
                return Err(Error::protocol(self.region(), detail));
            }
            let place = self.place(&found, wanted)?;
            if place.is_missing {
                missing.push(wanted.id);
            }
            self.map.insert(wanted.id, wanted.primary, place.segment.no());
            places.insert(wanted.id, place);
        }
        let beside = kept.iter().flat_map(|kept| kept.segments.keys()).filter(|id| !places.contains_key(*id));
        let held = beside.filter_map(|id| Some((*id, Arc::clone(found.segment(*id)?)))).collect();
        self.pending = Some(PendingBase { base: base.clone(), kept, held, places });
        Ok(missing)
    }

    /// Place of a segment of the base. A log segment that the own copy has in part is completed in place: leaves that
    /// are kept point there, and its first bytes are the same. So is one that is damaged, which is shipped whole.
    fn place(&self, found: &FoundCopy, wanted: &BaseSegment) -> Result<SegmentPlace> {
        let has_room = |segment: &Segment| segment.bytes() >= wanted.bytes as usize;
        if let Some((known, segment)) = found.get(wanted).filter(|(_, segment)| has_room(segment)) {
            let is_doubtful = found.is_own && self.is_damaged && found.state.is_replayed(known);
            let bytes = if is_doubtful { self.readable_bytes(known) } else { self.valid_bytes(known) };
            // The rest of a longer log is cut, whether it can be read or not.
            let is_damaged = found.is_own && bytes < known.certain_bytes().min(wanted.bytes);
            // Nothing points to a segment without a record that was durable. A power loss may have left it unlike any
            // that was begun.
            if bytes > 0 || is_damaged {
                let (bytes, before) = if is_damaged { (0, Before::Damaged) } else { (bytes, Before::Same) };
                let is_missing = bytes < wanted.bytes;
                return Ok(SegmentPlace { segment: Arc::clone(segment), bytes, is_missing, before });
            }
        }
        let segment = match wanted.kind.is_index() || wanted.state().is_run() {
            true => self.volume.allocate_part(wanted.origin, wanted.bytes as usize, OfReserve::All)?,
            false => self.volume.allocate(wanted.origin)?,
        };
        Ok(SegmentPlace { segment, bytes: 0, is_missing: true, before: Before::Nothing })
    }

    /// Writes a shipped segment, which arrived as `bytes`. A log segment (of a base, or a sorted run of a compaction)
    /// is written unchanged; in a leaf or index segment the pointers are translated, within `bytes`. Memory that is
    /// aligned for the device is not copied. Not synced.
    ///
    /// # Errors
    /// [`Error::Protocol`] for bytes that are not this segment, or point to segments that this copy lacks.
    pub fn store(&mut self, shipped: &Shipped, bytes: &mut [u8]) -> Result<Stored> {
        let unpacked = wire::unpack(shipped, bytes);
        let mut unpacked = unpacked.map_err(|error| Error::protocol(self.region(), error.to_string()))?;
        let bytes = unpacked.as_deref_mut().unwrap_or(bytes);
        if bytes.len() > self.volume.segment_bytes() {
            return Err(Error::protocol(self.region(), format!("segment {} of {} bytes", shipped.id, bytes.len())));
        }
        let pending = self.pending.as_mut().and_then(|pending| pending.places.get_mut(&shipped.id));
        // Of a shared log segment, a copy may have fewer bytes than the copy that it was split from, or that was split
        // from it.
        let before = pending.as_ref().map_or(Before::Nothing, |place| place.before);
        let segment = match &pending {
            Some(place) if !place.is_missing => {
                return Err(Error::protocol(self.region(), format!("segment {} is here already", shipped.id)));
            }
            Some(place) => place.segment.clone(),
            None if shipped.kind == SegmentKind::Log(LogKind::Recovery) => {
                let detail = format!("segment {} of the recovery log is not part of a base", shipped.id);
                return Err(Error::protocol(self.region(), detail));
            }
            None => {
                let segment = self.volume.allocate_part(self.region(), bytes.len(), OfReserve::All)?;
                self.map.insert(shipped.id, shipped.primary, segment.no());
                segment
            }
        };
        let stored_bytes = bytes.len() as u32;
        let bytes_rewritten = self.write_shipped(shipped, (&segment, before), bytes)?;
        match self.pending.as_mut().and_then(|pending| pending.places.get_mut(&shipped.id)) {
            Some(place) => place.bytes = stored_bytes,
            None => {
                let shipment = Shipment { segment, kind: shipped.kind, bytes: stored_bytes };
                self.shipments.insert(shipped.id, shipment);
            }
        }
        Ok(Stored { bytes_rewritten })
    }

    /// Writes the bytes of a segment, whose place held `before`. Returns the number of rewritten bytes.
    fn write_shipped(&self, shipped: &Shipped, (segment, before): (&Segment, Before), bytes: &mut [u8]) -> Result<u64> {
        let protocol = |error| Error::protocol(self.region(), format!("segment {}: {error}", shipped.id));
        if !shipped.kind.is_index() || self.addressing() == Addressing::Logical {
            wire::check(shipped, bytes).map_err(protocol)?;
            match before {
                Before::Nothing => self.volume.write(segment.no(), 0, bytes)?,
                Before::Damaged if !self.volume.is_shared(segment.no()) => {
                    // The last block may be one that cannot be read, so it is written as a whole.
                    let padding = bytes.len().next_multiple_of(DIRECT_ALIGN).min(segment.bytes()) - bytes.len();
                    self.volume.renew(segment)?;
                    self.volume.write_padded(segment.no(), 0, bytes, padding)?;
                    // What is there could be all that a power failure leaves of records behind the damage.
                    self.volume.sync()?;
                }
                Before::Same | Before::Damaged => self.volume.write_again(segment.no(), 0, bytes)?,
            }
            return Ok(0);
        }
        // `translate` checks every node, filter and range by its own checksum.
        let address = Address { region: segment.origin(), segment: shipped.id, offset: 0 };
        leaf_segment::translate(shipped.kind, address, bytes, &mut |primary| {
            self.map.get(primary.no()).map(SegmentNo::name)
        })
        .map_err(protocol)?;
        self.volume.write(segment.no(), 0, bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Makes the base the region's state, atomically, and durably unless it is empty. Drops every segment that is not
    /// part of it. Tails opened since [`Replica::begin_base`] continue after it.
    ///
    /// # Errors
    /// Those of writing; [`Error::Protocol`] if segments are missing.
    pub fn install_base(&mut self) -> Result<()> {
        let Some(pending) = &self.pending else {
            return Err(Error::protocol(self.region(), "there is no base to install"));
        };
        let (mut state, held) = self.state_after(pending)?;
        let known = self.state()?;
        let says_more = state.says_more_than(&known);
        state.checkpoints = known.checkpoints;
        // An empty base becomes durable with the first sync of a record after it.
        let is_new = state.segments.is_empty();
        let durability = if is_new { Durability::Lazy } else { Durability::Synced };
        if says_more {
            self.volume.sync()?;
        }
        let options = state.options.clone();
        let position = (state.term, pending.base.last_lsn);
        self.volume.commit(&self.owner, vec![Change::Region(Box::new(state))], &held, durability)?;
        let committed = pending.base.commit;
        (self.options, self.position, self.is_damaged, self.pending) = (options, position, false, None);
        self.committed = self.committed.max(committed);
        self.is_at_end = self.tails.is_empty();
        self.tails.retain(|_, tail| tail.sealed.is_none());
        self.volume.release_space();
        Ok(())
    }

    /// The state after the base, and the segments that it names.
    fn state_after(&self, pending: &PendingBase) -> Result<(RegionState, Named)> {
        let base = &pending.base;
        let commit = base.commit.min(base.last_lsn);
        let mut state = match &pending.kept {
            Some(kept) => RegionState { commit: kept.commit.max(commit), ..kept.clone() },
            None => RegionState {
                replay_from: base.replay_from,
                commit,
                levels: base.levels.iter().map(|level| self.local_level(level)).collect::<Result<_>>()?,
                ..RegionState::new(self.region(), base.options.clone())
            },
        };
        (state.term, state.terms, state.options) = (base.term, base.terms.clone(), base.options.clone());
        let mut held = pending.held.clone();
        let taken = base.segments.iter().filter_map(|wanted| Some((wanted, pending.places.get(&wanted.id)?)));
        for (wanted, place) in taken {
            if place.bytes < wanted.bytes {
                return Err(Error::protocol(self.region(), format!("segment {} was not shipped", wanted.id)));
            }
            let mut segment = SegmentState::new(wanted.origin, wanted.id, place.segment.no(), wanted.kind);
            // The cut: the rest of a longer log here has records that are not in the primary's history.
            let bytes = if planted(Bug::PromoteWithoutCut) { place.bytes } else { wanted.bytes };
            let dead_bytes = match &pending.kept {
                Some(kept) => kept.segments.get(&wanted.id).map_or(0, |known| known.dead_bytes),
                None => wanted.dead_bytes,
            };
            (segment.bytes, segment.last_lsn, segment.dead_bytes) = (Some(bytes), wanted.last_lsn, dead_bytes);
            state.segments.insert(wanted.id, segment);
            held.push((wanted.id, place.segment.clone()));
        }
        for (id, tail) in &self.tails {
            let kind = SegmentKind::Log(tail.log);
            let mut segment = SegmentState::new(state.region, *id, tail.segment.no(), kind);
            if let Some((bytes, last_lsn)) = tail.sealed {
                (segment.bytes, segment.last_lsn) = (Some(bytes), last_lsn);
            }
            state.segments.insert(*id, segment);
            held.push((*id, tail.segment.clone()));
        }
        Ok((state, held))
    }

    /// A level with its root's local place.
    pub(super) fn local_level(&self, level: &LevelState) -> Result<LevelState> {
        let local = |root: Pointer| {
            let name = match self.addressing() {
                Addressing::Physical => self.map.get(root.segment().no()).map(SegmentNo::name),
                Addressing::Logical => self.map.has(root.segment()).then_some(root.segment()),
            };
            let detail = || format!("a root at {root:?}, in a segment that is not here");
            let name = name.ok_or_else(|| Error::protocol(self.region(), detail()))?;
            Ok(Pointer::new(name, root.offset()))
        };
        Ok(LevelState { root: level.root.map(local).transpose()?, ..level.clone() })
    }

    /// Addressing of pointers in arriving segments: that of the base that they belong to, or continue.
    fn addressing(&self) -> Addressing {
        self.pending.as_ref().map_or(self.options.addressing, |pending| pending.base.options.addressing)
    }

    /// Last LSN of a base that is not installed yet.
    pub(super) fn pending_lsn(&self) -> Option<Lsn> {
        self.pending.as_ref().map(|pending| pending.base.last_lsn)
    }
}
