//! Leases between a primary and its backups: while it holds the promises of as many members as must have a write, no other
//! primary can have taken office, so what it reads is current and what it acknowledges will be found by its successor.
//!
//! Backups grant them, not a coordinator session: a cut-off coordinator follower may still answer pings. Invariant: a
//! granter's promise ends after the holder has stopped relying on it, since the holder counts from when it asked,
//! less a margin, and the granter from when it answered. Both use a clock that nobody slews and that runs through suspends; where it
//! may have stood still ([`crate::clock`]), the holder forgets what it was promised.

use crate::Timing;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;

/// Promises that this node gave as a backup: for each region the latest, and until when.
#[derive(Debug, Default)]
pub struct Grants {
    until: BTreeMap<RegionId, (Epoch, Nanos)>,
}

impl Grants {
    /// Promises the primary of `term` not to join a newer term of `region` for `timing.lease` from now.
    pub fn grant(&mut self, now: Nanos, region: RegionId, term: Epoch, timing: &Timing) {
        let entry = self.until.entry(region).or_insert((term, now));
        assert!(entry.0 <= term, "a promise is never given to an older term");
        *entry = (term, entry.1.max(now + timing.lease));
    }
    /// The newest term of `region` whose primary was promised anything, and did not give it up: older ones have lost their office.
    pub fn newest(&self, region: RegionId) -> Option<Epoch> {
        self.until.get(&region).map(|(term, _)| *term)
    }
    /// The primary of exactly `term` gave its office up and relies on nothing any more: what it was promised is void. A promise to
    /// another primary stands.
    pub fn void(&mut self, region: RegionId, term: Epoch) {
        let is_void = |granted: Epoch| granted == term || planted(Bug::VoidEverything);
        if self.until.get(&region).is_some_and(|(granted, _)| is_void(*granted)) {
            self.until.remove(&region);
        }
    }
    /// Until when `region` must stay out of `term`; `None` if it may join now.
    pub fn blocked_until(&self, now: Nanos, region: RegionId, term: Epoch) -> Option<Nanos> {
        let &(granted, until) = self.until.get(&region)?;
        (granted < term && now <= until).then_some(until)
    }
}

/// The lease of one region's primary: until when each backup promised.
#[derive(Debug, Default)]
pub struct Lease {
    until: BTreeMap<ServerId, Nanos>,
}

impl Lease {
    /// `backup` granted the request that was sent at `sent`.
    pub fn granted(&mut self, backup: ServerId, sent: Nanos, timing: &Timing) {
        let until = Nanos((sent + timing.lease).0.saturating_sub(timing.lease_margin.0));
        let entry = self.until.entry(backup).or_default();
        *entry = (*entry).max(until);
    }
    /// When the last request that `backup` granted was sent; 0: it granted none.
    pub fn asked(&self, backup: ServerId, timing: &Timing) -> Nanos {
        let until = self.until.get(&backup).copied().unwrap_or_default();
        (until + timing.lease_margin).since(timing.lease)
    }
    /// Forgets what `backup` promised: its process may have lost the promise.
    pub fn forget(&mut self, backup: ServerId) {
        self.until.remove(&backup);
    }
    /// Forgets what anyone promised: the clock that it was counted by cannot be relied on.
    pub fn forget_all(&mut self) {
        self.until.clear();
    }
    /// `backup` promised beyond `now`.
    pub fn is_valid(&self, now: Nanos, backup: ServerId) -> bool {
        self.until.get(&backup).is_some_and(|until| now < *until)
    }
}

/// How time passed for this process, by the moments at which it looked. What others did not do while it stood still says nothing of
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    looked: Nanos,
    since: Nanos,
}

