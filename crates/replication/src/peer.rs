//! One backup or learner, as its primary sees it: a session from the first contact until after it is in sync.
//!
//! ```text
//!   Away --link up--> Opening --Opened--> Basing --base pinned, Base sent, Missing answered--> Syncing
//!     ^                                                       --BaseInstalled, tails confirmed--> InSync
//!     '-- link down, Failed, or an answer owed for too long: the session ends, a new one begins with the link --'
//! ```
//! Every copy is brought in sync in the same way, whether its member survived a failover, returned after a crash or is
//! new: pin a version, ship the segments of it whose ids the copy lacks, mirror the logs from there.

use crate::mirror::{Mirror, MirrorWrite};
use crate::ship::{Parcel, Ship, ShipStep, SlotWrite};
use crate::tail::TailView;
use leeward_format::cluster::{BackupMode, Member, Posting, TableOptions};
use leeward_format::control::{ToBackup, ToPrimary};
use leeward_format::manifest::{Base, InstallEdit};
use leeward_format::{LogKind, Lsn, SegmentId};
use leeward_platform::{Backoff, Nanos};
use std::collections::VecDeque;

/// An action for one peer.
#[derive(Debug)]
pub enum PeerAction {
    /// Send a message of the session.
    Send(ToBackup),
    /// Post a one-sided write of tail bytes to the mirror buffer `buffers[write.buffer()]`.
    Mirror(MirrorWrite),
    /// Post a one-sided write to `slots[write.slot]`.
    Slot(SlotWrite),
    /// The peer has joined the term. Ask it for a lease grant, without which the primary can answer nothing.
    AskLease,
    /// Pin a base for the peer, between compactions; answer with [`Peer::base`].
    PinBase,
    /// Read a segment of the pinned base; answer with [`Peer::loaded`].
    Load(SegmentId),
    /// Release the pinned base.
    UnpinBase,
}

/// How far a peer's session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// No session.
    Away,
    /// Asked to join the term.
    Opening,
    /// Joined. A base is being pinned, or the peer compares the base with its copy.
    Basing,
    /// Segments are being shipped, tails are mirrored.
    Syncing,
    /// Holds everything up to the last confirmed batch.
    InSync,
}

#[derive(Debug)]
struct Session {
    buffers: Vec<Vec<u8>>,
    slots: Vec<Vec<u8>>,
    mirror: Mirror,
    ship: Ship,
    /// Last LSNs of full tails whose records are not all in the index that the peer builds; empty with send-index.
    unapplied: VecDeque<Lsn>,
    priming: Priming,
}

/// How far a peer that builds its index has come with [`ToBackup::Prime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priming {
    NotAsked,
    Asked,
    Done,
}

impl Session {
    /// Notes the full tails that `messages` flush, for a peer that builds its index.
    fn note_flushes(&mut self, messages: &[ToBackup]) {
        let full = messages.iter().filter_map(|message| match message {
            ToBackup::Flush { last_lsn, .. } => Some(*last_lsn),
            _ => None,
        });
        self.unapplied.extend(full);
    }

    /// Whether the peer's index lags as far as is allowed.
    fn is_behind(&self) -> bool {
        self.unapplied.len() >= MOST_UNAPPLIED
    }
}

/// Number of full tails by which a peer's index may lag. At this number no further tail opens, and writers wait (Anthus
/// 3.3.3).
const MOST_UNAPPLIED: usize = 8;

/// How long a peer backs off after failed sessions.
const BACKOFF: Backoff = Backoff { first: Nanos::from_millis(50), most: Nanos::from_millis(6_400) };

/// A backup or learner, as its primary sees it.
#[derive(Debug)]
pub struct Peer {
    /// The member of the group.
    pub member: Member,
    /// It is a backup, not a learner, of the configuration or of a proposed one: it counts for the commit LSN.
    pub counted: bool,
    state: PeerState,
    link_up: bool,
    session_number: u64,
    session: Option<Session>,
    /// How its session keeps its copy.
    backups: BackupMode,
    /// In its session, or in the last one, it gives up the index that it has built: see [`Peer::forget_rebuild`].
    is_anew: bool,
    /// The commit LSN that a peer that builds its index was last told.
    told_commit: Lsn,
    based: bool,
    heard: Nanos,
    away_since: Nanos,
    in_sync_since: Nanos,
    /// No session begins before this time.
    backoff_until: Nanos,
    failures: u32,
    /// It was silent for too long, and has sent nothing since.
    is_silent: bool,
    /// Last LSN that the peer held in sync when its last session ended. It keeps everything up to it.
    held: Lsn,
}

