//! The primary's side of replication: what backups say to it, and what its state machine has the node do.
//!
//! Belongs to the node's thread.

use super::{Holding, Slot};
use crate::node::Context;
use crate::node::peers::catch_up::Wanted;
use crate::node::peers::link;
use crate::node::serving::Serving;
use leeward_format::control::{Control, ToPrimary};
use leeward_format::{Epoch, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_platform::planted::{Bug, planted};
use leeward_replication::candidate::{self, Candidate};
use leeward_replication::peer::PeerAction;
use leeward_replication::primary::PrimaryAction;

impl Slot {
    /// A backup's message.
    pub(crate) fn hear_backup(
        &mut self,
        now: Nanos,
        from: ServerId,
        term: Epoch,
        session: u64,
        body: ToPrimary,
        context: &mut Context,
    ) {
        if let Some(serving) = self.serving().filter(|serving| serving.term() == term) {
            serving.primary_mut().message(now, from, session, body);
            self.act_as_primary(context);
        } else if session == candidate::SESSION {
            self.hear_candidate(term, &body);
        }
    }

    /// A proposal of the primary, or of the candidate, ended.
    pub(crate) fn proposal_ended(&mut self, now: Nanos, outcome: &leeward_cluster::Outcome) {
        match &mut self.holding {
            Holding::Serving(serving) => serving.proposal_ended(now, outcome),
            _ => self.candidate.iter_mut().for_each(Candidate::proposal_ended),
        }
    }

    /// Executes the actions of the primary's state machine.
    pub(crate) fn act_as_primary(&mut self, context: &mut Context) {
        let Holding::Serving(serving) = &mut self.holding else { return };
        serving.take_jobs(&mut context.jobs);
        let now = context.clock.now;
        serving.begin_sessions(now, |server, is_counted| context.syncing.admission.admit(now, server, is_counted));
        loop {
            let actions = serving.primary_mut().take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    PrimaryAction::Propose(config) => {
                        if planted(Bug::ReleaseBeforeKnown) {
                            context.release_leases(&config, serving.term());
                        }
                        context.propose(serving.primary().config(), config);
                    }
                    PrimaryAction::Split { left, right } => context.split(serving.primary().config(), *left, *right),
                    PrimaryAction::Merge { wider, source } => {
                        context.merge(serving.primary().config(), *wider, *source)
                    }
                    PrimaryAction::Peer { server, session, action } => {
                        act_for_peer(serving, server, session, action, context);
                    }
                }
            }
        }
        serving.take_jobs(&mut context.jobs);
        let sessions = serving.joining();
        let before = serving.count_sessions(sessions.clone());
        context.syncing.admission.change(&before, &sessions);
    }
}

fn act_for_peer(serving: &mut Serving, server: ServerId, session: u64, action: PeerAction, context: &mut Context) {
    let peer = serving.primary().peer(server);
    match action {
        PeerAction::Send(body) => {
            let message = Control::ToBackup { region: serving.id(), term: serving.term(), session, body };
            context.send(server, &message);
        }
        PeerAction::Mirror(write) => {
            let _at = cpu::at(Activity::Mirroring.of_primary());
            let Some(buffer) = peer.and_then(|peer| peer.buffer(write.buffer())) else { return };
            let to = link::descriptor(buffer);
            let tail = serving.region().tail(write.log, write.index);
            let tail = tail.expect("a tail is kept until every peer has flushed it");
            let offset = write.range.start as u64;
            context.fabric.write(link::peer(server), &to, offset, &tail.bytes()[write.range], write.op);
        }
        PeerAction::Slot(write) => {
            let _apart = cpu::apart(Activity::Shipping.of_primary());
            let Some(slot) = peer.and_then(|peer| peer.slot(write.slot)) else { return };
            context.write_segment(server, link::descriptor(slot), write.parcel.bytes.clone(), write.op);
        }
        // Writes wait for a counted member, so its loads start at once.
        PeerAction::Load(id) if peer.is_some_and(|peer| peer.counted) => serving.load(server, session, id),
        PeerAction::Load(id) => {
            let bytes = serving.bytes_of(server, id);
            context.syncing.catch_up.want(Wanted { region: serving.id(), server, session, id, bytes });
        }
        PeerAction::AskLease => context.ask_lease(server, vec![(serving.id(), serving.term())]),
        PeerAction::UnpinBase => serving.unpin(server),
        PeerAction::PinBase => {} // Pinned between compactions, by the upkeep.
    }
}
