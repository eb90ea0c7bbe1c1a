//! A link's view of its peer's memory: the files that it has mapped, and the operations that wait for a file.
//!
//! The first operation on a memory asks its owner for the file over the control channel, and operations wait here until
//! it comes. From then on the owner takes no part. The view belongs to one connection, and is used under its link's
//! lock.

use super::memory::PeerMemory;
use crate::{
    LinkEvent, LinkOptions, PeerId,
    memory::{Counters, Handle},
    stream::{flights::Extension, link::LinkState, target::Export},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};
use tracing::warn;

/// An operation on a peer's memory.
pub(super) enum Operation<'a> {
    /// Copies these bytes there.
    Write(&'a [u8]),
    /// Copies this many bytes from there.
    Read(u32),
}

/// An operation that waits for a file.
struct Waiting {
    offset: u64,
    op: u64,
    /// The bytes of a write, or the length of a read.
    what: Result<Vec<u8>, u32>,
}

enum Import {
    Asked { handle: Handle, waiting: Vec<Waiting> },
    Mapped(PeerMemory),
}

/// The files of one peer.
pub(super) struct Imports {
    /// By id and key, because another incarnation of the peer may use the same id.
    memory: HashMap<(u64, u64), Import>,
    /// Bytes of the writes that wait.
    waiting_bytes: usize,
    counters: Arc<Counters>,
}

impl Imports {
    /// Carries the operation out on mapped memory, and returns its event.
    fn carry_out(&mut self, id: (u64, u64), offset: u64, op: u64, what: &Operation<'_>) -> LinkEvent {
        let Some(Import::Mapped(memory)) = self.memory.get(&id) else {
            return LinkEvent::Refused { op };
        };
        let event = match what {
            Operation::Write(bytes) => memory.write(offset, bytes).then(|| {
                self.counters.add_sent(bytes.len());
                LinkEvent::Completed { op }
            }),
            Operation::Read(len) => memory.read(offset, *len).map(|bytes| {
                self.counters.add_received(bytes.len());
                LinkEvent::ReadDone { op, bytes }
            }),
        };
        event.unwrap_or(LinkEvent::Refused { op })
    }

    /// Unmaps revoked memory.
    fn sweep(&mut self) {
        self.memory.retain(|_, import| !matches!(import, Import::Mapped(memory) if memory.is_revoked()));
    }
}

/// Carries `what` out at `offset` of the memory that `handle` names, or lets it wait for the file.
pub(super) fn post(
    state: &mut LinkState<Imports>,
    options: &LinkOptions,
    handle: Handle,
    offset: u64,
    op: u64,
    what: &Operation<'_>,
) {
    let id = (handle.id, handle.key);
    if !state.extension.memory.contains_key(&id) {
        state.extension.sweep();
        state.extension.memory.insert(id, Import::Asked { handle, waiting: Vec::new() });
        state.import(handle.id, handle.key, options);
    }
    let imports = &mut state.extension;
    if let Some(Import::Asked { waiting, .. }) = imports.memory.get_mut(&id) {
        let what = match what {
            Operation::Write(bytes) => Ok(bytes.to_vec()),
            Operation::Read(len) => Err(*len),
        };
        imports.waiting_bytes += what.as_ref().map_or(0, Vec::len);
        waiting.push(Waiting { offset, op, what });
        if imports.waiting_bytes > options.out_buffer_bytes {
            state.fail(format!("it does not pass its memory: over {} bytes wait", options.out_buffer_bytes));
        }
    } else {
        let event = imports.carry_out(id, offset, op, what);
        state.events.push_back(event);
    }
}

impl Extension for Imports {
    type Context = Counters;

    fn new(counters: &Arc<Counters>, _peer: PeerId) -> Imports {
        Imports { memory: HashMap::new(), waiting_bytes: 0, counters: Arc::clone(counters) }
    }

    fn imported(
        &mut self,
        id: (u64, u64),
        export: Option<Export>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        let Some(Import::Asked { handle, waiting }) = self.memory.remove(&id) else {
            unreachable!("a file is asked for once, and its answer comes once");
        };
        match export {
            Some(Export::File(file)) => match PeerMemory::map(&file, handle) {
                Ok(memory) => {
                    self.memory.insert(id, Import::Mapped(memory));
                }
                Err(error) => warn!(%error, "cannot map a peer's memory"),
            },
            Some(Export::Grant(_)) => return Err("a grant where a file was asked for".into()),
            None => {}
        }
        for Waiting { offset, op, what } in waiting {
            let event = match what {
                Ok(bytes) => {
                    self.waiting_bytes -= bytes.len();
                    self.carry_out(id, offset, op, &Operation::Write(&bytes))
                }
                Err(len) => self.carry_out(id, offset, op, &Operation::Read(len)),
            };
            events.push_back(event);
        }
        Ok(())
    }
}
