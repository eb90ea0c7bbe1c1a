//! The backup's side of a replica group: which primary it follows, and the work that the primary's messages ask for,
//! one piece at a time in their order.
//!
//! A backup follows the primary of the highest term that it has heard of. It joins a newer term only after its last
//! lease grant to an older one has expired ([`crate::lease::Grants`]). Then it gives up the buffers that the old
//! primary wrote into, and persists the valid prefix of each. Once a configuration names a new primary, it does so even
//! before that primary's first message. With send-index, a backup has no L0, merges nothing and reads nothing from its
//! device. With build-index, it tells its primary how far its index has come. A backup that answers reads has L0s.

mod mounted;
mod work;

pub use mounted::Mounted;
pub use work::{Done, Undone, Work};

use crate::lease::Grants;
use leeward_format::cluster::{Member, TableOptions};
use leeward_format::control::{ToBackup, ToPrimary};
use leeward_format::{Epoch, Lsn, RegionId, ServerId};
use leeward_platform::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// A primary's attempt to bring this copy in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimarySession {
    /// It sends the messages of the session.
    pub primary: ServerId,
    /// Epoch at which it became primary.
    pub term: Epoch,
    /// Number of the attempt.
    pub session: u64,
}

/// An action that a backup asks its caller for.
#[derive(Debug)]
pub enum BackupAction {
    /// Run a piece of work on the replica; answer with [`Backup::done`]. One piece runs at a time.
    Start(Work),
    /// Answer a primary.
    Send(PrimarySession, ToPrimary),
}

/// Counters of a backup, since it was created.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupCounters {
    /// Bytes of compactions' segments received.
    pub index_bytes_received: u64,
    /// Bytes of these segments that were rewritten.
    pub index_bytes_rewritten: u64,
    /// Compactions installed.
    pub installs: u64,
}

/// A replica group, as a backup sees it.
#[derive(Debug)]
pub struct Backup {
    region: RegionId,
    me: Member,
    joined: Option<PrimarySession>,
    /// A newer primary's session. Its `Open` waits for a lease grant to expire.
    waiting: Option<(PrimarySession, TableOptions)>,
    /// A newer term has begun. Once the lease grant to the older one has expired, the buffers of its session are given
    /// up.
    begun: Option<Epoch>,
    queue: VecDeque<Work>,
    busy: Option<PrimarySession>,
    mounted: Option<Arc<Mounted>>,
    in_sync: bool,
    /// A piece of work failed. Later messages of the session build on it and are ignored.
    failed: bool,
    /// Last LSN that the primary was told to be in the index that is built here.
    told: Lsn,
    /// Records wait for room in that index.
    is_behind: bool,
    /// The primary asks for L0s with little to replay, and has no answer yet.
    is_priming: bool,
    counters: BackupCounters,
    actions: Vec<BackupAction>,
}

impl Backup {
    /// The copy of member `me`, which follows no primary yet.
    pub fn new(region: RegionId, me: Member) -> Backup {
        Backup {
            region,
            me,
            joined: None,
            waiting: None,
            begun: None,
            queue: VecDeque::new(),
            busy: None,
            mounted: None,
            in_sync: false,
            failed: false,
            told: Lsn(0),
            is_behind: false,
            is_priming: false,
            counters: BackupCounters::default(),
            actions: Vec::new(),
        }
    }

    /// Actions since the last call.
    pub fn take_actions(&mut self) -> Vec<BackupAction> {
        std::mem::take(&mut self.actions)
    }

    /// Handles a message of a primary.
    pub fn message(&mut self, now: Nanos, primary_session: PrimarySession, message: ToBackup, grants: &Grants) {
        let newest = self.waiting.as_ref().map(|(waiting, _)| *waiting).or(self.joined);
        let stale =
            newest.is_some_and(|known| (primary_session.term, primary_session.session) < (known.term, known.session));
        // Lease grants outlive a destroyed copy: a new copy follows no older term than they were granted to.
        let outlived = grants.newest(self.region).is_some_and(|term| primary_session.term < term);
        if stale
            || outlived
            || newest
                .is_some_and(|known| known.term == primary_session.term && known.primary != primary_session.primary)
        {
            return;
        }
        match message {
            ToBackup::Open { options } => {
                self.waiting = Some((primary_session, options));
                self.join_when_allowed(now, grants);
            }
            _ if self.joined != Some(primary_session) || self.failed => {}
            ToBackup::Prime => self.is_priming = true,
            message => self.enqueue(message),
        }
    }

