//! Redis commands: a table of them, and the session that turns a connection's bytes into operations and their results
//! into replies.
//!
//! Nothing here touches a socket, a thread or a clock, so tests only feed bytes. A command is checked and turned into
//! work: a reply that is known already, or operations ([`leeward_format::op::Op`]) for the node, with a function that
//! makes the reply. [`Session`] keeps the replies in the order of the commands, whatever the order in which the node
//! answers. `docs/resp.md` tells users what each command does and where it differs from Redis.
//!
//! All of it belongs to the event loop's thread.

mod absent;
mod access;
mod acl;
mod cluster;
mod connection;
mod expiry;
mod glob;
mod holdings;
mod in_flight;
mod info;
mod input;
mod redirect;
mod scan;
mod session;
mod strings;
mod table;
mod window;
mod work;

pub use session::Session;
pub use table::{Spec, all};

use crate::metrics::Metrics;
use crate::resp::Reply;
use crate::session_context::{Context, Facts, check_op};
use leeward_format::RegionId;
use leeward_format::op::OpError;

/// Most bytes of keys and values that one reply may hold: 64 MiB. Beyond it the command is answered by an error that
/// says how to ask for less.
pub const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;

/// Counters for the commands of the table.
pub fn new_metrics() -> Metrics {
    Metrics::new(all().iter().map(|spec| (spec.name, spec.class)).collect())
}

/// The reply for an operation that has no result.
pub(crate) fn error_reply(error: &OpError) -> Reply {
    Reply::Error(match error {
        OpError::Invalid(reason) => format!("ERR {reason}"),
        OpError::Recovering(RegionId(0)) => "LOADING no primary serves this key yet; try again".into(),
        OpError::Recovering(region) => format!("LOADING region {region} is recovering; try again"),
        OpError::NotPrimary { region, .. } => format!("LOADING region {region} is changing its primary; try again"),
        OpError::NotEnoughReplicas { region, in_sync, needed } => format!(
            "NOREPLICAS region {region} has {in_sync} replicas in sync, {needed} are needed to write; nothing was written"
        ),
        OpError::Unknown(reason) => format!("UNKNOWN the command may or may not have been executed: {reason}"),
        OpError::Unavailable(reason) => format!("UNAVAILABLE {reason}"),
        OpError::Overloaded(region) => {
            format!("TRYAGAIN too many operations wait in region {region}; nothing was done")
        }
        OpError::Forgotten(region) => {
            format!("TRYAGAIN region {region} has forgotten whether this request was executed before; nothing was done")
        }
        gone @ OpError::AnswerGone { .. } => format!("UNKNOWN {gone}"),
        OpError::Unauthenticated(reason) => format!("NOAUTH {reason}"),
        OpError::NotPermitted(reason) => format!("NOPERM {reason}"),
    })
}

#[cfg(test)]
pub(crate) mod idle_node;
#[cfg(test)]
mod tests;
