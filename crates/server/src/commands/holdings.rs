//! What a connection holds of the [memory for clients](crate::client_memory), by what it holds it for.

use crate::client_memory::{Charge, ClientMemory, Holder};

/// Arguments of commands that are not answered: beyond it, in bytes, no further command is taken.
const TAKEN_BYTES: usize = 32 * 1024 * 1024;
/// Results whose replies wait for earlier ones: beyond it, in bytes, only the first command goes on.
const HELD_BYTES: usize = 16 * 1024 * 1024;

/// The sums over all commands of a connection, and its charge.
pub(super) struct Holdings {
    of_commands: Share,
    /// What operations under way have reserved.
    reserved: usize,
    most_taken: usize,
    most_held: usize,
    charge: Charge,
}

/// What one command holds.
#[derive(Default)]
pub(super) struct Share {
    /// Bytes of its arguments.
    taken: usize,
    /// Bytes of its results.
    held: usize,
    /// What it takes besides the bytes that it came as.
    cost: usize,
    /// Of its results, what charges nothing by itself.
    kept: usize,
}

impl Holdings {
    /// Nothing is held yet.
    pub(super) fn of(memory: &ClientMemory) -> Holdings {
        Holdings {
            of_commands: Share::default(),
            reserved: 0,
            most_taken: TAKEN_BYTES.min(memory.most_at_once()),
            most_held: HELD_BYTES.min(memory.most_of_one()),
            charge: memory.charge(),
        }
    }

    /// A command is taken, with its arguments and what it costs besides.
    pub(super) fn begin(&mut self, taken: usize, cost: usize) -> Share {
        self.of_commands.taken += taken;
        self.of_commands.cost += cost;
        Share { taken, cost, ..Share::default() }
    }

    /// A command was answered.
    pub(super) fn end(&mut self, share: &Share) {
        let all = &mut self.of_commands;
        all.taken -= share.taken;
        all.held -= share.held;
        all.cost -= share.cost;
        all.kept -= share.kept;
    }

    /// A command has a result of so many bytes; `small` are those that charge nothing by themselves.
    pub(super) fn hold(&mut self, share: &mut Share, bytes: usize, small: usize) {
        share.held += bytes;
        share.kept += small;
        self.of_commands.held += bytes;
        self.of_commands.kept += small;
    }

    /// Of all its results a command keeps so many bytes.
    pub(super) fn keep(&mut self, share: &mut Share, bytes: usize) {
        self.of_commands.kept = self.of_commands.kept - share.kept + bytes;
        share.kept = bytes;
    }

    /// An operation is submitted.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
    }

    /// An operation is answered, for which this was reserved.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// What operations under way have reserved.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// There is no memory to reserve `more`; `charged` was reserved when the charge was set.
    pub(super) fn lacks_room(&self, charged: usize, more: usize) -> bool {
        self.charge.lacks_room(self.reserved - charged, more)
    }

    /// No further command is to be taken.
    pub(super) fn is_full(&self) -> bool {
        self.of_commands.taken >= self.most_taken || self.charge.is_full()
    }

    /// Only the first command is to go on.
    pub(super) fn has_much(&self) -> bool {
        self.of_commands.held >= self.most_held
    }

    /// Memory is short, for all clients.
    pub(super) fn is_short(&self) -> bool {
        self.charge.memory().is_short()
    }

    /// Charges what is held now, and `others` besides.
    pub(super) fn settle(&mut self, others: usize) {
        self.charge.set(others + self.of_commands.cost + self.reserved + self.of_commands.kept);
    }

    pub(super) fn holder(&self, waits_for_client: bool) -> Holder {
        Holder::new(&self.charge, waits_for_client)
    }
}
