//! A link's view of its peer's memory: the files that it has mapped, and the operations that wait for a file.
//!
//! The first operation on a memory asks its owner for the file over the control channel, and operations wait here until
//! it comes. From then on the owner takes no part. The view belongs to one connection, and is used under its link's
//! lock. Memory that may only be read is also listed where any thread finds it, until the connection ends.

use super::{
    Context,
    memory::PeerMemory,
    readable::{Listed, PeerReadable},
};
use crate::{
    LinkEvent, LinkOptions, PeerId,
    memory::{Handle, MemoryId, Permission},
    stream::{flights::Extension, link::LinkState, target::Export},
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
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
    Asked {
        handle: Handle,
        waiting: Vec<Waiting>,
    },
    Writable(PeerMemory),
    /// Any thread finds it, too.
    Readable(Listed),
}

/// The files of one peer.
pub(super) struct Imports {
    /// By id and key, because another incarnation of the peer may use the same id.
    memory: HashMap<MemoryId, Import>,
    /// Bytes of the writes that wait.
    waiting_bytes: usize,
    peer: PeerId,
    context: Arc<Context>,
}

impl Imports {
    /// Executes the operation on mapped memory, and returns its event.
    fn execute(&self, id: MemoryId, offset: u64, op: u64, what: &Operation<'_>) -> LinkEvent {
        let counters = &self.context.counters;
        let written = |bytes: &[u8]| {
            counters.add_sent(bytes.len());
            LinkEvent::Completed { op }
        };
        let read = |bytes: Vec<u8>| {
            counters.add_received(bytes.len());
            LinkEvent::ReadDone { op, bytes }
        };
        let event = match (self.memory.get(&id), what) {
            (Some(Import::Writable(memory)), Operation::Write(bytes)) => {
                memory.write(offset, bytes).then(|| written(bytes))
            }
            (Some(Import::Writable(memory)), Operation::Read(len)) => memory.read(offset, *len).map(read),
            (Some(Import::Readable(memory)), Operation::Read(len)) => memory.read_new(offset, *len).map(read),
            (Some(Import::Readable(_)), Operation::Write(_)) | (Some(Import::Asked { .. }) | None, _) => None,
        };
        event.unwrap_or(LinkEvent::Refused { op })
    }

    /// Unmaps revoked memory.
    fn sweep(&mut self) {
        self.memory.retain(|_, import| match import {
            Import::Asked { .. } => true,
            Import::Writable(memory) => !memory.is_revoked(),
            Import::Readable(memory) => !memory.is_revoked(),
        });
    }

    fn map(&self, file: &OwnedFd, handle: Handle) -> io::Result<Import> {
        Ok(match handle.permission {
            Permission::ReadWrite => Import::Writable(PeerMemory::map(file, handle)?),
            Permission::ReadOnly => {
                let memory = PeerReadable::map(file, handle)?;
                Import::Readable(self.context.readables.list((self.peer, handle.id, handle.key), memory))
            }
        })
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
    let id = handle.memory();
    if !state.extension.memory.contains_key(&id) {
        state.extension.sweep();
        state.extension.memory.insert(id, Import::Asked { handle, waiting: Vec::new() });
        state.import(id, options);
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
        let event = imports.execute(id, offset, op, what);
        state.events.push_back(event);
    }
}

impl Extension for Imports {
    type Context = Context;

    fn new(context: &Arc<Context>, peer: PeerId) -> Imports {
        Imports { memory: HashMap::new(), waiting_bytes: 0, peer, context: Arc::clone(context) }
    }

    fn imported(
        &mut self,
        id: MemoryId,
        export: Option<Export>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        let Some(Import::Asked { handle, waiting }) = self.memory.remove(&id) else {
            unreachable!("a file is asked for once, and its answer comes once");
        };
        match export {
            Some(Export::File(file)) => match self.map(&file, handle) {
                Ok(import) => {
                    self.memory.insert(id, import);
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
                    self.execute(id, offset, op, &Operation::Write(&bytes))
                }
                Err(len) => self.execute(id, offset, op, &Operation::Read(len)),
            };
            events.push_back(event);
        }
        Ok(())
    }
}