impl Peer {
    /// A peer without a session yet.
    pub fn new(now: Nanos, member: Member, counted: bool) -> Peer {
        Peer {
            member,
            counted,
            state: PeerState::Away,
            link_up: false,
            session_number: 0,
            session: None,
            backups: BackupMode::SendIndex,
            is_anew: false,
            told_commit: Lsn(0),
            based: false,
            heard: now,
            away_since: now,
            in_sync_since: now,
            backoff_until: now,
            failures: 0,
            is_silent: false,
            held: Lsn(0),
        }
    }

    /// The link to the peer came up: a session may begin at once.
    pub fn link_up(&mut self, now: Nanos, out: &mut Vec<PeerAction>) {
        self.end_session(now, out);
        self.link_up = true;
        self.backoff_until = now;
    }

    /// Begins session `number`. With `is_anew` the peer gives up the index that it has built, and takes the primary's.
    pub fn begin(
        &mut self,
        now: Nanos,
        (number, is_anew): (u64, bool),
        options: &TableOptions,
        out: &mut Vec<PeerAction>,
    ) {
        self.session_number = number;
        self.state = PeerState::Opening;
        self.heard = now;
        (self.backups, self.is_anew, self.told_commit) = (options.backups, is_anew, Lsn(0));
        out.push(PeerAction::Send(ToBackup::Open { options: options.clone() }));
    }

    /// The link went down.
    pub fn link_down(&mut self, now: Nanos, out: &mut Vec<PeerAction>) {
        if self.link_up {
            self.link_up = false;
            self.end_session(now, out);
        }
    }

    fn end_session(&mut self, now: Nanos, out: &mut Vec<PeerAction>) {
        if self.state != PeerState::Away {
            self.held = self.confirmed();
            self.state = PeerState::Away;
            self.away_since = now;
            self.backoff_until = now + BACKOFF.after(self.failures);
            self.failures += 1;
            self.session = None;
            self.based = false;
            out.push(PeerAction::UnpinBase);
        }
    }

    /// The peer has been silent for too long. Ends the session, and counts the peer as silent until it sends something.
    pub fn give_up(&mut self, now: Nanos, out: &mut Vec<PeerAction>) {
        self.end_session(now, out);
        self.is_silent = true;
    }

    /// Whether it was given up and has sent nothing since.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Ends the session. A new one may begin after a backoff, if the link is up.
    pub fn fail(&mut self, now: Nanos, out: &mut Vec<PeerAction>) {
        self.end_session(now, out);
    }

    /// The peer refused a write. If the write is one of this session, the session ends.
    pub fn refused(&mut self, now: Nanos, op: u64, out: &mut Vec<PeerAction>) {
        if self.session.as_ref().is_some_and(|session| session.mirror.owns(op) || session.ship.owns(op)) {
            self.end_session(now, out);
        }
    }

    /// Handles a message of session `number`; ignores one of another session.
    ///
    /// # Errors
    /// The reason why the session must end: the peer gave up, or breaks the protocol.
    pub fn message(
        &mut self,
        now: Nanos,
        number: u64,
        message: ToPrimary,
        next_op: &mut dyn FnMut() -> u64,
        out: &mut Vec<PeerAction>,
    ) -> Result<(), String> {
        if number != self.session_number || self.state == PeerState::Away {
            return Ok(());
        }
        (self.heard, self.is_silent) = (now, false);
        if let ToPrimary::Opened { member, buffers, slots, .. } = message {
            return self.opened(member, buffers, slots, out);
        }
        if let ToPrimary::Failed(reason) = message {
            return Err(reason);
        }
        let Some(session) = &mut self.session else {
            return Err(format!("{message:?} before Opened"));
        };
        let expected = match message {
            ToPrimary::Missing(missing) => {
                let asked = self.based && session.ship.compared(missing);
                self.state = PeerState::Syncing;
                asked
            }
            ToPrimary::Flushed { log, index } => session.mirror.flushed(log, index),
            ToPrimary::Stored { slot, .. } => session.ship.stored(slot),
            ToPrimary::BaseInstalled => session.ship.base_installed(),
            ToPrimary::Installed => session.ship.installed(),
            ToPrimary::Applied(lsn) => {
                session.unapplied.retain(|last| *last > lsn);
                self.backups.builds_index()
            }
            ToPrimary::Primed => {
                session.priming = Priming::Done;
                true
            }
            ToPrimary::Opened { .. } | ToPrimary::Failed(_) => unreachable!("answered above"),
        };
        if !expected {
            return Err("an answer to nothing that was asked".into());
        }
        self.pump(next_op, out);
        Ok(())
    }

