//! The audit log: what operators asked for, changes of users, and failed tries to authenticate.
//!
//! Each event is a line of the node's own log (target `leeward::audit`), and, with the setting `audit_log`, a line of
//! JSON in a file. A thread of its own writes that file. The file is opened for each batch of lines, so it may be renamed
//! at any time. The queue is bounded: events that it has no room for are counted, and the next line says how many.
//!
//! Any thread may note events; none waits. Nothing secret is noted.

use leeward_platform::disk::private;
use leeward_platform::{BootClock, Clock};
use serde::Serialize;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Most events that wait to be written.
const MOST_WAITING: usize = 4096;
/// Most bytes of what was asked for.
const MOST_WHAT_BYTES: usize = 1024;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// An operator's request was accepted for execution.
    Request,
    /// An operator's request was refused: the user lacks a right.
    Denied,
    /// A user or password was wrong.
    FailedTry,
}

#[derive(Serialize)]
struct Line {
    unix_ms: u64,
    event: Kind,
    user: String,
    address: Option<IpAddr>,
    what: String,
    /// Events before this one for which there was no room, in memory or on the disk.
    #[serde(skip_serializing_if = "is_zero")]
    lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The end of the log that events go into. Dropping the last one ends the thread.
#[derive(Clone, Default)]
pub(crate) struct Audit {
    file: Option<(SyncSender<Line>, Arc<AtomicU64>)>,
}

impl Audit {
    /// A log that also writes a file, if there is one.
    ///
    /// # Errors
    /// The file cannot be written, or there is no thread for it.
    pub(crate) fn start(path: Option<&Path>) -> io::Result<Audit> {
        let Some(path) = path else { return Ok(Audit::default()) };
        append(path, b"")?;
        let (sender, lines) = sync_channel(MOST_WAITING);
        let path = path.to_owned();
        std::thread::Builder::new().name("audit".into()).spawn(move || write_lines(&path, &lines))?;
        Ok(Audit { file: Some((sender, Arc::default())) })
    }

    /// Notes an event.
    pub(crate) fn note(&self, event: Kind, user: &str, address: Option<IpAddr>, mut what: String) {
        what.truncate(what.floor_char_boundary(MOST_WHAT_BYTES));
        let from = address.map(|address| address.to_string()).unwrap_or_default();
        tracing::info!(target: "leeward::audit", ?event, user, from, what);
        let Some((sender, lost)) = &self.file else { return };
        let missed = lost.swap(0, Ordering::Relaxed);
        let line = Line { unix_ms: BootClock.unix_ms(), event, user: user.into(), address, what, lost: missed };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(line) {
            lost.fetch_add(missed + 1, Ordering::Relaxed);
        }
    }
}

fn write_lines(path: &Path, lines: &Receiver<Line>) {
    // Events that were not written, with those that had no room in the queue.
    let mut lost = 0;
    while let Ok(mut first) = lines.recv() {
        first.lost += lost;
        let (mut text, mut events) = (Vec::new(), 0);
        for line in std::iter::once(first).chain(lines.try_iter().take(MOST_WAITING)) {
            serde_json::to_writer(&mut text, &line).expect("numbers and strings are JSON");
            text.push(b'\n');
            events += 1 + line.lost;
        }
        match append(path, &text) {
            Ok(()) => lost = 0,
            Err(error) => {
                if lost == 0 {
                    tracing::error!(%error, path = %path.display(), "the audit log cannot be written");
                }
                lost = events;
            }
        }
    }
}

fn append(path: &Path, text: &[u8]) -> io::Result<()> {
    // Its lines have names of users and tables.
    let mut file = private::options().create(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    file.write_all(text).inspect_err(|_| {
        // A part of a line would spoil the next one. The file may be a pipe, or a device.
        drop(file.set_len(before));
    })
}
