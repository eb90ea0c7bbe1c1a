//! Log segments that were given up, but are kept for readers of older versions.
//!
//! ```text
//!   version 7 ---> gave up a, b ---> gave up nothing ---> gave up c ---> (nothing yet) <--- version 10
//!                                    ^--- version 8       ^--- version 9
//! ```
//! Each version holds the rest of the list, from its place on, and so keeps all segments that were given up after it.
//! Segments before the oldest version that is still read are freed. Leaf segments need no such list, because their
//! level holds them. But an L0 of a version may point into log segments that were opened after the version was made.
//!
//! Any thread may drop a version. The thread that installs a version appends to the list.

use crate::volume::Segment;
use std::sync::{Arc, OnceLock};

/// A place in the list.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// The segments that the next install gave up, and the place after it.
    next: OnceLock<(Vec<Arc<Segment>>, Arc<Retired>)>,
}

impl Retired {
    /// Adds `segments`, which are given up here; returns the next place.
    pub(super) fn follow(&self, segments: Vec<Arc<Segment>>) -> Arc<Retired> {
        let next = Arc::<Retired>::default();
        assert!(self.next.set((segments, Arc::clone(&next))).is_ok(), "a version is followed by one other");
        next
    }
}

/// A loop instead of recursion: a version may be dropped after thousands of installs, which would be as many nested
/// calls.
impl Drop for Retired {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some((segments, place)) = next {
            drop(segments);
            next = Arc::into_inner(place).and_then(|mut place| place.next.take());
        }
    }
}
