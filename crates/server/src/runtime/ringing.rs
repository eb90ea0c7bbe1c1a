//! The event loop's part in [rings](crate::rings): when to look into them, when to spin, when to sleep.
//!
//! The event loop is the spinning thread of Tebis 3.4.2. It executes by itself what memory can answer, so most
//! requests wake no other thread: that is the purpose of the paper's rule for its workers. The paper's limit of 64
//! tasks is the limit of one look here. After 64 requests of one ring, other rings have their turn, the batch of all is
//! mirrored, and answers leave.
//!
//! With a spin of 0 the loop never says that it is awake. Each message then comes with a bell, which wakes it as any
//! byte of a socket does. Otherwise clients that send something learn that it is awake. It looks at all rings again and
//! again, at sockets and other threads every [`SLICE`], and sleeps once nothing has come for the spin.

use super::event_loop::EventLoop;
use super::ready_list::RingLook;
use crate::config::has_many_cores;
use crate::metrics::Metrics;
use crate::quota::Quota;
use crate::rings::{Effect, Rings};
use leeward_format::op::Reply;
use leeward_platform::{BootClock, Clock as _, Nanos};

/// Messages that are taken from one ring before other rings have their turn (Tebis 3.4.2).
const TURN_MESSAGES: usize = 64;
/// How long the loop looks at rings without a look at sockets and other threads.
const SLICE: Nanos = Nanos::from_micros(20);

/// The slice of a turn for taking requests out of rings.
const LOOKING: Nanos = Nanos::from_millis(2);
/// Looks between two looks at the clock. With few cores, other threads may run then.
const LOOKS: u32 = 32;

/// What the event loop knows of rings.
pub(super) struct Ringing {
    rings: Option<Rings>,
    /// How long the loop looks at rings after the last request.
    pub(super) spin: Nanos,
    has_many_cores: bool,
    effects: Vec<Effect>,
    buffer: Vec<u8>,
}

impl Ringing {
    pub(super) fn new(rings: Option<Rings>, spin: Nanos) -> Ringing {
        Ringing { rings, spin, has_many_cores: has_many_cores(), effects: Vec::new(), buffer: Vec::new() }
    }

    /// Whether connection `id` has a ring, so that bytes on its socket may be bells.
    pub(super) fn hears(&self, id: u64) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.is_open(id))
    }

    /// Whether answers are on their way through the ring of `id`. If so, `id` is touched when they have arrived.
    pub(super) fn is_answering(&mut self, id: u64) -> bool {
        self.rings.as_mut().is_some_and(|rings| rings.is_answering(id))
    }

    /// Connections whose clients take no answers for `timeout`.
    pub(super) fn stalled(&mut self, now: Nanos, timeout: Nanos) -> Vec<u64> {
        self.rings.as_mut().map(|rings| rings.stalled(now, timeout)).unwrap_or_default()
    }

    /// Frees the ring of connection `id`, which has ended.
    pub(super) fn remove(&mut self, id: u64, metrics: &Metrics) {
        if let Some(rings) = &mut self.rings {
            rings.remove(id);
            metrics.ring_clients(rings.figures().0);
        }
    }
}

impl EventLoop {
    /// Looks at the rings for a while.
    pub(super) fn spin(&self, now: Nanos) {
        let Some(rings) = &self.ringing.rings else { return };
        loop {
            for _ in 0..LOOKS {
                if self.ready_list.has_news(rings.waiting()) {
                    return;
                }
                std::hint::spin_loop();
            }
            if BootClock.now() - now > SLICE {
                return;
            }
            if !self.ringing.has_many_cores {
                // The client may need this core.
                std::thread::yield_now();
            }
        }
    }

    /// Lets clients know that they must ring. This thread looks once more before it may sleep.
    pub(super) fn fall_asleep(&mut self) {
        if let Some(rings) = &mut self.ringing.rings {
            rings.fall_asleep();
            self.settle_rings();
        }
    }

    /// Takes requests out of the rings that are to be looked into.
    pub(super) fn read_rings(&mut self, now: Nanos) {
        let Some(rings) = &self.ringing.rings else { return };
        let look = self.ready_list.turn(rings.waiting());
        let mut slice = self.new_slice(LOOKING);
        let left = self.serve(look, &mut slice, |event_loop, id| event_loop.read_ring(now, id));
        left.into_iter().for_each(|id| self.ready_list.look(id));
    }

