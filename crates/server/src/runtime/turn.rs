//! The parts of a turn whose work others cause: events of other threads, requests of clients, and their answers.
//!
//! Each part has a slice of time. Its work is split into steps, each of at most a [`Quota`]. The clock is read once a quota of
//! work is done, by one step or by many, and work that is left when the slice is over waits for the next turn, whose poll does
//! not sleep. So a turn takes some milliseconds, whatever clients send. Lease grants, links and the coordinator, which are
//! handled twice a turn, wait no longer than that. Clients share their slices by `shares.rs`. Operations that other nodes
//! forward have a slice of their own, and wait behind all other messages of those nodes.

use super::connections::report_dropped;
use super::event_loop::EventLoop;
use crate::channel::Event;
use crate::node::Input;
use crate::node::links::frames_in;
use crate::quota::{COMMAND_UNITS, OPERATION_UNITS, Quota, STEP_UNITS};
use crate::shares::Shares;
use leeward_fabric::LinkEvent;
use leeward_format::ServerId;
use leeward_format::control::Subject;
use leeward_format::op::Op;
use leeward_platform::cpu::{self, Activity};
use leeward_platform::{BootClock, Clock, Nanos};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Handling events of other threads.
const EVENTS: Nanos = Nanos::from_millis(4);
/// Events that take well under a microsecond each, for which one reading of the clock is enough.
const BRIEF_EVENTS_PER_READING: u32 = 16;
/// Handling operations that other nodes forward, and their answers to operations forwarded to them.
const FORWARDED: Nanos = Nanos::from_millis(1);
/// Reading from clients.
const READING: Nanos = Nanos::from_millis(2);
/// Taking what the node has answered.
const TAKING: Nanos = Nanos::from_millis(1);
/// Encoding and sending answers, and continuing with what was read before.
const ANSWERING: Nanos = Nanos::from_millis(2);

/// Least units that a step counts for: about 10 us, for its calls into the kernel.
const STEP_LEAST_UNITS: u32 = 100;

/// The work that is left for later turns, and how far this turn has come.
#[derive(Default)]
pub(super) struct Backlog {
    /// Operations and answers that other nodes have sent.
    forwarded: VecDeque<(ServerId, LinkEvent)>,
    /// The channel may have more events.
    has_events: bool,
    /// Operations were submitted after the node's batch was ended.
    has_submitted: bool,
    shares: Shares,
    /// Units of work that were done since the slice began, or the clock was read last.
    pub(super) units_done: u32,
}

/// A slice of time, and how much of it is over, as of the last look at the clock. It begins with its first step, so a part
/// of a turn that has nothing to do reads no clock.
pub(super) struct Slice {
    length: Duration,
    begun: Option<Instant>,
    at: Duration,
}

impl Slice {
    fn of(length: Nanos) -> Slice {
        Slice { length: length.duration(), begun: None, at: Duration::ZERO }
    }

    fn is_over(&self) -> bool {
        self.at >= self.length
    }

    fn begin(&mut self) -> Instant {
        *self.begun.get_or_insert_with(Instant::now)
    }

    /// Looks at the clock. Returns what has passed since the last look.
    fn take(&mut self) -> Duration {
        let at = self.begin().elapsed();
        let before = std::mem::replace(&mut self.at, at);
        self.at - before
    }
}

impl Backlog {
    /// Whether the next turn must come at once.
    pub(super) fn is_any(&self) -> bool {
        self.has_events || self.has_submitted || !self.forwarded.is_empty()
    }
}

impl EventLoop {
    /// Handles events of other threads.
    pub(super) fn take_events(&mut self) {
        self.backlog.has_events = false;
        self.events.look();
        let mut begun = None;
        let (mut now, mut left) = (Nanos::ZERO, 0);
        while let Some((sent, event)) = self.events.next() {
            let subject = event.subject();
            let is_brief = event.is_completion() || subject == Some(Subject::Operation);
            // Read anew: a lease that is granted counts from now, not from the beginning of the turn. The clock costs
            // more than a brief event, of which there are many.
            if !is_brief || left == 0 {
                (now, left) = (BootClock.now(), BRIEF_EVENTS_PER_READING);
            }
            left -= 1;
            let begun = *begun.get_or_insert(now);
            match (subject, sent) {
                (Some(Subject::Lease), Some(sent)) => {
                    self.driver.metrics().lease_message((now - sent).as_secs_f64());
                }
                (Some(Subject::Operation), _) => {
                    if let Event::Link(server, event) = event {
                        self.backlog.forwarded.push_back((server, event));
                    }
                    continue;
                }
                _ => {}
            }
            self.follow(now, event);
            if now - begun > EVENTS {
                self.backlog.has_events = true;
                return;
            }
        }
    }

