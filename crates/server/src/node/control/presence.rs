//! Tells the operator whether this node is part of the cluster: why not, since when, and what happens meanwhile.
//!
//! A reason is logged at once, and again every [`REPEAT`] while it lasts. Its end is logged too. Notices are at least [`GAP`]
//! apart, so that a connection that comes and goes does not fill the log. Pure: the caller gives the time, and logs.

use leeward_cluster::{NotJoined, Outage};
use leeward_format::cluster::Member;
use leeward_platform::Nanos;

#[cfg(test)]
#[path = "presence_tests.rs"]
mod tests;

/// How often a reason that lasts is logged again.
const REPEAT: Nanos = Nanos::from_secs(15);
/// Least time between two notices; also how long registration may take before it is worth one.
const GAP: Nanos = Nanos::from_secs(1);

/// A message for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The node is not part of the cluster.
    Absent(String),
    /// The node is part of it, for the first time or again.
    Present(String),
}

/// Whether the node is part of the cluster, and the notices of it to the operator.
#[derive(Debug)]
pub(crate) struct Presence {
    /// When the node last stopped being part of the cluster; at first, its start.
    absent_since: Nanos,
    is_present: bool,
    was_present: bool,
    /// The reason in the last notice, if that was one.
    said: Option<NotJoined>,
    last_notice: Option<Nanos>,
    /// The node has been registered in this incarnation, so its number on the fabric is its own.
    pub(super) has_joined: bool,
    /// Why the node serves no operation, if another process has its number.
    pub(super) duplicate_id: Option<String>,
}

impl Presence {
    /// For a node that starts.
    pub(crate) fn new(now: Nanos) -> Presence {
        Presence {
            absent_since: now,
            is_present: false,
            was_present: false,
            said: None,
            last_notice: None,
            has_joined: false,
            duplicate_id: None,
        }
    }

    /// No other process has this server's number, as far as is known.
    pub(crate) fn is_unique(&self) -> bool {
        self.duplicate_id.is_none()
    }

    /// Takes the current state. Returns the notice that the operator should get now.
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        not_joined: Option<&NotJoined>,
        outage: Option<&Outage>,
    ) -> Option<Notice> {
        if self.is_present && not_joined.is_some() {
            self.absent_since = now;
        }
        let is_first = not_joined.is_none() && !self.was_present;
        self.is_present = not_joined.is_none();
        self.was_present |= self.is_present;
        let is_news = is_first || self.said.as_ref() != not_joined;
        let is_beginning = match not_joined {
            Some(NotJoined::Registering) => true,
            Some(NotJoined::NoSession) => outage.is_none(),
            _ => false,
        };
        let pause = if is_news { GAP } else { REPEAT };
        let is_due = self.last_notice.is_none_or(|at| now - at >= pause);
        if !is_due || !is_news && not_joined.is_none() || is_beginning && now - self.absent_since < GAP {
            return None;
        }
        self.last_notice = Some(now);
        self.said = not_joined.cloned();
        Some(match not_joined {
            Some(not_joined) => Notice::Absent(self.describe(now, not_joined, outage)),
            None if is_first => Notice::Present("this node is part of the cluster".into()),
            None => {
                let after = now - self.absent_since;
                Notice::Present(format!("this node is part of the cluster again, after {}", seconds(after)))
            }
        })
    }

    /// Why the node is not part of the cluster, since when, what happens meanwhile, and what to do.
    pub(crate) fn describe(&self, now: Nanos, not_joined: &NotJoined, outage: Option<&Outage>) -> String {
        let lasted = lasting(now - self.absent_since);
        let meanwhile = match self.was_present {
            true => "what this node serves, it serves until another is appointed",
            false => "this node serves nothing, and clients get -LOADING",
        };
        match (not_joined, outage) {
            (NotJoined::NoSession, Some(outage)) => format!(
                "the coordinator at {} cannot be reached{}: {}. Meanwhile {meanwhile}; failures are not handled. Start \
                 the coordinator, or set `coordinator` to where it listens",
                outage.address,
                lasting(now - outage.since.min(now)),
                outage.reason
            ),
            (NotJoined::NoSession, None) => {
                format!("no session with the coordinator{lasted}. Meanwhile {meanwhile}")
            }
            (NotJoined::Registering, _) => {
                format!("the coordinator has not accepted this node's registration{lasted}. Meanwhile {meanwhile}")
            }
            (NotJoined::DuplicateId { holder, address, is_copy }, _) => duplicate_id(holder, address, *is_copy),
            (NotJoined::Refused(reason), _) => {
                format!("the coordinator refuses this node{lasted}: {reason}. Meanwhile {meanwhile}")
            }
            (NotJoined::Refuses(refusal), _) => format!(
                "this node refuses what the coordinator says{lasted}: {refusal}. Meanwhile {meanwhile}; failures are not handled. \
                 Put the newest data of the coordinator back, or have it restored from what all nodes know with `leeward \
                 restore-coordinator`"
            ),
            (NotJoined::Incompatible(incompatible), _) => format!("{incompatible}. This node serves nothing"),
            (NotJoined::SteppedAside, _) => format!(
                "this node has stepped aside{lasted}: it gave its primary roles to other servers, since it cannot store what \
                 it should. Repair or replace its volume and restart it. Meanwhile the others serve"
            ),
        }
    }
}

/// Another process has this server's number: which one, and what to do. `is_copy`: it has the volume of this one.
pub(super) fn duplicate_id(holder: &Member, address: &str, is_copy: bool) -> String {
    let (whose, advice) = match is_copy {
        true => (
            ", which is the same as this one's or a copy of it,",
            "After a restart of the machine that takes a moment. If the machine or its disk was copied, stop the copy, or \
             give it another server_id and an empty data_dir",
        ),
        false => ("", "Stop one of them, or give it another server_id and data_dir"),
    };
    format!(
        "another process is server {}: it has volume {}{whose} and native address {address}. This one serves nothing until \
         that one's session ends. {advice}",
        holder.server, holder.volume
    )
}

/// How long something has lasted, if that is worth mentioning.
fn lasting(time: Nanos) -> String {
    if time < GAP { String::new() } else { format!(" for {}", seconds(time)) }
}

/// A time, for people to read.
fn seconds(time: Nanos) -> String {
    match time.as_millis() {
        ms @ 0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        ms @ 10_000..600_000 => format!("{} s", ms / 1000),
        ms => format!("{} min", ms / 60_000),
    }
}
