//! Positions of a region's levels: the sorted runs of L1, newest first, then L2 and so on.
//!
//! In memory, positions are in the order of age: data in a position is older than data in all positions before it. Any
//! position may be empty, and empty ones at the end are left out.
//!
//! The encoding has another order. It begins with the last [`FIRST_RUNS`] runs of L1 and what is below them, and the
//! other runs come last. Those are used by two-layer logs only, so other regions have short lists, and the lists of
//! earlier versions are read as they are.

use super::LevelState;

/// The first positions of L1: small runs of a two-layer log, which are merged into one before they count as runs (the
/// pieces of the global log, DEPART 4.3).
pub const PIECES: usize = 24;

/// Positions of L1: its pieces, and its sorted runs. Of those there is one more than the highest ordering degree, so that
/// a new run can come while all others are merged.
pub const L1_RUNS: usize = PIECES + 32;

/// Most positions of a region's levels.
pub const MAX_LEVELS: usize = L1_RUNS + 16;

/// Position of L1's run, in a region where L1 is one run.
pub const L1: usize = L1_RUNS - 1;

/// Runs of L1 that come first in the encoding.
const FIRST_RUNS: usize = 8;

/// Positions that come last in the encoding.
const LAST: usize = L1_RUNS - FIRST_RUNS;

/// The level of a position: 1 for L1.
pub fn level_at(position: usize) -> usize {
    if position < L1_RUNS { 1 } else { position - L1_RUNS + 2 }
}

/// The name of a position in texts. Runs of L1 are numbered from the oldest: `L1.0` is the last one.
pub fn level_name(position: usize) -> String {
    if position < L1_RUNS { format!("L1.{}", L1 - position) } else { format!("L{}", level_at(position)) }
}

/// Removes empty levels at the end.
pub(super) fn trim(levels: &mut Vec<LevelState>) {
    let used = levels.iter().rposition(|level| *level != LevelState::default()).map_or(0, |last| last + 1);
    levels.truncate(used);
}

/// A list by position, in the order of its encoding.
pub(super) mod list {
    use super::{LAST, LevelState, MAX_LEVELS, trim};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(levels: &[LevelState], to: S) -> Result<S::Ok, S::Error> {
        let (last, first) = levels.split_at(levels.len().min(LAST));
        let mut all = first.to_vec();
        if last.iter().any(|level| *level != LevelState::default()) {
            all.resize_with(MAX_LEVELS - LAST, LevelState::default);
            all.extend_from_slice(last);
            trim(&mut all);
        }
        all.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LevelState>, D::Error> {
        let mut first = Vec::<LevelState>::deserialize(from)?;
        let mut all = first.split_off(first.len().min(MAX_LEVELS - LAST));
        if all.len() > LAST {
            return Err(serde::de::Error::custom("a region has too many levels"));
        }
        all.resize_with(LAST, LevelState::default);
        all.append(&mut first);
        trim(&mut all);
        Ok(all)
    }
}

/// Positions and levels, each position as it is encoded.
pub(super) mod pairs {
    use super::{LAST, LevelState, MAX_LEVELS};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(levels: &[(u8, LevelState)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(levels.iter().map(|(position, level)| (moved(*position, MAX_LEVELS - LAST), level)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u8, LevelState)>, D::Error> {
        let mut levels = Vec::<(u8, LevelState)>::deserialize(from)?;
        levels.iter_mut().for_each(|(position, _)| *position = moved(*position, LAST));
        Ok(levels)
    }

    /// A position, `by` further round; one that is out of range stays so.
    fn moved(position: u8, by: usize) -> u8 {
        match usize::from(position) {
            known @ 0..MAX_LEVELS => ((known + by) % MAX_LEVELS) as u8,
            _ => position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::InstallEdit;

    fn level(entries: u64) -> LevelState {
        LevelState { entries, ..LevelState::default() }
    }

    fn bytes_of<T: serde::Serialize>(value: &T) -> Vec<u8> {
        postcard::to_stdvec(value).expect("memory")
    }

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct List(#[serde(with = "list")] Vec<LevelState>);

    #[test]
    fn each_position_comes_back() {
        for position in 0..MAX_LEVELS {
            let mut levels = vec![LevelState::default(); position];
            levels.push(level(7));
            let list = List(levels);
            assert_eq!(postcard::from_bytes::<List>(&bytes_of(&list)).unwrap(), list, "{position}");
            let edit = InstallEdit { levels: vec![(position as u8, level(1))], ..InstallEdit::default() };
            assert_eq!(postcard::from_bytes::<InstallEdit>(&bytes_of(&edit)).unwrap(), edit, "{position}");
        }
        assert_eq!(postcard::from_bytes::<List>(&bytes_of(&List(Vec::new()))).unwrap(), List(Vec::new()));
    }

    #[test]
    fn a_region_without_a_two_layer_log_is_encoded_as_before() {
        // The single run of L1 was at position 7, and L2 followed it.
        let before = [vec![LevelState::default(); 7], vec![level(1), level(2)]].concat();
        let mut now = vec![LevelState::default(); L1];
        now.extend([level(1), level(2)]);
        assert_eq!(bytes_of(&List(now.clone())), bytes_of(&before));
        assert_eq!(postcard::from_bytes::<List>(&bytes_of(&before)).unwrap(), List(now));
    }

    #[test]
    fn what_is_out_of_range_stays_out_of_range() {
        let many = vec![level(1); MAX_LEVELS + 1];
        assert!(postcard::from_bytes::<List>(&bytes_of(&many)).is_err());
        let edit = InstallEdit { levels: vec![(200, level(1))], ..InstallEdit::default() };
        assert_eq!(postcard::from_bytes::<InstallEdit>(&bytes_of(&edit)).unwrap(), edit);
    }
}
