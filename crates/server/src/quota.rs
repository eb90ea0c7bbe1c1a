//! How much work may be done for one connection before another has its turn.
//!
//! Work is counted in units, so that what is done in a step does not depend on a clock: the event loop gives each step of a
//! connection a [`Quota`], looks at the clock once so much was done, and comes back to the connection if there is more. Everything that a
//! client makes as long as it likes takes from the quota and stops when it is used up: parsing, submitting, matching, encoding.
//! A unit is about 100 ns. Belongs to the event loop's thread.

/// What one step of a connection may take: about 300 us, and one command more.
pub const STEP_UNITS: u32 = 3000;
/// A command is read and begun, or answered.
pub(crate) const COMMAND_UNITS: u32 = 8;
/// An operation is handed to the node, which carries it out.
pub(crate) const OPERATION_UNITS: u32 = 20;
/// Bytes that are copied for a unit.
const BYTES_OF_A_UNIT: usize = 512;

/// What is left of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    left: u32,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota::of(STEP_UNITS)
    }
}

impl Quota {
    /// So many units.
    pub const fn of(units: u32) -> Quota {
        Quota { left: units }
    }

    /// Work of so many units was done. It may be more than was left: what was begun is finished.
    pub fn take(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    /// So many bytes were copied, compared or encoded.
    pub fn take_bytes(&mut self, bytes: usize) {
        self.take(u32::try_from(bytes / BYTES_OF_A_UNIT).unwrap_or(u32::MAX));
    }

    /// Units that were taken, of those of a step.
    pub fn used(self) -> u32 {
        STEP_UNITS.saturating_sub(self.left)
    }

    /// Nothing is left: the step ends.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }
}