    fn opened(
        &mut self,
        member: Member,
        buffers: Vec<Vec<u8>>,
        slots: Vec<Vec<u8>>,
        out: &mut Vec<PeerAction>,
    ) -> Result<(), String> {
        if member != self.member {
            return Err(format!("{member:?} answers in place of {:?}", self.member));
        }
        let buffers_needed = 2 * leeward_format::control::MIRROR_BUFFERS as usize;
        if self.state != PeerState::Opening || buffers.len() != buffers_needed || slots.is_empty() {
            return Err(format!("Opened out of turn or with {} buffers, {} slots", buffers.len(), slots.len()));
        }
        self.state = PeerState::Basing;
        let mirror = Mirror::new(Lsn(0), [0, 0]);
        let ship = Ship::new(slots.len());
        self.session =
            Some(Session { buffers, slots, mirror, ship, unapplied: VecDeque::new(), priming: Priming::NotAsked });
        out.extend([PeerAction::AskLease, PeerAction::PinBase]);
        Ok(())
    }

    /// A base was pinned, which has everything up to `last`. The tails from `first_index` on, for each log, are to be
    /// mirrored.
    pub fn base(&mut self, base: Base, last: Lsn, first_index: [u64; 2], out: &mut Vec<PeerAction>) {
        let Some(session) = self.session.as_mut().filter(|_| self.state == PeerState::Basing && !self.based) else {
            out.push(PeerAction::UnpinBase);
            return;
        };
        self.based = true;
        session.mirror = Mirror::new(last, first_index);
        out.push(PeerAction::Send(if self.is_anew { ToBackup::BaseAnew(base) } else { ToBackup::Base(base) }));
    }

    /// A segment of the base was read.
    pub fn loaded(&mut self, parcel: Parcel, next_op: &mut dyn FnMut() -> u64, out: &mut Vec<PeerAction>) {
        if let Some(session) = &mut self.session {
            session.ship.loaded(parcel);
            self.pump(next_op, out);
        }
    }

    /// Whether its session, if it has one, began with this backup mode.
    pub fn keeps_copy_as(&self, backups: BackupMode) -> bool {
        self.state == PeerState::Away || self.backups == backups
    }
    /// Whether it gives up the index that it has built in its session, or did so in the last one.
    pub fn is_anew(&self) -> bool {
        self.is_anew
    }
    /// The outcome of that session is known.
    pub fn forget_rebuild(&mut self) {
        self.is_anew = false;
    }
    /// Whether compactions that start now must be shipped to it: its base is pinned already.
    pub fn is_shipped_to(&self) -> bool {
        self.based && self.backups.ships_index()
    }
    /// Tells a peer that builds its index what is committed.
    pub fn committed(&mut self, lsn: Lsn, out: &mut Vec<PeerAction>) {
        if self.backups.builds_index() && self.state == PeerState::InSync && self.told_commit < lsn {
            self.told_commit = lsn;
            out.push(PeerAction::Send(ToBackup::Committed(lsn)));
        }
    }
    /// Whether the peer has little to replay if it becomes the primary. One that builds its index is asked to see to it.
    pub fn prime(&mut self, out: &mut Vec<PeerAction>) -> bool {
        let Some(session) = self.session.as_mut().filter(|_| self.backups.builds_index()) else { return true };
        if session.priming == Priming::NotAsked {
            session.priming = Priming::Asked;
            out.push(PeerAction::Send(ToBackup::Prime));
        }
        session.priming == Priming::Done
    }
    /// The peer may have much to replay again: [`Peer::prime`] asks anew.
    pub fn forget_priming(&mut self) {
        if let Some(session) = &mut self.session {
            session.priming = Priming::NotAsked;
        }
    }
    /// Highest index of a tail of `log` that this peer lets the primary open; `None` if the peer mirrors nothing.
    pub fn window(&self, log: LogKind) -> Option<u64> {
        let session = self.session.as_ref().filter(|_| self.based)?;
        Some(if session.is_behind() { session.mirror.newest(log) } else { session.mirror.window(log) })
    }
    /// Whether a base must be pinned for it.
    pub fn wants_base(&self) -> bool {
        self.state == PeerState::Basing && !self.based
    }
    /// Whether a session may begin: the peer is away, its link is up, and its backoff after failures is over. Each
    /// attempt costs the primary a seal of its tails, so the backoff grows with each failure.
    pub fn may_begin(&self, now: Nanos) -> bool {
        self.state == PeerState::Away && self.link_up && now >= self.backoff_until
    }
    /// A session could begin, but sessions of other regions with the same server go first. The server answered one of
    /// them at `heard`; the peer does not count as away before that.
    pub fn wait(&mut self, heard: Nanos) {
        self.away_since = self.away_since.max(heard);
    }
    /// Whether a session has begun in which the peer is not in sync yet.
    pub fn is_joining(&self) -> bool {
        !matches!(self.state, PeerState::Away | PeerState::InSync)
    }

