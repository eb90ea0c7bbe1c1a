//! Promotion after the loss of the primary: the records in its mirrored tails, up to where both logs are dense, become
//! part of the copy, or of the region that the copy becomes. Either way the logs are read once, with the buffers
//! instead of the volume's bytes of those segments.

use super::{Replica, refuse_damage};
use crate::error::{Error, Result};
use crate::log::{Ends, Overlays, Prefix, find_prefix};
use crate::region::{Recovered, Region, cut, recover};
use crate::volume::{Durability, Segment, SegmentIds};
use leeward_format::manifest::{Change, RegionState, SegmentKind, SegmentState};
use leeward_format::segment::LogHeader;
use leeward_format::{Epoch, RegionId, SegmentId};
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A copy extended by mirror buffers. Nothing of that is on the volume yet.
struct Extended {
    state: RegionState,
    overlays: Overlays,
    /// Segments that the volume does not know yet.
    added: Vec<(SegmentId, Arc<Segment>)>,
}

/// Why a copy does not serve.
#[derive(Debug)]
pub struct Unopened {
    /// The copy, if it is unchanged.
    pub copy: Option<Box<Replica>>,
    /// From making, extending or opening the copy.
    pub error: Error,
}

/// Logs how far a dead primary's last writes were taken over, for the operator.
fn log_takeover(region: RegionId, overlays: &Overlays, prefix: &Prefix, ends: &Ends) {
    let buffers: Vec<_> = overlays.keys().map(|id| (id.0, ends.get(id).map_or(0, |end| end.bytes))).collect();
    let (last, (_, stopped)) = (prefix.last, &prefix.stopped);
    tracing::info!(%region, %last, ?buffers, stopped, "the mirrored log records are taken over");
}

impl Replica {
    /// Persists the valid dense prefix of the mirrored `buffers`, of both logs, and cuts everything beyond it. Each
    /// buffer begins with a header; buffers of other terms, or of segments that are complete already, are skipped. Ends
    /// the tails of [`Replica::open_tail`]: mirroring continues only after another base. A
    /// [damaged](Replica::is_damaged) copy stays unchanged.
    ///
    /// # Errors
    /// Those of writing; [`crate::Error::NoSpace`].
    pub fn adopt_tails(&mut self, buffers: Vec<Vec<u8>>) -> Result<()> {
        self.abandon();
        self.adopt(buffers)?;
        // Only now, so that a failed attempt can be repeated.
        self.tails.clear();
        Ok(())
    }

    fn adopt(&mut self, buffers: Vec<Vec<u8>>) -> Result<()> {
        let mut extended = self.extend(buffers)?;
        if self.is_at_end && extended.overlays.is_empty() {
            // A primary that has waited too long for an earlier attempt gets the answer of this one at once.
            return Ok(());
        }
        let (prefix, ends) = match find_prefix(&self.volume, &extended.state, &extended.overlays) {
            // It was damaged when it was opened, and still is. Otherwise the caller keeps the buffers, and may try again.
            Err(error) if self.is_damaged && error.is_unreadable() => return Ok(()),
            found => found?,
        };
        log_takeover(extended.state.region, &extended.overlays, &prefix, &ends);
        self.note_damage(refuse_damage(&self.volume, &extended.state, &prefix).err());
        if self.is_damaged {
            return Ok(());
        }
        let known = self.state()?;
        cut(&mut extended.state, &ends);
        let position = (extended.state.term, prefix.last);
        if extended.state == known {
            // All of it was durable: the primary role was handed over, or nothing came since the last start.
            (self.position, self.is_at_end) = (position, true);
            return Ok(());
        }
        self.write(&extended.overlays, &extended.state, &ends)?;
        self.volume.sync()?;
        self.position = position;
        let change = Change::Region(Box::new(extended.state));
        self.volume.commit(&self.owner, vec![change], &extended.added, Durability::Synced)?;
        self.is_at_end = true;
        Ok(())
    }

