//! Places for connections that have not yet shown that they are of a member of the cluster.
//!
//! Connections of members never compete with them: a connection gives its place back when it shows what it is. When all
//! places are taken, one of those in them goes: of the source that has most of them, the one that came first. To refuse
//! the new one instead would let a stranger keep all members out, by holding the places. As it is, a stranger only
//! displaces its own connections; and strangers of many sources must fill all places in the time of a handshake.
//!
//! A state machine without sockets; used by one thread, or under its user's lock.

use std::net::{IpAddr, Ipv6Addr};

/// Most of them at a time, at one port. More than members that begin at once need for their handshakes.
pub const PLACES: usize = 128;

/// The connections in the places; `K` tells them apart.
#[derive(Debug)]
pub struct Unidentified<K> {
    places: usize,
    /// In the order in which they came.
    waiting: Vec<(K, Option<IpAddr>)>,
}

impl<K> Default for Unidentified<K> {
    fn default() -> Unidentified<K> {
        Unidentified::with_places(PLACES)
    }
}

impl<K> Unidentified<K> {
    /// As many places, at least one.
    pub fn with_places(places: usize) -> Unidentified<K> {
        Unidentified { places: places.max(1), waiting: Vec::new() }
    }

    /// Whether no connection has a place.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether this connection has a place.
    pub fn contains(&self, connection: &K) -> bool
    where
        K: PartialEq,
    {
        self.waiting.iter().any(|(other, _)| other == connection)
    }

    /// Gives a new connection a place. Returns the connection that has to be closed for that, and has its place no more.
    #[must_use]
    pub fn enter(&mut self, connection: K, from: Option<IpAddr>) -> Option<K> {
        let source = from.map(source);
        let displaced = if self.waiting.len() < self.places {
            None
        } else {
            let weight = |of: Option<IpAddr>| {
                self.waiting.iter().filter(|(_, other)| *other == of).count() + usize::from(of == source)
            };
            // The last of equal maxima is the first of the reversed order.
            let first = (0..self.waiting.len()).rev().max_by_key(|index| weight(self.waiting[*index].1));
            first.map(|index| self.waiting.remove(index).0)
        };
        self.waiting.push((connection, source));
        displaced
    }

    /// Gives back the place of the connection that `is_it` is true of, if it has one. Returns whether it had.
    pub fn leave(&mut self, mut is_it: impl FnMut(&K) -> bool) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(connection, _)| !is_it(connection));
        self.waiting.len() < before
    }
}

/// What counts as one source: an address of IPv4, or the 64 bits of an IPv6 network, all of whose addresses one host may
/// use.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn a_flood_from_one_source_displaces_only_itself() {
        let mut places = Unidentified::with_places(4);
        assert_eq!(places.enter(1, ip("10.0.0.1")), None);
        for number in 2..=4 {
            assert_eq!(places.enter(number, ip("10.0.0.9")), None);
        }
        for number in 5..100 {
            assert_eq!(places.enter(number, ip("10.0.0.9")), Some(number - 3), "the first that the flood has");
        }
        // A member in the midst of it, although it comes last.
        assert_eq!(places.enter(100, ip("10.0.0.2")), Some(97));
        assert_eq!(places.enter(101, ip("10.0.0.9")), Some(98));
        assert!(places.leave(|number| *number == 1) && places.leave(|number| *number == 100));
        assert!(!places.leave(|number| *number == 100), "it has none any more");
        assert_eq!(places.enter(102, ip("10.0.0.9")), None);
    }

    #[test]
    fn among_equals_the_first_goes_and_never_the_new_one() {
        let mut places = Unidentified::with_places(3);
        for number in 1..=3 {
            assert_eq!(places.enter(number, ip(&format!("10.0.0.{number}"))), None);
        }
        assert_eq!(places.enter(4, ip("10.0.0.4")), Some(1));
        assert_eq!(places.enter(5, ip("10.0.0.5")), Some(2));
        // Those without an address, as of sockets in the file system, count as one source.
        let mut places = Unidentified::with_places(2);
        assert_eq!([places.enter(1, None), places.enter(2, None), places.enter(3, None)], [None, None, Some(1)]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_so_is_an_address_in_both_notations() {
        let mut places = Unidentified::with_places(3);
        assert_eq!(places.enter(1, ip("2001:db8:0:2::1")), None);
        assert_eq!(places.enter(2, ip("2001:db8:0:1::1")), None);
        assert_eq!(places.enter(3, ip("2001:db8:0:1:ffff::7")), None);
        assert_eq!(places.enter(4, ip("2001:db8:0:1::9")), Some(2));
        let mut places = Unidentified::with_places(3);
        assert_eq!(places.enter(1, ip("10.0.0.1")), None);
        assert_eq!(places.enter(2, ip("::ffff:10.0.0.2")), None);
        assert_eq!(places.enter(3, ip("10.0.0.2")), None);
        assert_eq!(places.enter(4, ip("10.0.0.3")), Some(2));
    }
}
