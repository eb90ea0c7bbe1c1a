//! Whether this node is part of the cluster, in words for the operator: why not, since when, what happens meanwhile.
//!
//! A reason is said at once and again every [`REPEAT`] while it lasts, and its end is said too. Words are at least
//! [`GAP`] apart, so that a connection that comes and goes does not fill the log. Pure: time comes in, and the caller
//! logs.

use leeward_cluster::{Absence, Outage};
use leeward_format::cluster::Member;
use leeward_platform::Nanos;

#[cfg(test)]
#[path = "presence_tests.rs"]
mod tests;

/// How often a reason that lasts is said again.
const REPEAT: Nanos = Nanos::from_secs(15);
/// Least time between two words; also what registering may take before it is worth one.
const GAP: Nanos = Nanos::from_secs(1);

/// What the operator should hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The node is not part of the cluster.
    Absent(String),
    /// It is, for the first time or again.
    Present(String),
}

/// What is known and what was said of it.
#[derive(Debug)]
pub(super) struct Presence {
    /// When it last stopped being part of the cluster, or its start.
    absent_since: Nanos,
    is_present: bool,
    was_present: bool,
    /// The reason that was said and not taken back.
    said: Option<Absence>,
    last_word: Option<Nanos>,
}

impl Presence {
    /// A node that begins.
    pub(super) fn new(now: Nanos) -> Presence {
        Presence { absent_since: now, is_present: false, was_present: false, said: None, last_word: None }
    }

    /// Takes how things stand; answers what is to be said of it now.
    pub(super) fn look(&mut self, now: Nanos, absence: Option<&Absence>, outage: Option<&Outage>) -> Option<Word> {
        if self.is_present && absence.is_some() {
            self.absent_since = now;
        }
        let is_first = absence.is_none() && !self.was_present;
        self.is_present = absence.is_none();
        self.was_present |= self.is_present;
        let is_news = is_first || self.said.as_ref() != absence;
        let is_beginning = match absence {
            Some(Absence::Registering) => true,
            Some(Absence::NoSession) => outage.is_none(),
            _ => false,
        };
        let pause = if is_news { GAP } else { REPEAT };
        let is_due = self.last_word.is_none_or(|at| now - at >= pause);
        if !is_due || !is_news && absence.is_none() || is_beginning && now - self.absent_since < GAP {
            return None;
        }
        self.last_word = Some(now);
        self.said = absence.cloned();
        Some(match absence {
            Some(absence) => Word::Absent(self.describe(now, absence, outage)),
            None if is_first => Word::Present("this node is part of the cluster".into()),
            None => {
                let after = now - self.absent_since;
                Word::Present(format!("this node is part of the cluster again, after {}", seconds(after)))
            }
        })
    }

    /// Why it is not part of the cluster, since when, what happens meanwhile, and what to do.
    pub(super) fn describe(&self, now: Nanos, absence: &Absence, outage: Option<&Outage>) -> String {
        let lasted = lasting(now - self.absent_since);
        let meanwhile = match self.was_present {
            true => "what this node serves, it serves until another is appointed",
            false => "this node serves nothing, and clients get -LOADING",
        };
        match (absence, outage) {
            (Absence::NoSession, Some(outage)) => format!(
                "the coordinator at {} cannot be reached{}: {}. Meanwhile {meanwhile}; failures are not handled. Start \
                 the coordinator, or set `coordinator` to where it listens",
                outage.address,
                lasting(now - outage.since.min(now)),
                outage.reason
            ),
            (Absence::NoSession, None) => {
                format!("no session with the coordinator{lasted}. Meanwhile {meanwhile}")
            }
            (Absence::Registering, _) => {
                format!("the coordinator has not taken this node's registration{lasted}. Meanwhile {meanwhile}")
            }
            (Absence::Twin { holder, address }, _) => twin(holder, address),
            (Absence::Refused(reason), _) => {
                format!("the coordinator refuses this node{lasted}: {reason}. Meanwhile {meanwhile}")
            }
            (Absence::Misfit(misfit), _) => format!("{misfit}. This node serves nothing"),
            (Absence::Withdrawn, _) => format!(
                "this node has given up its offices{lasted}, since it cannot store what it should: repair or replace its \
                 volume and restart it. Meanwhile the others serve"
            ),
        }
    }
}

/// Another process has this server's number: who, and what to do.
pub(super) fn twin(holder: &Member, address: &str) -> String {
    format!(
        "another process is server {}: it has volume {} and native address {address}. This one serves nothing until that \
         one's session ends. Stop one of them, or give it another server_id and data_dir",
        holder.server, holder.volume
    )
}

/// How long something has lasted, if that is worth a word.
fn lasting(time: Nanos) -> String {
    if time < GAP { String::new() } else { format!(" for {}", seconds(time)) }
}

/// A time for people.
fn seconds(time: Nanos) -> String {
    match time.as_millis() {
        ms @ 0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        ms @ 10_000..600_000 => format!("{} s", ms / 1000),
        ms => format!("{} min", ms / 60_000),
    }
}
