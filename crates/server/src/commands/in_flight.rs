//! The operations of one connection that the node has not answered.

use super::window::Window;
use super::work::Kind;
use crate::numbered::Numbered;

/// Operations in flight, and what must wait for them.
pub(super) struct InFlight {
    /// In order of submission; one that was answered is `None`.
    ops: Numbered<Option<Operation>>,
    window: Window,
    writes: usize,
    /// Scans with an operation in flight, or with entries that are still matched against their pattern.
    scans: usize,
}

/// Where the result of an operation belongs.
pub(super) struct Operation {
    /// Number of its command.
    pub(super) command: u64,
    /// Its position among the operations of the command.
    pub(super) position: usize,
    pub(super) kind: Kind,
    /// Bytes that are reserved for it and its answer.
    pub(super) reserved: usize,
}

impl InFlight {
    /// No operations. The answers of those in flight will take at most `most` bytes, or are one large answer.
    pub(super) fn within(most: usize) -> InFlight {
        InFlight { ops: Numbered::default(), window: Window::within(most), writes: 0, scans: 0 }
    }

    /// Whether an operation of this kind must wait for an operation in flight.
    pub(super) fn blocks(&self, kind: Kind) -> bool {
        let waits = match kind {
            Kind::Read => false,
            Kind::Write => self.scans > 0,
            Kind::Scan => self.writes > 0,
        };
        waits || !self.window.is_open()
    }

    /// Adds an operation that is submitted. Returns its number.
    pub(super) fn submit(&mut self, operation: Operation) -> u64 {
        self.window.submitted();
        match operation.kind {
            Kind::Write => self.writes += 1,
            Kind::Scan => self.scans += 1,
            Kind::Read => {}
        }
        self.ops.push(Some(operation))
    }

    /// Removes operation `number`, answered with `bytes` of keys and values. `None` if it was answered before.
    pub(super) fn answered(&mut self, number: u64, bytes: usize) -> Option<Operation> {
        let operation = self.ops.take_if(number, |_| true)?;
        self.window.answered(bytes);
        match operation.kind {
            Kind::Write => self.writes -= 1,
            Kind::Scan => self.scans -= 1,
            Kind::Read => {}
        }
        Some(operation)
    }

    /// Counts a scan whose answer is still matched: writes wait for it until [`InFlight::scan_matched`].
    pub(super) fn scan_goes_on(&mut self) {
        self.scans += 1;
    }

    pub(super) fn scan_matched(&mut self) {
        self.scans -= 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Number of operations that were ever submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.ops.end()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.ops.memory_bytes()
    }

    /// Frees the room for more than so many operations, if none is in flight.
    pub(super) fn shrink(&mut self, kept: usize) {
        self.ops.shrink(kept);
    }
}
