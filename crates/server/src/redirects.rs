//! Which primaries clients in cluster mode may be sent to: those that have not just changed. What redirects a command is in
//! [`crate::commands`].
//!
//! Belongs to the event loop's thread.

use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use std::collections::BTreeMap;

/// How long a primary must have been the same before clients are sent to it. The coordinator tells all nodes of a change
/// well within it.
pub(crate) const REDIRECT_AFTER: Nanos = Nanos::from_secs(1);
/// Most regions whose primaries are remembered: as many as a few tables have. Beyond it all are forgotten.
const MOST_REGIONS: usize = 1 << 16;

/// Since when each region that clients were to be redirected for has had the same primary, by its term: a server that
/// becomes the primary again is another primary.
#[derive(Debug, Default)]
pub struct Redirects {
    since: BTreeMap<RegionId, (Epoch, Nanos)>,
}

impl Redirects {
    /// Whether the primary of this term has been the primary for long enough, as far as was noticed here.
    pub(crate) fn is_settled(&mut self, region: RegionId, term: Epoch, now: Nanos) -> bool {
        if let Some((known, since)) = self.since.get(&region)
            && *known == term
        {
            return now - *since >= REDIRECT_AFTER;
        }
        if self.since.len() >= MOST_REGIONS {
            self.since.clear();
        }
        self.since.insert(region, (term, now));
        false
    }
}
