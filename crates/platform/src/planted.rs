//! Rules of the design that a test can break on purpose, to prove that the simulator finds the breach.
//!
//! Without the feature `planted-bugs`, [`planted`] is the constant `false` and costs nothing. With it, at most one bug
//! is planted per thread: the simulator runs a whole cluster on one thread, so seeds can be tried in parallel.

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Records are accepted without a check of their checksum.
    SkipChecksum,
    /// A write is acknowledged before the backups' completions.
    AcknowledgeBeforeCompletion,
    /// The lease is not looked at after the last completion.
    SkipLeaseCheck,
    /// A write is acknowledged while a failed backup is still a member.
    AcknowledgeWithFailedMember,
    /// A write that waited is started, and acknowledged, although too few members are in sync by then.
    AcknowledgeBelowMinInSync,
    /// A restarted incarnation is promoted as if it were in sync.
    PromoteRestarted,
    /// Longer tails are not cut to the promoted prefix.
    PromoteWithoutCut,
    /// Records of the L0 are served before they are committed.
    ServeUncommitted,
    /// Replay stops at the end of one log only; what the other log holds beyond a gap is taken.
    StopReplayAtOneLog,
    /// A compaction is installed before the log bytes that it refers to are durable.
    InstallBeforeLogDurable,
    /// A mirror buffer is filled again before its flush was answered.
    ReuseTailBeforeFlush,
    /// A server that is back with another volume passes for the server that had the old one.
    TakeReplacedVolume,
    /// A copy of an older state of a volume passes for the volume.
    TakeOlderVolume,
    /// Uncommitted records are compacted.
    CompactUncommitted,
    /// The primary of a table with a quorum serves without hearing of other copies.
    ServeUnheard,
    /// A primary releases its leases when it proposes to hand over, while it still serves.
    ReleaseBeforeKnown,
    /// The lease of a primary is released once another member is appointed, although that primary has not stepped
    /// down.
    ReleaseEverything,
    /// A primary executes a repeated request again.
    ForgetRequests,
    /// A new primary does not know the requests that earlier primaries executed, and executes a repeated one
    /// again.
    ForgetAtTakeover,
    /// A region is split before every member has what is split off.
    ActivateBeforeInstalled,
    /// Keys that a split gives to another region are deleted before they are that region's.
    TrimBeforeSplit,
    /// Another attempt to split a region begins in the epoch of the one before.
    ReuseTerm,
    /// A region is merged into its neighbour before the copied data is committed, and durable at every member.
    MergeUnsettled,
    /// A merge target does not know the requests that its merge source executed, and executes a repeated one
    /// again.
    ForgetMergeSource,
    /// A segment that regions share is freed with the first of them that lets go of it.
    ForgetSharer,
    /// Writes take the segments that are kept for what makes room.
    SpendReserve,
    /// A compaction is begun although there is less room than it takes.
    MergeWithoutRoom,
    /// The copy that a member has of a complete group is destroyed.
    DestroyNamed,
    /// A coordinator's tree is taken that lacks something of what a server knows.
    TakeAnyTree,
    /// The master decides about regions of which a live server has known more.
    DecideOnOlderTree,
    /// The master believes what servers registered before an operator restored the coordinator's tree.
    DecideUnheard,
    /// A region that was merged into another stays in a tree that an operator restores, beside the one that has its keys.
    RestoreMerged,
    /// A primary publishes what is acknowledged as safe LSN although its lease has ended.
    PublishSafeLsnWithoutLease,
    /// Pieces of a two-layer log are merged as if the oldest were the newest.
    OldestPieceWins,
    /// Tombstones end where pieces of a two-layer log are merged, although there are runs below.
    DropTombstoneAboveRuns,
    /// A copy with an index of its own keeps levels that go beyond what it shares with the base's history.
    KeepBeyondShared,
    /// The pairs of a copy are digested as of an instant of its own node's clock.
    DigestAcrossInstants,
    /// The record of a hash index is written before its slot.
    BytesBeforeSlot,
    /// A record of a hash index that was replaced stays valid until its space is used again.
    ReuseUnpoisoned,
    /// A new process joins a term although clients may rely on leases that the process before it has granted.
    ServeAtOnce,
    /// A configuration is proposed with a member whose lease grant ends before clients stop relying on it.
    AdmitUngranted,
    /// Clients may go on reading the hash index of a primary that quiesces.
    ProposeUnrevoked,
    /// A version is in the hash index before it is committed.
    PublishUncommitted,
    /// A write is answered before its version is in the hash index.
    AnswerUnpublished,
    /// A pair that was read enters the hash index although it may have been written since.
    FillStale,
    /// Deleted ranges stay in the hash index.
    KeepDeletedSlots,
    /// What a client has read of a hash index counts whatever the primary's lease is.
    ReadWithoutLease,
    /// A client's bound on the primary's clock counts from the arrival of the answer.
    BoundFromAnswer,
    /// A backup answers a scan although it has not applied all records up to the safe LSN.
    ScanUndrained,
    /// The safe LSN that was asked for before a scan came counts for that scan.
    SafeLsnBeforeQuestion,
    /// A backup answers a scan with all records that it has applied, also beyond the safe LSN.
    ScanBeyondSafe,
    /// An answer that shows a write, or the acknowledgement of one, leaves before backups can read its safe LSN.
    AnswerUnshown,
    /// A backup keeps out of newer terms for as long as its own setting says, not as long as the primary relies on.
    GrantOwnDuration,
    /// Copies are placed and moved without a look at where servers stand.
    IgnoreLocations,
    /// Copies and primary roles are given to full servers as to any other, and full servers keep their primary roles.
    IgnoreRoom,
    /// A volume whose device had no room once does not ask it again.
    StayFull,
    /// Each edit of the manifest is synced, also one that need not be durable.
    SyncEveryEdit,
    /// A process removes the registration of an earlier one on the same volume, on whatever host that runs.
    EvictOriginal,
    /// Messages about leases wait behind the segments of a catch-up, of which any number is queued on a link. A test of the
    /// simulation finds it.
    LeaseBehindBulk,
    /// The age of a read at a backup counts from the arrival of the primary's message.
    AgeFromArrival,
    /// Leases and ages are counted by a boot clock that was stopped.
    TrustStoppedClock,
}

