//! Operations for regions whose primary is another server: sent there over the control channel, answered from there.
//!
//! Who forwards a write that is more than a plain put gives it a [request id](leeward_format::request), so that it can be sent
//! again when its answer is lost, to the same primary or to the next one, and is carried out once. A read is
//! sent again too. A plain put is not, and what has an id from whoever asks is left to them: they are told that nobody knows.
//! What was certainly not carried out (the primary says that it is none) is routed again until its time is over.
//!
//! Where this node has become the primary of what it sent with an id, it sends it to itself, so that what the answer is worth is
//! judged in one place.
//!
//! Invariant: no two processes of a server use the same id. A primary may hold an answer for seconds, and knows whom it is for by
//! server and id: if the process that asked is gone by then, the next one of that server gets it, and must not take it for the
//! answer to an operation of its own.

use super::Node;
use super::in_flight::InFlight;
use super::serving::{Answer, Pending, ReplyTo};
use super::slot::Holding;
use crate::client_memory::ClientMemory;
use leeward_format::cluster::Member;
use leeward_format::control::Control;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::request::{Attempts, Heard, Once, RequestIds, Verdict};
use leeward_format::table::TableName;
use leeward_format::{Epoch, Lsn, RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
use std::collections::BTreeMap;

/// How long an operation is tried before its client is told.
pub(super) const PATIENCE: Nanos = Nanos::from_secs(5);

/// Who sees to it that a write is carried out once, if anybody does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Naming {
    /// Nobody.
    Unnamed,
    /// Whoever asks this node: a client, or a node that forwards.
    Asker(Once),
    /// This node.
    Here(Attempts),
}

/// An operation that nobody has begun, unless it is named: then an earlier attempt may have been.
pub(super) struct Unrouted {
    pub(super) to: ReplyTo,
    pub(super) table: TableName,
    pub(super) op: Op,
    pub(super) since: Nanos,
    pub(super) naming: Naming,
}

impl Unrouted {
    /// As whoever asks has named it.
    pub(super) fn new(since: Nanos, to: ReplyTo, table: TableName, op: Op, once: Option<Once>) -> Unrouted {
        Unrouted { to, table, op, since, naming: once.map_or(Naming::Unnamed, Naming::Asker) }
    }

    /// For a region that is served here.
    pub(super) fn pending(self, now: Nanos) -> Pending {
        let once = match self.naming {
            Naming::Unnamed => None,
            Naming::Asker(once) => Some(once),
            Naming::Here(attempts) => attempts.once(),
        };
        let names_region = matches!(self.op, Op::In { .. });
        Pending { to: self.to, op: self.op.plain(), names_region, once, since: now }
    }

    /// It may have been carried out by one that it was sent to before.
    fn is_doubtful(&self) -> bool {
        matches!(self.naming, Naming::Here(attempts) if attempts.is_doubtful())
    }

    /// Its answer, when there is no time for another attempt and the last one met `error`.
    fn give_up(self, error: OpError) -> Answer {
        let result = match self.naming {
            Naming::Here(attempts) => attempts.give_up(error),
            _ => OpResult::Error(error),
        };
        (self.to, result)
    }
}

impl Pending {
    /// As it came to `region`.
    pub(super) fn unrouted(self, region: RegionId, table: TableName) -> Unrouted {
        let Pending { to, op, names_region, once, since } = self;
        let op = if names_region { op.within(region) } else { op };
        Unrouted::new(since, to, table, op, once)
    }
}

/// Where an operation may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To any node that serves its region.
    Any,
    /// No further: its client wants to know of another primary.
    Direct,
    /// No further: another node sent it, which knows the region's configuration of this epoch.
    Forwarded(Epoch),
}

/// One that was sent to a server.
struct Forwarded {
    unrouted: Unrouted,
    region: RegionId,
    server: ServerId,
    /// What it counts for among what is in flight.
    bytes: u64,
}

/// What to do with an operation whose answer was lost or no answer.
pub(super) enum Next {
    /// Route it again, now.
    AtOnce(Unrouted),
    /// Route it again.
    Again(Unrouted),
    /// Answer its client.
    Answer(Answer),
}

pub(super) struct Forwarding {
    /// Id of the message that was sent last.
    last: u64,
    sent: BTreeMap<u64, Forwarded>,
    pub(super) in_flight: InFlight,
    pub(super) total: u64,
    /// For what this node sees to.
    ids: RequestIds,
    heard: Heard,
    /// What others have sent to be carried out once, and its region.
    asked_once: BTreeMap<(ServerId, u64), RegionId>,
}

impl Forwarding {
    /// Nothing is sent yet by `me`, the only process that is this member.
    pub(super) fn new(me: Member, memory: ClientMemory) -> Forwarding {
        // Far apart: those of two lives on a volume, and those on two volumes. In a simulation, the same in every run.
        let volume = Rng::new(me.volume.0).u64();
        let mut rng = Rng::new(volume.wrapping_add(me.incarnation.0));
        let (last, ids) = (rng.u64(), RequestIds::new(rng.u64()));
        Forwarding {
            last,
            sent: BTreeMap::new(),
            in_flight: InFlight::new(memory),
            total: 0,
            ids,
            heard: Heard::default(),
            asked_once: BTreeMap::new(),
        }
    }

