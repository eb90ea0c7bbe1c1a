//! The side of a connection that owns memory, as a pure machine: request bytes in, copies into registered memory,
//! messages and answers out. This is what stands in for the NIC.
//!
//! Requests are carried out in the order they came. The bytes are hostile: memory is touched only where a valid id,
//! key and range allow it, and a message's buffer grows with the bytes that came, not with the length announced.
//! Payloads of writes are not collected: each piece goes to memory as it arrives, but never a part of a word whose
//! other bytes are still to come, so that an aligned 8-byte write is not seen half.

use super::{
    Admission,
    frame::{Answer, FrameError, HeaderBuffer, MAX_GRANT, Place, Request},
};
use crate::{memory::Framed, words::WORD};
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
    /// The file, to be mapped.
    File(OwnedFd),
    /// What the transport's other side understands: 1 to [`MAX_GRANT`] bytes.
    Grant(Vec<u8>),
}

/// Where the requests of one connection find memory. Dropped when the connection is over, before the same peer is welcomed
/// again: from then on nothing lands that was posted on this connection.
pub(crate) trait Owner {
    /// Memory that is written and read by frames.
    fn framed(&self, _id: u64, _key: u64) -> Option<Arc<dyn Framed>> {
        None
    }
    /// Memory that is reached in another way; `None` if there is none of this id and key, or it is revoked.
    ///
    /// # Errors
    /// It cannot be exported. That ends the connection: the peer must not take it for a revocation.
    fn export(&mut self, _id: u64, _key: u64) -> io::Result<Option<Export>> {
        Ok(None)
    }
    /// The peer gives an exported memory back.
    fn release(&mut self, _id: u64, _key: u64) {}
    /// The peer has moved so many more bytes to and from exported memory.
    fn moved(&mut self, _written: u64, _read: u64) {}
    /// Numbers of exported memories that were revoked and that the peer was not told of.
    ///
    /// # Errors
    /// Exported memory is not reached any more. That ends the connection.
    fn revoked(&mut self) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

/// Makes the [`Owner`] of a new connection.
pub(crate) type Owners = Box<dyn Fn() -> Box<dyn Owner> + Send + Sync>;

/// Where messages and answers go.
pub(crate) trait Outlet {
    /// A control message.
    fn message(&mut self, bytes: Vec<u8>);
    /// Answers, in order; the descriptor belongs to the last of them. May block while the peer does not take them.
    fn answer(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()>;
}

/// Why a connection has to end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The peer sent what no peer sends.
    #[error("bad request: {0}")]
    Frame(#[from] FrameError),
    /// The answers do not get through, or there are none.
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
    /// None: refused, the bytes are skipped.
    memory: Option<Arc<dyn Framed>>,
    /// Where the next bytes go.
    offset: u64,
    /// Bytes that did not land yet, held ones included.
    left: u64,
    /// The beginning of a word that waits for its other bytes.
    held: [u8; WORD],
    held_bytes: usize,
}

impl Landing {
    /// Lands what there is of the write in `input`; tells whether that is all of it.
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
        // The last word of the write may end anywhere, any other at its boundary.
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

/// One incoming connection's progress.
pub(crate) struct Target {
    admission: Admission,
    header: HeaderBuffer,
    stage: Stage,
    /// Requests, messages excepted, that were carried out.
    done: u64,
    /// Up to which of them the peer has an answer.
    answered: u64,
    answers: Vec<u8>,
}

impl Target {
    /// A connection on which nothing was received.
    pub(crate) fn new(admission: Admission) -> Target {
        let (header, stage) = (HeaderBuffer::default(), Stage::Header);
        Target { admission, header, stage, done: 0, answered: 0, answers: Vec::new() }
    }

    /// Carries out what is complete in `input` and begins what is not; acknowledges all of it at once, and says what was revoked.
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
            Request::Import(place) => match owner.export(place.id, place.key)? {
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
        place: Place,
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
            // Pieces end between words, so that no word is read in two halves.
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

    /// One more request is carried out, or refused.
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

    /// Acknowledges everything that was carried out and is not acknowledged yet.
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
