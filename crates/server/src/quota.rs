//! How much work may be done for one connection before another has its turn.
//!
//! Work is counted in units, so that the work of one step does not depend on a clock. The event loop gives each step of
//! a connection a [`Quota`], reads the clock once a quota of work is done, and comes back to a connection that has more
//! to do. All work that a client can make long takes from the quota, and stops when it is used up: parsing, submitting,
//! matching, encoding. A unit is about 100 ns. Belongs to the event loop's thread.

/// Units of one step of a connection: about 300 us. The last command may take more.
pub const STEP_UNITS: u32 = 3000;
/// Units for reading and starting a command, or for answering it.
pub(crate) const COMMAND_UNITS: u32 = 8;
/// Units for handing an operation to the node, which executes it.
pub(crate) const OPERATION_UNITS: u32 = 20;
/// Bytes that are copied for one unit.
const BYTES_OF_A_UNIT: usize = 512;

/// The units that are left of a step.
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
    /// A quota of so many units.
    pub const fn of(units: u32) -> Quota {
        Quota { left: units }
    }

    /// Takes units for work that was done. It may be more than was left, since started work is finished.
    pub fn take(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    /// Takes the units for so many bytes that were copied, compared or encoded.
    pub fn take_bytes(&mut self, bytes: usize) {
        self.take(u32::try_from(bytes / BYTES_OF_A_UNIT).unwrap_or(u32::MAX));
    }

    /// Units that were taken of a whole step.
    pub fn used(self) -> u32 {
        STEP_UNITS.saturating_sub(self.left)
    }

    /// Whether no unit is left, so that the step ends.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }
}