    /// Starts to serve in `term` with the mirrored `buffers`, as [`Replica::adopt_tails`] takes them: cuts the logs to
    /// the valid prefix, durably, and replays them.
    ///
    /// # Errors
    /// [`Error::StaleTerm`]; [`Error::Damaged`] if records that were durable and committed are missing;
    /// [`Error::NoSpace`], with the copy unchanged.
    pub fn promote(mut self, buffers: Vec<Vec<u8>>, term: Epoch) -> std::result::Result<Arc<Region>, Unopened> {
        let (state, recovered, ids) = match self.begin_term(buffers, term) {
            Ok(begun) => begun,
            Err(error) => return Err(Unopened { copy: Some(Box::new(self)), error }),
        };
        let region = Region::open(self.volume, self.owner, state, recovered, ids);
        let region = region.map_err(|error| Unopened { copy: None, error })?;
        self.parent.into_iter().for_each(|parent| region.set_parent(parent));
        Ok(region)
    }

    fn begin_term(&mut self, buffers: Vec<Vec<u8>>, term: Epoch) -> Result<(RegionState, Recovered, SegmentIds)> {
        self.abandon();
        let Extended { mut state, overlays, added } = self.extend(buffers)?;
        if term <= state.term {
            return Err(Error::StaleTerm { region: self.region(), term, seen: state.term });
        }
        if !term.has_ids() {
            let (region, last) = (self.region(), Epoch::LAST_TERM);
            return Err(Error::Invalid(format!(
                "region {region}: term {term} cannot begin, the last of all is {last}"
            )));
        }
        let recovered = recover(&self.volume, &state, &overlays)?;
        refuse_damage(&self.volume, &state, &recovered.prefix)?;
        log_takeover(state.region, &overlays, &recovered.prefix, &recovered.ends);
        self.write(&overlays, &state, &recovered.ends)?;
        let ids = Region::begin_term(&self.volume, &self.owner, &mut state, term, (&added, &recovered))?;
        Ok((state, recovered, ids))
    }

    /// [`Replica::promote`] of a copy without mirrored buffers since it was opened.
    ///
    /// # Errors
    /// As there.
    pub fn serve(self, term: Epoch) -> Result<Arc<Region>> {
        self.promote(Vec::new(), term).map_err(|unopened| unopened.error)
    }

    fn extend(&self, buffers: Vec<Vec<u8>>) -> Result<Extended> {
        let (overlays, added) = (Overlays::new(), Vec::new());
        let mut extended = Extended { state: self.state()?, overlays, added };
        for buffer in buffers {
            match self.adoptable(&extended.state, &buffer) {
                Ok(header) => {
                    self.enter(&mut extended, &header)?;
                    extended.overlays.insert(header.id, buffer);
                }
                Err(why) => tracing::info!(region = %self.region(), why, "a mirror buffer is skipped"),
            }
        }
        Ok(extended)
    }

    /// Writes the valid bytes of buffers to their segments.
    fn write(&self, overlays: &Overlays, state: &RegionState, ends: &Ends) -> Result<()> {
        for (id, buffer) in overlays {
            if let (Some(end), Some(segment)) = (ends.get(id), state.segments.get(id)) {
                self.volume.write_buffered(segment.no, 0, &buffer[..end.bytes as usize])?;
            }
        }
        Ok(())
    }

    /// The header of a buffer that may continue this copy; or why it may not.
    fn adoptable(&self, state: &RegionState, buffer: &[u8]) -> std::result::Result<LogHeader, String> {
        let header = LogHeader::decode(buffer).map_err(|error| error.to_string())?;
        let (id, term) = (header.id, state.term);
        if header.region != state.region || id.term() != term {
            return Err(format!("segment {id} of region {}, where the copy is of term {term}", header.region));
        }
        if state.segments.get(&id).is_some_and(|segment| segment.bytes.is_some()) {
            return Err(format!("segment {id} is complete already"));
        }
        if buffer.len() > self.volume.segment_bytes() {
            return Err(format!("segment {id} of {} bytes", buffer.len()));
        }
        Ok(header)
    }

    /// Adds the buffer's segment to the state, and allocates it, unless it is there.
    fn enter(&self, extended: &mut Extended, header: &LogHeader) -> Result<()> {
        let region = self.region();
        if let Entry::Vacant(vacant) = extended.state.segments.entry(header.id) {
            let segment = self.volume.allocate(region)?;
            vacant.insert(SegmentState::new(region, header.id, segment.no(), SegmentKind::Log(header.log)));
            extended.added.push((header.id, segment));
        }
        Ok(())
    }
}
