//! Tables, keys and values of a run. Only this module knows their formats. Pure.
//!
//! There is a table for each mode of backups, which faults change, and one with a hash index, whose backups answer scans. Each region has its letter, so the key tells the region of an
//! operation. Many clients use *shared* keys, which have histories.
//! *Filling* keys are written once. A value begins with its number, which is unique, and the rest follows from the number.

use bytes::Bytes;
use leeward_format::cluster::{BackupMode, IndexKind, ReadPaths, Reads, Scans};
use leeward_format::table::{DEFAULT_TABLE, TableName};

/// A table of a run.
#[derive(Debug)]
pub(crate) struct Table {
    name: &'static str,
    /// How its backups keep their copies when the run begins.
    pub(crate) backups: BackupMode,
    /// How reads are answered.
    pub(crate) reads: ReadPaths,
    /// First letters of the keys of each of its regions.
    letters: &'static [char],
}

const AT_PRIMARY: ReadPaths = ReadPaths { stale: Reads::Primary, index: IndexKind::Lsm, scans: Scans::Primary };
const HYBRID: ReadPaths = ReadPaths { stale: Reads::Primary, index: IndexKind::Hybrid, scans: Scans::Backups };

/// All tables. The two-layer log may have few runs, so that a run has merges of all of them.
pub(crate) static TABLES: [Table; 4] = [
    Table { name: DEFAULT_TABLE, backups: BackupMode::SendIndex, reads: AT_PRIMARY, letters: &['a', 'b'] },
    Table { name: "built", backups: BackupMode::BuildIndex, reads: AT_PRIMARY, letters: &['c'] },
    Table {
        name: "layered",
        backups: BackupMode::TwoLayerLog { ordering_degree: 4 },
        reads: AT_PRIMARY,
        letters: &['d'],
    },
    Table { name: "hybrid", backups: BackupMode::SendIndex, reads: HYBRID, letters: &['e'] },
];

impl Table {
    pub(crate) fn name(&self) -> TableName {
        self.name.parse().expect("these are names of tables")
    }

    /// Whether it has a hash index, and backups that answer scans.
    pub(crate) fn is_hybrid(&self) -> bool {
        self.reads == HYBRID
    }

    /// First keys of its regions after the first.
    pub(crate) fn splits(&self) -> Vec<Bytes> {
        self.letters[1..].iter().map(|letter| Bytes::from(letter.to_string())).collect()
    }
}

/// Longest padding of a value, in bytes: some are kept in place, some in the medium log, some in the large log.
const PADDING_BYTES: [u64; 3] = [20, 600, 2_500];
/// The same, of filling keys.
const FILLING_BYTES: [u64; 3] = [200, 2_000, 12_000];

/// The table and the letter of each region.
fn all_regions() -> impl Iterator<Item = (&'static Table, char)> {
    TABLES.iter().flat_map(|table| table.letters.iter().map(move |letter| (table, *letter)))
}

/// How many regions there are when the run begins.
pub(crate) fn regions() -> usize {
    all_regions().count()
}

fn region(number: usize) -> (&'static Table, char) {
    all_regions().nth(number).expect("there are so many regions")
}

/// The table of a region.
pub(crate) fn table_of(number: usize) -> &'static Table {
    region(number).0
}

fn letter_of(number: usize) -> char {
    region(number).1
}

/// A key that many clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SharedKey {
    pub(crate) region: usize,
    /// Which of the region's keys in use.
    pub(crate) slot: usize,
    /// How many keys were in its slot before.
    pub(crate) generation: u64,
}

impl SharedKey {
    pub(crate) fn bytes(self) -> Bytes {
        let SharedKey { region, slot, generation } = self;
        Bytes::from(format!("{}shared{slot}-{generation:06}", letter_of(region)))
    }
}

/// The key of the filling write with this number. The numbers are scattered, so that compactions overlap.
pub(crate) fn filling_key(region: usize, number: i64) -> Bytes {
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    Bytes::from(format!("{}fill{scattered:011x}-{number}", letter_of(region)))
}

/// The value with this number.
pub(crate) fn value(number: i64) -> Bytes {
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let longest = if number < 0 { FILLING_BYTES } else { PADDING_BYTES }[(scattered % 3) as usize];
    let padding = (scattered >> 2) % longest;
    Bytes::from(format!("{number}:{}", "x".repeat(padding as usize)))
}

/// The number of a value. For anything else, a number that no value has.
pub(crate) fn number_of(found: &[u8]) -> i64 {
    let digits = found.split(|byte| *byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|number| value(*number) == found).unwrap_or(i64::MIN)
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