    /// No answer is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.in_flight.is_empty()
    }

    /// An operation on `region` goes to `server`; answers the id of its message, and how it is asked for.
    pub(super) fn send(&mut self, mut unrouted: Unrouted, region: RegionId, server: ServerId) -> (u64, Option<Once>) {
        if matches!(unrouted.naming, Naming::Unnamed) && unrouted.op.writes_data() && !unrouted.op.is_plain_put() {
            unrouted.naming = Naming::Here(Attempts::named(self.ids.next_id()));
        }
        let once = match &mut unrouted.naming {
            Naming::Unnamed => None,
            Naming::Asker(once) => Some(*once),
            Naming::Here(attempts) => attempts.ask(region, &self.heard),
        };
        self.last = self.last.wrapping_add(1);
        self.total += 1;
        let bytes = self.in_flight.sent(server, &unrouted.op);
        self.sent.insert(self.last, Forwarded { unrouted, region, server, bytes });
        (self.last, once)
    }

    /// The answer of `server` to message `id`.
    pub(super) fn answered(&mut self, now: Nanos, server: ServerId, id: u64, result: OpResult) -> Option<Next> {
        if self.sent.get(&id)?.server != server {
            return None;
        }
        let Forwarded { mut unrouted, region, bytes, .. } = self.sent.remove(&id)?;
        self.in_flight.ended(server, bytes, Some(&result));
        if !unrouted.op.is_write() && self.in_flight.lacks_memory_for(&result) {
            self.in_flight.wait_again(server, unrouted);
            return None;
        }
        let verdict = match &mut unrouted.naming {
            Naming::Here(attempts) => attempts.answered(&unrouted.op, result),
            _ => match result {
                OpResult::Error(error @ OpError::NotPrimary { .. }) => Verdict::Later(error),
                result => Verdict::Final(result),
            },
        };
        Some(self.follow(now, region, unrouted, verdict))
    }

    fn follow(&self, now: Nanos, region: RegionId, unrouted: Unrouted, verdict: Verdict) -> Next {
        let is_late = now - unrouted.since >= PATIENCE;
        let has_news = matches!(unrouted.naming, Naming::Here(attempts) if attempts.has_news(region, &self.heard));
        match verdict {
            Verdict::Final(result) => Next::Answer((unrouted.to, result)),
            Verdict::AtOnce if is_late => Next::Answer(unrouted.give_up(OpError::Recovering(region))),
            Verdict::AtOnce if has_news => Next::AtOnce(unrouted),
            Verdict::AtOnce => Next::Again(unrouted),
            Verdict::Later(OpError::NotPrimary { .. } | OpError::Unknown(_)) if !is_late => Next::Again(unrouted),
            Verdict::Later(_) if !is_late && unrouted.is_doubtful() => Next::Again(unrouted),
            Verdict::Later(OpError::NotPrimary { region, .. }) => {
                Next::Answer(unrouted.give_up(OpError::Recovering(region)))
            }
            Verdict::Later(error) => Next::Answer(unrouted.give_up(error)),
        }
    }

    /// The link to `server` broke: whatever it has not answered may or may not be done.
    pub(super) fn lost(&mut self, now: Nanos, server: ServerId) -> Vec<Next> {
        self.take_back(now, |forwarded| forwarded.server == server)
    }

    /// Configurations have changed: from those that are no primary any more no answer is waited for where it can be had from the
    /// next.
    pub(super) fn deposed(
        &mut self,
        now: Nanos,
        me: ServerId,
        primary_of: impl Fn(RegionId) -> Option<ServerId>,
    ) -> Vec<Next> {
        self.take_back(now, |Forwarded { unrouted, region, server, .. }| {
            let is_deposed = *server != me && primary_of(*region).is_some_and(|primary| primary != *server);
            is_deposed && (matches!(unrouted.naming, Naming::Here(_)) || !unrouted.op.is_write())
        })
    }

    fn take_back(&mut self, now: Nanos, is_lost: impl Fn(&Forwarded) -> bool) -> Vec<Next> {
        let lost: Vec<Forwarded> =
            self.sent.extract_if(.., |_, forwarded| is_lost(forwarded)).map(|(_, one)| one).collect();
        lost.iter().for_each(|one| self.in_flight.ended(one.server, one.bytes, None));
        let next = |Forwarded { mut unrouted, region, .. }: Forwarded| match &mut unrouted.naming {
            Naming::Here(attempts) => {
                let verdict = attempts.lost(&unrouted.op, LOST.into());
                self.follow(now, region, unrouted, verdict)
            }
            _ if unrouted.op.is_write() => Next::Answer((unrouted.to, unknown(region, &unrouted.op))),
            _ => Next::Again(unrouted),
        };
        lost.into_iter().map(next).collect()
    }

    /// A node forwards what is to be carried out once.
    pub(super) fn note_asker(&mut self, asker: (ServerId, u64), region: Option<RegionId>) {
        self.asked_once.extend(region.map(|region| (asker, region)));
    }

    /// What a node says is committed in a region.
    pub(super) fn hear(&mut self, committed: Option<(RegionId, Lsn)>) {
        if let Some((region, lsn)) = committed {
            self.heard.note(region, lsn);
        }
    }

    /// Gives up what was not answered in time.
    pub(super) fn expire(&mut self, now: Nanos) -> Vec<Answer> {
        let old = self.sent.extract_if(.., |_, forwarded| now - forwarded.unrouted.since >= PATIENCE);
        let old: Vec<Forwarded> = old.map(|(_, one)| one).collect();
        old.iter().for_each(|one| self.in_flight.ended(one.server, one.bytes, None));
        old.into_iter().map(|one| (one.unrouted.to, unknown(one.region, &one.unrouted.op))).collect()
    }
}

