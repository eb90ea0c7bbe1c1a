//! What was refused lately, newest first, as `ACL LOG` shows it: bounded, with repeated refusals counted once. Belongs to
//! the event loop's thread.

use crate::resp::Reply;
use bytes::Bytes;
use leeward_platform::Nanos;
use std::collections::VecDeque;

/// Most entries.
const MOST_ENTRIES: usize = 128;
/// Refusals that are alike, and no further apart than this, are one entry.
const ALIKE_WITHIN: Nanos = Nanos::from_secs(60);
/// Most bytes of an object that is shown.
const MOST_OBJECT_BYTES: usize = 128;

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A wrong user or password.
    Auth,
    /// The user may not use the command at all.
    Command,
    /// The user may not touch these keys.
    Key,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    /// The command or the key.
    pub(crate) object: Bytes,
    pub(crate) user: String,
    /// As `CLIENT LIST` shows the client.
    pub(crate) client: String,
}

struct Entry {
    refused: Refused,
    count: i64,
    created: Nanos,
    updated: Nanos,
}

/// The latest refusals, newest first.
#[derive(Default)]
pub(crate) struct AclLog(VecDeque<Entry>);

impl AclLog {
    /// Notes a refusal.
    pub(crate) fn note(&mut self, now: Nanos, mut refused: Refused) {
        refused.object.truncate(MOST_OBJECT_BYTES);
        let is_alike = |entry: &Entry| {
            let known = &entry.refused;
            (known.reason, &known.object, &known.user) == (refused.reason, &refused.object, &refused.user)
                && now - entry.updated <= ALIKE_WITHIN
        };
        if let Some(mut entry) = self.0.iter().position(is_alike).and_then(|at| self.0.remove(at)) {
            entry.count += 1;
            entry.updated = now;
            entry.refused.client = refused.client;
            return self.0.push_front(entry);
        }
        self.0.push_front(Entry { refused, count: 1, created: now, updated: now });
        self.0.truncate(MOST_ENTRIES);
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.0.clear();
    }

    /// The newest entries.
    pub(crate) fn reply(&self, now: Nanos, most: usize) -> Reply {
        let show = |entry: &Entry| {
            let Entry { refused: Refused { reason, object, user, client }, count, created, .. } = entry;
            let reason = match reason {
                Reason::Auth => "auth",
                Reason::Command => "command",
                Reason::Key => "key",
            };
            let age = (now - *created).0 / 1_000_000;
            let fields = [
                ("count", Reply::Integer(*count)),
                ("reason", Reply::text(reason)),
                ("context", Reply::text("toplevel")),
                ("object", Reply::Bulk(object.clone())),
                ("username", Reply::text(user.clone())),
                ("age-seconds", Reply::text(format!("{}.{:03}", age / 1000, age % 1000))),
                ("client-info", Reply::text(client.clone())),
            ];
            Reply::Map(fields.into_iter().map(|(name, value)| (Reply::text(name), value)).collect())
        };
        Reply::Array(self.0.iter().take(most).map(show).collect())
    }
}
