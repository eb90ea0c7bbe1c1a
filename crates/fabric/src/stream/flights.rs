//! The requests of one connection that have no answer yet, as a state machine without I/O: answer bytes in, events out.
//!
//! Answers come in the order of the requests, so this is a queue, and every answer is checked against its front. A peer
//! that acknowledges a request that was not sent, or sends more bytes than a read wanted, breaks the protocol, and its
//! link ends. Used under the lock of its link.

use super::{
    LinkOptions,
    frame::{Answer, FrameError, HeaderBuffer},
    link::{Link, LinkState},
    target::Export,
};
use crate::{LinkEvent, PeerId, memory::MemoryId};
use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc};

/// A transport's part of a link: it learns how the memory that it asked for is reached. It is made anew for every
/// connection.
pub(crate) trait Extension: Sized + Send + 'static {
    /// The state that the links of one fabric share.
    type Context: Send + Sync;

    /// The extension of a new connection to `peer`.
    fn new(context: &Arc<Self::Context>, peer: PeerId) -> Self;
    /// The owner's answer about a memory that was asked for: how it is reached, or `None` if it is refused. An error
    /// ends the connection.
    fn imported(
        &mut self,
        memory: MemoryId,
        export: Option<Export>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String>;
    /// The owner has revoked a memory that was granted over this connection.
    fn revoked(&mut self, _id: u64) {}
    /// Called by the link's thread when the connection is up, before it waits for anything: may post.
    fn begin(_state: &mut LinkState<Self>, _options: &LinkOptions) {}
    /// Called by the link's thread after it took answers, with no lock held: may take long.
    fn settle(_link: &Link<Self>) {}
    /// Called by the link's thread once in every ping interval, however busy the link is: may post, or fail the link.
    fn on_ping_interval(_state: &mut LinkState<Self>, _options: &LinkOptions) {}
}

/// TCP needs no extension.
impl Extension for () {
    type Context = ();
    fn new(_context: &Arc<()>, _peer: PeerId) {}
    fn imported(
        &mut self,
        _memory: MemoryId,
        _export: Option<Export>,
        _events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// A request that waits for its answer.
pub(crate) enum Flight {
    /// Completed by an acknowledgement.
    Write {
        /// Number given by the caller that posted it.
        op: u64,
    },
    /// Completed when all bytes have come.
    Read {
        /// Number given by the caller that posted it.
        op: u64,
        /// Bytes wanted.
        want: usize,
        /// Bytes that came.
        bytes: Vec<u8>,
    },
    /// A ping or a report, which is only acknowledged.
    Note,
    /// A request how a memory is reached.
    Import {
        memory: MemoryId,
        /// The bytes of the grant so far.
        bytes: Vec<u8>,
    },
}

impl Flight {
    fn is_import(&mut self) -> bool {
        matches!(self, Flight::Import { .. })
    }
}

/// Requests in flight on one connection.
#[derive(Default)]
pub(crate) struct Flights {
    queue: VecDeque<Flight>,
    /// Requests answered so far; the front of the queue is the next one.
    answered: u64,
    header: HeaderBuffer,
    /// Missing bytes of a piece of the read, or of the grant, at the front.
    piece: usize,
}

impl Flights {
    /// Adds a request that was posted.
    pub(crate) fn push(&mut self, flight: Flight) {
        self.queue.push_back(flight);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes answers; `fds` came with them.
    pub(crate) fn feed<X: Extension>(
        &mut self,
        mut input: &[u8],
        fds: &mut VecDeque<OwnedFd>,
        extension: &mut X,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), FrameError> {
        loop {
            if self.piece > 0 {
                let Some(Flight::Read { bytes, .. } | Flight::Import { bytes, .. }) = self.queue.front_mut() else {
                    unreachable!("a piece is only announced for the read or import at the front");
                };
                let (piece, rest) = input.split_at(input.len().min(self.piece));
                bytes.extend_from_slice(piece);
                (self.piece, input) = (self.piece - piece.len(), rest);
                if self.piece == 0
                    && let Some(Flight::Import { memory, bytes }) = self.queue.pop_front_if(Flight::is_import)
                {
                    self.answered += 1;
                    extension.imported(memory, Some(Export::Grant(bytes)), events).map_err(FrameError::Invalid)?;
                }
            }
            match self.header.answer(&mut input)? {
                Some(answer) => self.take(answer, fds, extension, events)?,
                None => return Ok(()),
            }
        }
    }

    fn take<X: Extension>(
        &mut self,
        answer: Answer,
        fds: &mut VecDeque<OwnedFd>,
        extension: &mut X,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), FrameError> {
        let unasked = || FrameError::Invalid(format!("{answer:?} answers nothing that was asked"));
        if let Answer::Ack(through) = answer {
            if through <= self.answered {
                return Err(unasked());
            }
            while self.answered < through {
                match self.pop(self.answered + 1).ok_or_else(unasked)? {
                    Flight::Write { op } => events.push_back(LinkEvent::Completed { op }),
                    Flight::Note => {}
                    Flight::Read { .. } | Flight::Import { .. } => return Err(unasked()),
                }
            }
            return Ok(());
        }
        match answer {
            Answer::Ack(_) => unreachable!("handled above"),
            Answer::Refused(sequence) => match self.pop(sequence).ok_or_else(unasked)? {
                Flight::Write { op } | Flight::Read { op, .. } => events.push_back(LinkEvent::Refused { op }),
                Flight::Import { memory, .. } => {
                    extension.imported(memory, None, events).map_err(FrameError::Invalid)?;
                }
                Flight::Note => return Err(unasked()),
            },
            Answer::ReadBytes(sequence, length) => match self.queue.front() {
                Some(Flight::Read { want, bytes, .. })
                    if sequence == self.answered + 1 && bytes.len() + length as usize <= *want =>
                {
                    self.piece = length as usize;
                }
                _ => return Err(unasked()),
            },
            Answer::ReadEnd(sequence) => match self.pop(sequence).ok_or_else(unasked)? {
                Flight::Read { op, want, bytes } if bytes.len() == want => {
                    events.push_back(LinkEvent::ReadDone { op, bytes });
                }
                _ => return Err(unasked()),
            },
            Answer::Imported(sequence) => match (self.pop(sequence).ok_or_else(unasked)?, fds.pop_front()) {
                (Flight::Import { memory, .. }, Some(file)) => {
                    extension.imported(memory, Some(Export::File(file)), events).map_err(FrameError::Invalid)?;
                }
                _ => return Err(unasked()),
            },
            Answer::Granted(sequence, length) => match self.queue.front() {
                Some(Flight::Import { .. }) if sequence == self.answered + 1 => self.piece = length as usize,
                _ => return Err(unasked()),
            },
            Answer::Revoked(id) => extension.revoked(id),
        }
        Ok(())
    }

    /// The request with this number, if it is the next to be answered.
    fn pop(&mut self, sequence: u64) -> Option<Flight> {
        if sequence != self.answered.wrapping_add(1) {
            return None;
        }
        let flight = self.queue.pop_front()?;
        self.answered = sequence;
        Some(flight)
    }
}

#[cfg(test)]
#[path = "flights_tests.rs"]
mod tests;