    /// The session, if compactions are shipped in it.
    fn shipping(&mut self) -> Option<&mut Session> {
        self.session.as_mut().filter(|_| self.based && self.backups.ships_index())
    }

    /// Ships a segment that a compaction built.
    pub fn ship(&mut self, parcel: Parcel, next_op: &mut dyn FnMut() -> u64, out: &mut Vec<PeerAction>) {
        if let Some(session) = self.shipping() {
            session.ship.segment(parcel);
            self.pump(next_op, out);
        }
    }

    /// Ships the edit that ends a compaction.
    pub fn install(&mut self, edit: InstallEdit, next_op: &mut dyn FnMut() -> u64, out: &mut Vec<PeerAction>) {
        if let Some(session) = self.shipping() {
            session.ship.install(edit);
            self.pump(next_op, out);
        }
    }

    /// Tells the peer to free segments of a compaction that was given up.
    pub fn discard(&mut self, ids: Vec<SegmentId>, next_op: &mut dyn FnMut() -> u64, out: &mut Vec<PeerAction>) {
        if let Some(session) = self.shipping() {
            session.ship.discard(ids);
            self.pump(next_op, out);
        }
    }

    /// Posts what is new in the tails, up to an LSN. See [`Mirror::post`].
    pub fn post(
        &mut self,
        news: (&[TailView<'_>], Lsn),
        posting: Posting,
        next_op: &mut dyn FnMut() -> u64,
        out: &mut Vec<PeerAction>,
    ) {
        let Some(session) = self.session.as_mut().filter(|_| self.based) else { return };
        let (mut writes, mut messages) = (Vec::new(), Vec::new());
        session.mirror.post(news, posting, next_op, &mut writes, &mut messages);
        if self.backups.builds_index() {
            session.note_flushes(&messages);
        }
        out.extend(messages.into_iter().map(PeerAction::Send));
        out.extend(writes.into_iter().map(PeerAction::Mirror));
    }

    /// A write completed. Returns whether it belongs to this peer's session.
    pub fn complete(
        &mut self,
        now: Nanos,
        op: u64,
        next_op: &mut dyn FnMut() -> u64,
        out: &mut Vec<PeerAction>,
    ) -> bool {
        let Some(session) = &mut self.session else { return false };
        let mut messages = Vec::new();
        let mine = session.mirror.complete(op, &mut messages)
            || session.ship.complete(op).map(|shipped| messages.extend(shipped)).is_some();
        if self.backups.builds_index() {
            session.note_flushes(&messages);
        }
        out.extend(messages.into_iter().map(PeerAction::Send));
        if mine {
            self.heard = now;
            self.pump(next_op, out);
        }
        mine
    }

    fn pump(&mut self, next_op: &mut dyn FnMut() -> u64, out: &mut Vec<PeerAction>) {
        let Some(session) = &mut self.session else { return };
        if !matches!(self.state, PeerState::Syncing | PeerState::InSync) {
            return;
        }
        out.extend(session.ship.pump(next_op).into_iter().map(|step| match step {
            ShipStep::Write(write) => PeerAction::Slot(write),
            ShipStep::Send(message) => PeerAction::Send(message),
            ShipStep::Load(id) => PeerAction::Load(id),
        }));
        if self.state == PeerState::Syncing && session.ship.is_base_installed() {
            self.state = PeerState::InSync;
            self.in_sync_since = self.heard;
            self.failures = 0;
            out.push(PeerAction::UnpinBase);
        }
    }

    /// State of its session.
    pub fn state(&self) -> PeerState {
        self.state
    }
    /// The session that messages to it belong to.
    pub fn session_number(&self) -> u64 {
        self.session_number
    }
    /// Descriptor of a mirror buffer.
    pub fn buffer(&self, index: usize) -> Option<&[u8]> {
        self.session.as_ref()?.buffers.get(index).map(Vec::as_slice)
    }
    /// Descriptor of a ship slot.
    pub fn slot(&self, index: usize) -> Option<&[u8]> {
        self.session.as_ref()?.slots.get(index).map(Vec::as_slice)
    }
    /// The mirror of its tails, once its base is pinned.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.session.as_ref().filter(|_| self.based).map(|session| &session.mirror)
    }
    /// The last LSN that it confirmed in sync: 0 until it was in sync for the first time.
    pub fn confirmed(&self) -> Lsn {
        match (&self.session, self.state) {
            (Some(session), PeerState::InSync) => session.mirror.completed_lsn().max(self.held),
            _ => self.held,
        }
    }
    /// The last LSN posted to it such that at most `most` bytes up to it are not confirmed: 0 until it was in sync for
    /// the first time.
    pub fn issued(&self, most: u64) -> Lsn {
        match (&self.session, self.state) {
            (Some(session), PeerState::InSync) => session.mirror.posted_within(most).max(self.held),
            _ => self.held,
        }
    }
    /// Whether this peer has room for a compaction's next segment.
    pub fn has_room(&self) -> bool {
        self.session.as_ref().filter(|_| self.based).is_none_or(|session| session.ship.has_room())
    }
    /// Whether it has installed all compactions that were shipped in its session.
    pub fn has_installed(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.ship.has_installed())
    }
    /// How many segments it has not stored yet.
    pub fn segments_to_ship(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.ship.pending())
    }
    /// How many segments it lacked when its session began, and how many of them were not sent yet.
    pub fn progress(&self) -> (u64, u64) {
        self.session.as_ref().map_or((0, 0), |session| session.ship.progress())
    }
    /// Returns how long the peer has been silent while it owed an answer, or how long it has been away. A peer that
    /// owes nothing counts as heard from at `now`.
    pub fn silence(&mut self, now: Nanos) -> Nanos {
        let owes = match (self.state, &self.session) {
            (PeerState::Away, _) => return now - self.away_since,
            (PeerState::Opening, _) => true,
            (PeerState::Basing, _) => self.based,
            (_, Some(session)) => session.is_behind() || session.mirror.owes_answer() || session.ship.owes_answer(),
            (_, None) => unreachable!("a peer that is syncing has a session"),
        };
        if !owes {
            self.heard = now;
        }
        now - self.heard
    }
    /// Whether it is in sync over a link that is up, has everything up to `last`, and owes no answer.
    pub fn is_idle(&self, last: Lsn) -> bool {
        let is_told = self.backups.ships_index() || self.told_commit >= last;
        let is_in_sync = self.link_up && self.state == PeerState::InSync && !self.is_silent;
        let owes =
            |session: &Session| session.is_behind() || session.mirror.owes_answer() || session.ship.owes_answer();
        is_in_sync && is_told && self.confirmed() >= last && self.session.as_ref().is_some_and(|session| !owes(session))
    }
    /// Since when it is in sync over a link that is up; `None` if it is not.
    pub fn in_sync_since(&self) -> Option<Nanos> {
        (self.link_up && self.state == PeerState::InSync).then_some(self.in_sync_since)
    }
    /// Whether its link is up.
    pub fn is_linked(&self) -> bool {
        self.link_up
    }
    /// How many sessions have ended since it was last in sync.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
