//! The [memory for clients](crate::client_memory) that one connection holds, by purpose.

use leeward_region::client_memory::{Charge, ClientMemory, Holder};

/// Bytes of arguments of unanswered commands, from which on no further command is taken.
const TAKEN_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of results that wait for earlier replies, from which on only the first command continues.
const HELD_BYTES: usize = 16 * 1024 * 1024;

/// The sums over all commands of a connection, and its charge.
pub(super) struct Holdings {
    of_commands: Share,
    /// Bytes that operations under way have reserved.
    reserved: usize,
    most_taken: usize,
    most_held: usize,
    charge: Charge,
}

/// The memory that one command holds.
#[derive(Default)]
pub(super) struct Share {
    /// Bytes of its arguments.
    taken: usize,
    /// Bytes of its results.
    held: usize,
    /// Bytes that the command takes besides its arguments.
    cost: usize,
    /// Bytes of its results that do not charge the account by themselves.
    kept: usize,
}

impl Holdings {
    /// The holdings of a new connection.
    pub(super) fn of(memory: &ClientMemory) -> Holdings {
        Holdings {
            of_commands: Share::default(),
            reserved: 0,
            most_taken: TAKEN_BYTES.min(memory.most_at_once()),
            most_held: HELD_BYTES.min(memory.most_of_one()),
            charge: memory.charge(),
        }
    }

    /// Adds a command with the bytes of its arguments, and its other cost.
    pub(super) fn begin(&mut self, taken: usize, cost: usize) -> Share {
        self.of_commands.taken += taken;
        self.of_commands.cost += cost;
        Share { taken, cost, ..Share::default() }
    }

    /// Removes a command that was answered.
    pub(super) fn end(&mut self, share: &Share) {
        let all = &mut self.of_commands;
        all.taken -= share.taken;
        all.held -= share.held;
        all.cost -= share.cost;
        all.kept -= share.kept;
    }

    /// Adds a result of a command. `small` of its bytes do not charge the account by themselves.
    pub(super) fn hold(&mut self, share: &mut Share, bytes: usize, small: usize) {
        share.held += bytes;
        share.kept += small;
        self.of_commands.held += bytes;
        self.of_commands.kept += small;
    }

    /// Notes that the command keeps so many bytes of all its results.
    pub(super) fn keep(&mut self, share: &mut Share, bytes: usize) {
        self.of_commands.kept = self.of_commands.kept - share.kept + bytes;
        share.kept = bytes;
    }

    /// Reserves bytes for an operation that is submitted.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
    }

    /// Releases the bytes that were reserved for an operation, which was answered.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// Bytes that operations under way have reserved.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Whether there is no room to reserve `more`. `charged` was reserved when the charge was last set.
    pub(super) fn lacks_room(&self, charged: usize, more: usize) -> bool {
        self.charge.lacks_room(self.reserved - charged, more)
    }

    /// Whether no further command may be taken.
    pub(super) fn is_full(&self) -> bool {
        self.of_commands.taken >= self.most_taken || self.charge.is_full()
    }

    /// Whether only the first command may continue.
    pub(super) fn has_much(&self) -> bool {
        self.of_commands.held >= self.most_held
    }

    /// Whether memory is short for all clients.
    pub(super) fn is_short(&self) -> bool {
        self.charge.memory().is_short()
    }

    /// Charges what the connection holds now. `others` are the bytes that are not counted here.
    pub(super) fn settle(&mut self, others: usize) {
        self.charge.set(others + self.of_commands.cost + self.reserved + self.of_commands.kept);
    }

    pub(super) fn holder(&self, waits_for_client: bool) -> Holder {
        Holder::new(&self.charge, waits_for_client)
    }
}