    fn follow(&mut self, now: Nanos, event: Event) {
        let _at = cpu::at(event.account());
        let input = match event {
            Event::Link(server, event) => {
                if matches!(event, LinkEvent::Up | LinkEvent::Down) {
                    self.follow_all_from(now, server);
                }
                Input::Link(server, event)
            }
            Event::Coordinator(event) => Input::Coordinator(event),
            Event::Job(done) => Input::Job(done),
            Event::Figures(reply) => return self.gathering.ask(reply),
            // The rings' events are taken at the end of the turn.
            Event::Rings => return,
            Event::Answered(id, answer) => return self.answered(now, id, answer),
            Event::Depart(timeout) => {
                self.departure.begin(now + timeout);
                return self.driver.node.depart(now);
            }
            Event::Stop => return self.departure.end(),
        };
        self.driver.handle(now, input);
    }

    /// Handles operations and answers of `server` that came before its link went up or down.
    fn follow_all_from(&mut self, now: Nanos, server: ServerId) {
        let (before, others) =
            std::mem::take(&mut self.backlog.forwarded).into_iter().partition(|(from, _)| *from == server);
        self.backlog.forwarded = others;
        let before: VecDeque<(ServerId, LinkEvent)> = before;
        for (from, event) in before {
            self.driver.handle(now, Input::Link(from, event));
        }
    }

    /// Handles operations that other nodes have forwarded, and answers to operations forwarded to them.
    pub(super) fn take_forwarded(&mut self) {
        if self.backlog.forwarded.is_empty() {
            return;
        }
        let begun = BootClock.now();
        let mut now = begun;
        let mut quota = Quota::default();
        while let Some((server, event)) = self.backlog.forwarded.pop_front() {
            if let LinkEvent::Message(bytes) = &event {
                quota.take(OPERATION_UNITS * frames_in(bytes));
                quota.take_bytes(bytes.len());
            }
            self.driver.handle(now, Input::Link(server, event));
            if quota.is_used_up() {
                quota = Quota::default();
                now = BootClock.now();
                if now - begun > FORWARDED {
                    return;
                }
            }
        }
    }

    /// A slice of the turn, whose units of work count from 0.
    pub(super) fn new_slice(&mut self, length: Nanos) -> Slice {
        self.backlog.units_done = 0;
        Slice::of(length)
    }

    /// Takes `step` for each of `ids`, and again for those that have more to do, until all are done or the slice is
    /// over. Returns the ids that are not done.
    pub(super) fn serve(
        &mut self,
        ids: BTreeSet<u64>,
        slice: &mut Slice,
        mut step: impl FnMut(&mut EventLoop, u64) -> bool,
    ) -> BTreeSet<u64> {
        let mut line = self.backlog.shares.line_up(ids);
        let mut served = Vec::new();
        while !slice.is_over()
            && let Some(id) = self.backlog.shares.next(&mut line)
        {
            slice.begin();
            let has_more = step(self, id) && self.connections.contains(id);
            served.push(id);
            self.backlog.units_done += STEP_LEAST_UNITS;
            if has_more || self.backlog.units_done >= STEP_UNITS {
                self.backlog.units_done = 0;
                self.charge(&mut served, slice.take());
            }
            if has_more {
                self.backlog.shares.join(&mut line, id);
            }
        }
        // Ids served since the last charge are not charged: they had little to do, and no connection waited for them.
        line.left().collect()
    }

    /// Charges `served` with equal parts of the time that they took together.
    fn charge(&mut self, served: &mut Vec<u64>, time: Duration) {
        let each = Nanos::from(time).0 / served.len() as u64;
        for id in served.drain(..).filter(|id| self.connections.contains(*id)) {
            self.backlog.shares.spent(id, each);
        }
    }

    /// Reads the sockets that have something.
    pub(super) fn read_clients(&mut self, now: Nanos) {
        let ids = self.ready_list.take_readable();
        let mut slice = self.new_slice(READING);
        let left = self.serve(ids, &mut slice, |event_loop, id| event_loop.read(now, id));
        left.into_iter().for_each(|id| self.ready_list.read_later(id));
    }

