//! How fast a node reads what its learners lack: a limit in bytes per second for all of its regions. So the build of a new
//! member leaves the device and the network to clients.
//!
//! Nothing is read for a server whose link has enough to send already.
//!
//! A counted member does not wait, since writes wait for it. Invariant: a segment that was held back is read once.

use leeward_format::ServerId;
use leeward_platform::Nanos;
use leeward_region::effects::WantedSegment;
use std::collections::{BTreeSet, VecDeque};

/// The longest time without reads that later reads may make up for.
const BURST: Nanos = Nanos::from_millis(100);

/// The reads for learners that wait, and when the next may begin.
pub(crate) struct CatchUp {
    /// 0: no limit.
    bytes_per_second: u64,
    /// When the rate has paid for all segments that were released to be read.
    paid_until: Nanos,
    waiting: VecDeque<WantedSegment>,
}

impl CatchUp {
    pub(crate) fn new(bytes_per_second: u64) -> CatchUp {
        CatchUp { bytes_per_second, paid_until: Nanos::ZERO, waiting: VecDeque::new() }
    }

    /// A learner lacks a segment.
    pub(crate) fn want(&mut self, wanted: WantedSegment) {
        self.waiting.push_back(wanted);
    }

    /// Whether any learner lacks a segment.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next segment that may be read now. None goes to servers whose links are `full`.
    pub(crate) fn next(&mut self, now: Nanos, full: &BTreeSet<ServerId>) -> Option<WantedSegment> {
        if self.paid_until > now {
            return None;
        }
        let next = self.waiting.iter().position(|wanted| !full.contains(&wanted.server))?;
        let wanted = self.waiting.remove(next)?;
        if let Some(cost) = (wanted.bytes * 1_000_000_000).checked_div(self.bytes_per_second) {
            self.paid_until = self.paid_until.max(now - BURST) + Nanos(cost);
        }
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leeward_format::{RegionId, SegmentId};

    fn wanted(id: u64) -> WantedSegment {
        WantedSegment { region: RegionId(1), server: ServerId(2), session: 3, id: SegmentId(id), bytes: 2 << 20 }
    }

    #[test]
    fn segments_are_read_in_order_at_the_rate() {
        let mut catch_up = CatchUp::new(20 << 20);
        (0..100).for_each(|id| catch_up.want(wanted(id)));
        let (mut gone, mut now) = (Vec::new(), Nanos::from_secs(5));
        while now < Nanos::from_secs(7) {
            while let Some(next) = catch_up.next(now, &BTreeSet::new()) {
                gone.push(next.id.0);
            }
            now += Nanos::from_millis(50);
        }
        assert!((19..=22).contains(&gone.len()), "{gone:?}");
        assert!(gone.is_sorted());
        // Time in which no segment was wanted is not saved up.
        catch_up.waiting.clear();
        now += Nanos::from_secs(60);
        (0..100).for_each(|id| catch_up.want(wanted(id)));
        let at_once = std::iter::from_fn(|| catch_up.next(now, &BTreeSet::new())).count();
        assert!(at_once <= 2, "{at_once}");
    }

    #[test]
    fn segments_for_a_full_link_wait_and_others_pass_them() {
        let mut catch_up = CatchUp::new(0);
        catch_up.want(wanted(1));
        catch_up.want(WantedSegment { server: ServerId(3), ..wanted(2) });
        let full = BTreeSet::from([ServerId(2)]);
        assert_eq!(catch_up.next(Nanos::ZERO, &full).map(|wanted| wanted.id), Some(SegmentId(2)));
        assert!(catch_up.next(Nanos::ZERO, &full).is_none() && catch_up.is_wanted());
        assert_eq!(catch_up.next(Nanos::ZERO, &BTreeSet::new()).map(|wanted| wanted.id), Some(SegmentId(1)));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut catch_up = CatchUp::new(0);
        (0..10).for_each(|id| catch_up.want(wanted(id)));
        assert_eq!(std::iter::from_fn(|| catch_up.next(Nanos::ZERO, &BTreeSet::new())).count(), 10);
    }
}