    fn enqueue(&mut self, message: ToBackup) {
        self.queue.push_back(match message {
            ToBackup::Open { options } => Work::Join { options },
            ToBackup::Base(base) => Work::BeginBase { base, anew: false },
            ToBackup::BaseAnew(base) => Work::BeginBase { base, anew: true },
            ToBackup::OpenTail { log, index, id, segment } => Work::OpenTail { log, index, id, segment },
            ToBackup::Flush { log, index, id, bytes, last_lsn } => Work::Flush { log, index, id, bytes, last_lsn },
            ToBackup::Ship { slot, shipped, bytes } => {
                if let Some(mounted) = &self.mounted {
                    mounted.shipped(slot, bytes);
                }
                Work::Store { slot, shipped, bytes }
            }
            ToBackup::InstallBase => Work::InstallBase,
            ToBackup::Install(edit) => Work::Install(edit),
            ToBackup::Discard(ids) => Work::Discard(ids),
            ToBackup::Committed(lsn) => Work::Commit(lsn),
            ToBackup::Prime => unreachable!("it asks for no work on the copy"),
        });
        self.start_next();
    }

    /// The link to `primary` came up again. Ends the session: its last answers may have been lost with the old link.
    /// The primary does not see that by itself while its own link stays up and its writes complete.
    pub fn link_up(&mut self, primary: ServerId) {
        if let Some(primary_session) = self.joined.filter(|joined| joined.primary == primary && !self.failed) {
            self.fail(primary_session, "the link broke, and answers may have been lost with it".into());
        }
    }

    /// Ends `primary_session`, and tells the primary.
    fn fail(&mut self, primary_session: PrimarySession, reason: String) {
        self.queue.clear();
        (self.in_sync, self.failed) = (false, true);
        self.actions.push(BackupAction::Send(primary_session, ToPrimary::Failed(reason)));
    }

    /// A configuration says that `term` has begun, with another primary. Once the lease grant to the older term allows
    /// it, the session of that term is left.
    pub fn term_began(&mut self, now: Nanos, term: Epoch, grants: &Grants) {
        if self.mounted.is_some() && self.joined.is_some_and(|joined| joined.term < term) {
            self.begun = Some(term);
            self.join_when_allowed(now, grants);
        }
    }

    /// Time passed: joins the session that was waiting for a lease grant to expire, or leaves the one that is over.
    pub fn join_when_allowed(&mut self, now: Nanos, grants: &Grants) {
        let is_allowed = |term: Epoch| grants.blocked_until(now, self.region, term).is_none();
        if let Some((primary_session, options)) = self.waiting.take_if(|(waiting, _)| is_allowed(waiting.term)) {
            self.joined = Some(primary_session);
            (self.in_sync, self.failed, self.told, self.begun) = (false, false, Lsn(0), None);
            self.is_priming = false;
            self.queue.clear();
            self.enqueue(ToBackup::Open { options });
        } else if self.begun.take_if(|term| is_allowed(*term)).is_some() {
            (self.in_sync, self.failed) = (false, true);
            self.queue.clear();
            self.queue.push_back(Work::Leave);
            self.start_next();
        }
    }

    /// Persists what the mirror buffers hold, if no work is queued or running, so that tails do not stay in memory
    /// only.
    pub fn save_tails(&mut self, durably: bool) {
        let is_idle = self.in_sync && self.busy.is_none() && self.queue.is_empty();
        if is_idle && (self.is_behind || self.mounted.as_ref().is_some_and(|mounted| mounted.wants_save())) {
            self.queue.push_back(Work::SaveTails { durably });
            self.start_next();
        }
    }

    /// Makes the copy answer reads, or stop doing so. Takes effect if the copy is in sync and no work is queued or
    /// running.
    pub fn be_read(&mut self, wanted: bool) {
        if self.in_sync && self.busy.is_none() && self.queue.is_empty() {
            let builder = self.me.server;
            self.queue.push_back(if wanted { Work::Follow { builder } } else { Work::Unfollow });
            self.start_next();
        }
    }

    fn start_next(&mut self) {
        if let (None, Some(joined)) = (self.busy, self.joined)
            && let Some(work) = self.queue.pop_front()
        {
            self.busy = Some(joined);
            self.actions.push(BackupAction::Start(work));
        }
    }

