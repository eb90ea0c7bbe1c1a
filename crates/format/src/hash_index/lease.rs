//! Until when a table may be read, and the bound on the primary's clock by which a client knows it (rule R2).
//!
//! ```text
//!  board     0                8                                  16      64
//!            | readable until | nonce XOR readable until         | zeroes |       u64 each, little endian
//!
//!  client    c0 asks ......................... c: last read is over
//!  primary         \ p0 answers                 at most p0 + (c - c0) * (1 + drift)
//! ```
//! The primary publishes on the board the instant, by its own clock, up to which every member of the group whose grant
//! it needs has granted it its lease: until then there is no other primary. The instant never falls. A client reads the
//! board now and then. An answer counts only if the primary's clock, at the end of the last read, was below the instant
//! that the client has from the board. So the memory of a primary that was stopped, or killed, becomes useless without
//! its help.
//!
//! Pure functions; any thread may call them. Instants are nanoseconds of a clock that runs through suspends.

use super::LINE_BYTES;

/// Bytes of a board: a line.
pub const BOARD_BYTES: usize = LINE_BYTES;

/// How much faster than a client's clock that of a primary may run, in percent. Leases allow for clocks at 0.9 and 1.1
/// times the speed of time, and 1.1 / 0.9 is 1.223.
pub const CLOCK_DRIFT_PERCENT: u64 = 25;

/// What is on a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board {
    /// Nonce of the table, not 0.
    pub nonce: u64,
    /// Until when, by the primary's clock, the table may be read.
    pub readable_until: u64,
}

impl Board {
    /// Its words. The order in which they are written does not matter.
    pub fn words(self) -> [u64; 2] {
        [self.readable_until, self.nonce ^ self.readable_until]
    }

    /// Reads the board of the table with this nonce; `None` if the words are not of one instant, or another table's.
    /// Then the board is read again.
    pub fn read(nonce: u64, bytes: &[u8]) -> Option<Board> {
        let [readable_until, check, ..] = bytes.as_chunks::<8>().0 else { return None };
        let board = Board { nonce, readable_until: u64::from_le_bytes(*readable_until) };
        (nonce != 0 && board.words() == [board.readable_until, u64::from_le_bytes(*check)]).then_some(board)
    }
}

/// A question to the primary, and its answer, from which the client bounds the primary's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The client's clock when it asked. Not when the answer came: the primary's clock ran in between.
    pub asked: u64,
    /// The primary's clock when it answered.
    pub answered: u64,
}

impl ClockSample {
    /// The latest that the primary's clock may show when the client's clock shows `now`. No bound, `u64::MAX`, if the
    /// client's clock has gone back.
    pub fn latest(self, now: u64) -> u64 {
        let Some(elapsed) = now.checked_sub(self.asked) else { return u64::MAX };
        let drifted = (u128::from(elapsed) * u128::from(100 + CLOCK_DRIFT_PERCENT)).div_ceil(100);
        let latest = u128::from(self.answered) + drifted;
        u64::try_from(latest).unwrap_or(u64::MAX)
    }

    /// Whether what was read counts: `now` is the reader's clock after the last read, and `readable_until` what the
    /// primary has published, as the reader has read it by then, at any time.
    pub fn is_readable(self, now: u64, readable_until: u64) -> bool {
        self.latest(now) < readable_until
    }
}
