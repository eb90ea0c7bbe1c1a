//! Changes of the regions' members between two snapshots. Pure.

use leeward_format::cluster::GroupConfig;

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;

/// Regions of both snapshots that changed in between, in words. A change that was undone counts too, since every change raises
/// the epoch. `None` if one of the snapshots is missing.
pub(crate) fn changes(before: Option<&[GroupConfig]>, after: Option<&[GroupConfig]>) -> Option<Vec<String>> {
    let (before, after) = (before?, after?);
    let pairs = before.iter().filter_map(|old| Some((old, after.iter().find(|new| new.region == old.region)?)));
    Some(pairs.filter(|(old, new)| old.epoch != new.epoch).map(|(old, new)| change(old, new)).collect())
}

fn change(old: &GroupConfig, new: &GroupConfig) -> String {
    let region = old.region;
    if (old.primary, old.term) != (new.primary, new.term) {
        return format!("region {region}: another primary, or a new term ({} to {})", old.term, new.term);
    }
    format!("region {region}: members were removed or added (epoch {} to {})", old.epoch, new.epoch)
}