impl Attention {
    /// It looks for the first time.
    pub fn new(now: Nanos) -> Attention {
        Attention { looked: now, since: now }
    }
    /// It looks again. If it did not for longer than `gap`, it begins anew.
    pub fn look(&mut self, now: Nanos, gap: Nanos) {
        if now - self.looked > gap {
            self.since = now;
        }
        self.looked = now;
    }
    /// Since when it has looked without a gap.
    pub fn since(&self) -> Nanos {
        self.since
    }
    /// It has looked whenever `other` did.
    pub fn follow(&mut self, other: Attention) {
        *self = Attention { looked: self.looked.max(other.looked), since: self.since.max(other.since) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionId = RegionId(1);

    /// The instants of real time, in milliseconds, at which the holder relied on a promise although the granter had joined another
    /// term; clocks run at so many percent of real time. And for how long it relied on it.
    fn relied_on(holder: u64, granter: u64) -> (Vec<u64>, u64) {
        let timing = Timing::default();
        let (mut grants, mut lease) = (Grants::default(), Lease::default());
        let clock = |percent: u64, ms: u64| Nanos::from_millis(ms * percent / 100);
        let (asked, answered) = (1_000, 1_005);
        grants.grant(clock(granter, answered), REGION, Epoch(1), &timing);
        lease.granted(ServerId(2), clock(holder, asked), &timing);
        let relies = |ms: &u64| lease.is_valid(clock(holder, *ms), ServerId(2));
        let joined = |ms: &u64| grants.blocked_until(clock(granter, *ms), REGION, Epoch(2)).is_none();
        let relied: Vec<u64> = (asked..asked + 2_000).filter(relies).collect();
        (relied.iter().copied().filter(joined).collect(), relied.len() as u64)
    }

    #[test]
    fn a_granter_stays_out_longer_than_the_holder_relies_on_it() {
        for (holder, granter) in [(100, 100), (90, 110), (110, 90), (91, 99), (99, 108)] {
            let (both, relied) = relied_on(holder, granter);
            assert_eq!(both, [], "clocks at {holder} % and {granter} %");
            assert!(relied > 400, "{relied} ms is too little for three renewals");
        }
        let (timing, mut grants) = (Timing::default(), Grants::default());
        grants.grant(Nanos(1), REGION, Epoch(1), &timing);
        assert!(grants.blocked_until(Nanos(1), REGION, Epoch(1)).is_none(), "the same term is not kept out");
    }

    #[test]
    fn only_the_promise_to_the_primary_that_gave_up_is_void() {
        let timing = Timing::default();
        let mut grants = Grants::default();
        grants.grant(Nanos::from_millis(1), REGION, Epoch(4), &timing);
        for other in [3, 5] {
            grants.void(REGION, Epoch(other));
            assert!(grants.blocked_until(Nanos::from_millis(2), REGION, Epoch(6)).is_some());
        }
        grants.void(REGION, Epoch(4));
        assert!(grants.blocked_until(Nanos::from_millis(2), REGION, Epoch(6)).is_none());
    }

    #[test]
    fn a_pause_begins_the_attention_anew() {
        let (second, gap) = (Nanos::from_secs(1), Nanos::from_millis(150));
        let mut attention = Attention::new(second);
        attention.look(second + gap, gap);
        assert_eq!(attention.since(), second);
        let mut resting = attention;
        let late = second + gap + gap + Nanos(1);
        attention.look(late, gap);
        assert_eq!(attention.since(), late);
        resting.follow(attention);
        resting.look(late + gap, gap);
        assert_eq!(resting.since(), late);
    }

    #[test]
    fn what_is_forgotten_is_not_relied_on() {
        let timing = Timing::default();
        let mut lease = Lease::default();
        lease.granted(ServerId(2), Nanos::from_millis(1), &timing);
        let now = Nanos::from_millis(2);
        assert!(lease.is_valid(now, ServerId(2)));
        assert!(!lease.is_valid(now, ServerId(3)));
        lease.forget(ServerId(2));
        assert!(!lease.is_valid(now, ServerId(2)));
    }
}