const LOST: &str = "the primary's answer was lost";

fn unknown(region: RegionId, op: &Op) -> OpResult {
    OpResult::Error(match op.is_write() {
        true => OpError::Unknown(LOST.into()),
        false => OpError::Recovering(region),
    })
}

impl Node {
    /// What is known to be committed in a region: for who asks for a write to be carried out [once](Once::since).
    pub fn committed(&self, region: RegionId) -> Option<Lsn> {
        match self.slots.get(&region).map(|slot| &slot.holding) {
            Some(Holding::Serving(serving)) if serving.open => Some(serving.region.commit()),
            _ => self.forwarding.heard.get(region),
        }
    }

    /// Answers what a node forwarded; or this one, to itself.
    pub(super) fn answer_peer(&mut self, now: Nanos, server: ServerId, id: u64, result: OpResult) {
        let committed = |node: &Node, region| Some((region, node.committed(region)?));
        if server == self.context.me.server {
            let region = self.forwarding.sent.get(&id).map(|forwarded| forwarded.region);
            self.forwarding.hear(region.and_then(|region| committed(self, region)));
            return self.forwarded(now, server, id, result);
        }
        let region = self.forwarding.asked_once.remove(&(server, id));
        let committed = region.and_then(|region| committed(self, region));
        self.context.answer(server, Control::Forwarded { id, result, committed });
    }

    /// What was forwarded is answered.
    pub(super) fn forwarded(&mut self, now: Nanos, server: ServerId, id: u64, result: OpResult) {
        if let Some(next) = self.forwarding.answered(now, server, id, result) {
            self.next(now, next);
        }
    }

    pub(super) fn next(&mut self, now: Nanos, next: Next) {
        match next {
            Next::AtOnce(unrouted) => self.route(now, unrouted, Way::Any),
            Next::Again(unrouted) => self.context.again.push(unrouted),
            Next::Answer(answer) => self.answers.push(answer),
        }
    }

    /// Operations that waited for others to be answered go on.
    pub(super) fn forward_waiting(&mut self, now: Nanos) {
        for server in self.forwarding.in_flight.ready() {
            let mut waiting = self.forwarding.in_flight.take(server);
            while let Some(unrouted) = self.forwarding.in_flight.next(server, &mut waiting) {
                self.route(now, unrouted, Way::Any);
            }
            self.forwarding.in_flight.put_back(server, waiting);
        }
    }

    /// Gives up operations that have waited for too long: nobody has begun them.
    pub(super) fn refuse_waiting(&mut self, now: Nanos) {
        for unrouted in self.forwarding.in_flight.late(|unrouted| now - unrouted.since >= PATIENCE) {
            let region = self.region_of(&unrouted.op, &unrouted.table).map_or(RegionId(0), |(region, ..)| region);
            self.answers.push(unrouted.give_up(OpError::Overloaded(region)));
        }
    }

    /// An operation cannot be sent anywhere now.
    pub(super) fn refuse(&mut self, now: Nanos, unrouted: Unrouted, error: OpError) {
        let answer = match unrouted.is_doubtful() && now - unrouted.since < PATIENCE {
            true => Next::Again(unrouted),
            false => Next::Answer(unrouted.give_up(error)),
        };
        self.next(now, answer);
    }

    /// An operation for a region that is served here: what this node sees to itself is sent to itself.
    pub(super) fn bring_home(&mut self, region: RegionId, unrouted: Unrouted) -> Unrouted {
        let Naming::Here(_) = unrouted.naming else { return unrouted };
        let (me, since, table, op) =
            (self.context.me.server, unrouted.since, unrouted.table.clone(), unrouted.op.clone());
        let committed = self.committed(region);
        self.forwarding.hear(committed.map(|lsn| (region, lsn)));
        let (id, once) = self.forwarding.send(unrouted, region, me);
        Unrouted::new(since, ReplyTo::Peer(me, id), table, op, once)
    }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
