//! How the manifest moves to its other zone, while edits continue.
//!
//! ```text
//!             begin                 caught up         head written   marked `Moved`
//!  old zone   e7 e8 |  e9  e10      |  e11            |  e12         |
//!  new zone         |  checkpoint of 8, then e9 e10   |  e11  | e12  |  e13 e14 ...
//! ```
//! 1. *Begin*, under the lock: the state, whose clone costs next to nothing, and the number of the last edit in it.
//! 2. The checkpoint is encoded and written without the lock. Edits meanwhile go to the old zone, and are remembered.
//! 3. *Catch up*, under the lock: they are written behind the checkpoint. From then on each edit goes to both zones.
//! 4. A sync; the head of the new zone, which makes it count; a sync; `Moved` in the old zone; a sync.
//! 5. *End*, under the lock: edits go to the new zone only.
//!
//! So an edit that a sync has made durable is in both zones as long as either may count, and no edit waits for these
//! syncs, unless a zone has no room for it ([`Manifest::must_wait`]). An edit for which the old zone has no room is a part
//! of the checkpoint itself, and its caller writes that.

use super::device::{Device, Durable};
use super::manifest::{Manifest, framed};
use super::zone::Zone;
use crate::error::{Error, Result};
use leeward_format::Incarnation;
use leeward_format::manifest::{Entry, EntryBody, VolumeState};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A move to the other zone that is under way, as the manifest knows it.
#[derive(Debug)]
pub(super) struct Switch {
    /// Bytes that the new zone has, or will have, before the first edit, at most.
    pub(super) most_bytes: usize,
    /// Where the next edit goes, once the checkpoint is written.
    pub(super) position: Option<usize>,
    /// Edits until then.
    pub(super) remembered: Vec<u8>,
}

impl Switch {
    /// Bytes of the new zone that are taken, or will be.
    pub(super) fn taken(&self) -> usize {
        self.position.unwrap_or(self.most_bytes + self.remembered.len())
    }
}

/// What is to be written for a move. The zones are copies, which nobody changes meanwhile.
pub(super) struct Checkpoint {
    pub(super) device: Arc<Device>,
    pub(super) old: Zone,
    pub(super) new: Zone,
    /// Number of the last edit in it.
    pub(super) sequence: u64,
    pub(super) durable: u64,
    pub(super) incarnation: Incarnation,
    pub(super) state: VolumeState,
}

/// The manifest under its lock, and a signal for those that wait for the end of a move.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) manifest: Mutex<Manifest>,
    switched: Condvar,
}

/// A move, given up if it is dropped before its end.
struct UnderWay<'a> {
    guarded: &'a Guarded,
    is_over: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.guarded.manifest.lock().give_up_switch();
        }
        self.guarded.switched.notify_all();
    }
}

impl Guarded {
    pub(super) fn new(manifest: Manifest) -> Guarded {
        Guarded { manifest: Mutex::new(manifest), switched: Condvar::new() }
    }

    pub(super) fn lock(&self) -> parking_lot::MutexGuard<'_, Manifest> {
        self.manifest.lock()
    }

    /// Waits for the end of the move that is under way.
    pub(super) fn wait(&self, manifest: &mut parking_lot::MutexGuard<'_, Manifest>) {
        self.switched.wait(manifest);
    }

    /// The manifest while no move is under way. Waits for syncs: not for the event loop.
    pub(super) fn settled(&self) -> parking_lot::MutexGuard<'_, Manifest> {
        let mut manifest = self.manifest.lock();
        while manifest.is_switching() {
            self.switched.wait(&mut manifest);
        }
        manifest
    }

    /// Executes a move that was begun. Everything written before it began is durable then.
    ///
    /// # Errors
    /// Those of writing. The manifest stays in its old zone, which goes on as long as it has room.
    pub(super) fn switch(&self, checkpoint: Checkpoint) -> Result<Durable> {
        let mut under_way = UnderWay { guarded: self, is_over: false };
        let Checkpoint { device, old, new, sequence, durable, incarnation, state } = checkpoint;
        let framed = |body| framed(&device, &Entry { sequence, durable, incarnation, body });
        let frame = framed(EntryBody::checkpoint(state))?;
        let head = framed(EntryBody::Zone(new.segments().to_vec()))?;
        let (bytes, room) = (head.len() + frame.len(), new.bytes());
        if bytes > room {
            let detail = format!("a manifest of {bytes} bytes in a zone of {room} bytes");
            device.fail(&detail);
            return Err(Error::NoSpace { file: device.file().name().to_owned(), detail });
        }
        new.write(&device, head.len(), &frame)?;
        self.manifest.lock().catch_up(bytes)?;
        let moved = framed(EntryBody::Moved)?;
        device.sync()?;
        let written = new.write(&device, 0, &head).and_then(|()| {
            device.sync()?;
            old.write_moved(&device, &moved)?;
            device.sync()
        });
        // It is unknown which zone counts.
        let proof = written.inspect_err(|error| device.fail(&error.to_string()))?;
        self.manifest.lock().end_switch(sequence, bytes);
        under_way.is_over = true;
        Ok(proof)
    }
}

#[cfg(test)]
#[path = "switch_tests.rs"]
mod tests;
