//! Operations on regions whose primary is another server. The node sends them there over the control channel, and gets the
//! answers from there.
//!
//! If the answer to an operation is lost:
//! - A write that is more than a plain put has a [request id](leeward_format::request) from this node, unless its caller gave
//!   one. The node sends it again, to the same primary or to the next one, and the write is executed once.
//! - A read is sent again too.
//! - A plain put is not sent again, nor a write whose id is from the caller. The node answers that the outcome is unknown, and
//!   leaves the rest to the caller.
//!
//! An operation that was certainly not executed (the server says that it is not the primary) is routed again until its time
//! is over.
//!
//! If this node becomes the primary of an operation that it sent with an id, it sends the operation to itself. So one place
//! judges what an answer is worth.
//!
//! Invariant: no two processes of a server use the same message id. A primary may hold an answer for seconds, and knows its
//! receiver by server and id. If the process that asked is gone by then, the server's next process gets the answer, and must
//! not take it for the answer to an operation of its own.

use super::in_flight::InFlight;
use crate::node::links::TIMEOUT;
use leeward_format::cluster::Member;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::request::{Attempts, Heard, Once, RequestIds, Verdict};
use leeward_format::{Epoch, Lsn, RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
use leeward_region::client_memory::ClientMemory;
use leeward_region::request::{Answer, Naming, Request};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

/// How long a backup may take to answer a read. Then the primary is asked.
const AT_BACKUP: Nanos = Nanos::from_millis(500);

/// Where an operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Travel {
    /// To any node that serves its region.
    Any,
    /// No further: its client wants an error that names another primary.
    Direct,
    /// No further: another node sent it, and that node knows the region's configuration of this epoch.
    Forwarded(Epoch),
}

/// An operation that was sent to a server.
pub(super) struct Forwarded {
    request: Request,
    pub(super) region: RegionId,
    server: ServerId,
    /// The server is a backup, which [answers reads](super::fresh).
    is_at_backup: bool,
    /// How many bytes in flight it counts for.
    bytes: u64,
}

/// What to do with an operation after its answer has come or was lost.
pub(in crate::node) enum Next {
    /// Route it again, now.
    AtOnce(Request),
    /// Route it again.
    Again(Request),
    /// Route it to the primary, since this backup does not answer it.
    ToPrimary { request: Request, region: RegionId, backup: ServerId },
    /// Answer its client.
    Answer(Answer),
}

pub(in crate::node) struct Forwarding {
    /// The id of the last message.
    last: u64,
    /// By the id of the message.
    pub(super) sent: FxHashMap<u64, Forwarded>,
    pub(super) in_flight: InFlight,
    pub(in crate::node) total: u64,
    /// Request ids that this node gives.
    ids: RequestIds,
    pub(super) heard: Heard,
    /// Operations with a request id that other nodes have sent here, by message, and their regions.
    pub(super) asked_once: BTreeMap<(ServerId, u64), RegionId>,
}

impl Forwarding {
    /// Nothing is sent yet. `me` is this process: no other one is the same member.
    pub(in crate::node) fn new(me: Member, memory: ClientMemory) -> Forwarding {
        // Ids of two incarnations on a volume are far apart, and so are ids on two volumes. A simulation gets the same ids in
        // every run.
        let volume = Rng::new(me.volume.0).u64();
        let mut rng = Rng::new(volume.wrapping_add(me.incarnation.0));
        let (last, ids) = (rng.u64(), RequestIds::new(rng.u64()));
        Forwarding {
            last,
            sent: FxHashMap::default(),
            in_flight: InFlight::new(memory),
            total: 0,
            ids,
            heard: Heard::default(),
            asked_once: BTreeMap::new(),
        }
    }

