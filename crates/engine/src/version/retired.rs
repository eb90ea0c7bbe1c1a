//! Log segments that were given up, kept for readers of older versions.
//!
//! ```text
//!   version 7 ---> gave up a, b ---> gave up nothing ---> gave up c ---> (nothing yet) <--- version 10
//!                                    ^--- version 8       ^--- version 9
//! ```
//! Each version holds the list of what was given up after it, and so keeps all of that; what lies before the oldest
//! version that is still read is freed. Leaf segments need no such list, since their level holds them; but an L0 that
//! a version reads may point into segments that were opened after the version was made.
//!
//! Any thread may drop a version. The thread that installs a version makes the list longer, at its end.

use crate::volume::Segment;
use std::sync::{Arc, OnceLock};

/// A place in the list.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// What the install after this place gave up, and the place after that.
    next: OnceLock<(Vec<Arc<Segment>>, Arc<Retired>)>,
}

impl Retired {
    /// `segments` are given up here; answers the place after that.
    pub(super) fn follow(&self, segments: Vec<Arc<Segment>>) -> Arc<Retired> {
        let next = Arc::<Retired>::default();
        assert!(self.next.set((segments, Arc::clone(&next))).is_ok(), "a version is followed by one other");
        next
    }
}

/// A loop and no recursion: a version may be dropped after thousands of installs, which would be as many nested calls.
impl Drop for Retired {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some((segments, place)) = next {
            drop(segments);
            next = Arc::into_inner(place).and_then(|mut place| place.next.take());
        }
    }
}