    /// Takes requests out of one ring. Returns that there are no more: messages that are left wait for the next turn.
    fn read_ring(&mut self, now: Nanos, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(id) else { return false };
        let Some(rings) = &mut self.ringing.rings else { return false };
        let takes_input = connection.takes_input();
        let Some(native) = connection.protocol_session.with_rings() else { return false };
        if !takes_input {
            self.ready_list.looked(id, RingLook::Held, now);
            return false;
        }
        let mut context = self.driver.context(now, Quota::default());
        let submissions = &mut self.submissions;
        let received = rings.receive(id, TURN_MESSAGES, &mut self.ringing.buffer, |reply_path, frame| {
            native.take_from_ring(frame, reply_path, &mut context, submissions);
            native.wants_input() && !context.quota.is_used_up()
        });
        self.backlog.units_done += context.quota.used();
        match received {
            Ok(received) => {
                let found = match received.messages {
                    0 => RingLook::Nothing,
                    _ => RingLook::Requests { has_more: received.has_more },
                };
                self.driver.metrics().ring_requests(received.messages);
                if self.ready_list.looked(id, found, now) {
                    rings.stay_awake_for(id);
                }
            }
            Err(error) => native.refuse_ring(&mut context, &error.to_string()),
        }
        self.connections.touch(id);
        self.submit(now, id);
        false
    }

    /// Hands the answers and requests that connection `id` has for its rings to them.
    pub(super) fn answer_ring(&mut self, id: u64, now: Nanos) {
        let Some(rings) = &mut self.ringing.rings else { return self.refuse_rings(id) };
        let Some(connection) = self.connections.get_mut(id) else { return };
        let Some(native) = connection.protocol_session.with_rings() else { return };
        let (mut over_stream, mut bad) = (Vec::new(), None);
        for (reply_path, frames) in native.for_rings() {
            match rings.answer(id, reply_path, frames) {
                Ok(frames) => over_stream.extend(frames),
                Err(error) => bad = Some(error),
            }
        }
        for frames in over_stream {
            native.send_over_stream(&frames);
        }
        if let Some(error) = bad {
            let mut context = self.driver.context(now, Quota::default());
            native.refuse_ring(&mut context, &error.to_string());
        }
        let asks: Vec<_> = native.ring_asks().collect();
        if !asks.is_empty() {
            let from = connection.socket().peer_addr();
            for ask in asks {
                let Ok(from) = &from else { continue };
                let reply = rings.ask(id, from.ip(), &ask, now);
                if let (Some(reply), Some(native)) = (reply, connection.protocol_session.with_rings()) {
                    native.tell(&reply);
                }
            }
            self.driver.metrics().ring_clients(rings.figures().0);
        }
    }

    fn refuse_rings(&mut self, id: u64) {
        let Some(native) = self.connections.with_rings(id) else { return };
        let asks = native.ring_asks().count();
        for _ in 0..asks {
            native.tell(&Reply::RingRefused { reason: "this node has no rings (its setting rings is off)".into() });
        }
    }

    /// Sends the answers that were put into rings, and handles the events of the rings' fabric.
    pub(super) fn settle_rings(&mut self) {
        let Some(rings) = &mut self.ringing.rings else { return };
        rings.settle(&mut self.ringing.effects);
        for effect in self.ringing.effects.drain(..) {
            match effect {
                Effect::Look(id) => {
                    self.ready_list.look(id);
                }
                Effect::Quiet(id) => {
                    self.connections.touch(id);
                }
                Effect::Tell(id, reply) => {
                    if matches!(reply, Reply::RingBell { .. }) {
                        self.driver.metrics().ring_bell();
                    }
                    if let Some(native) = self.connections.with_rings(id) {
                        native.tell(&reply);
                        self.connections.touch(id);
                    }
                }
                Effect::Lost(id) => {
                    if self.connections.give_up(id) {
                        tracing::info!(client = id, "the link of a client's ring is lost; closing its connection");
                    }
                }
            }
        }
    }

    /// Gives up rings that take too long to open, and reads bytes that were left in sockets.
    pub(super) fn pass_time_for_rings(&mut self, now: Nanos) {
        let Some(rings) = &mut self.ringing.rings else { return };
        rings.check_opening(now, &mut self.ringing.effects);
        self.ready_list.tick();
    }
}
