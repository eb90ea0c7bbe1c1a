//! The primary's side of replication: what backups say to it, and what its state machine has the node do.
//!
//! Belongs to the node's thread.

use super::{Holding, RegionMachine};
use crate::effects::{Effect, Proposal, ProposedChange, Session, Step, WantedSegment};
use crate::input::Turn;
use crate::serving::Serving;
use leeward_fabric::Descriptor;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::control::{Control, ToPrimary};
use leeward_format::{Epoch, SegmentId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_platform::planted::{Bug, planted};
use leeward_replication::candidate::{self, Candidate};
use leeward_replication::peer::PeerAction;
use leeward_replication::primary::PrimaryAction;

/// The primary of `term` no longer answers operations. If `config` says that it handed its role over, no member need wait for its
/// leases: it releases them.
pub(super) fn release_leases(me: Member, config: &GroupConfig, term: Epoch, step: &mut Step<'_>) {
    if config.released_term() == Some(term) {
        for member in config.members().filter(|member| *member != me) {
            let message = Control::Released { regions: vec![(config.region, term)] };
            step.ask(Effect::SendUrgent { to: member.server, message });
        }
    }
}

impl RegionMachine {
    /// A backup's message.
    pub(crate) fn hear_backup(
        &mut self,
        from: ServerId,
        (term, session): (Epoch, u64),
        body: ToPrimary,
        step: &mut Step<'_>,
    ) {
        if let Some(serving) = self.serving().filter(|serving| serving.term() == term) {
            serving.primary_mut().message(step.now, from, session, body);
            self.act_as_primary(step);
        } else if session == candidate::SESSION {
            self.hear_candidate(term, &body);
        }
    }

    /// Ends a turn, if the region is served here.
    pub(super) fn end_turn(&mut self, Turn { is_synced, is_alone, obstacle }: Turn, step: &mut Step<'_>) {
        let now = step.now;
        let Some(serving) = self.serving() else { return };
        serving.reshape_mut().set_alone(is_alone);
        serving.resume(now);
        serving.turn(now, &mut step.effects.answers);
        if serving.quiesce(now, is_synced, obstacle) {
            serving.turn(now, &mut step.effects.answers);
        }
        if serving.is_being_reshaped() {
            step.ask(Effect::IsReshaped);
        }
        if serving.wants_turn(now) {
            step.ask(Effect::WantsTurn);
        }
        self.act_as_primary(step);
    }

    /// A member has granted a lease.
    pub(super) fn lease_granted(
        &mut self,
        server: ServerId,
        term: Epoch,
        (sent, lasts): (Nanos, Nanos),
        step: &mut Step<'_>,
    ) {
        if let Some(serving) = self.serving().filter(|serving| serving.term() == term) {
            serving.primary_mut().lease_granted(server, sent, lasts);
            serving.extend_direct_reads(step.now);
        }
    }

    /// The region is to be marked as one that may hold keys of another.
    pub(super) fn hold_more(&mut self, step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.primary_mut().hold_more();
            self.act_as_primary(step);
        }
    }

    /// A segment that a learner lacks may be read now.
    pub(crate) fn load(&mut self, server: ServerId, session: u64, id: SegmentId, step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.load(server, session, id);
            self.act_as_primary(step);
        }
    }

    /// The link to a server came up, or went down.
    pub(crate) fn link_changed(&mut self, server: ServerId, up: bool, step: &mut Step<'_>) {
        if let Some(serving) = self.serving() {
            serving.primary_mut().link(step.now, server, up);
            self.act_as_primary(step);
        }
        if up {
            self.backup.link_up(server);
            self.act_as_backup(step);
        }
    }

    /// A one-sided write has ended.
    pub(crate) fn write_ended(&mut self, server: ServerId, op: u64, is_refused: bool, step: &mut Step<'_>) {
        let Some(serving) = self.serving() else { return };
        match is_refused {
            false => serving.primary_mut().complete(step.now, server, op),
            true => serving.primary_mut().refused(step.now, server, op),
        }
        self.act_as_primary(step);
    }

    /// A proposal of the primary, or of the candidate, ended.
    pub(crate) fn proposal_ended(&mut self, now: Nanos, is_accepted: bool) {
        match &mut self.holding {
            Holding::Serving(serving) => serving.proposal_ended(now, is_accepted),
            _ => self.candidate.iter_mut().for_each(Candidate::proposal_ended),
        }
    }

    /// Executes the actions of the primary's state machine, and asks for places for sessions that are due.
    pub(crate) fn act_as_primary(&mut self, step: &mut Step<'_>) {
        let Holding::Serving(serving) = &mut self.holding else { return };
        let due = serving.due_sessions(step.now);
        self.execute_actions(step);
        if let Holding::Serving(serving) = &mut self.holding {
            serving.ask_places(due, step);
        }
    }

    fn execute_actions(&mut self, step: &mut Step<'_>) {
        let Holding::Serving(serving) = &mut self.holding else { return };
        serving.take_jobs(step);
        loop {
            let actions = serving.primary_mut().take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                let old = || serving.primary().config().clone();
                match action {
                    PrimaryAction::Propose(new) => {
                        if planted(Bug::ReleaseBeforeKnown) {
                            release_leases(self.node.me, &new, serving.term(), step);
                        }
                        propose(old(), ProposedChange::Replace(new), step);
                    }
                    PrimaryAction::Split { left, right } => {
                        propose(old(), ProposedChange::Split { left: *left, right: *right }, step);
                    }
                    PrimaryAction::Merge { wider, source } => {
                        propose(old(), ProposedChange::Merge { wider: *wider, source: *source }, step);
                    }
                    PrimaryAction::Peer { server, session, action } => {
                        act_for_peer(serving, server, session, action, step);
                    }
                }
            }
        }
        serving.take_jobs(step);
        serving.count_sessions(serving.joining(), step);
    }

    /// The node has said whether sessions may begin for which this region asked in `term`. An error says when the server was heard
    /// last.
    pub(crate) fn placed(&mut self, term: Epoch, places: Vec<(ServerId, Result<(), Nanos>)>, step: &mut Step<'_>) {
        match self.serving().filter(|serving| serving.term() == term) {
            Some(serving) => {
                serving.begin_sessions(step.now, places);
                // A session that was refused a place is due still, and asks again at another event.
                self.execute_actions(step);
            }
            None => {
                let granted = places.into_iter().filter(|(_, place)| place.is_ok());
                let before = granted.map(|(server, _)| Session::begun(server)).collect();
                step.ask(Effect::CountSessions { before, after: Vec::new() });
            }
        }
    }
}

