//! Which seeds can show a planted bug: those whose options allow the situation that the broken rule is for. The
//! simulation searches only these seeds, in order, which makes thousands of seeds affordable. A bug does not change
//! what a seed draws.

use super::Scenario;
use crate::world::FaultKind;
use leeward_format::cluster::{IndexKind, Reads, Scans};
use leeward_platform::planted::Bug;

impl Scenario {
    /// Whether such a seed can break the rule of this bug at all.
    pub(crate) fn may_show(&self, bug: Bug) -> bool {
        let (table, operator) = (&self.table, &self.operator);
        let is_replicated = table.replicas > 1;
        let (has, kinds) = (|kind| self.fault_schedule.kinds.contains(&kind), &self.fault_schedule.kinds);
        let is_split = !table.partition.is_hash() && (operator.splits || self.balance().is_some());
        match bug {
            Bug::SkipChecksum | Bug::StopReplayAtOneLog | Bug::InstallBeforeLogDurable | Bug::ReuseTailBeforeFlush => {
                kinds.iter().any(|kind| kind.loses_power()) || has(FaultKind::DiskKill)
            }
            Bug::TakeAnyTree | Bug::DecideOnOlderTree | Bug::DecideUnheard => !self.forgets.is_empty(),
            Bug::RestoreMerged => !self.forgets.is_empty() && !table.partition.is_hash(),
            Bug::IgnoreLocations => self.has_locations() && table.replicas == 2,
            Bug::IgnoreRoom => has(FaultKind::DiskFull) && is_replicated && self.desired().is_empty(),
            Bug::SyncEveryEdit => true,
            Bug::EvictOriginal => !self.clonings.is_empty(),
            Bug::StayFull => !self.fillings.is_empty(),
            Bug::TakeReplacedVolume => has(FaultKind::ReplaceDisk),
            Bug::TakeOlderVolume => has(FaultKind::RestoreCopy),
            Bug::TrustStoppedClock => has(FaultKind::SuspendMachine),
            Bug::ServeUnheard => table.quorum.is_some_and(|quorum| quorum < table.replicas),
            Bug::CompactUncommitted => is_replicated && table.backups.builds_index() && self.far().is_some(),
            Bug::PublishSafeLsnWithoutLease => {
                let is_alone = table.min_in_sync == 1 && table.quorum.is_none();
                has(FaultKind::Strand) && is_alone && table.reads.stale != Reads::Primary
            }
            Bug::OldestPieceWins | Bug::DropTombstoneAboveRuns => {
                is_replicated && table.backups.ordering_degree().is_some_and(|runs| runs > 1)
            }
            Bug::DigestAcrossInstants => is_replicated,
            Bug::AgeFromArrival => is_replicated && table.reads.stale != Reads::Primary,
            Bug::ReleaseBeforeKnown => operator.moves,
            Bug::AcknowledgeBelowMinInSync => table.min_in_sync > 1,
            Bug::ReleaseEverything | Bug::DestroyNamed => is_replicated,
            Bug::ActivateBeforeInstalled | Bug::TrimBeforeSplit | Bug::ReuseTerm => is_split,
            Bug::MergeUnsettled | Bug::ForgetMergeSource => !table.partition.is_hash() && operator.merges,
            Bug::AcknowledgeBeforeCompletion
            | Bug::SkipLeaseCheck
            | Bug::AcknowledgeWithFailedMember
            | Bug::PromoteRestarted
            | Bug::PromoteWithoutCut
            | Bug::ServeUncommitted
            | Bug::ForgetRequests
            | Bug::ForgetAtTakeover => is_replicated,
            Bug::BytesBeforeSlot
            | Bug::ReuseUnpoisoned
            | Bug::ServeAtOnce
            | Bug::AdmitUngranted
            | Bug::ProposeUnrevoked
            | Bug::PublishUncommitted
            | Bug::AnswerUnpublished
            | Bug::FillStale
            | Bug::ReadWithoutLease
            | Bug::BoundFromAnswer
            | Bug::KeepDeletedSlots => table.reads.index == IndexKind::Hybrid,
            Bug::GrantOwnDuration => is_replicated && self.traits.leases.is_some(),
            Bug::AnswerUnshown => is_replicated && table.reads.scans == Scans::Backups && self.network.maps_memory,
            Bug::ScanUndrained | Bug::SafeLsnBeforeQuestion | Bug::ScanBeyondSafe => {
                is_replicated && table.reads.scans == Scans::Backups
            }
            // Only the engine's own tests find these.
            Bug::ForgetSharer | Bug::KeepBeyondShared | Bug::SpendReserve | Bug::MergeWithoutRoom => false,
            // A test with a narrow network does.
            Bug::LeaseBehindBulk => false,
        }
    }
}
