//! The output of a merge, in the order in which segments are returned: a sorted run before the leaf segments that point
//! into it.
//!
//! Runs and leaf segments fill up side by side. A complete leaf segment is held back until every run that was open then
//! is complete. At most [`HELD_LEAVES`] are held; then the open runs are ended.

use super::plan::{Counters, Output};
use super::{BuiltSegment, Context};
use crate::error::Result;
use crate::memory::{Buffer, Purpose, Reservation};
use crate::memtable::Entry;
use crate::volume::Segment;
use leeward_format::leaf_segment::Sink;
use leeward_format::manifest::SegmentKind;
use leeward_format::node::BLOCK_BYTES;
use leeward_format::record::{Record, RecordKind, RecordSeed, record_bytes};
use leeward_format::segment::{LOG_HEADER_BYTES, LogHeader};
use leeward_format::{LogKind, Lsn, Pointer, SegmentId, Stamp};
use std::collections::VecDeque;
use std::sync::Arc;

/// Leaf segments that wait for runs, at most. More take more memory, fewer make more and shorter runs. It does not
/// shrink where memory is short: runs would be so short that sweeps make as much garbage as they collect.
const HELD_LEAVES: usize = 4;

/// A segment that a merge wrote.
pub(super) enum Built {
    Run(BuiltSegment),
    Leaf(Output, BuiltSegment),
}

/// Runs that are being filled, and segments on their way out.
#[derive(Default)]
pub(super) struct Outbox {
    open: Vec<OpenRun>,
    /// In key order, each with the runs that it waits for.
    held: VecDeque<(Output, BuiltSegment, Vec<SegmentId>)>,
    ready: VecDeque<Built>,
}

/// A segment of a run that is being filled.
struct OpenRun {
    log: LogKind,
    id: SegmentId,
    segment: Arc<Segment>,
    seed: RecordSeed,
    bytes: Buffer,
    /// A record that is being encoded.
    record: Vec<u8>,
    /// For its bytes.
    reservation: Reservation,
}

impl Outbox {
    /// The next segment that is complete.
    pub(super) fn pop(&mut self) -> Option<Built> {
        self.ready.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Appends a value to the run of `log`; returns the entry that points to it.
    pub(super) fn run(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        log: LogKind,
        (key, stamp, value): (&[u8], Stamp, &[u8]),
    ) -> Result<Entry<'static>> {
        let bytes = record_bytes(key.len(), value.len(), stamp.expires);
        let full = |run: &OpenRun| run.log == log && run.bytes.len() + bytes > run.segment.bytes();
        if let Some(at) = self.open.iter().position(full) {
            self.end_run(context, counters, at)?;
        }
        let at = match self.open.iter().position(|run| run.log == log) {
            Some(at) => at,
            None => {
                self.open.push(OpenRun::start(context, (log, bytes), stamp.lsn)?);
                self.open.len() - 1
            }
        };
        let run = &mut self.open[at];
        let pointer = Pointer::new(context.reads.name(run.id, &run.segment), run.bytes.len() as u32);
        run.record.clear();
        let record = Record { stamp, kind: RecordKind::Put, flags: 0, request: None, key, value };
        record.append_to(run.seed, &mut run.record);
        run.bytes.put(&run.record);
        if run.reservation.bytes() < run.bytes.memory_bytes() as u64 {
            run.reservation.set(run.bytes.memory_bytes() as u64);
        }
        Ok(Entry::InLog { pointer, value_bytes: value.len() as u32 })
    }

    /// Adds a complete leaf segment that was written.
    pub(super) fn leaf(
        &mut self,
        context: &Context,
        counters: &mut Counters,
        output: Output,
        built: BuiltSegment,
    ) -> Result<()> {
        let waits_for = self.open.iter().map(|run| run.id).collect();
        self.held.push_back((output, built, waits_for));
        if self.held.len() > HELD_LEAVES {
            self.end_runs(context, counters)?;
        }
        self.release();
        Ok(())
    }

    /// Ends all open runs.
    pub(super) fn end_runs(&mut self, context: &Context, counters: &mut Counters) -> Result<()> {
        while !self.open.is_empty() {
            self.end_run(context, counters, 0)?;
        }
        Ok(())
    }

    /// Writes a run's segment.
    fn end_run(&mut self, context: &Context, counters: &mut Counters, at: usize) -> Result<()> {
        let OpenRun { log, id, segment, mut bytes, reservation, .. } = self.open.remove(at);
        let padding = bytes.len().next_multiple_of(BLOCK_BYTES) - bytes.len();
        bytes.put(&[0; BLOCK_BYTES][..padding]);
        let bytes = bytes.hold(reservation);
        segment.trim(bytes.len());
        context.write(&segment, &bytes, counters)?;
        counters.run_bytes_written += bytes.len() as u64;
        if padding > 0 {
            counters.padding.push((id, padding as u32));
        }
        let kind = SegmentKind::Log(log);
        self.ready.push_back(Built::Run(BuiltSegment { id, kind, segment, bytes }));
        self.release();
        Ok(())
    }

    fn release(&mut self) {
        let is_open = |id: &SegmentId| self.open.iter().any(|run| run.id == *id);
        while let Some((output, built, _)) = self.held.pop_front_if(|(.., runs)| !runs.iter().any(is_open)) {
            self.ready.push_back(Built::Leaf(output, built));
        }
    }
}

impl OpenRun {
    /// For a record of `bytes` and more.
    fn start(context: &Context, (log, bytes): (LogKind, usize), first_lsn: Lsn) -> Result<OpenRun> {
        let (volume, region) = (&context.reads.volume, context.reads.region);
        let segment =
            volume.allocate_part(region, context.output_bytes.max(LOG_HEADER_BYTES + bytes), context.of_reserve())?;
        let id = (context.ids)()?;
        let reservation = volume.memory().reserve(Purpose::Compactions);
        let mut bytes = Buffer::new(segment.bytes());
        bytes.put(&LogHeader { region, log, id, first_lsn }.encode());
        debug_assert_eq!(bytes.len(), LOG_HEADER_BYTES);
        Ok(OpenRun { log, id, segment, seed: RecordSeed::new(region, log, id), bytes, record: Vec::new(), reservation })
    }
}