    /// Whether the node waits for no answer.
    pub(in crate::node) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.in_flight.is_empty()
    }

    /// An operation on `region` goes to `server`. Answers the id of its message, and its request id, if it has one.
    pub(in crate::node) fn send(
        &mut self,
        mut request: Request,
        region: RegionId,
        server: ServerId,
    ) -> (u64, Option<Once>) {
        if matches!(request.naming, Naming::Unnamed) && request.op.writes_data() && !request.op.is_plain_put() {
            request.naming = Naming::Here(Attempts::named(self.ids.next_id()));
        }
        let once = match &mut request.naming {
            Naming::Unnamed => None,
            Naming::Caller(once) => Some(*once),
            Naming::Here(attempts) => attempts.ask(region, &self.heard),
        };
        (self.note_sent(request, region, server, false), once)
    }

    /// A read of `region` goes to a backup. Answers the id of its message.
    pub(super) fn send_to_backup(&mut self, request: Request, region: RegionId, server: ServerId) -> u64 {
        self.note_sent(request, region, server, true)
    }

    fn note_sent(&mut self, request: Request, region: RegionId, server: ServerId, is_at_backup: bool) -> u64 {
        self.total += 1;
        let (id, bytes) = (self.next_id(), self.in_flight.sent(server, &request.op));
        self.sent.insert(id, Forwarded { request, region, server, is_at_backup, bytes });
        id
    }

    /// The id of another message.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// The answer of `server` to message `id`.
    pub(in crate::node) fn answered(
        &mut self,
        now: Nanos,
        server: ServerId,
        id: u64,
        result: OpResult,
    ) -> Option<Next> {
        let Entry::Occupied(sent) = self.sent.entry(id) else { return None };
        if sent.get().server != server {
            return None;
        }
        let Forwarded { mut request, region, is_at_backup, bytes, .. } = sent.remove();
        self.in_flight.ended(server, bytes, Some(&result));
        if is_at_backup && matches!(result, OpResult::Error(_)) {
            return Some(Next::ToPrimary { request, region, backup: server });
        }
        if !request.op.is_write() && self.in_flight.lacks_memory_for(&result) {
            self.in_flight.wait_again(server, request);
            return None;
        }
        let verdict = match &mut request.naming {
            Naming::Here(attempts) => attempts.answered(&request.op, result),
            _ => match result {
                OpResult::Error(error @ OpError::NotPrimary { .. }) => Verdict::Later(error),
                result => Verdict::Final(result),
            },
        };
        Some(self.follow(now, region, request, verdict))
    }

    fn follow(&self, now: Nanos, region: RegionId, request: Request, verdict: Verdict) -> Next {
        let is_late = now - request.since >= TIMEOUT;
        let has_news = matches!(request.naming, Naming::Here(attempts) if attempts.has_news(region, &self.heard));
        match verdict {
            Verdict::Final(result) => Next::Answer((request.to, result)),
            Verdict::AtOnce if is_late => Next::Answer(request.give_up(OpError::Recovering(region))),
            Verdict::AtOnce if has_news => Next::AtOnce(request),
            Verdict::AtOnce => Next::Again(request),
            Verdict::Later(OpError::NotPrimary { .. } | OpError::Unknown(_)) if !is_late => Next::Again(request),
            Verdict::Later(_) if !is_late && request.is_doubtful() => Next::Again(request),
            Verdict::Later(OpError::NotPrimary { region, .. }) => {
                Next::Answer(request.give_up(OpError::Recovering(region)))
            }
            Verdict::Later(error) => Next::Answer(request.give_up(error)),
        }
    }

    /// The link to `server` broke. It may or may not have executed what it has not answered.
    pub(in crate::node) fn lost(&mut self, now: Nanos, server: ServerId) -> Vec<Next> {
        self.take_back(now, |forwarded| forwarded.server == server)
    }

    /// Configurations have changed. The node stops waiting for answers of servers that are no longer primary, if it can get the
    /// answers from the new primary.
    pub(in crate::node) fn deposed(
        &mut self,
        now: Nanos,
        me: ServerId,
        primary_of: impl Fn(RegionId) -> Option<ServerId>,
    ) -> Vec<Next> {
        self.take_back(now, |Forwarded { request, region, server, is_at_backup, .. }| {
            let is_deposed =
                *server != me && primary_of(*region).is_some_and(|primary| primary != *server) && !is_at_backup;
            is_deposed && (matches!(request.naming, Naming::Here(_)) || !request.op.is_write())
        })
    }

    fn take_back(&mut self, now: Nanos, is_lost: impl Fn(&Forwarded) -> bool) -> Vec<Next> {
        let lost = self.take_out(is_lost);
        let next = |Forwarded { mut request, region, server, is_at_backup, .. }: Forwarded| match &mut request.naming {
            _ if is_at_backup => Next::ToPrimary { request, region, backup: server },
            Naming::Here(attempts) => {
                let verdict = attempts.lost(&request.op, LOST.into());
                self.follow(now, region, request, verdict)
            }
            _ if request.op.is_write() => Next::Answer((request.to, unknown(region, &request.op))),
            _ => Next::Again(request),
        };
        lost.into_iter().map(next).collect()
    }

    /// Takes out operations that will not be answered, in the order in which they were sent.
    fn take_out(&mut self, is_meant: impl Fn(&Forwarded) -> bool) -> Vec<Forwarded> {
        let mut taken: Vec<(u64, Forwarded)> = self.sent.extract_if(|_, forwarded| is_meant(forwarded)).collect();
        taken.sort_unstable_by_key(|(id, _)| *id);
        taken.iter().for_each(|(_, one)| self.in_flight.ended(one.server, one.bytes, None));
        taken.into_iter().map(|(_, one)| one).collect()
    }

    /// A node has forwarded an operation, which is to be executed once if there is a `region`.
    pub(in crate::node) fn note_caller(&mut self, caller: (ServerId, u64), region: Option<RegionId>) {
        self.asked_once.extend(region.map(|region| (caller, region)));
    }

    /// A node has said up to where a region is committed.
    pub(in crate::node) fn hear(&mut self, committed: Option<(RegionId, Lsn)>) {
        if let Some((region, lsn)) = committed {
            self.heard.note(region, lsn);
        }
    }

    /// Takes back reads that backups have not answered in time.
    pub(in crate::node) fn take_from_backups(&mut self, now: Nanos) -> Vec<Next> {
        self.take_back(now, |of| of.is_at_backup && now - of.request.since >= AT_BACKUP)
    }

    /// Gives up operations that were not answered in time.
    pub(in crate::node) fn expire(&mut self, now: Nanos) -> Vec<Answer> {
        let old = self.take_out(|forwarded| now - forwarded.request.since >= TIMEOUT);
        old.into_iter().map(|one| (one.request.to, unknown(one.region, &one.request.op))).collect()
    }
}

const LOST: &str = "the primary's answer was lost";

fn unknown(region: RegionId, op: &Op) -> OpResult {
    OpResult::Error(match op.is_write() {
        true => OpError::Unknown(LOST.into()),
        false => OpError::Recovering(region),
    })
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