    /// Reads from connection `id`, or continues with what was read. Returns whether there is more.
    fn read(&mut self, now: Nanos, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(id) else { return false };
        let mut context = self.driver.context(now, Quota::default());
        if connection.unsubmitted.is_empty() {
            connection.read(&mut self.buffer, &mut context, &mut self.submissions);
        }
        self.backlog.units_done += context.quota.used();
        self.submit(now, id);
        self.connections.touch(id);
        let Some(connection) = self.connections.get(id) else { return false };
        let (has_more, takes_more) = (connection.is_readable(), connection.takes_input());
        let has_work = connection.has_work();
        self.ready_list.read(id, self.ringing.hears(id), has_more, takes_more);
        has_work || has_more && takes_more
    }

    /// Hands operations of connection `id` to the node: the first of a long request. Returns whether there were any.
    pub(super) fn submit(&mut self, now: Nanos, id: u64) -> bool {
        let _at = cpu::at(Activity::Engine.of_primary());
        let Some(connection) = self.connections.get_mut(id) else {
            self.submissions.clear();
            return false;
        };
        let mut read = self.submissions.drain(..);
        let mut quota = Quota::default();
        let mut is_any = false;
        while !quota.is_used_up()
            && let Some(request) = connection.unsubmitted.pop_front().or_else(|| read.next())
        {
            quota.take(OPERATION_UNITS);
            quota.take_bytes(bytes_of(&request.op));
            connection.submits(&request);
            self.driver.handle(now, Input::Submit(request));
            is_any = true;
        }
        connection.unsubmitted.extend(read);
        self.backlog.units_done += quota.used();
        is_any
    }

    /// Hands the node's answers to sessions, and sends replies.
    pub(super) fn answer_clients(&mut self, now: Nanos) {
        let _at = cpu::at(Activity::Send.of_node());
        self.backlog.has_submitted = false;
        self.take_replies(now);
        let mut slice = self.new_slice(ANSWERING);
        loop {
            let ids = self.connections.take_touched();
            let left = self.serve(ids, &mut slice, |event_loop, id| event_loop.advance(id, now));
            self.settle_rings();
            let is_done = !self.connections.has_touched();
            if is_done || !left.is_empty() {
                self.connections.touch_all(left);
                break;
            }
        }
        self.backlog.has_submitted |= self.end_shortage();
    }

    /// Hands the node's answers to their sessions.
    fn take_replies(&mut self, now: Nanos) {
        let mut slice = Slice::of(TAKING);
        let mut quota = Quota::default();
        while let Some((token, result)) = self.driver.next_reply() {
            let id = token.connection();
            let Some(connection) = self.connections.get_mut(id) else { continue };
            quota.take(COMMAND_UNITS);
            let mut context = self.driver.context(now, quota);
            connection.complete(token, result, &mut context);
            quota = context.quota;
            self.connections.touch(id);
            if quota.is_used_up() {
                quota = Quota::default();
                // The slice begins with the second quota.
                slice.take();
                if slice.is_over() {
                    break;
                }
            }
        }
    }

    /// Lets a connection work and send as much as a step allows. Returns whether there is more.
    fn advance(&mut self, id: u64, now: Nanos) -> bool {
        self.answer_ring(id, now);
        let most_output = self.connections.limits().output_bytes;
        let Some(connection) = self.connections.get_mut(id) else { return false };
        let mut context = self.driver.context(now, Quota::default());
        let is_behind = !connection.unsubmitted.is_empty() && !connection.is_dead;
        let dropped = match is_behind {
            true => None,
            false => connection.advance(most_output, &mut context, &mut self.submissions),
        };
        self.backlog.units_done += context.quota.used();
        if let Some(why) = dropped {
            report_dropped(id, why, self.driver.metrics());
        }
        if connection.is_finished() && !self.ringing.is_answering(id) {
            connection.end();
        }
        if connection.protocol_session.with_rings().is_some_and(|native| native.has_ring_asks()) {
            self.connections.touch(id);
        }
        self.backlog.has_submitted |= self.submit(now, id);
        let Some(connection) = self.connections.get(id) else { return false };
        if connection.takes_input() {
            self.ready_list.takes(id);
        }
        let held = connection.protocol_session.holder().bytes();
        if self.driver.shared.memory.is_full_for(held) {
            self.shortage.waits(id, held);
        }
        if connection.is_dead {
            self.remove(id);
            return false;
        }
        // Its replies wait until all that it has read before is submitted.
        connection.has_work() || is_behind && connection.unsubmitted.is_empty()
    }
}

/// Bytes that the node copies for an operation.
fn bytes_of(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Append { key, suffix } => key.len() + suffix.len(),
        _ => 0,
    }
}
