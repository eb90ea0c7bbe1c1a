//! The primary is gone: what its mirrored tails hold, up to where both logs are dense, becomes part of the copy.

use super::Replica;
use crate::error::Result;
use crate::log::{Replay, find_prefix};
use crate::region::cut;
use crate::volume::{Durability, Segment};
use leeward_format::manifest::{Change, RegionState, SegmentKind, SegmentState};
use leeward_format::segment::LogHeader;
use leeward_format::{Epoch, Lsn, SegmentId};
use std::collections::HashMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Position of a copy that is nobody's successor.
const NOWHERE: (Epoch, Lsn) = (Epoch(0), Lsn(0));

impl Replica {
    /// Persists the valid dense prefix of what mirrored `buffers` hold, of both logs, and cuts what is beyond it.
    /// Buffers describe themselves; those of other terms or of segments that are complete already are passed over. Ends
    /// what [`Replica::open_tail`] began: mirroring goes on only after another base. A copy with damage is left as it
    /// is, and has no position.
    ///
    /// # Errors
    /// Those of writing; [`crate::Error::NoSpace`].
    pub fn adopt_tails(&mut self, buffers: &[Vec<u8>]) -> Result<()> {
        self.abandon();
        self.adopt(buffers)?;
        // Not before: if it fails, it may be tried again.
        self.tails.clear();
        Ok(())
    }

    fn adopt(&mut self, buffers: &[Vec<u8>]) -> Result<()> {
        let known = self.state()?;
        let mut state = known.clone();
        let mut overlays = HashMap::new();
        let mut added = Vec::new();
        for buffer in buffers {
            if let Some(header) = self.is_adoptable(&state, buffer) {
                self.enter(&mut state, &header, &mut added)?;
                overlays.insert(header.id, buffer.clone());
            }
        }
        let prefix = find_prefix(&self.volume, &state, &overlays)?;
        if let Err(error) = super::refuse_damage(&self.volume, &state, &prefix) {
            tracing::warn!(region = %state.region, %error, "this copy is damaged");
            self.position = NOWHERE;
            return Ok(());
        }
        let mut replay = Replay::new(&self.volume, &state, &overlays, prefix.last);
        while replay.next()?.is_some() {}
        let ends = replay.ends();
        cut(&mut state, &ends);
        let position = (state.term, prefix.last);
        if state == known {
            // All of it was durable: the office was handed over, or nothing came since the last start.
            self.position = position;
            return Ok(());
        }
        for (id, buffer) in &overlays {
            if let (Some(end), Some(segment)) = (ends.get(id), state.segments.get(id)) {
                self.volume.write_buffered(segment.no, 0, &buffer[..end.bytes as usize])?;
            }
        }
        self.volume.sync()?;
        self.position = position;
        self.volume.commit(&self.owner, vec![Change::Region(Box::new(state))], &added, Durability::Synced)
    }

    /// The header of a buffer that may go on from what is here.
    fn is_adoptable(&self, state: &RegionState, buffer: &[u8]) -> Option<LogHeader> {
        let header = LogHeader::decode(buffer).ok()?;
        let is_open = state.segments.get(&header.id).is_none_or(|segment| segment.bytes.is_none());
        let is_ours = header.region == state.region && header.id.term() == state.term;
        (is_ours && is_open && buffer.len() <= self.volume.segment_bytes()).then_some(header)
    }

    /// Makes sure that the buffer's segment has a place here.
    fn enter(
        &self,
        state: &mut RegionState,
        header: &LogHeader,
        added: &mut Vec<(SegmentId, Arc<Segment>)>,
    ) -> Result<()> {
        if let Entry::Vacant(vacant) = state.segments.entry(header.id) {
            let segment = self.volume.allocate(state.region)?;
            vacant.insert(SegmentState::new(state.region, header.id, segment.no(), SegmentKind::Log(header.log)));
            added.push((header.id, segment));
        }
        Ok(())
    }
}
