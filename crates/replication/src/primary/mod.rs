//! A replica group as its primary sees it: which members must confirm a write, which configuration to propose next,
//! which leases it holds.
//!
//! Invariants, after PacificA:
//! - A write is committed when enough members have it: as many as the table's quorum says, or all. This must hold in
//!   the configuration and in one that is about to be proposed. It must also hold in each configuration that was
//!   proposed since, because an unanswered compare-and-set may still succeed.
//! - A configuration is proposed only once enough of its members have all that is committed. So a learner never counts
//!   for records that it lacks, and no committed record is lost with a removed backup.
//! - A new primary serves nothing until every counted peer has installed its base. So no later promotion can undo what
//!   it exposes.
//! - While a primary serves, it holds lease grants of as many members as must have a write ([`crate::lease`]). With a
//!   quorum, some members granted no lease. But another member becomes primary only after it has heard from so many
//!   members that one of them granted this lease ([`crate::candidate`]).

mod departure;
mod floor;
mod idle;
mod ops;
mod readable;
mod rebuild;
mod split;

use crate::Timing;
use crate::lease::{Lease, SchedulingGap};
use crate::peer::{Peer, PeerAction, PeerState};
use crate::ship::Parcel;
use crate::tail::TailView;
use floor::FloorDue;
use leeward_format::cluster::{Acknowledge, GroupConfig, Intent, Member, TableOptions};
use leeward_format::control::ToPrimary;
use leeward_format::manifest::{Base, InstallEdit};
use leeward_format::{LogKind, Lsn, SegmentId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use ops::OfGroup;
pub use ops::Ops;
use std::collections::BTreeMap;

/// An action that a primary asks its caller for.
#[derive(Debug)]
pub enum PrimaryAction {
    /// Execute an action for one peer.
    Peer {
        /// Where the backup or learner runs.
        server: ServerId,
        /// The session that the action belongs to.
        session: u64,
        /// Most often a message to send, or a write to post.
        action: PeerAction,
    },
    /// Ask the coordinator to replace the configuration, by compare-and-set.
    Propose(GroupConfig),
    /// Ask the coordinator to replace the configuration and to create a region, atomically.
    Split {
        /// The new configuration of this region.
        left: Box<GroupConfig>,
        /// The configuration of the region that is created.
        right: Box<GroupConfig>,
    },
    /// Ask the coordinator to replace the configuration and to end a region, atomically.
    Merge {
        /// The new configuration of this region.
        wider: Box<GroupConfig>,
        /// The configuration of the region that ends, the merge source.
        source: Box<GroupConfig>,
    },
}

/// A replica group, as its primary sees it.
#[derive(Debug)]
pub struct Primary {
    config: GroupConfig,
    options: TableOptions,
    timing: Timing,
    ops: Ops,
    peers: BTreeMap<ServerId, Peer>,
    lease: Lease,
    scheduling_gap: SchedulingGap,
    next_session: u64,
    floor: FloorDue,
    /// Everything up to here is committed.
    committed: Lsn,
    /// To be proposed once enough of its members have all that is committed.
    intent: Option<GroupConfig>,
    /// Proposed successors of the configuration, any of which may be in force.
    proposed: Vec<GroupConfig>,
    proposing: bool,
    /// Members that should leave.
    departing: BTreeMap<ServerId, Intent>,
    /// The backup that is to give up the index that it has built.
    rebuilding: Option<ServerId>,
    /// See [`Primary::readable_until`].
    readable_until: Nanos,
    actions: Vec<PrimaryAction>,
}

/// Failed sessions in a row after which a counted peer is proposed for removal.
const MAX_FAILED_SESSIONS: u32 = 3;

impl Primary {
    /// The primary of `config`. The outgoing links to `linked` are up. `ops` names its writes.
    pub fn new(
        now: Nanos,
        config: GroupConfig,
        options: TableOptions,
        (timing, ops): (Timing, Ops),
        linked: &[ServerId],
    ) -> Primary {
        let mut primary = Primary {
            config,
            options,
            timing,
            ops,
            peers: BTreeMap::new(),
            lease: Lease::default(),
            scheduling_gap: SchedulingGap::new(now),
            next_session: 1,
            floor: FloorDue::new(now),
            committed: Lsn(0),
            intent: None,
            proposed: Vec::new(),
            proposing: false,
            departing: BTreeMap::new(),
            rebuilding: None,
            readable_until: Nanos::ZERO,
            actions: Vec::new(),
        };
        primary.follow_config(now, linked);
        primary
    }

    /// Options of the region's table.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// The table's options were changed. A peer keeps the backup mode of its session until [`Primary::tick`] converts
    /// it.
    pub fn set_options(&mut self, options: TableOptions) {
        self.options = options;
    }

    /// Actions since the last call.
    pub fn take_actions(&mut self) -> Vec<PrimaryAction> {
        std::mem::take(&mut self.actions)
    }

    /// A newer configuration of the same term was read; the outgoing links to `linked` are up.
    pub fn reconfigure(&mut self, now: Nanos, config: GroupConfig, linked: &[ServerId]) {
        assert_eq!(config.term, self.config.term, "another term is another primary");
        if config.epoch > self.config.epoch {
            self.config = config;
            self.intent = None;
            self.proposed.clear();
            self.follow_config(now, linked);
        }
    }

    fn follow_config(&mut self, now: Nanos, linked: &[ServerId]) {
        let wanted: BTreeMap<ServerId, (Member, bool)> = (self.config.learners.iter().map(|m| (m.server, (*m, false))))
            .chain(self.config.backups.iter().map(|m| (m.server, (*m, true))))
            .collect();
        let gone: Vec<ServerId> = self
            .peers
            .iter()
            .filter(|(server, peer)| wanted.get(server).is_none_or(|(member, _)| *member != peer.member))
            .map(|(server, _)| *server)
            .collect();
        for server in gone {
            self.with_peer(server, |peer, _, out| peer.fail(now, out));
            self.peers.remove(&server);
            self.lease.forget(server);
        }
        for (server, (member, counted)) in wanted {
            self.peers.entry(server).or_insert_with(|| Peer::new(now, member, counted)).counted = counted;
        }
        for server in linked {
            if self.peers.get(server).is_some_and(|peer| !peer.is_linked()) {
                self.link(now, *server, true);
            }
        }
    }

    fn with_peer<T>(
        &mut self,
        server: ServerId,
        act: impl FnOnce(&mut Peer, &OfGroup<'_>, &mut Vec<PeerAction>) -> T,
    ) -> Option<T> {
        let peer = self.peers.get_mut(&server)?;
        let mut out = Vec::new();
        let before = peer.session_number();
        let of_group = OfGroup { region: self.config.region, options: &self.options, ops: &self.ops };
        let answer = act(peer, &of_group, &mut out);
        let after = peer.session_number();
        self.actions.extend(out.into_iter().map(|action| {
            let session = if matches!(action, PeerAction::UnpinBase) { before } else { after };
            PrimaryAction::Peer { server, session, action }
        }));
        Some(answer)
    }

    /// The outgoing link to `server` came up or went down.
    pub fn link(&mut self, now: Nanos, server: ServerId, up: bool) {
        self.with_peer(server, |peer, _, out| match up {
            true => peer.link_up(now, out),
            false => peer.link_down(now, out),
        });
    }

    /// Servers with which sessions may begin, and whether each counts, so that writes wait for it.
    pub fn due_sessions(&mut self, now: Nanos) -> Vec<(ServerId, bool)> {
        self.end_rebuild();
        let due = self.peers.iter().filter(|(_, peer)| peer.may_begin(now));
        due.map(|(server, peer)| (*server, peer.counted)).collect()
    }

    /// Begins a session with a server, if it may begin still. An error means that other sessions with that server go first, and
    /// says when the server was last heard from.
    pub fn begin_session(&mut self, now: Nanos, server: ServerId, place: Result<(), Nanos>) {
        let Some(peer) = self.peers.get_mut(&server).filter(|peer| peer.may_begin(now)) else { return };
        if let Err(heard) = place {
            return peer.wait(heard);
        }
        let session = self.next_session;
        self.next_session += 1;
        let is_anew = self.rebuilding == Some(server);
        self.with_peer(server, |peer, with, out| peer.begin(now, (session, is_anew), with.options, out));
    }

    /// Peers whose session has begun and that are not in sync yet.
    pub fn joining(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values().filter(|peer| peer.is_joining())
    }

    /// Handles a message of a peer.
    pub fn message(&mut self, now: Nanos, from: ServerId, session: u64, message: ToPrimary) {
        let region = self.config.region;
        let failed = self.with_peer(from, |peer, with, out| {
            let outcome = peer.message(now, session, message, &mut || with.op(), out);
            outcome.inspect_err(|_| peer.fail(now, out)).err()
        });
        if let Some(Some(reason)) = failed {
            tracing::warn!(%region, server = %from, reason, "session with a backup ended");
        }
    }

    /// A one-sided write completed.
    pub fn complete(&mut self, now: Nanos, from: ServerId, op: u64) {
        self.with_peer(from, |peer, with, out| peer.complete(now, op, &mut || with.op(), out));
    }

    /// A peer refused a write: it has given up the buffers of this session.
    pub fn refused(&mut self, now: Nanos, from: ServerId, op: u64) {
        self.with_peer(from, |peer, _, out| peer.refused(now, op, out));
    }

    /// A base was pinned for a peer. See [`Peer::base`].
    pub fn base(&mut self, server: ServerId, base: Base, last: Lsn, first_index: [u64; 2]) {
        self.with_peer(server, |peer, _, out| peer.base(base, last, first_index, out));
    }

    /// A segment of a base was read for a session of a peer.
    pub fn loaded(&mut self, server: ServerId, session: u64, parcel: Parcel) {
        self.with_peer(server, |peer, with, out| {
            if peer.session_number() == session {
                peer.loaded(parcel, &mut || with.op(), out);
            }
        });
    }

    /// A segment of a base could not be read for a session of a peer: the session cannot go on.
    pub fn load_failed(&mut self, now: Nanos, server: ServerId, session: u64) {
        self.with_peer(server, |peer, _, out| {
            if peer.session_number() == session {
                peer.fail(now, out);
            }
        });
    }

    /// Peers that wait for a base.
    pub fn wants_base(&self) -> Vec<ServerId> {
        self.peers.iter().filter(|(_, peer)| peer.wants_base()).map(|(server, _)| *server).collect()
    }

    /// Ships a segment that a compaction built to every send-index peer whose base is pinned. Returns to how many.
    pub fn ship(&mut self, parcel: &Parcel) -> u64 {
        let based: Vec<ServerId> =
            self.peers.iter().filter(|(_, p)| p.is_shipped_to()).map(|(server, _)| *server).collect();
        for server in &based {
            self.with_peer(*server, |peer, with, out| peer.ship(parcel.clone(), &mut || with.op(), out));
        }
        based.len() as u64
    }

    /// Whether compactions that start now are shipped to at least one peer.
    pub fn is_shipping(&self) -> bool {
        self.peers.values().any(Peer::is_shipped_to)
    }

    /// Ships the edit that ends a compaction.
    pub fn ship_install(&mut self, edit: &InstallEdit) {
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            self.with_peer(server, |peer, with, out| peer.install(edit.clone(), &mut || with.op(), out));
        }
    }

    /// Tells every peer to free segments of a compaction that was given up.
    pub fn ship_discard(&mut self, ids: &[SegmentId]) {
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            self.with_peer(server, |peer, with, out| peer.discard(ids.to_vec(), &mut || with.op(), out));
        }
    }

    /// Posts what is new in the tails to every peer, as the table's options say.
    pub fn post(&mut self, tails: &[TailView<'_>], last: Lsn) {
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            self.with_peer(server, |peer, with, out| {
                peer.post((tails, last), with.options.posting, &mut || with.op(), out);
            });
        }
    }

    /// Time passed: gives up silent sessions, proposes changes, and converts peers to the table's options. Tells
    /// build-index peers that everything up to `commit` is committed.
    pub fn tick(&mut self, now: Nanos, commit: Lsn) {
        self.end_rebuild();
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            self.with_peer(server, |peer, _, out| peer.committed(commit, out));
        }
        self.scheduling_gap.look(now, self.timing.scheduling_gap());
        let failed = self.give_up_the_silent(now);
        let failed = failed.iter().filter_map(|server| self.peers.get(server)).filter(|peer| peer.counted);
        // With a quorum, the member with the shortest copy goes first: enough of the others have what is committed.
        let failed = failed.min_by_key(|peer| peer.confirmed());
        let without_failed = failed.map(|peer| self.config.without(peer.member));
        let next = without_failed.or_else(|| self.settlement()).or_else(|| self.with_a_learner_in_sync());
        let next = next
            .or_else(|| self.without_departing_backup())
            .or_else(|| self.convert_a_peer(now))
            .or_else(|| self.raise_floor(now));
        self.pursue(now, next);
    }

    /// Ends sessions with peers that have been silent for too long; returns the peers that failed.
    fn give_up_the_silent(&mut self, now: Nanos) -> Vec<ServerId> {
        let mut failed = Vec::new();
        for server in self.peers.keys().copied().collect::<Vec<_>>() {
            let peer = self.peers.get_mut(&server).expect("the keys were just listed");
            let silence = peer.silence(now);
            let timeout = if peer.is_linked() { self.timing.answer_timeout } else { self.timing.link_timeout };
            let (is_silent, is_away) = (silence > timeout, peer.state() == PeerState::Away);
            let has_failed = is_silent || peer.is_silent() || peer.failures() >= MAX_FAILED_SESSIONS;
            if has_failed || self.breaks_lease_grants(now, server) {
                failed.push(server);
            }
            if is_silent && !is_away {
                tracing::warn!(region = %self.config.region, %server, silence_ms = silence.as_millis(), "backup is silent");
                self.with_peer(server, |peer, _, out| peer.give_up(now, out));
            }
        }
        failed
    }

    /// Whether a member in sync no longer renews its lease grant, though one-sided writes into its memory may still
    /// complete: its process is stopped, or cannot be reached. If enough other members are in sync, it is removed
    /// before its last grant expires, so that no answer waits for it. Pauses of this node do not count. With a quorum,
    /// no answer waits for one member.
    fn breaks_lease_grants(&self, now: Nanos, server: ServerId) -> bool {
        let Some(sign) = self.last_sign(&self.peers[&server]) else { return false };
        let (in_sync, needed) = self.in_sync();
        self.options.quorum.is_none() && in_sync > needed && now - sign > self.timing.lease_grant_timeout
    }

    /// The time of the last sign that a counted member renews its lease grant; `None` if it is not in sync. A later
    /// begin of being in sync, or end of a pause of this node, counts as a sign.
    fn last_sign(&self, peer: &Peer) -> Option<Nanos> {
        let in_sync_since = peer.in_sync_since().filter(|_| peer.counted)?;
        Some(self.lease.asked(peer.member.server).max(in_sync_since).max(self.scheduling_gap.since()))
    }

    /// The settled configuration (no prior members, no recovery quorum), if it is due. What this primary took over was
    /// durable before it became primary. If it had to hear from other members first, they have it now, too.
    fn settlement(&self) -> Option<GroupConfig> {
        let is_due = self.config.recovery_quorum == 0 || self.is_complete();
        let is_settled = self.config.recovery_quorum == 0 && self.config.prior_members.is_empty();
        (is_due && !is_settled).then(|| self.floor.raise(self.config.settled()))
    }

    fn with_a_learner_in_sync(&self) -> Option<GroupConfig> {
        let is_ready = |peer: &Peer| peer.state() == PeerState::InSync && !self.must_begin_anew(peer);
        let ready = |member: &&Member| {
            !self.departing.contains_key(&member.server) && self.peers.get(&member.server).is_some_and(is_ready)
        };
        let learner = self.config.learners.iter().find(ready).filter(|_| self.config.recovery_quorum == 0)?;
        Some(self.floor.raise(self.config.with_backup(*learner)))
    }

    /// Whether a peer's session is not the one that is wanted: it has another backup mode, or keeps an index that the
    /// peer is to give up.
    fn must_begin_anew(&self, peer: &Peer) -> bool {
        !peer.keeps_copy_as(self.options.backups) || self.must_rebuild(peer)
    }

    /// Converts one peer after the other to the backup mode of the table's options, or has it take this member's index.
    /// If enough members are in sync without it, the peer leaves the group meanwhile, so that no write waits. Otherwise
    /// writes wait until it is in sync again.
    fn convert_a_peer(&mut self, now: Nanos) -> Option<GroupConfig> {
        if let Some(learner) = self.peers.values().find(|peer| !peer.counted && self.must_begin_anew(peer)) {
            let server = learner.member.server;
            self.with_peer(server, |peer, _, out| peer.fail(now, out));
            return None;
        }
        if self.proposing || !self.may_open() || !self.config.learners.is_empty() {
            // Peers that are out of sync must finish first: meanwhile the group has fewer members that can be promoted.
            return None;
        }
        let member = self.peers.values().find(|peer| self.must_begin_anew(peer))?.member;
        let (in_sync, needed) = self.in_sync();
        if in_sync > needed {
            return Some(self.config.without(member));
        }
        self.with_peer(member.server, |peer, _, out| peer.fail(now, out));
        None
    }

    /// Proposes `next`, once enough of its members have what is committed, and have granted leases for as long as clients
    /// may rely on them. Until then, nothing that they do not have is committed.
    fn pursue(&mut self, now: Nanos, next: Option<GroupConfig>) {
        if self.proposing {
            return;
        }
        let has_all = |next: &GroupConfig| self.agreed_in(next, Lsn(u64::MAX), &Peer::confirmed) >= self.committed;
        let is_safe = next.as_ref().is_some_and(|next| has_all(next) && self.may_be_read_under(now, next));
        self.intent = next;
        let Some(next) = self.intent.take_if(|_| is_safe) else { return };
        for backup in &next.backups {
            self.peers.get_mut(&backup.server).expect("members have peers").counted = true;
        }
        if !self.proposed.contains(&next) {
            self.proposed.push(next.clone());
        }
        self.proposing = true;
        self.actions.push(PrimaryAction::Propose(next));
    }

    /// The coordinator answered a proposal, or will not. The outcome comes only with [`Primary::reconfigure`].
    pub fn proposal_ended(&mut self) {
        self.proposing = false;
    }

    /// A peer granted the lease that was requested at `sent`, for `lasts`.
    pub fn lease_granted(&mut self, server: ServerId, sent: Nanos, lasts: Nanos) {
        if self.peers.contains_key(&server) {
            self.lease.granted(server, sent, lasts);
        }
    }

    /// This machine's clock may have been stopped. Forgets the grants so far, and how long peers have not renewed them.
    pub fn clock_doubted(&mut self, now: Nanos) {
        self.lease.forget_all();
        self.scheduling_gap = SchedulingGap::new(now);
    }

    /// The configuration, and all configurations that may have taken its place or are about to.
    fn configs(&self) -> impl Iterator<Item = &GroupConfig> {
        std::iter::once(&self.config).chain(&self.proposed).chain(&self.intent)
    }

    /// Whether the lease grant of `server` is valid beyond `now`. Until the grant expires, or `server` learns that it
    /// was released, that member joins no newer term.
    pub fn has_grant_of(&self, now: Nanos, server: ServerId) -> bool {
        self.lease.is_valid(now, server)
    }

    /// Whether the primary holds its lease: no other member can have become primary before `now`.
    pub fn holds_lease(&self, now: Nanos) -> bool {
        self.configs().all(|config| {
            let granted = config.backups.iter().filter(|backup| self.lease.is_valid(now, backup.server)).count();
            1 + granted >= self.options.needed_of(1 + config.backups.len())
        })
    }

    /// The commit LSN: the last LSN that enough members hold. This member holds all up to `appended`. The commit LSN
    /// never decreases, even while the session of a member begins anew.
    pub fn commit(&mut self, appended: Lsn) -> Lsn {
        let agreed = match planted(Bug::AcknowledgeBeforeCompletion) {
            true => appended,
            false => self.agreed(appended, Peer::confirmed),
        };
        self.committed = self.committed.max(agreed);
        self.committed
    }

    /// Last LSN whose write may be acknowledged. With [`Acknowledge::LastFlush`] it may be beyond the commit LSN, and
    /// the records between may be lost with this primary: use it for nothing but answers.
    pub fn acknowledged(&self, appended: Lsn) -> Lsn {
        match self.options.acknowledge {
            Acknowledge::LastWrite => self.committed,
            Acknowledge::LastFlush => {
                let issued = self.agreed(appended, |peer| peer.issued(self.options.max_unacked_bytes));
                issued.max(self.committed)
            }
        }
    }

    /// The highest LSN that enough members reach by `lsn`, in every configuration that may be in force.
    fn agreed(&self, own: Lsn, lsn: impl Fn(&Peer) -> Lsn) -> Lsn {
        self.configs().map(|config| self.agreed_in(config, own, &lsn)).min().expect("there is a configuration")
    }

    fn agreed_in(&self, config: &GroupConfig, own: Lsn, lsn: &impl Fn(&Peer) -> Lsn) -> Lsn {
        let needed = self.options.needed_of(1 + config.backups.len());
        let reached = |backup: &Member| match self.peers.get(&backup.server) {
            Some(peer) if planted(Bug::AcknowledgeWithFailedMember) && !peer.is_linked() => own,
            Some(peer) if peer.member == *backup => lsn(peer).min(own),
            _ => Lsn(0),
        };
        let all = || config.backups.iter().map(reached).chain([own]);
        let is_agreed = |one: &Lsn| all().filter(|other| other >= one).count() >= needed;
        all().filter(is_agreed).max().expect("all have what the one has that has the least")
    }

    /// Whether every counted peer has installed its base.
    pub fn is_complete(&self) -> bool {
        self.peers.values().filter(|peer| peer.counted).all(|peer| peer.state() == PeerState::InSync)
    }

    /// Whether the primary may serve. Every counted peer has installed its base, and the configuration is settled: no
    /// recovery quorum is needed for the next promotion.
    pub fn may_open(&self) -> bool {
        self.is_complete() && self.config.recovery_quorum == 0
    }

    /// Highest index of a tail of `log` that may open. The primary itself has flushed its tails below
    /// `own_flushed_below`.
    pub fn window(&self, log: LogKind, own_flushed_below: u64) -> u64 {
        let own = own_flushed_below + leeward_format::control::MIRROR_BUFFERS - 1;
        self.peers
            .values()
            .filter_map(|peer| peer.window(log))
            .min()
            .unwrap_or(own)
            .min(if planted(Bug::ReuseTailBeforeFlush) { u64::MAX } else { own })
    }

    /// Tails of `log` below this index are durable at every peer that mirrors; `u64::MAX` if none does.
    pub fn flushed_below(&self, log: LogKind) -> u64 {
        self.peers.values().filter_map(Peer::mirror).map(|m| m.flushed_below(log)).min().unwrap_or(u64::MAX)
    }

    /// Whether a compaction may build its next segment.
    pub fn has_room(&self) -> bool {
        self.peers.values().all(Peer::has_room)
    }

    /// How many members the configuration counts as in sync, this one included, and the least number that the table
    /// asks for (`min_in_sync`).
    pub fn in_sync(&self) -> (u32, u32) {
        (1 + self.config.backups.len() as u32, self.options.min_in_sync)
    }

    /// The configuration that it serves in.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }
    /// Backups and learners, by ids of their servers.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }
    /// The peer on `server`.
    pub fn peer(&self, server: ServerId) -> Option<&Peer> {
        self.peers.get(&server)
    }
}

#[cfg(test)]
mod tests;
