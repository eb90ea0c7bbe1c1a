//! Where a planted bug can be seen: the seeds whose options bring about the situation that its rule is for. The simulation looks for
//! the bug there first to last, and nowhere else, which is what makes thousands of seeds affordable. The seeds themselves are the same
//! with and without a bug.

use super::Character;
use crate::world::FaultKind;
use leeward_format::cluster::{BackupMode, Reads};
use leeward_platform::planted::Bug;

impl Character {
    /// Whether the breach of this rule can come about in such a seed at all.
    pub(crate) fn may_show(&self, bug: Bug) -> bool {
        let (table, operator) = (&self.table, &self.operator);
        let is_replicated = table.replicas > 1;
        let (has, kinds) = (|kind| self.troubles.kinds.contains(&kind), &self.troubles.kinds);
        let is_divided = !table.partition.is_hash() && (operator.splits || self.balance().is_some());
        match bug {
            Bug::SkipChecksum | Bug::StopReplayAtOneLog | Bug::InstallBeforeLogDurable | Bug::ReuseTailBeforeFlush => {
                kinds.iter().any(|kind| kind.loses_power()) || has(FaultKind::DiskKill)
            }
            Bug::TakeReplacedVolume => has(FaultKind::ReplaceDisk),
            Bug::TakeOlderVolume => has(FaultKind::RestoreCopy),
            Bug::TrustStoppedClock => has(FaultKind::SuspendMachine),
            Bug::ServeUnheard => table.quorum.is_some_and(|quorum| quorum < table.replicas),
            Bug::CompactUncommitted => is_replicated && table.backups == BackupMode::BuildIndex && self.far().is_some(),
            Bug::AttestWithoutLease => {
                let is_alone = table.min_in_sync == 1 && table.quorum.is_none();
                has(FaultKind::Strand) && is_alone && table.reads != Reads::Primary
            }
            Bug::AgeFromArrival => is_replicated && table.reads != Reads::Primary,
            Bug::ReleaseBeforeKnown => operator.moves,
            Bug::AcknowledgeBelowMinInSync => table.min_in_sync > 1,
            Bug::VoidEverything | Bug::DestroyNamed => is_replicated,
            Bug::BearBeforeInstalled | Bug::TrimBeforeBirth | Bug::ReuseTerm => is_divided,
            Bug::MergeUnsettled | Bug::ForgetAbsorbed => !table.partition.is_hash() && operator.merges,
            Bug::AcknowledgeBeforeCompletion
            | Bug::SkipLeaseCheck
            | Bug::AcknowledgeWithFailedMember
            | Bug::PromoteRestarted
            | Bug::PromoteWithoutCut
            | Bug::ServeUncommitted
            | Bug::ForgetRequests
            | Bug::ForgetAtTakeover => is_replicated,
            // The engine's own tests find it.
            Bug::ForgetSharer => false,
        }
    }
}
