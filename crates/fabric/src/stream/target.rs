//! The side of a connection that owns memory, as a state machine: request bytes in; copies into registered memory,
//! messages and answers out. It stands in for the NIC.
//!
//! Requests are executed in order. The bytes are hostile: memory is touched only with a valid id, key and range, and
//! a message's buffer grows with the bytes received, not with the announced length. Payloads of writes are not
//! collected: each piece goes to memory as it arrives. But a part of a word waits for the word's other bytes, so that
//! an aligned 8-byte write is not seen half.

use super::{
    Admission,
    frame::{Answer, FrameError, HeaderBuffer, MAX_GRANT, RemotePlace, Request},
};
use crate::{
    memory::{Framed, MemoryId},
    words::WORD,
};
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Bytes copied and answered at a time when a peer reads.
const READ_PIECE: usize = 128 << 10;

/// How a peer reaches a memory without frames.
#[derive(Debug)]
pub(crate) enum Export {
    /// By mapping this file.
    File(OwnedFd),
    /// By this grant, in the transport's own form: 1 to [`MAX_GRANT`] bytes.
    Grant(Vec<u8>),
}

/// Finds memory for the requests of one connection. It is dropped when the connection is over, before the same peer is
/// welcomed again. After that nothing lands that was posted on this connection.
pub(crate) trait Owner {
    /// A memory that is written and read by frames.
    fn framed(&self, _id: u64, _key: u64) -> Option<Arc<dyn Framed>> {
        None
    }
    /// A memory that is reached in another way; `None` if there is none with this id and key, it is revoked, or peers
    /// may do something else with it.
    ///
    /// # Errors
    /// It cannot be exported. This ends the connection, because the peer must not take it for a revocation.
    fn export(&mut self, _memory: MemoryId) -> io::Result<Option<Export>> {
        Ok(None)
    }
    /// The peer gives an exported memory back.
    fn release(&mut self, _id: u64, _key: u64) {}
    /// The peer reports further bytes that it has written to and read from exported memory.
    fn moved(&mut self, _written: u64, _read: u64) {}
    /// Numbers of exported memories whose revocation was not reported to the peer yet.
    ///
    /// # Errors
    /// Exported memory cannot be reached any more. This ends the connection.
    fn revoked(&mut self) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

/// Makes the [`Owner`] of a new connection.
pub(crate) type Owners = Box<dyn Fn() -> Box<dyn Owner> + Send + Sync>;

/// The output of messages and answers.
pub(crate) trait Outlet {
    /// A control message.
    fn message(&mut self, bytes: Vec<u8>);
    /// Sends answers, in order. The descriptor belongs to the last one. May block while the peer does not read.
    fn answer(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()>;
}

/// Why a connection must end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The peer sent an invalid request.
    #[error("bad request: {0}")]
    Frame(#[from] FrameError),
    /// Answers cannot be sent, or memory cannot be exported.
    #[error("cannot answer: {0}")]
    Io(#[from] io::Error),
}

enum Stage {
    Header,
    Message { bytes: Vec<u8>, left: usize },
    Write(Landing),
}

/// A write whose bytes are arriving.
struct Landing {
    /// `None`: the write is refused, and its bytes are skipped.
    memory: Option<Arc<dyn Framed>>,
    /// Place of the next bytes.
    offset: u64,
    /// Bytes that have not landed yet, held ones included.
    left: u64,
    /// The beginning of a word that waits for its other bytes.
    held: [u8; WORD],
    held_bytes: usize,
}

impl Landing {
    /// Lands the bytes of the write in `input`. Returns whether the write is complete.
    fn take(&mut self, input: &mut &[u8]) -> bool {
        if self.held_bytes > 0 {
            let word = (WORD - self.offset as usize % WORD).min(usize::try_from(self.left).unwrap_or(WORD));
            let (more, rest) = input.split_at(input.len().min(word - self.held_bytes));
            self.held[self.held_bytes..self.held_bytes + more.len()].copy_from_slice(more);
            (self.held_bytes, *input) = (self.held_bytes + more.len(), rest);
            if self.held_bytes < word {
                return false;
            }
            let held = self.held;
            self.land(&held[..word]);
            self.held_bytes = 0;
        }
        let available = usize::try_from(self.left).map_or(input.len(), |left| input.len().min(left));
        let split = (self.offset as usize % WORD + available) % WORD;
        // The last word of the write may be partial. Others must be whole.
        let hold = if available as u64 == self.left { 0 } else { split.min(available) };
        let (piece, rest) = input.split_at(available - hold);
        let (held, rest) = rest.split_at(hold);
        self.land(piece);
        self.held[..hold].copy_from_slice(held);
        (self.held_bytes, *input) = (hold, rest);
        self.left == 0
    }

    fn land(&mut self, bytes: &[u8]) {
        if self.memory.as_ref().is_some_and(|memory| !memory.remote_write(self.offset, bytes)) {
            self.memory = None;
        }
        self.offset += bytes.len() as u64;
        self.left -= bytes.len() as u64;
    }
}

/// The state of one incoming connection.
pub(crate) struct Target {
    admission: Admission,
    header: HeaderBuffer,
    stage: Stage,
    /// Requests, without messages, that were executed.
    done: u64,
    /// Number of the last request with an answer.
    answered: u64,
    answers: Vec<u8>,
}

impl Target {
    /// The state of a new connection.
    pub(crate) fn new(admission: Admission) -> Target {
        let (header, stage) = (HeaderBuffer::default(), Stage::Header);
        Target { admission, header, stage, done: 0, answered: 0, answers: Vec::new() }
    }

    /// Executes the complete requests in `input`, and begins an incomplete one. Acknowledges all of them at once,
    /// and reports revocations.
    pub(crate) fn feed(
        &mut self,
        mut input: &[u8],
        owner: &mut dyn Owner,
        outlet: &mut dyn Outlet,
    ) -> Result<(), TargetError> {
        loop {
            match &mut self.stage {
                Stage::Header => match self.header.request(&mut input)? {
                    Some(request) => self.begin(request, owner, outlet)?,
                    None => break,
                },
                Stage::Message { bytes, left } => {
                    let (piece, rest) = input.split_at(input.len().min(*left));
                    bytes.extend_from_slice(piece);
                    (*left, input) = (*left - piece.len(), rest);
                    if *left > 0 {
                        break;
                    }
                    outlet.message(std::mem::take(bytes));
                    self.stage = Stage::Header;
                }
                Stage::Write(landing) => {
                    if !landing.take(&mut input) {
                        break;
                    }
                    let landed = landing.memory.is_some();
                    self.stage = Stage::Header;
                    self.finish(landed);
                }
            }
        }
        self.acknowledge();
        for id in owner.revoked()? {
            Answer::Revoked(id).encode(&mut self.answers);
        }
        self.send(None, outlet)
    }

    fn begin(&mut self, request: Request, owner: &mut dyn Owner, outlet: &mut dyn Outlet) -> Result<(), TargetError> {
        match request {
            Request::Message(_) if self.admission == Admission::Sessions => {
                return Err(FrameError::Invalid("a control message, which an admitted peer may not send".into()).into());
            }
            Request::Message(length) => {
                self.stage = Stage::Message { bytes: Vec::new(), left: length as usize };
            }
            Request::Write(place, length) => {
                let length = u64::from(length);
                let memory = owner.framed(place.id, place.key).filter(|memory| memory.admits(place.offset, length));
                let offset = if memory.is_some() { place.offset } else { 0 };
                self.stage = Stage::Write(Landing { memory, offset, left: length, held: [0; WORD], held_bytes: 0 });
            }
            Request::Read(place, length) => self.serve_read(place, length, owner, outlet)?,
            Request::Ping => self.finish(true),
            Request::Import(memory) => match owner.export(memory)? {
                Some(export) => self.pass(export, outlet)?,
                None => self.finish(false),
            },
            Request::Release(place) => {
                owner.release(place.id, place.key);
                self.finish(true);
            }
            Request::Moved { written, read } => {
                owner.moved(written, read);
                self.finish(true);
            }
        }
        Ok(())
    }

    /// Answers an import.
    fn pass(&mut self, export: Export, outlet: &mut dyn Outlet) -> Result<(), TargetError> {
        self.acknowledge();
        self.done += 1;
        self.answered = self.done;
        match export {
            Export::File(file) => {
                Answer::Imported(self.done).encode(&mut self.answers);
                self.send(Some(&file), outlet)
            }
            Export::Grant(bytes) => {
                assert!((1..=MAX_GRANT).contains(&bytes.len()), "a grant of {} bytes", bytes.len());
                Answer::Granted(self.done, bytes.len() as u32).encode(&mut self.answers);
                self.answers.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn serve_read(
        &mut self,
        place: RemotePlace,
        length: u32,
        owner: &mut dyn Owner,
        outlet: &mut dyn Outlet,
    ) -> Result<(), TargetError> {
        let memory = owner.framed(place.id, place.key).filter(|memory| memory.admits(place.offset, u64::from(length)));
        let Some(memory) = memory else {
            self.finish(false);
            return Ok(());
        };
        self.acknowledge();
        let sequence = self.done + 1;
        let (mut offset, mut left) = (place.offset, length as usize);
        let mut piece = vec![0; READ_PIECE.min(left)];
        while left > 0 {
            // Pieces end at word boundaries, so that no word is read in two halves.
            piece.resize(left.min(READ_PIECE - offset as usize % WORD), 0);
            if !memory.remote_read(offset, &mut piece) {
                self.finish(false);
                return Ok(());
            }
            Answer::ReadBytes(sequence, piece.len() as u32).encode(&mut self.answers);
            self.answers.extend_from_slice(&piece);
            self.send(None, outlet)?;
            (offset, left) = (offset + piece.len() as u64, left - piece.len());
        }
        self.done = sequence;
        self.answered = sequence;
        Answer::ReadEnd(sequence).encode(&mut self.answers);
        Ok(())
    }

    /// Notes that one more request was executed, or refused.
    fn finish(&mut self, granted: bool) {
        if granted {
            self.done += 1;
        } else {
            self.acknowledge();
            self.done += 1;
            self.answered = self.done;
            Answer::Refused(self.done).encode(&mut self.answers);
        }
    }

    /// Acknowledges all requests that were executed and are not acknowledged yet.
    fn acknowledge(&mut self) {
        if self.answered < self.done {
            self.answered = self.done;
            Answer::Ack(self.done).encode(&mut self.answers);
        }
    }

    fn send(&mut self, file: Option<&OwnedFd>, outlet: &mut dyn Outlet) -> Result<(), TargetError> {
        use std::os::fd::AsFd;
        if !self.answers.is_empty() {
            outlet.answer(&self.answers, file.map(OwnedFd::as_fd))?;
            self.answers.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
