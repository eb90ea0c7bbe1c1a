//! What a caller does about an error. There are few kinds, so that a program need not know each error. Plain data.

use std::time::Duration;

/// What a caller does about an error.
///
/// | kind | was anything changed | another attempt |
/// |---|---|---|
/// | [`RetryNow`](ErrorKind::RetryNow) | no | at once |
/// | [`RetryLater`](ErrorKind::RetryLater) | no | after a pause: the cause passes by itself |
/// | [`AskElsewhere`](ErrorKind::AskElsewhere) | no | at another node |
/// | [`Refused`](ErrorKind::Refused) | no | is refused like this one |
/// | [`Unknown`](ErrorKind::Unknown) | perhaps | only of what may be executed twice; else read first |
/// | [`Operator`](ErrorKind::Operator) | as the error says | once somebody has acted |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing was changed, and another attempt can succeed at once.
    RetryNow,
    /// Nothing was changed, and the cause passes by itself.
    RetryLater {
        /// An attempt that comes sooner is likely to fail as well.
        after: Duration,
    },
    /// Nothing was changed: another node serves the key.
    AskElsewhere,
    /// The request is wrong, or not permitted. Nothing was changed, and a repetition changes nothing either.
    Refused,
    /// What the write has changed is not known, or what it found.
    Unknown,
    /// It lasts until somebody acts: the message says where, and what to do.
    Operator,
}

impl ErrorKind {
    /// Whether nothing was changed, and the same request may succeed soon, here or elsewhere.
    pub fn is_passing(self) -> bool {
        matches!(self, ErrorKind::RetryLater { .. } | ErrorKind::AskElsewhere)
    }

    /// How long the next attempt should wait, if there is one.
    pub fn pause(self) -> Duration {
        match self {
            ErrorKind::RetryLater { after } => after,
            _ => Duration::ZERO,
        }
    }
}
