//! Events from other nodes: links that come and go, posted operations that complete, and messages.

use super::{Node, RegionInput, Request, Travel};
use crate::node::front::fresh::{Answer, Question};
use crate::node::links;
use leeward_fabric::LinkEvent;
use leeward_format::control::{Control, MAX_CONTROL_BYTES};
use leeward_format::frame::{FrameKind, read_frame};
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_region::request::ReplyTo;
use leeward_replication::backup::PrimarySession;
use leeward_replication::primary::Ops;

impl Node {
    pub(super) fn link_event(&mut self, from: ServerId, event: LinkEvent) {
        match event {
            LinkEvent::Up => self.link_changed(from, true),
            LinkEvent::Down => self.link_changed(from, false),
            // It was read to be mapped. Its bytes are not needed.
            LinkEvent::ReadDone { .. } => {}
            LinkEvent::Refused { op: links::MAP_OP } => self.front.map_refused(self.control.now(), from),
            LinkEvent::Completed { op } | LinkEvent::Refused { op } => {
                self.shard.idle.touch(Ops::region_of(op));
                let is_refused = matches!(event, LinkEvent::Refused { .. });
                self.give(Ops::region_of(op), RegionInput::WriteEnded { server: from, op, is_refused });
            }
            LinkEvent::Message(bytes) => self.frames(from, &bytes),
        }
    }

    fn frames(&mut self, from: ServerId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match read_frame(FrameKind::Control, bytes, MAX_CONTROL_BYTES) {
                Ok(Some((message, len))) => {
                    self.message(from, message);
                    bytes = &bytes[len..];
                }
                Ok(None) => return tracing::error!(server = %from, "half a control message"),
                Err(error) => return tracing::error!(server = %from, %error, "a control message cannot be decoded"),
            }
        }
    }

    fn message(&mut self, from: ServerId, message: Control) {
        let now = self.control.now();
        match message {
            Control::LeaseRequest { sent, lasts, regions, heard, safe_lsns } => {
                self.grant_leases(from, (Nanos(sent), Nanos(lasts)), &regions);
                if let Some(heard) = heard {
                    self.with_front(|front, reach| front.hear_safe_lsns(reach, from, heard, &safe_lsns));
                }
            }
            Control::LeaseGrant { sent, lasts, regions, now: theirs } => {
                self.links.hear_clock(now, from, theirs);
                let sent = Nanos(sent);
                if let Some(refused) = self.control.leases_answered(from, sent, &regions) {
                    let granted = (from, (sent, Nanos(lasts)));
                    self.with_facts(|shard, facts| shard.leases_granted(facts, granted, regions, refused));
                }
            }
            Control::Settings { incarnation, settings } => self.control.settings.hear(from, incarnation, settings),
            Control::LeaseRefused { reason } => self.links.lease_refused(from, reason),
            Control::SafeLsnQuestion { id, region, wants_line } => {
                let question = Question { from, id, region, wants_line };
                self.with_front(|front, reach| front.safe_lsn_asked(reach, question));
            }
            Control::SafeLsnAnswer { id, now: wall, safe_lsn, line } => {
                let answer = Answer { wall, safe_lsn, line };
                self.with_front(|front, reach| front.safe_lsn_answered(reach, from, id, answer));
            }
            Control::Released { regions } => self.leases_released(&regions),
            Control::Load(load) => self.control.record_load(from, &load),
            Control::Forward { id, table, op, once, epoch } => {
                let request = Request::new(now, ReplyTo::Peer(from, id), table, op, once);
                self.with_front(|front, reach| front.note_caller(reach, (from, id), &request, once));
                self.submit(request, Travel::Forwarded(epoch));
            }
            Control::Forwarded { id, result, committed } => {
                self.with_front(|front, reach| front.forwarded(reach, (from, id), result, committed));
            }
            Control::ToBackup { region, term, session, body } => {
                let _at = cpu::at(Activity::Mirroring.of_backup());
                if self.shard.machine(region).is_none() {
                    self.configure(region);
                    self.look_for_replica_garbage(region);
                }
                self.control.copy_is_asked_for(region);
                self.shard.idle.touch(region);
                let session = PrimarySession { primary: from, term, session };
                self.give(region, RegionInput::FromPrimary(session, body));
            }
            Control::ToPrimary { region, term, session, body } => {
                let _at = cpu::at(Activity::Mirroring.of_primary());
                self.control.admission.heard(now, from);
                self.shard.idle.touch(region);
                self.give(region, RegionInput::FromMember { server: from, term, session, body });
            }
        }
    }

    /// A primary asks for lease grants.
    fn grant_leases(&mut self, from: ServerId, (sent, lasts): (Nanos, Nanos), regions: &[(RegionId, Epoch)]) {
        if self.control.may_grant(&self.links, from, lasts) {
            let grantable = self.with_facts(|shard, facts| shard.grantable(facts, from, regions));
            self.control.grant_leases(&self.links, from, (sent, lasts), grantable);
        }
    }

    /// A primary that has handed these regions over no longer relies on their leases. A copy that waited for them to end goes
    /// on.
    fn leases_released(&mut self, regions: &[(RegionId, Epoch)]) {
        for (region, term) in regions {
            self.control.release_grant(*region, *term);
            if self.give(*region, RegionInput::LeaseReleased) {
                self.shard.idle.touch(*region);
            }
        }
    }
}
