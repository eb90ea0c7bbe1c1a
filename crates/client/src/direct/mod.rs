//! Direct reads: gets that the client answers by itself, by one-sided reads of the primary's hash index (HiStore 4.2).
//! No thread of the node takes part.
//!
//! ```text
//!  get --> region has an index? -- no ----> 4th get within a second: ask the primary for one
//!             | yes                            '-> the usual way
//!             v
//!          read bucket, record -- not found, not mapped, refused ---> the usual way
//!             | value
//!             v
//!          lease, after the last read -- too old, also by the board as it is now --> the usual way
//!             | good
//!             v
//!          answer
//! ```
//! Invariants:
//! - A value counts only if the lease is good after the last read of the index (rule R2 of
//!   [`leeward_format::hash_index`]). The clock of a node is bounded by what the client's clock was *before* it asked.
//! - A get is direct only if no earlier write of its key by this session is [`unanswered`].
//! - A grant belongs to one link, and to one epoch and primary of the session's routes. It ends with any of them.
//! - Questions to primaries belong to no caller. An answer counts only for the last question about its region. Without
//!   answers the lease ends, and gets go the usual way.
//!
//! No socket and no clock of its own: timers go by the instants that the caller gives, the lease by [`Source::now`].
//! Belongs to the session's thread.

mod index;
mod sample;
mod stats;
#[cfg(test)]
mod tests;
mod unanswered;

pub use stats::DirectStats;

use bytes::Bytes;
use index::{Index, Outcome};
use leeward_fabric::{ReadNow, ReadableDescriptor};
use leeward_format::hash_index::{ClockSample, MAX_RECORD_BYTES, Reason};
use leeward_format::op::{HashIndexQuestion, HashIndexState, Op, OpError, OpResult};
use leeward_format::routes::RegionRoute;
use leeward_format::{Epoch, RegionId, ServerId};
use leeward_platform::{Nanos, Rng};
use mio::Token;
use rustc_hash::FxHashMap;
use sample::Sample;
use std::time::{Duration, Instant};
use unanswered::Unanswered;

/// Most regions that are known. Gets of others go the usual way.
const MOST_REGIONS: usize = 4096;
/// A region without a get for this long is forgotten.
const UNUSED: Duration = Duration::from_mins(1);
/// How often unused regions are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// So many gets of a region within [`WARM_PERIOD`] make the session ask for its index.
const WARM_GETS: u32 = 4;
/// See [`WARM_GETS`].
const WARM_PERIOD: Duration = Duration::from_secs(1);
/// How often the session asks again while it reads an index.
const PERIOD: Duration = Duration::from_millis(250);
/// Least time between two questions about a region, whatever happens.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// A question that is unanswered for this long is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an error, or after a memory that cannot be mapped.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How long one read to map a memory is waited for.
const MAP_TIMEOUT: Duration = Duration::from_secs(1);

/// The memories of nodes, and the client's clock.
pub(crate) trait Source {
    /// [`leeward_fabric::Fabric::read_now`] over a link; not mapped if there is no such link.
    fn read(&self, link: Token, memory: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow;
    /// The client's clock, which counts through suspends.
    fn now(&self) -> Nanos;
}

/// What a get has come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Get {
    /// The value; `None`: the get goes the usual way.
    pub(crate) value: Option<Bytes>,
    /// What the session does for later gets.
    pub(crate) then: Option<Then>,
}

/// See [`Get::then`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It asks the region's primary: [`Direct::question`], [`Direct::asked`].
    Ask,
    /// It posts a read of this memory, which maps it.
    Map {
        /// The link to its owner.
        link: Token,
        memory: ReadableDescriptor,
    },
}

/// Names a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuestionId {
    /// The link that it was sent over.
    pub(crate) link: Token,
    /// Its number there.
    pub(crate) number: u64,
}

/// The last question about a region.
#[derive(Debug)]
struct Asked {
    id: QuestionId,
    at: Instant,
    /// The client's clock before it was sent.
    clock: Nanos,
    is_open: bool,
}

/// What a session knows of one region.
#[derive(Debug)]
struct Region {
    epoch: Epoch,
    primary: Option<ServerId>,
    used: Instant,
    /// Gets since `counted`, while there is no index.
    gets: u32,
    counted: Instant,
    /// No question before this.
    not_before: Instant,
    /// The index has grown: the next question is due early.
    is_urgent: bool,
    asked: Option<Asked>,
    /// The index, and the link to its owner.
    index: Option<(Token, Index)>,
    sample: Sample,
}

