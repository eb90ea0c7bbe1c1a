//! What the coordinator's tree, and a copy on a volume, belong to. A tree is lost, restored from an older state, or is
//! another cluster's: a copy that says what it belongs to shows that.
//!
//! Plain data; any thread.

use super::{CopyFound, GroupConfig, Member, ServerInfo};
use crate::{ClusterId, Epoch, SegmentId, ServerId, TableId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Of which cluster a coordinator's tree is, and how often an operator has restored that tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeIdentity {
    /// Drawn when the first server registered in the empty tree.
    pub cluster: ClusterId,
    /// Raised each time that an operator restores the tree from what the servers know.
    pub generation: u32,
}

/// What a copy on a volume belongs to, by the last configuration that named its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyIdentity {
    /// The cluster; 0 if the copy is of a time before clusters had identities.
    pub cluster: ClusterId,
    /// Tells tables of one name apart; 0 if not known.
    pub table_id: TableId,
    /// The configuration's epoch.
    pub epoch: Epoch,
    /// First key, token or slot of the region.
    pub start: Bytes,
    /// What follows its last one; `None` for the last region.
    pub end: Option<Bytes>,
    /// See [`GroupConfig::inherited_below`].
    pub inherited_below: SegmentId,
}

impl Member {
    /// A number for an identity that this process draws, from the random bits of its volume and incarnation: no other
    /// process draws the same, and this one only for the same `what`. Never 0.
    pub fn draw(&self, what: &str) -> u64 {
        let seed = self.volume.0 ^ self.incarnation.0.rotate_left(32);
        xxhash_rust::xxh3::xxh3_64_with_seed(what.as_bytes(), seed).max(1)
    }
}

impl CopyIdentity {
    /// The identity of a copy of the region of `config`, in `cluster`.
    pub fn of(cluster: ClusterId, config: &GroupConfig) -> CopyIdentity {
        let (start, end) = (config.start.clone(), config.end.clone());
        let GroupConfig { table_id, epoch, inherited_below, .. } = *config;
        CopyIdentity { cluster, table_id, epoch, start, end, inherited_below }
    }
}

/// A live server has known more of a region than its configuration says: the coordinator was put back to an older state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Its report contradicts the configuration.
    pub server: ServerId,
    /// The epoch that it has known.
    pub known: Epoch,
    /// Its copy is of another table's region of that number.
    pub is_other_table: bool,
}

impl Contradiction {
    /// What the region of `config` waits for and what the operator can do, in one sentence.
    pub fn explain(&self, config: &GroupConfig) -> String {
        let GroupConfig { region, table, epoch, .. } = config;
        let Contradiction { server, known, is_other_table } = self;
        let what = match is_other_table {
            true => format!("server {server} has a region of that number of another table than {table}"),
            false => {
                format!("server {server} has known its configuration of epoch {known}, and the coordinator has {epoch}")
            }
        };
        format!(
            "region {region} waits, since {what}: the coordinator was put back to an older state. Put its newest data back, or \
             have it restored from what all nodes know with `leeward restore-coordinator`"
        )
    }
}

impl GroupConfig {
    /// What a region waits for that was [restored from a copy](GroupConfig::restored_in), in one sentence.
    pub fn explain_restored(&self) -> Option<String> {
        let GroupConfig { region, restored_in, .. } = self;
        let explain = |_| {
            format!(
                "region {region} was restored from a copy, and waits until `leeward restore-coordinator` has ended: repeat it \
                 if it was interrupted"
            )
        };
        restored_in.map(explain)
    }

    /// The first of these live servers that has known more of the region. A region that never had a primary waits for all
    /// copies of it anyway.
    pub fn contradicted_by<'a>(&self, servers: impl IntoIterator<Item = &'a ServerInfo>) -> Option<Contradiction> {
        let was_used = self.term > Epoch(0) || self.primary.is_some();
        let contradicts = |copy: &CopyFound| copy.is_of_other_table(self) || was_used && copy.seen() > self.epoch;
        servers.into_iter().find_map(|info| {
            let copy = info.copy_of(self.region).filter(|copy| contradicts(copy))?;
            let is_other_table = copy.is_of_other_table(self);
            Some(Contradiction { server: info.member.server, known: copy.seen(), is_other_table })
        })
    }
}
