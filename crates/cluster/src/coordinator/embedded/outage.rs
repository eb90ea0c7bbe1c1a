//! The time in which the host cannot serve, because its log cannot be written: a full disk, for example.
//!
//! All connections are closed, as if the host had died, and new ones at once. From time to time the log is read again and
//! written to a new file. When that succeeds, the host serves what it holds, and sessions get a fresh timeout. So the host
//! goes on by itself, and nothing that a client was told is lost. The host's thread.

use super::service::{Command, Service};
use leeward_platform::{Clock, Nanos};
use std::io;

/// Pause between two tries.
const PAUSE: Nanos = Nanos::from_secs(1);

impl Service {
    /// Waits until the log works again. Returns whether the service is to stop.
    pub(super) fn recover(&mut self, error: &io::Error) -> bool {
        self.note(Some(error.to_string()));
        // Callers that are not answered ask why.
        self.drop_all();
        loop {
            if self.refuse_all(PAUSE) {
                return true;
            }
            match self.log.reopen() {
                Ok(tree) => {
                    self.begin(tree);
                    self.note(None);
                    return false;
                }
                Err(error) => self.note(Some(error.to_string())),
            }
        }
    }

    fn note(&self, why: Option<String>) {
        let mut known = self.failure.lock();
        if *known != why {
            match &why {
                Some(error) => tracing::error!(error, "the coordinator cannot write its log, and tries again"),
                None => tracing::warn!("the coordinator works again"),
            }
            *known = why;
        }
    }

    /// Closes every new connection and answers no command. Returns whether the service is to stop.
    fn refuse_all(&mut self, during: Nanos) -> bool {
        let until = self.clock.now() + during;
        let mut events = mio::Events::with_capacity(16);
        loop {
            while self.listener.accept().is_ok() {}
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, Command::Stop) {
                    return true;
                }
            }
            let left = until.since(self.clock.now());
            if left == Nanos::ZERO {
                return false;
            }
            if let Err(error) = self.poll.poll(&mut events, Some(left.duration())) {
                // Without it, the thread must not turn without a pause.
                tracing::debug!(%error, "the coordinator cannot wait for commands");
                std::thread::sleep(left.duration());
            }
        }
    }
}