    /// The piece of work ended.
    pub fn done(&mut self, outcome: Result<Done, Undone>) {
        let primary_session = self.busy.take().expect("work ends once");
        let current = self.joined == Some(primary_session);
        match outcome {
            Ok(done) => {
                if let Some(answer) = self.account(done, current)
                    && current
                {
                    self.actions.push(BackupAction::Send(primary_session, answer));
                }
            }
            Err(Undone { reason, .. }) if current => {
                tracing::warn!(region = %self.region, primary = %primary_session.primary, reason, "cannot follow the primary");
                self.fail(primary_session, reason);
            }
            Err(_) => {}
        }
        self.start_next();
    }

    /// Notes how far a copy that builds its own index has come, and whether more records wait for room there. The node
    /// calls this after each piece of work.
    pub fn applied(&mut self, applied: Option<(Lsn, bool)>) {
        self.is_behind = applied.is_some_and(|(_, is_behind)| is_behind);
        if let (Some((lsn, _)), Some(primary_session)) = (applied, self.joined.filter(|_| self.in_sync))
            && self.told < lsn
        {
            self.told = lsn;
            self.actions.push(BackupAction::Send(primary_session, ToPrimary::Applied(lsn)));
        }
    }

    /// Whether the primary waits until there is little to replay here.
    pub fn is_priming(&self) -> bool {
        self.is_priming
    }

    /// There is little to replay now, or nothing that can be done about it.
    pub fn primed(&mut self) {
        self.is_priming = false;
        if let Some(primary_session) = self.joined.filter(|_| !self.failed) {
            self.actions.push(BackupAction::Send(primary_session, ToPrimary::Primed));
        }
    }

    fn account(&mut self, done: Done, current: bool) -> Option<ToPrimary> {
        Some(match done {
            Done::Left => {
                self.mounted = None;
                return None;
            }
            Done::Joined(mounted, reach) => {
                let answer = mounted.opened(self.me, reach);
                self.mounted = Some(Arc::new(mounted));
                answer
            }
            Done::Compared(missing) => ToPrimary::Missing(missing),
            Done::Flushed { log, index } => ToPrimary::Flushed { log, index },
            Done::Stored { slot, index_bytes, rewritten } => {
                self.counters.index_bytes_received += index_bytes;
                self.counters.index_bytes_rewritten += rewritten;
                ToPrimary::Stored { slot, rewritten }
            }
            Done::BaseInstalled { builds_index } => {
                self.in_sync = current && !self.failed;
                if self.in_sync && builds_index {
                    // The primary does not wait until all that was not merged is read again.
                    self.queue.push_front(Work::Follow { builder: self.me.server });
                }
                ToPrimary::BaseInstalled
            }
            Done::Installed => {
                self.counters.installs += 1;
                ToPrimary::Installed
            }
            Done::Quiet => return None,
        })
    }

    /// Whether `primary` may be granted a lease in `term`: this backup follows it, and no session of a newer one waits.
    pub fn may_grant(&self, primary: ServerId, term: Epoch) -> bool {
        self.waiting.is_none() && self.joined.is_some_and(|joined| joined.primary == primary && joined.term == term)
    }

    /// Stops following, drops queued work, and returns the buffers. No work may be running.
    pub fn retire(&mut self) -> Option<Arc<Mounted>> {
        self.queue.clear();
        (self.waiting, self.begun) = (None, None);
        self.joined = None;
        self.in_sync = false;
        self.mounted.take()
    }

    /// Takes back the buffers that [`Backup::retire`] returned, after a failed promotion.
    pub fn reinstate(&mut self, mounted: Option<Arc<Mounted>>) {
        assert!(self.mounted.is_none(), "no primary is followed meanwhile");
        self.mounted = mounted;
    }

    /// Whether no work is running.
    pub fn is_idle(&self) -> bool {
        self.busy.is_none()
    }
    /// Whether no work waits or runs, and nothing waits for a lease grant to expire.
    pub fn is_settled(&self) -> bool {
        self.busy.is_none() && self.queue.is_empty() && self.waiting.is_none() && self.begun.is_none()
    }
    /// The buffers that the primary writes into.
    pub fn mounted(&self) -> Option<&Arc<Mounted>> {
        self.mounted.as_ref()
    }
    /// The session that it follows.
    pub fn primary_session(&self) -> Option<PrimarySession> {
        self.joined
    }
    /// Whether its base is installed and nothing has failed since.
    pub fn is_in_sync(&self) -> bool {
        self.in_sync
    }
    /// Totals since [`Backup::new`].
    pub fn counters(&self) -> BackupCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
