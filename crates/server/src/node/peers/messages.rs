//! Events from other nodes: links that come and go, posted operations that complete, and messages.

use crate::node::Node;
use crate::node::links;
use crate::node::requests::forward::Way;
use crate::node::requests::fresh::{Answer, Question};
use leeward_fabric::LinkEvent;
use leeward_format::ServerId;
use leeward_format::control::{Control, MAX_CONTROL_BYTES};
use leeward_format::frame::{FrameKind, read_frame};
use leeward_platform::Nanos;
use leeward_platform::cpu::{self, Activity};
use leeward_region::input::Input as RegionInput;
use leeward_region::request::ReplyTo;
use leeward_region::request::Request;
use leeward_replication::backup::PrimarySession;
use leeward_replication::primary::Ops;

impl Node {
    pub(crate) fn link_event(&mut self, now: Nanos, from: ServerId, event: LinkEvent) {
        match event {
            LinkEvent::Up | LinkEvent::Down => {
                let up = event == LinkEvent::Up;
                self.idle.touch_all();
                self.context.links.changed(from, up);
                self.fresh.link_changed(from);
                if up {
                    self.context.tell_settings(from);
                    self.context.links.send_unsent(from);
                }
                self.give_each(|| RegionInput::Link { server: from, is_up: up });
                if !up {
                    for next in self.forwarding.lost(now, from) {
                        self.next(now, next);
                    }
                }
            }
            // The memory is mapped.
            LinkEvent::ReadDone { .. } => {}
            LinkEvent::Refused { op: links::MAP_OP } => self.fresh.map_refused(now, from),
            LinkEvent::Completed { op } | LinkEvent::Refused { op } => {
                self.idle.touch(Ops::region_of(op));
                let is_refused = matches!(event, LinkEvent::Refused { .. });
                self.give(Ops::region_of(op), RegionInput::WriteEnded { server: from, op, is_refused });
            }
            LinkEvent::Message(bytes) => self.frames(now, from, &bytes),
        }
    }

    /// A message: one frame, or several of operations.
    fn frames(&mut self, now: Nanos, from: ServerId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match read_frame(FrameKind::Control, bytes, MAX_CONTROL_BYTES) {
                Ok(Some((message, len))) => {
                    self.message(now, from, message);
                    bytes = &bytes[len..];
                }
                Ok(None) => return tracing::error!(server = %from, "half a control message"),
                Err(error) => return tracing::error!(server = %from, %error, "a control message cannot be decoded"),
            }
        }
    }

    fn message(&mut self, now: Nanos, from: ServerId, message: Control) {
        match message {
            Control::LeaseRequest { sent, lasts, regions, heard, safe_lsns } => {
                self.grant_leases(now, from, (Nanos(sent), Nanos(lasts)), &regions);
                self.hear_safe_lsns(now, from, heard, &safe_lsns);
            }
            Control::LeaseGrant { sent, lasts, regions, now: theirs } => {
                self.context.links.hear_clock(now, from, theirs);
                self.lease_granted(from, (Nanos(sent), Nanos(lasts)), regions);
            }
            Control::Settings { incarnation, settings } => self.context.peer_settings.hear(from, incarnation, settings),
            Control::LeaseRefused { reason } => self.context.links.lease_refused(from, reason),
            Control::SafeLsnQuestion { id, region, wants_line } => {
                self.safe_lsn_asked(Question { from, id, region, wants_line });
            }
            Control::SafeLsnAnswer { id, now: wall, safe_lsn, line } => {
                self.safe_lsn_answered(now, from, id, Answer { wall, safe_lsn, line });
            }
            Control::Released { regions } => self.leases_released(&regions),
            Control::Load(load) => self.context.agent.record_load(now, from, &load),
            Control::Forward { id, table, op, once, epoch } => {
                let named_in = once.and_then(|_| Some(self.region_of(&op, &table)?.0));
                self.forwarding.note_caller((from, id), named_in);
                let request = Request::new(now, ReplyTo::Peer(from, id), table, op, once);
                self.submit(now, request, Way::Forwarded(epoch));
            }
            Control::Forwarded { id, result, committed } => {
                self.forwarding.hear(committed);
                let result = self.context.clients.hold_result(result);
                self.forwarded(now, from, id, result);
            }
            Control::ToBackup { region, term, session, body } => {
                let _at = cpu::at(Activity::Mirroring.of_backup());
                if !self.machines.contains_key(&region) {
                    self.configure(region);
                    self.look_for_replica_garbage(now, region);
                }
                self.replica_gc.is_asked_for(now, region);
                self.idle.touch(region);
                let session = PrimarySession { primary: from, term, session };
                self.give(region, RegionInput::FromPrimary(session, body));
            }
            Control::ToPrimary { region, term, session, body } => {
                let _at = cpu::at(Activity::Mirroring.of_primary());
                self.context.syncing.admission.heard(now, from);
                self.idle.touch(region);
                self.give(region, RegionInput::FromMember { server: from, term, session, body });
            }
        }
    }
}
