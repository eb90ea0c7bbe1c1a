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
    /// What is reserved for it and its answer.
    pub(super) reserved: usize,
}

impl InFlight {
    /// None, whose answers will take no more than `most`, or one large one.
    pub(super) fn within(most: usize) -> InFlight {
        InFlight { ops: Numbered::default(), window: Window::within(most), writes: 0, scans: 0 }
    }

    /// An operation of this kind must wait for one of those in flight.
    pub(super) fn blocks(&self, kind: Kind) -> bool {
        let waits = match kind {
            Kind::Read => false,
            Kind::Write => self.scans > 0,
            Kind::Scan => self.writes > 0,
        };
        waits || !self.window.is_open()
    }

    /// An operation is submitted; answers its number.
    pub(super) fn submit(&mut self, operation: Operation) -> u64 {
        self.window.submitted();
        match operation.kind {
            Kind::Write => self.writes += 1,
            Kind::Scan => self.scans += 1,
            Kind::Read => {}
        }
        self.ops.push(Some(operation))
    }

    /// Operation `number` was answered with `bytes` of keys and values. `None` if it was answered before.
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

    /// What waits for scans waits until [`InFlight::scan_matched`] too: what a scan was answered is still to be matched.
    pub(super) fn scan_goes_on(&mut self) {
        self.scans += 1;
    }

    pub(super) fn scan_matched(&mut self) {
        self.scans -= 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Operations that were ever submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.ops.end()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.ops.memory_bytes()
    }

    /// Gives room for more than so many operations back, if there is none now.
    pub(super) fn shrink(&mut self, kept: usize) {
        self.ops.shrink(kept);
    }
}
