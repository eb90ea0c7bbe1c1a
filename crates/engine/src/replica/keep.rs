//! The state that a copy with its own index keeps when it is brought in sync with a primary: its levels, and the logs
//! before those of the base.
//!
//! The levels of such a copy hold committed records, which every later primary has. The exception: all members lost
//! power, and with it records that were not durable everywhere. So the levels are kept only if they hold nothing beyond
//! the history that both copies share, according to their terms. No other replica has the copy's index segments.
//! Records in its logs may have been cut from the history since. So it keeps only log records that the base has too, as
//! far as the base has them, and records known to be committed; and only if both together leave no gap before the
//! base's logs. A region that was just split from another keeps that one's copy in the same way, if that copy has
//! nothing beyond the split.

use super::Replica;
use super::base::shared;
use super::found::FoundCopy;
use crate::error::Result;
use crate::log::{Overlays, find_prefix, log_of, segment_end};
use leeward_format::manifest::{Base, BaseSegment, RegionState, SegmentState};
use leeward_format::{SegmentId, SegmentName};
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;

/// A log segment that records were appended to.
pub(super) fn is_appended(segment: &SegmentState) -> bool {
    log_of(segment).is_some() && !segment.is_run()
}

/// Whether a copy that keeps `kept` takes this segment from the base: a log segment that it must replay, or has.
pub(super) fn is_needed(kept: &RegionState, wanted: &BaseSegment) -> bool {
    let is_replayed = wanted.last_lsn >= kept.replay_from || kept.segments.contains_key(&wanted.id);
    is_appended(&wanted.state()) && is_replayed
}

impl Replica {
    /// The part of the found copy that this copy keeps besides the logs of `base`; `None` if it needs all of the base.
    ///
    /// # Errors
    /// [`crate::Error::Io`], also for a sector of the found copy that the device cannot read.
    pub(super) fn kept_beside(&self, found: &FoundCopy, base: &Base) -> Result<Option<RegionState>> {
        if base.options.backups.ships_index() {
            return Ok(None);
        }
        if found.is_own && self.is_damaged {
            return Ok(None);
        }
        let Some(committed) = found.committed(base) else { return Ok(None) };
        let shared = match planted(Bug::KeepBeyondShared) {
            true => found.state.commit.max(found.state.replay_from),
            false => shared(&found.state, base),
        };
        let committed = committed.max(self.committed).min(shared);
        if found.state.replay_from > shared.next() {
            return Ok(None);
        }
        let listed: BTreeMap<SegmentId, &BaseSegment> =
            base.segments.iter().map(|wanted| (wanted.id, wanted)).collect();
        let (segments, checkpoints) = (BTreeMap::new(), BTreeMap::new());
        let commit = found.state.commit.min(shared);
        let mut kept = RegionState { region: self.region(), commit, segments, checkpoints, ..found.state.clone() };
        for segment in found.state.segments.values() {
            let known = match listed.get(&segment.id) {
                // The same id means different segments in the two copies.
                Some(wanted) if wanted.origin != segment.origin => return Ok(None),
                _ if !is_appended(segment) => Some(*segment),
                Some(wanted) => Some(self.as_far_as(segment, wanted)),
                None => match self.complete(segment)? {
                    Some(complete) if complete.last_lsn > committed => return Ok(None),
                    complete => complete,
                },
            };
            kept.segments.extend(known.map(|known| (known.id, known)));
        }
        let is_old = |id: &SegmentId| base.term.0.saturating_sub(id.term().0) >= SegmentName::TERMS;
        if kept.segments.keys().any(|id| is_old(id) && !listed.contains_key(id)) {
            // The primary does not know the segment, and may give its name to another one.
            return Ok(None);
        }
        let (prefix, _) = find_prefix(&self.volume, &kept, &Overlays::new())?;
        let is_continued = prefix.damage.is_none() && prefix.last.next() >= base.replay_from;
        Ok(is_continued.then_some(kept))
    }

    /// The local part of a log segment that the base has.
    fn as_far_as(&self, segment: &SegmentState, wanted: &BaseSegment) -> SegmentState {
        let bytes = self.valid_bytes(segment).min(wanted.bytes);
        SegmentState { bytes: Some(bytes), last_lsn: wanted.last_lsn, ..*segment }
    }

    /// A log segment with its end; `None` if it has no record.
    fn complete(&self, segment: &SegmentState) -> Result<Option<SegmentState>> {
        if segment.bytes.is_some() {
            return Ok(Some(*segment));
        }
        let end = segment_end(&self.volume, segment)?;
        let sealed = SegmentState { bytes: Some(end.bytes), last_lsn: end.last_lsn, ..*segment };
        Ok((end.bytes > 0).then_some(sealed))
    }
}
