//! Places for client connections: `max_connections` of them, and some beyond for operators.
//!
//! A connection beyond the limit may ask what operators ask, so it can say who it is, and it touches no data. One that
//! has named an operator has a place of its own from then on. Any other gets a place of the limit as soon as there is
//! one. Few may be beyond the limit, so those of one address make room for each other ([`Unidentified`]).
//!
//! Belongs to the event loop's thread.

use leeward_platform::Unidentified;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Most connections beyond the limit that are not of operators, and most that are.
const BEYOND: usize = 32;
const OPERATORS: usize = 32;

/// File descriptors for them, and one to find out who is next.
pub(crate) const RESERVED_FILES: usize = BEYOND + OPERATORS + 1;

/// Why a connection is refused, in the words that Redis clients know.
pub(crate) const FULL: &str = "max number of clients reached";
/// The same for native clients.
pub(crate) const FULL_NATIVE: &str = "max number of clients reached: the node has as many connections as max_connections, \
     or its limit of file descriptors, allows; an operator may still come in";

/// The places for client connections, and who has one.
pub(crate) struct Places {
    most: usize,
    /// Connections with a place of the limit.
    taken: usize,
    beyond: Unidentified<u64>,
    operators: BTreeSet<u64>,
    /// File descriptors have run out: no connection gets a place of the limit.
    pub(crate) lacks_files: bool,
}

impl Places {
    /// Places for `most` connections, and those for operators.
    pub(crate) fn new(most: usize) -> Places {
        let (beyond, operators) = (Unidentified::with_places(BEYOND), BTreeSet::new());
        Places { most, taken: 0, beyond, operators, lacks_files: false }
    }

    /// Gives connection `id` a place. Returns the one that has to be closed for that, and has its place no more.
    #[must_use]
    pub(crate) fn enter(&mut self, id: u64, from: Option<IpAddr>) -> Option<u64> {
        if self.has_room() {
            self.taken += 1;
            return None;
        }
        self.beyond.enter(id, from)
    }

    /// Takes the place of connection `id` back.
    pub(crate) fn leave(&mut self, id: u64) {
        if !self.beyond.leave(|other| *other == id) && !self.operators.remove(&id) {
            self.taken = self.taken.saturating_sub(1);
        }
    }

    /// Whether connection `id` may touch data. It gets a better place for that, if there is one.
    #[inline]
    pub(crate) fn serves(&mut self, id: u64, is_operator: bool) -> bool {
        self.beyond.is_empty() || self.moves_up(id, is_operator)
    }

    fn moves_up(&mut self, id: u64, is_operator: bool) -> bool {
        if !self.beyond.contains(&id) {
            return true;
        }
        let has_room = self.has_room();
        if has_room {
            self.taken += 1;
        } else if is_operator && self.operators.len() < OPERATORS {
            self.operators.insert(id);
        } else {
            return false;
        }
        self.beyond.leave(|other| *other == id)
    }

    fn has_room(&self) -> bool {
        self.taken < self.most && !self.lacks_files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(host: u8) -> Option<IpAddr> {
        Some([10, 0, 0, host].into())
    }

    #[test]
    fn beyond_the_limit_only_operators_are_served_until_there_is_room() {
        let mut places = Places::new(2);
        assert_eq!([1, 2, 3, 4].map(|id| places.enter(id, from(1))), [None; 4]);
        assert_eq!([1, 2, 3, 4].map(|id| places.serves(id, false)), [true, true, false, false]);
        assert!(places.serves(4, true) && places.serves(4, false), "it has its place even if it loses its rights");
        places.leave(1);
        assert!(places.serves(3, false), "it has the place of the first one");
        assert_eq!(places.enter(5, from(1)), None);
        assert!(!places.serves(5, false));
        places.leave(4);
        assert!(!places.serves(5, false), "an operator's place is none of the limit");
        places.leave(2);
        assert!(places.serves(5, false));
        for id in [3, 5] {
            places.leave(id);
        }
        assert_eq!((places.taken, places.beyond.is_empty(), places.operators.len()), (0, true, 0));
    }

    #[test]
    fn a_crowd_beyond_the_limit_closes_its_own_connections() {
        let mut places = Places::new(0);
        assert_eq!(places.enter(1, from(2)), None);
        for id in 2..=BEYOND as u64 {
            assert_eq!(places.enter(id, from(1)), None);
        }
        assert_eq!(places.enter(100, from(1)), Some(2));
        assert!(!places.serves(1, false));
        // As many operators as there may be, and one more.
        for id in 1_000..1_000 + OPERATORS as u64 {
            let _displaced = places.enter(id, from(3));
            assert!(places.serves(id, true));
        }
        assert!(places.enter(2_000, from(3)).is_none() && !places.serves(2_000, true));
    }

    #[test]
    fn without_file_descriptors_there_is_no_room() {
        let mut places = Places::new(5);
        places.lacks_files = true;
        assert_eq!(places.enter(1, from(1)), None);
        assert!(!places.serves(1, false));
        places.lacks_files = false;
        assert!(places.serves(1, false));
    }
}
