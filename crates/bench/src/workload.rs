//! The workloads of YCSB: which operations, of which records. Plain data.

use crate::distribution::{Distribution, Theta};
use crate::generators::{Chooser, Zipfian};
use std::fmt;
use std::str::FromStr;

/// A YCSB workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Inserts every record.
    Load,
    /// 50 % reads, 50 % updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of the latest records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// 50 % reads, 50 % read-modify-writes.
    F,
    /// Updates. Not of YCSB.
    U,
}

/// The kind of one operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads a record.
    Read,
    /// Writes a record that exists.
    Update,
    /// Writes a record that does not exist.
    Insert,
    /// Reads 1 to [`LONGEST_SCAN`] records in key order.
    Scan,
    /// Reads a record, then writes it.
    ReadModifyWrite,
}

/// Longest scan, in records, as in YCSB.
pub const LONGEST_SCAN: u32 = 100;

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Kind::Read, Kind::Update, Kind::Insert, Kind::Scan, Kind::ReadModifyWrite];
}

impl Workload {
    /// Every workload.
    pub const ALL: [Workload; 8] =
        [Workload::Load, Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::F, Workload::U];

    /// The kind of the next operation, by a draw from 0 to 99.
    pub fn kind(self, draw: u8) -> Kind {
        match (self, draw) {
            (Workload::Load, _) => Kind::Insert,
            (Workload::A, 0..50) | (Workload::B | Workload::D, 0..95) | (Workload::C, _) | (Workload::F, 0..50) => {
                Kind::Read
            }
            (Workload::A | Workload::B | Workload::U, _) => Kind::Update,
            (Workload::E, 0..95) => Kind::Scan,
            (Workload::D | Workload::E, _) => Kind::Insert,
            (Workload::F, _) => Kind::ReadModifyWrite,
        }
    }

    /// How the workload chooses among `records`, unless the options say otherwise.
    pub fn chooser(self, chosen: Option<Distribution>, records: u64) -> Chooser {
        let own = match self {
            Workload::D => Distribution::Latest,
            _ => Distribution::Zipfian(Theta::default()),
        };
        let records = records.max(1);
        match chosen.unwrap_or(own) {
            // Load reads no existing record, so it does not need the zeta constant, which takes long to compute.
            _ if self == Workload::Load => Chooser::Uniform,
            Distribution::Uniform => Chooser::Uniform,
            Distribution::Zipfian(theta) => Chooser::Zipfian(Zipfian::new(records, theta.get())),
            Distribution::Latest => Chooser::Latest(Zipfian::new(records, Theta::default().get())),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Load => "load",
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
            Workload::D => "d",
            Workload::E => "e",
            Workload::F => "f",
            Workload::U => "u",
        })
    }
}

impl FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Workload, String> {
        Workload::ALL
            .into_iter()
            .find(|workload| workload.to_string() == text.to_ascii_lowercase())
            .ok_or_else(|| format!("unknown workload {text:?}: it is one of load, a, b, c, d, e, f, u"))
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
