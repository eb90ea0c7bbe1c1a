//! How long a request the ensemble takes, as far as this client has learnt.
//!
//! A server closes the connection at a request that is longer than its `jute.maxbuffer`, and says nothing. The caller would ask
//! again after each reconnect, for ever, and the process would not be part of the cluster meanwhile. So closes right after
//! the same request are counted, and then the request is refused, with its length and the name of the limit.
//!
//! Invariants:
//! - Only the longest unanswered request is suspected, and only if no request as long was answered on the same connection.
//! - A request that was answered clears all that are not longer.
//! - A refusal ends by itself, later each time: the operator may have raised the limit.
//!
//! Pure; one thread at a time.

use leeward_format::zookeeper::MAX_REQUEST_BYTES;
use leeward_platform::{Backoff, Nanos};

/// Closes after which a request is refused: more than the servers of an ensemble that loses its leader cause.
const CLOSES: u32 = 4;
/// How long the refusals of a length last.
const REFUSED_FOR: Backoff = Backoff { first: Nanos::from_secs(2), most: Nanos::from_secs(60) };

/// What is known of the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestLimit {
    /// Length of the longest request that was answered on this connection.
    answered: usize,
    /// The shortest length after which connections were closed, and how often; 0: none.
    suspect: usize,
    closes: u32,
    refused_until: Nanos,
}

impl RequestLimit {
    /// A new connection begins: perhaps to another server, or one with other limits.
    pub(super) fn connected(&mut self) {
        self.answered = 0;
    }

    /// A request of `bytes` was answered.
    pub(super) fn answered(&mut self, bytes: usize) {
        self.answered = self.answered.max(bytes);
        if bytes >= self.suspect {
            (self.suspect, self.closes) = (0, 0);
        }
    }

    /// The server closed the connection; the longest request that it had not answered has `bytes`.
    pub(super) fn closed(&mut self, now: Nanos, bytes: usize) {
        if bytes <= self.answered {
            return;
        }
        self.suspect = if self.closes == 0 { bytes } else { self.suspect.min(bytes) };
        self.closes += 1;
        if let Some(before) = self.closes.checked_sub(CLOSES) {
            self.refused_until = now + REFUSED_FOR.after(before);
        }
    }

    /// Why a request of `bytes` is not sent.
    pub(super) fn refusal(&self, now: Nanos, bytes: usize) -> Option<String> {
        let Self { suspect, closes, .. } = *self;
        let is_refused = closes >= CLOSES && bytes >= suspect && now < self.refused_until;
        is_refused.then(|| {
            format!(
                "a request of {bytes} bytes is not sent: {closes} times ZooKeeper closed the connection right after one of \
                 {suspect}. Its limit jute.maxbuffer is lower, it seems: set it to {MAX_REQUEST_BYTES}, the default, or more \
                 on all servers of the ensemble, and see their logs"
            )
        })
    }
}

#[cfg(test)]
#[path = "request_limit_tests.rs"]
mod tests;