impl Region {
    fn new(route: &RegionRoute, now: Instant) -> Region {
        Region {
            epoch: route.epoch,
            primary: route.primary,
            used: now,
            gets: 0,
            counted: now,
            not_before: now,
            is_urgent: false,
            asked: None,
            index: None,
            sample: Sample::default(),
        }
    }

    /// Counts a get without an index.
    fn count(&mut self, now: Instant) {
        if now.saturating_duration_since(self.counted) > WARM_PERIOD {
            (self.counted, self.gets) = (now, 0);
        }
        self.gets = self.gets.saturating_add(1);
    }

    fn is_question_due(&self, now: Instant) -> bool {
        if now < self.not_before || (self.index.is_none() && self.gets < WARM_GETS) {
            return false;
        }
        let Some(asked) = &self.asked else { return true };
        let pause = match () {
            () if asked.is_open => ANSWER_TIMEOUT,
            () if self.is_urgent || self.index.is_none() => LEAST_PAUSE,
            () => PERIOD,
        };
        now.saturating_duration_since(asked.at) >= pause
    }

    /// Ends the grant. With `is_warm` a new one is asked for with the next get.
    fn drop_index(&mut self, is_warm: bool, now: Instant) {
        (self.index, self.sample) = (None, Sample::default());
        (self.gets, self.counted) = (if is_warm { WARM_GETS } else { 0 }, now);
    }
}

/// The direct reads of one session.
#[derive(Debug)]
pub(crate) struct Direct {
    regions: FxHashMap<RegionId, Region>,
    /// The best bound on the clock of each link's node.
    clocks: FxHashMap<Token, ClockSample>,
    unanswered: Unanswered,
    buffer: Vec<u8>,
    next_sweep: Instant,
    rng: Rng,
    stats: DirectStats,
}

