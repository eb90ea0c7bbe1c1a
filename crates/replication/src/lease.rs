//! Leases between a primary and its backups. A primary needs lease grants of as many members as must have a write.
//! While it holds them, no other member can have become primary. So its reads are current, and its successor will find
//! every write that it acknowledges.
//!
//! Backups grant leases, not a coordinator session: a cut-off coordinator follower may still answer pings. Invariant: a
//! grant expires at the granter only after the holder has stopped relying on it. The holder counts from when it asked,
//! less a margin, and the granter from when it answered. Both use a clock that is never slewed and that runs through
//! suspends. Where that clock may have been stopped ([`crate::clock`]), the holder forgets all grants.
//!
//! How long a lease lasts is the holder's setting, and may differ from the granter's. So it is in the request, and again
//! in the grant. The granter keeps out of newer terms for exactly as long as the request says, and the holder counts what
//! the grant says. Neither uses a setting of its own for that.
//!
//! Clients that read a primary's hash index, and backups that read its safe LSN, rely on its lease without asking it
//! again. Neither a primary that forgets a grant nor a backup whose process ends can take that back. So a primary
//! proposes no configuration with a member whose grant ends before what it has published
//! ([`crate::primary::Primary::readable_until`], rule P1 of hash indexes), and a new process treats the copies that it
//! finds as if it had just granted leases for them ([`Grants::after_start`], rule P2). It cannot know how long the leases
//! lasted that were granted before, so no more than [`Timing::READABLE`] of a lease counts for such readers.

use crate::Timing;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// Lease grants that this node gave as a backup: for each region the latest, and until when.
#[derive(Debug, Default)]
pub struct Grants {
    until: BTreeMap<RegionId, (Epoch, Nanos)>,
    /// Regions for which an earlier process may have granted leases that readers of memory rely on, and until when.
    before: BTreeSet<RegionId>,
    before_until: Nanos,
}

impl Grants {
    /// Those of a process that starts now and finds copies of `regions`.
    pub fn after_start(now: Nanos, regions: impl IntoIterator<Item = RegionId>) -> Grants {
        let before = if planted(Bug::ServeAtOnce) { BTreeSet::new() } else { regions.into_iter().collect() };
        Grants { until: BTreeMap::new(), before, before_until: now + Timing::READABLE }
    }
    /// Nobody reads memory of primaries of `region`, so nobody relies on what an earlier process has granted.
    pub fn forget_before(&mut self, region: RegionId) {
        self.before.remove(&region);
    }
    /// Grants the primary of `term` a lease: this node joins no newer term of `region` for `lasts` from now.
    pub fn grant(&mut self, now: Nanos, region: RegionId, term: Epoch, lasts: Nanos) {
        let entry = self.until.entry(region).or_insert((term, now));
        assert!(entry.0 <= term, "a lease is never granted to an older term");
        *entry = (term, entry.1.max(now + lasts));
    }
    /// The newest term of `region` whose primary was granted a lease and did not release it. The primaries of older
    /// terms are deposed.
    pub fn newest(&self, region: RegionId) -> Option<Epoch> {
        self.until.get(&region).map(|(term, _)| *term)
    }
    /// Releases the lease of the primary of exactly `term`, which gave up the primary role and no longer relies on the
    /// grant. A lease of another term stays valid.
    pub fn release(&mut self, region: RegionId, term: Epoch) {
        let is_released = |granted: Epoch| granted == term || planted(Bug::ReleaseEverything);
        if self.until.get(&region).is_some_and(|(granted, _)| is_released(*granted)) {
            self.until.remove(&region);
        }
    }
    /// Until when the copy of `region` must not join `term`; `None` if it may join now.
    pub fn blocked_until(&self, now: Nanos, region: RegionId, term: Epoch) -> Option<Nanos> {
        let before = (now <= self.before_until && self.before.contains(&region)).then_some(self.before_until);
        let granted = self.until.get(&region).filter(|(granted, until)| *granted < term && now <= *until);
        before.max(granted.map(|(_, until)| *until))
    }
}

