//! Commands of Redis that Leeward does not have, and what a client sends after a refused `MULTI`.
//!
//! They are not in the table of commands: `COMMAND` must not name what cannot be executed. Their errors say what is
//! missing. They begin neither with `ERR unknown command` nor with `NOSCRIPT`, because clients answer those by another
//! command: Redisson sends `EVALSHA` again without end after the first, and the script after the second.
//!
//! Clients send `MULTI`, the commands of the transaction and `EXEC` without waiting for a reply in between. So a refused
//! `MULTI` does not stop what follows it. Invariant: between a refused `MULTI` and the `EXEC` or `DISCARD` that ends it,
//! nothing is executed but `QUIT` and `RESET`. Replies are those of Redis to a transaction with an error in it.
//!
//! A client that waits for the reply to `MULTI` may give the connection back to its pool, without `EXEC` or `DISCARD`.
//! The node cannot tell it from one that did not wait. So after [`MULTI_TIMEOUT`] the next command closes the connection:
//! it is refused too, and the pool opens another connection.

use super::session::Session;
use super::table;
use crate::protocol_session::ProtocolSession;
use crate::resp::Reply;
use bytes::Bytes;
use leeward_platform::Nanos;

/// How long a connection is kept for commands after a refused `MULTI`. Pipelines come in less.
const MULTI_TIMEOUT: Nanos = Nanos::from_secs(5);

/// What a command would need that there is not.
#[derive(Clone, Copy)]
enum Lacks {
    Transactions,
    Scripts,
    PubSub,
}

/// Sorted by name.
const ABSENT: &[(&str, Lacks)] = &[
    ("discard", Lacks::Transactions),
    ("eval", Lacks::Scripts),
    ("eval_ro", Lacks::Scripts),
    ("evalsha", Lacks::Scripts),
    ("evalsha_ro", Lacks::Scripts),
    ("exec", Lacks::Transactions),
    ("fcall", Lacks::Scripts),
    ("fcall_ro", Lacks::Scripts),
    ("function", Lacks::Scripts),
    ("multi", Lacks::Transactions),
    ("psubscribe", Lacks::PubSub),
    ("publish", Lacks::PubSub),
    ("pubsub", Lacks::PubSub),
    ("punsubscribe", Lacks::PubSub),
    ("script", Lacks::Scripts),
    ("spublish", Lacks::PubSub),
    ("ssubscribe", Lacks::PubSub),
    ("subscribe", Lacks::PubSub),
    ("sunsubscribe", Lacks::PubSub),
    ("unsubscribe", Lacks::PubSub),
    ("unwatch", Lacks::Transactions),
    ("watch", Lacks::Transactions),
];

impl Session {
    /// The reply to a command that is not in the table, and the name that `CLIENT LIST` shows.
    pub(super) fn absent(&mut self, args: &[Bytes], now: Nanos) -> (&'static str, Reply) {
        let name = args[0].to_ascii_lowercase();
        let Ok(position) = ABSENT.binary_search_by(|(absent, _)| absent.as_bytes().cmp(&name)) else {
            return ("unknown", table::unknown(args));
        };
        let (name, lacks) = ABSENT[position];
        let upper = name.to_ascii_uppercase();
        let reply = match (name, lacks) {
            ("multi", _) => {
                self.refused_multi = Some(now);
                "MULTI is not supported: Leeward has no transactions. What follows is refused up to EXEC or DISCARD"
                    .into()
            }
            ("exec" | "discard", _) => format!("{upper} without MULTI"),
            (_, Lacks::Transactions) => format!("{upper} is not supported: Leeward has no transactions"),
            (_, Lacks::Scripts) => format!("{upper} is not supported: Leeward runs no scripts and no functions"),
            (_, Lacks::PubSub) => {
                format!("{upper} is not supported: Leeward has no channels to publish and subscribe to")
            }
        };
        (name, Reply::err(reply))
    }

    /// The reply to a command after a refused `MULTI`; `None` if there was none, or for a command that is executed.
    pub(super) fn after_refused_multi(&mut self, args: &[Bytes], now: Nanos) -> Option<Reply> {
        let began = self.refused_multi?;
        let name = args[0].to_ascii_lowercase();
        Some(match &name[..] {
            // `RESET` ends it, if it is executed.
            b"quit" | b"reset" => return None,
            // `EXEC` ends it in any case.
            b"exec" => {
                self.refused_multi = None;
                Reply::Error(match args.len() {
                    1 => "EXECABORT Transaction discarded because of previous errors.".into(),
                    _ => "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"
                        .into(),
                })
            }
            b"discard" if args.len() > 1 => Reply::err("wrong number of arguments for 'discard' command"),
            b"discard" => {
                self.refused_multi = None;
                Reply::OK
            }
            b"multi" => Reply::err("MULTI calls can not be nested"),
            b"watch" => Reply::err("WATCH inside MULTI is not allowed"),
            _ if now > began + MULTI_TIMEOUT => {
                self.stop();
                Reply::err(
                    "not executed: MULTI was refused long ago, and neither EXEC nor DISCARD has come: the connection is \
                     closed",
                )
            }
            _ => Reply::err("not executed: MULTI was refused, and neither EXEC nor DISCARD has come since"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_sorted_and_not_in_the_table() {
        assert!(ABSENT.is_sorted_by(|a, b| a.0 < b.0));
        for (name, _) in ABSENT {
            assert_eq!(table::position(name.as_bytes()), None, "{name} exists");
        }
    }

    #[test]
    fn what_is_absent_is_documented() {
        let page = include_str!("../../../../docs/resp.md");
        for (name, _) in ABSENT {
            assert!(page.contains(&format!("`{}`", name.to_uppercase())), "docs/resp.md lacks {name}");
        }
    }
}