impl Direct {
    pub(crate) fn new(now: Instant, rng: Rng) -> Direct {
        Direct {
            regions: FxHashMap::default(),
            clocks: FxHashMap::default(),
            unanswered: Unanswered::default(),
            buffer: vec![0; MAX_RECORD_BYTES],
            next_sweep: now + SWEEP_PERIOD,
            rng,
            stats: DirectStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> DirectStats {
        self.stats
    }

    /// An operation is submitted that goes the usual way.
    pub(crate) fn submitted(&mut self, op: &Op) {
        self.unanswered.submitted(op);
    }

    /// An operation that went the usual way is answered.
    pub(crate) fn ended(&mut self, op: &Op) {
        self.unanswered.ended(op);
    }

    /// Looks for the value of a key of the region at `route`.
    pub(crate) fn get(&mut self, route: &RegionRoute, key: &[u8], now: Instant, source: &impl Source) -> Get {
        let usual = |then| Get { value: None, then };
        self.sweep(now);
        if self.unanswered.concerns(key) {
            return usual(None);
        }
        let Some(region) = region_at(&mut self.regions, route, now) else { return usual(None) };
        region.used = now;
        let Some((link, index)) = &mut region.index else {
            region.count(now);
            return usual(region.is_question_due(now).then_some(Then::Ask));
        };
        let link = *link;
        let Some(clock) = self.clocks.get(&link) else { return usual(Some(Then::Ask)) };
        let read = |memory: &ReadableDescriptor, offset, bytes: &mut [u8]| source.read(link, memory, offset, bytes);
        let found = index.get(key, *clock, read, || source.now(), &mut self.buffer);
        self.stats.count(&found);
        match found.outcome {
            Outcome::Value { value, line } => {
                region.sample.hit(line, &mut self.rng);
                let then = region.is_question_due(now).then_some(Then::Ask);
                return Get { value: Some(value), then };
            }
            Outcome::NotMapped { memory } => {
                if let Some(memory) = index.map(memory, now) {
                    return usual(Some(Then::Map { link, memory }));
                }
            }
            Outcome::Refused => region.drop_index(true, now),
            Outcome::Ask(Reason::NotGranted) => region.is_urgent = true,
            Outcome::Ask(_) | Outcome::TooOld => {}
        }
        usual(region.is_question_due(now).then_some(Then::Ask))
    }

    /// The question to the primary of a region, with the records that were read since the last one.
    pub(crate) fn question(&mut self, id: RegionId) -> Option<HashIndexQuestion> {
        let region = self.regions.get_mut(&id)?;
        let (nonce, version) = region.index.as_ref().map_or((0, 0), |(_, index)| index.name());
        Some(HashIndexQuestion { region: id, nonce, version, read: region.sample.take() })
    }

    /// The question is sent. `clock` is the client's clock before that.
    pub(crate) fn asked(&mut self, region: RegionId, id: QuestionId, clock: Nanos, now: Instant) {
        if let Some(region) = self.regions.get_mut(&region) {
            region.is_urgent = false;
            region.asked = Some(Asked { id, at: now, clock, is_open: true });
            self.stats.questions += 1;
        }
    }

    /// Asks nothing about a region for a while, as nobody can be asked.
    pub(crate) fn postpone(&mut self, region: RegionId, until: Instant) {
        if let Some(region) = self.regions.get_mut(&region) {
            region.not_before = until;
        }
    }

    /// Takes the answer to a question about a region.
    pub(crate) fn answered(&mut self, id: RegionId, question: QuestionId, result: OpResult, now: Instant) {
        let Some(region) = self.regions.get_mut(&id) else { return };
        let Some(asked) = region.asked.as_mut().filter(|asked| asked.id == question && asked.is_open) else { return };
        asked.is_open = false;
        let answer = match result {
            OpResult::HashIndex(answer) => *answer,
            OpResult::Error(OpError::NotPrimary { .. }) => {
                region.not_before = now + LEAST_PAUSE;
                return region.drop_index(false, now);
            }
            _ => {
                region.not_before = now + ERROR_PAUSE;
                return region.drop_index(false, now);
            }
        };
        note_clock(&mut self.clocks, question.link, ClockSample { asked: asked.clock.0, answered: answer.clock });
        match answer.state {
            HashIndexState::None { again_ms } => {
                region.not_before = now + Duration::from_millis(again_ms.into());
                region.drop_index(false, now);
            }
            HashIndexState::Unchanged => {}
            HashIndexState::Granted { grant, .. } if grant.region != id => {
                region.not_before = now + ERROR_PAUSE;
                region.drop_index(false, now);
            }
            HashIndexState::Granted { version, grant } => match &mut region.index {
                Some((link, index)) if *link == question.link && index.name().0 == grant.nonce => {
                    index.change(version, *grant);
                }
                _ => {
                    region.drop_index(true, now);
                    region.index = Some((question.link, Index::new(version, *grant)));
                }
            },
        }
    }

    /// The owner refuses to have a memory of the region's index mapped.
    pub(crate) fn unmappable(&mut self, region: RegionId, link: Token, now: Instant) {
        let region = self.regions.get_mut(&region);
        if let Some(region) = region.filter(|region| region.index.as_ref().is_some_and(|(of, _)| *of == link)) {
            region.not_before = now + ERROR_PAUSE;
            region.drop_index(true, now);
            self.stats.refused += 1;
        }
    }

    /// The link is lost, with all grants that came over it.
    pub(crate) fn lost(&mut self, link: Token, now: Instant) {
        self.clocks.remove(&link);
        for region in self.regions.values_mut() {
            region.asked.take_if(|asked| asked.id.link == link);
            if region.index.as_ref().is_some_and(|(of, _)| *of == link) {
                region.drop_index(false, now);
            }
        }
    }

    /// A node says that it is not the primary of the region.
    pub(crate) fn not_primary(&mut self, region: RegionId) {
        self.regions.remove(&region);
    }

    /// Forgets unused regions now and then.
    fn sweep(&mut self, now: Instant) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP_PERIOD;
        let is_used = |region: &Region| now.saturating_duration_since(region.used) < UNUSED;
        // What an answer has put off is not asked earlier.
        self.regions.retain(|_, region| is_used(region) || region.not_before > now);
    }
}

/// The region at `route`, new if its configuration has changed. `None`: there are too many.
fn region_at<'a>(
    regions: &'a mut FxHashMap<RegionId, Region>,
    route: &RegionRoute,
    now: Instant,
) -> Option<&'a mut Region> {
    if regions.len() >= MOST_REGIONS && !regions.contains_key(&route.region) {
        return None;
    }
    let region = regions.entry(route.region).or_insert_with(|| Region::new(route, now));
    if (region.epoch, region.primary) != (route.epoch, route.primary) {
        *region = Region::new(route, now);
    }
    Some(region)
}

/// Keeps the sample that bounds the node's clock more tightly. That does not depend on when it is used.
fn note_clock(clocks: &mut FxHashMap<Token, ClockSample>, link: Token, sample: ClockSample) {
    let known = clocks.entry(link).or_insert(sample);
    let at = known.asked.max(sample.asked);
    if sample.latest(at) <= known.latest(at) {
        *known = sample;
    }
}
