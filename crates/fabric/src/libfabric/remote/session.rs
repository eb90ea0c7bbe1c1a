//! The begin and end of a link's view of its peer's memory, and the messages from the owner.
//!
//! When the connection is up, the link asks the owner for a grant of its probe memory, which has no bytes. The grant
//! has the address of the owner's endpoint. The link's thread opens an endpoint towards it, with no lock held, because
//! that takes milliseconds and megabytes. Then it reads the probe memory once, because many providers connect only with
//! the first operation. So the first write of a link finds all of this done, or waits for the rest of it.

use super::{Access, Granted, Import, OwnerEndpoint, Remote, post, tell_moved};
use crate::{
    LinkEvent, LinkOptions, PeerId,
    libfabric::{Context, endpoint::Initiator, grant::Grant, owner::PROBE_MEMORY, ring::Ring},
    memory::{MemoryId, Permission},
    shm::mapping::create,
    stream::{
        flights::Extension,
        frame::{RemotePlace, Request},
        link::{Link, LinkState, Status},
        target::Export,
    },
};
use std::{
    collections::{HashMap, VecDeque},
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of a link's staging memory.
const STAGING_BYTES: usize = 4 << 20;

impl Remote {
    /// Takes a grant.
    fn accept(&mut self, bytes: &[u8]) -> Result<Granted, String> {
        let Grant { key, base, len, address } = Grant::decode(bytes).ok_or("a grant that cannot be decoded")?;
        if matches!(self.way, OwnerEndpoint::Unknown) {
            self.way = OwnerEndpoint::Told(address);
        }
        Ok(Granted { key, base, len, unfinished: 0, placed: Vec::new(), looking: false, revoked: false })
    }

    /// The address of the owner's endpoint, if one must be opened towards it; returned once.
    fn told(&mut self) -> Option<Vec<u8>> {
        match mem::replace(&mut self.way, OwnerEndpoint::Opening) {
            OwnerEndpoint::Told(address) => Some(address),
            other => {
                self.way = other;
                None
            }
        }
    }

    /// The endpoint is open: from now on operations are started.
    fn opened(&mut self, connection: u32, initiator: Initiator) {
        self.context.peers.lock().insert(connection, self.peer);
        (self.connection, self.way, self.last_sign) = (connection, OwnerEndpoint::Open(initiator), Instant::now());
    }
}

/// Opens an endpoint for the connection with this number towards the one at `address`.
fn open(context: &Context, connection: u32, address: &[u8]) -> io::Result<Initiator> {
    let (_, staging) = create(STAGING_BYTES, Permission::ReadWrite)?;
    Initiator::open(&context.device, connection, Arc::new(staging), address)
}

impl Extension for Remote {
    type Context = Context;

    fn new(context: &Arc<Context>, peer: PeerId) -> Remote {
        Remote {
            context: Arc::clone(context),
            peer,
            connection: 0,
            way: OwnerEndpoint::Unknown,
            ring: Ring::new(STAGING_BYTES),
            memory: HashMap::new(),
            operations: HashMap::new(),
            next_operation: 0,
            queue: VecDeque::new(),
            to_look: Vec::new(),
            waiting_bytes: 0,
            started: HashMap::new(),
            next_started: 0,
            moved: (0, 0),
            last_sign: Instant::now(),
            rung: None,
        }
    }

    fn begin(state: &mut LinkState<Remote>, options: &LinkOptions) {
        post(state, options, PROBE_MEMORY, 0, None, &Access::Read(0));
    }

    fn settle(link: &Link<Remote>) {
        let (context, address) = {
            let mut state = link.state();
            if state.status != Status::Up {
                return;
            }
            let Some(address) = state.extension.told() else { return };
            (Arc::clone(&state.extension.context), address)
        };
        let connection = context.next_connection();
        let opened = open(&context, connection, &address);
        link.post(|state, _| {
            let LinkState { extension, events, .. } = state;
            let started = opened.map_err(|error| error.to_string()).and_then(|initiator| {
                extension.opened(connection, initiator);
                extension.start(events)
            });
            extension.wake_if_needed();
            if let Err(reason) = started {
                state.fail(reason);
            }
        });
        link.flush();
    }

    fn imported(
        &mut self,
        id: MemoryId,
        export: Option<Export>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Result<(), String> {
        let Some(Import::Asked { waiting }) = self.memory.remove(&id) else {
            unreachable!("a grant is asked for once, and its answer comes once");
        };
        let granted = match export {
            Some(Export::Grant(bytes)) => Some(self.accept(&bytes)?),
            Some(Export::File(_)) => return Err("a file where a grant was asked for".into()),
            None => None,
        };
        let mut admitted = Vec::new();
        for number in waiting {
            let operation = &self.operations[&number];
            if granted.as_ref().is_some_and(|granted| granted.admits(operation.offset, operation.len)) {
                admitted.push(number);
                continue;
            }
            self.refuse(number, events);
        }
        if let Some(mut granted) = granted {
            granted.unfinished = admitted.len();
            self.memory.insert(id, Import::Granted(granted));
        }
        for number in admitted {
            if self.operations[&number].len == 0 { self.place(number) } else { self.queue.push_back(number) }
        }
        self.start(events)?;
        self.wake_if_needed();
        Ok(())
    }

    fn revoked(&mut self, id: u64) {
        for (_, import) in self.memory.iter_mut().filter(|(memory, _)| memory.id == id) {
            if let Import::Granted(granted) = import {
                granted.revoked = true;
            }
        }
    }

    /// Gives back revoked memory without operations under way, and reports moved bytes. Fails the link if the provider
    /// has accepted and ended nothing for too long.
    fn on_ping_interval(state: &mut LinkState<Remote>, options: &LinkOptions) {
        let remote = &mut state.extension;
        let silence = remote.last_sign.elapsed();
        if !remote.operations.is_empty() && silence > options.peer_timeout {
            let silence = Duration::as_secs_f64(&silence);
            return state.fail(format!("no operation was taken or has ended for {silence:.1} s"));
        }
        let idle = |import: &Import| matches!(import, Import::Granted(g) if g.revoked && g.unfinished == 0);
        let idle: Vec<MemoryId> = remote.memory.iter().filter(|(_, import)| idle(import)).map(|(id, _)| *id).collect();
        idle.iter().for_each(|id| drop(remote.memory.remove(id)));
        let moved = remote.moved != (0, 0);
        for MemoryId { id, key, .. } in idle {
            state.note(Request::Release(RemotePlace { id, key, offset: 0 }), options);
        }
        if moved {
            tell_moved(state, options);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.context.peers.lock().remove(&self.connection);
    }
}