/// The lease of one region's primary: what each backup granted.
#[derive(Debug, Default)]
pub struct Lease {
    grants: BTreeMap<ServerId, Grant>,
}

/// The latest grant of a backup, by the holder's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Grant {
    /// When it was asked for.
    sent: Nanos,
    /// Until when the holder relies on it.
    until: Nanos,
    /// Until when those rely on it that read the holder's memory.
    readable_until: Nanos,
}

impl Lease {
    /// Notes that `backup` granted the request that was sent at `sent`, for `lasts`.
    pub fn granted(&mut self, backup: ServerId, sent: Nanos, lasts: Nanos) {
        let grant = self.grants.entry(backup).or_default();
        grant.sent = grant.sent.max(sent);
        grant.until = grant.until.max(sent + Timing::relied_on(lasts));
        grant.readable_until = grant.readable_until.max(sent + Timing::relied_on(lasts.min(Timing::READABLE)));
    }
    /// When the last request that `backup` granted was sent; 0 if it granted none.
    pub fn asked(&self, backup: ServerId) -> Nanos {
        self.of(backup).sent
    }
    /// Forgets the grant of `backup`: its process may have lost it.
    pub fn forget(&mut self, backup: ServerId) {
        self.grants.remove(&backup);
    }
    /// Forgets all grants: the clock that they were counted by cannot be relied on.
    pub fn forget_all(&mut self) {
        self.grants.clear();
    }
    /// Until when readers of the holder's memory may rely on the grant of `backup`; 0 if there is none.
    pub fn readable_until(&self, backup: ServerId) -> Nanos {
        self.of(backup).readable_until
    }
    /// Whether the grant of `backup` is valid beyond `now`.
    pub fn is_valid(&self, now: Nanos, backup: ServerId) -> bool {
        now < self.of(backup).until
    }
    fn of(&self, backup: ServerId) -> Grant {
        self.grants.get(&backup).copied().unwrap_or_default()
    }
}

/// Gaps in the scheduling of this process, by the times at which it read the clock. The silence of another server while
/// this process did not run says nothing about that server.
#[derive(Clone, Copy, Debug)]
pub struct SchedulingGap {
    looked: Nanos,
    since: Nanos,
}

