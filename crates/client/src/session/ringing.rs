//! A session whose links have [rings](crate::ring): it polls for answers, then spins, then sleeps.
//!
//! The operating system does not report answers in rings. So before the session waits for its sockets, it polls its
//! slots, for [`ClientOptions::ring_spin`](crate::ClientOptions::ring_spin) if there is no answer. Then it announces
//! that it sleeps, and polls once more. From then on nodes ring over the connection, which wakes the session. Even
//! while answers come through rings, the sockets are polled every [`SOCKETS`], and more often while an answer is
//! expected from them.

use super::Session;
use crate::options::ClientError;
use crate::ring::{reads_now, refused_map};
use leeward_format::op::Reply;
use mio::Token;
use std::time::{Duration, Instant};

/// The longest time without a poll of the sockets, while the session is awake.
const SOCKETS: Duration = Duration::from_micros(50);
/// Polls of the slots between two reads of the clock.
const LOOKS: u32 = 32;

impl Session {
    /// Waits until some link can send requests.
    pub(super) fn await_rings(&mut self, deadline: Instant) -> Result<(), ClientError> {
        loop {
            if self.links.values().any(|link| link.is_ready()) {
                return Ok(());
            }
            let is_late = Instant::now() >= deadline;
            let lacking = self.links.values().next().filter(|_| is_late);
            let lacking = lacking.map(|link| (link.address.clone(), link.lacks()));
            let lacking = lacking.map(|(address, reason)| ClientError::Rings { address, reason });
            if let Some(lack) = self.lack.take().or(lacking) {
                return Err(lack);
            }
            if is_late || self.links.is_empty() {
                let reason = self.last_failure.clone();
                return Err(ClientError::Unreachable { seeds: self.seeds.join(", "), reason });
            }
            self.wait(super::TICK)?;
        }
    }

    /// Looks at rings and sockets now and then while direct reads answer everything, so that no poll waits.
    pub(super) fn listen_between_hits(&mut self, now: Instant) -> Result<(), ClientError> {
        if self.direct.is_some() && now.saturating_duration_since(self.last_poll) >= SOCKETS {
            return self.wait_with_rings(Duration::ZERO);
        }
        Ok(())
    }

    /// Waits for rings and sockets and handles what they receive.
    pub(super) fn wait_with_rings(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let begun = Instant::now();
        let mut has_announced = false;
        loop {
            self.settle_rings();
            let mut has_some = self.take_from_rings();
            if self.last_poll.elapsed() >= SOCKETS || self.links.values().any(|link| link.expects_on_stream()) {
                has_some |= self.poll_sockets(Duration::ZERO)?;
            }
            if has_some || timeout.is_zero() {
                return Ok(());
            }
            let due: usize = self.links.values().map(|link| link.due_in_rings()).sum();
            if due > 0 && begun.elapsed() < self.options.ring_spin.min(timeout) {
                self.spin(begun, timeout);
                continue;
            }
            if due > 0 && !has_announced {
                self.links.values_mut().for_each(|link| link.announce_sleep());
                has_announced = true;
                continue;
            }
            if self.mailbox.as_ref().is_some_and(|mailbox| !mailbox.may_sleep()) {
                continue;
            }
            return self.poll_sockets(timeout.saturating_sub(begun.elapsed())).map(drop);
        }
    }

    /// Spins until there is an answer, the spin time is over, or the sockets must be polled.
    fn spin(&self, begun: Instant, timeout: Duration) {
        let spin = self.options.ring_spin.min(timeout);
        while begun.elapsed() < spin && self.last_poll.elapsed() < SOCKETS {
            for _ in 0..LOOKS {
                let has_mail = self.mailbox.as_ref().is_some_and(|mailbox| mailbox.has_some());
                if has_mail || self.links.values().any(|link| link.has_answer()) {
                    return;
                }
                std::hint::spin_loop();
            }
            if !self.has_many_cores {
                std::thread::yield_now();
            }
        }
    }

    /// Takes answers out of all rings. Returns whether there were any.
    fn take_from_rings(&mut self) -> bool {
        let mut taken: Vec<(Token, Reply)> = Vec::new();
        let mut broken = Vec::new();
        let mut replies = Vec::new();
        for (token, link) in &mut self.links {
            if let Err(error) = link.poll_rings(&mut replies) {
                broken.push((*token, error));
            }
            taken.extend(replies.drain(..).map(|reply| (*token, reply)));
        }
        let has_some = !taken.is_empty() || !broken.is_empty();
        for (token, reply) in taken {
            self.receive(token, reply);
        }
        for (token, error) in broken {
            self.fail(token, &error.to_string());
        }
        has_some
    }

    /// Takes the answers that are in the slots of a link that ends.
    pub(super) fn take_last_answers(&mut self, token: Token) {
        let Some(link) = self.links.get_mut(&token) else { return };
        let mut replies = Vec::new();
        if let Err(error) = link.poll_rings(&mut replies) {
            tracing::debug!(%error, address = link.address, "the last look into the ring of a link that ends");
        }
        for reply in replies {
            self.receive(token, reply);
        }
    }

    /// Flushes rings, handles the events of the fabrics, and rings nodes that sleep.
    pub(super) fn settle_rings(&mut self) {
        let Some(mailbox) = self.mailbox.clone() else { return };
        self.links.values_mut().for_each(|link| link.flush_rings());
        for (token, event) in mailbox.take() {
            if let Some(region) = refused_map(&event) {
                self.cannot_map(token, region);
                continue;
            }
            let is_lost = self.links.get_mut(&token).is_some_and(|link| !link.hear_fabric(&event));
            if is_lost {
                self.fail(token, "the link of its rings is lost");
            }
        }
        let mut broken = Vec::new();
        for (token, link) in &mut self.links {
            if let Err(error) = link.ring_bell() {
                broken.push((*token, error));
            }
        }
        for (token, error) in broken {
            self.fail(token, &error.to_string());
        }
    }

    /// Handles a node's reply about rings.
    pub(super) fn handle_ring_reply(&mut self, token: Token, reply: Reply) {
        let Some(link) = self.links.get_mut(&token) else { return };
        if let Reply::RingOffer { fabric, .. } = &reply
            && self.needs_direct
            && !reads_now(fabric)
        {
            let reason = format!("its rings are on fabric {fabric:?}, and only shared memory is read directly");
            self.lack = Some(ClientError::Direct { address: link.address.clone(), reason: reason.clone() });
            return self.fail(token, &format!("no direct reads: {reason}"));
        }
        if let Err(reason) = link.handle_ring_reply(reply) {
            self.lack = Some(ClientError::Rings { address: link.address.clone(), reason: reason.clone() });
            self.fail(token, &format!("no rings: {reason}"));
        }
    }
}