pub(super) fn propose(old: GroupConfig, change: ProposedChange, step: &mut Step<'_>) {
    step.ask(Effect::Propose(Box::new(Proposal { old, change })));
}

fn act_for_peer(serving: &mut Serving, server: ServerId, session: u64, action: PeerAction, step: &mut Step<'_>) {
    let peer = serving.primary().peer(server);
    match action {
        PeerAction::Send(body) => {
            let message = Control::ToBackup { region: serving.id(), term: serving.term(), session, body };
            step.send(server, message);
        }
        PeerAction::Mirror(write) => {
            let _at = cpu::at(Activity::Mirroring.of_primary());
            let Some(buffer) = peer.and_then(|peer| peer.buffer(write.buffer())) else { return };
            let buffer = Descriptor(buffer.to_vec());
            let tail = serving.region().tail(write.log, write.index);
            let tail = tail.expect("a tail is kept until every peer has flushed it");
            let offset = write.range.start as u64;
            step.ask(Effect::Mirror { to: server, buffer, offset, tail, range: write.range, op: write.op });
        }
        PeerAction::Slot(write) => {
            let _apart = cpu::apart(Activity::Shipping.of_primary());
            let Some(slot) = peer.and_then(|peer| peer.slot(write.slot)) else { return };
            let (slot, bytes) = (Descriptor(slot.to_vec()), write.parcel.bytes.clone());
            step.ask(Effect::WriteSegment { to: server, slot, bytes, op: write.op });
        }
        // Writes wait for a counted member, so its loads start at once.
        PeerAction::Load(id) if peer.is_some_and(|peer| peer.counted) => serving.load(server, session, id),
        PeerAction::Load(id) => {
            let bytes = serving.bytes_of(server, id);
            step.ask(Effect::WantSegment(WantedSegment { region: serving.id(), server, session, id, bytes }));
        }
        PeerAction::AskLease => step.ask(Effect::AskLease { server, term: serving.term() }),
        PeerAction::UnpinBase => serving.unpin(server),
        PeerAction::PinBase => {} // Pinned between compactions, by the upkeep.
    }
}