impl SchedulingGap {
    /// Begins with a first look at the clock.
    pub fn new(now: Nanos) -> SchedulingGap {
        SchedulingGap { looked: now, since: now }
    }
    /// Notes another look at the clock. If the last one was more than `gap` ago, the count begins anew.
    pub fn look(&mut self, now: Nanos, gap: Nanos) {
        if now - self.looked > gap {
            self.since = now;
        }
        self.looked = now;
    }
    /// Since when the process has run without a gap.
    pub fn since(&self) -> Nanos {
        self.since
    }
    /// Takes over the looks of `other`, another record of the same process.
    pub fn follow(&mut self, other: SchedulingGap) {
        *self = SchedulingGap { looked: self.looked.max(other.looked), since: self.since.max(other.since) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionId = RegionId(1);

    /// The instants of real time, in milliseconds, at which the holder relied on a grant although the granter had
    /// joined another term; and for how many milliseconds it relied on the grant. The clocks run at `holder` and
    /// `granter` percent of real time.
    fn relied_on(holder: u64, granter: u64) -> (Vec<u64>, u64) {
        let timing = Timing::default();
        let (mut grants, mut lease) = (Grants::default(), Lease::default());
        let clock = |percent: u64, ms: u64| Nanos::from_millis(ms * percent / 100);
        let (asked, answered) = (1_000, 1_005);
        grants.grant(clock(granter, answered), REGION, Epoch(1), timing.lease);
        lease.granted(ServerId(2), clock(holder, asked), timing.lease);
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
        grants.grant(Nanos(1), REGION, Epoch(1), timing.lease);
        assert!(grants.blocked_until(Nanos(1), REGION, Epoch(1)).is_none(), "the same term is not kept out");
    }

    #[test]
    fn only_the_lease_of_the_primary_that_gave_up_is_released() {
        let timing = Timing::default();
        let mut grants = Grants::default();
        grants.grant(Nanos::from_millis(1), REGION, Epoch(4), timing.lease);
        for other in [3, 5] {
            grants.release(REGION, Epoch(other));
            assert!(grants.blocked_until(Nanos::from_millis(2), REGION, Epoch(6)).is_some());
        }
        grants.release(REGION, Epoch(4));
        assert!(grants.blocked_until(Nanos::from_millis(2), REGION, Epoch(6)).is_none());
    }

    #[test]
    fn a_new_process_counts_as_if_it_had_granted_a_lease_of_each_copy() {
        let (timing, start) = (Timing::default(), Nanos::from_secs(1));
        let mut grants = Grants::after_start(start, [REGION, RegionId(2)]);
        let (last, other) = (start + Timing::READABLE, RegionId(3));
        assert_eq!(grants.blocked_until(last, REGION, Epoch(1)), Some(last));
        assert!(grants.blocked_until(last + Nanos(1), REGION, Epoch(1)).is_none());
        assert!(grants.blocked_until(start, other, Epoch(1)).is_none(), "it had no copy");
        grants.grant(last, REGION, Epoch(1), timing.lease);
        assert_eq!(grants.blocked_until(last, REGION, Epoch(2)), Some(last + timing.lease), "the later of both");
        grants.forget_before(REGION);
        assert!(grants.blocked_until(start, REGION, Epoch(1)).is_none());
        assert!(grants.blocked_until(start, RegionId(2), Epoch(1)).is_some());
    }

    /// Earlier processes may have granted any lease. A new one waits for as long as readers of memory may rely on it.
    #[test]
    fn what_readers_rely_on_ends_before_a_new_process_of_the_granter_joins() {
        for lasts in [100, 599, 600, 601, 60_000].map(Nanos::from_millis) {
            let (mut lease, asked) = (Lease::default(), Nanos::from_secs(1));
            lease.granted(ServerId(2), asked, lasts);
            // Its process ends right after the grant, and another one begins.
            let grants = Grants::after_start(asked, [REGION]);
            let (until, readable_until) = (lease.of(ServerId(2)).until, lease.readable_until(ServerId(2)));
            let allowed = grants.blocked_until(asked, REGION, Epoch(2)).expect("an earlier grant may be relied on");
            // The clocks may run at 0.9 and at 1.1 times the speed of time.
            assert!((readable_until - asked).0 * 11 <= (allowed - asked).0 * 9, "{lasts:?}");
            assert!(readable_until <= until && lease.asked(ServerId(2)) == asked, "{lasts:?}");
        }
    }

    #[test]
    fn a_pause_begins_the_count_anew() {
        let (second, gap) = (Nanos::from_secs(1), Nanos::from_millis(150));
        let mut scheduling_gap = SchedulingGap::new(second);
        scheduling_gap.look(second + gap, gap);
        assert_eq!(scheduling_gap.since(), second);
        let mut idle = scheduling_gap;
        let late = second + gap + gap + Nanos(1);
        scheduling_gap.look(late, gap);
        assert_eq!(scheduling_gap.since(), late);
        idle.follow(scheduling_gap);
        idle.look(late + gap, gap);
        assert_eq!(idle.since(), late);
    }

    #[test]
    fn what_is_forgotten_is_not_relied_on() {
        let timing = Timing::default();
        let mut lease = Lease::default();
        lease.granted(ServerId(2), Nanos::from_millis(1), timing.lease);
        let now = Nanos::from_millis(2);
        assert!(lease.is_valid(now, ServerId(2)));
        assert!(!lease.is_valid(now, ServerId(3)));
        lease.forget(ServerId(2));
        assert!(!lease.is_valid(now, ServerId(2)));
    }
}
