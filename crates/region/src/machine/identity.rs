//! What the copy of a region belongs to: the volume is told with each configuration that names this server, and the cluster is
//! told what the volume says.
//!
//! Invariant: a copy is told what it belongs to before anything that a newer configuration allows can be the only proof of that
//! configuration, as far as the process lives: the job is spawned in the turn that follows the configuration. Belongs to the node's
//! thread; the volume is told by a job.

use super::{Holding, RegionMachine};
use crate::effects::Step;
use crate::job::{JobClass, Outcome};
use leeward_engine::{Replica, Volume};
use leeward_format::cluster::{CopyFound, CopyIdentity};
use leeward_format::{Epoch, Lsn, RegionId};
use leeward_platform::cpu::Activity;

impl RegionMachine {
    /// Has the volume told what the copy belongs to, if a configuration that names this server is news.
    pub(super) fn identify(&mut self, step: &mut Step<'_>) {
        let Some(config) = self.config.as_ref().filter(|config| self.identified != Some(config.epoch)) else { return };
        let server = self.node.me.server;
        // A job that may be making the copy now is followed by another look.
        let has_copy = matches!(self.holding, Holding::Copy(Some(_)) | Holding::Serving(_) | Holding::Retiring(_));
        let Some(cluster) = step.facts.cluster().filter(|_| has_copy) else { return };
        if !config.members().any(|member| member.server == server) {
            return;
        }
        self.identified = Some(config.epoch);
        let (region, identity, volume) = (self.id, CopyIdentity::of(cluster, config), self.node.volume.clone());
        step.spawn(JobClass::Background, Activity::Engine.of_backup(), move || {
            Outcome::Identified(volume.identify(region, identity))
        });
    }
}

/// What this server registers of a copy.
pub fn copy_found(copy: &Replica) -> CopyFound {
    let (term, lsn) = copy.position();
    let lsn = if copy.is_damaged() { CopyFound::DAMAGED } else { lsn };
    found(copy.volume(), copy.region(), (term, lsn))
}

/// What this server registers of the copy of `region`, which reaches up to there.
pub(super) fn found(volume: &Volume, region: RegionId, (term, lsn): (Epoch, Lsn)) -> CopyFound {
    let CopyIdentity { epoch, table_id, .. } = volume.identity(region).unwrap_or_default();
    CopyFound { region, term, lsn, epoch, table_id }
}