impl Bug {
    /// The bugs that the simulation finds. [`Bug::ForgetSharer`], [`Bug::KeepBeyondShared`], [`Bug::SpendReserve`] and
    /// [`Bug::MergeWithoutRoom`] are for the engine's own tests. No seed has found [`Bug::AdmitUngranted`] or
    /// [`Bug::DecideUnheard`]; tests of replication and of the cluster's agent are about their rules.
    pub const ALL: [Bug; 54] = [
        Bug::SkipChecksum,
        Bug::AcknowledgeBeforeCompletion,
        Bug::SkipLeaseCheck,
        Bug::AcknowledgeWithFailedMember,
        Bug::AcknowledgeBelowMinInSync,
        Bug::PromoteRestarted,
        Bug::PromoteWithoutCut,
        Bug::ServeUncommitted,
        Bug::StopReplayAtOneLog,
        Bug::InstallBeforeLogDurable,
        Bug::ReuseTailBeforeFlush,
        Bug::TakeReplacedVolume,
        Bug::TakeOlderVolume,
        Bug::CompactUncommitted,
        Bug::ServeUnheard,
        Bug::ReleaseBeforeKnown,
        Bug::ReleaseEverything,
        Bug::DestroyNamed,
        Bug::TakeAnyTree,
        Bug::DecideOnOlderTree,
        Bug::RestoreMerged,
        Bug::ForgetRequests,
        Bug::ForgetAtTakeover,
        Bug::ActivateBeforeInstalled,
        Bug::TrimBeforeSplit,
        Bug::ReuseTerm,
        Bug::MergeUnsettled,
        Bug::ForgetMergeSource,
        Bug::PublishSafeLsnWithoutLease,
        Bug::TrustStoppedClock,
        Bug::AgeFromArrival,
        Bug::OldestPieceWins,
        Bug::DropTombstoneAboveRuns,
        Bug::DigestAcrossInstants,
        Bug::PublishUncommitted,
        Bug::AnswerUnpublished,
        Bug::BytesBeforeSlot,
        Bug::ReuseUnpoisoned,
        Bug::FillStale,
        Bug::ServeAtOnce,
        Bug::ProposeUnrevoked,
        Bug::KeepDeletedSlots,
        Bug::ReadWithoutLease,
        Bug::BoundFromAnswer,
        Bug::ScanUndrained,
        Bug::SafeLsnBeforeQuestion,
        Bug::ScanBeyondSafe,
        Bug::AnswerUnshown,
        Bug::GrantOwnDuration,
        Bug::IgnoreLocations,
        Bug::IgnoreRoom,
        Bug::StayFull,
        Bug::SyncEveryEdit,
        Bug::EvictOriginal,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    static MOST_INDEX_BYTES: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Most bytes of a hash index on this thread, and then its parts are tiny too: so that a short run evicts, and uses space
/// again. `None`: as in production.
#[cfg(feature = "planted-bugs")]
pub fn most_index_bytes() -> Option<u64> {
    MOST_INDEX_BYTES.get()
}

/// Most bytes of a hash index, if tests want it tiny: never, without the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn most_index_bytes() -> Option<u64> {
    None
}

/// From now on hash indexes of this thread have so many bytes at most, and tiny parts.
#[cfg(feature = "planted-bugs")]
pub fn set_most_index_bytes(most: Option<u64>) {
    MOST_INDEX_BYTES.set(most);
}

/// Whether `bug` is planted on this thread.
#[cfg(feature = "planted-bugs")]
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether `bug` is planted: never, without the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn planted(_bug: Bug) -> bool {
    false
}

/// Plants `bug` on this thread in place of any other; `None` removes it.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
