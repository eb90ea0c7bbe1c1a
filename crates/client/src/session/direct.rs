//! Direct reads of a session: [`crate::direct`] decides, this reaches the nodes.
//!
//! Belongs to the session's thread.

use super::{Session, primary_address};
use crate::direct::{DirectStats, Get, QuestionId, Source, Then};
use crate::link::Link;
use bytes::Bytes;
use leeward_fabric::{ReadNow, ReadableDescriptor};
use leeward_format::RegionId;
use leeward_format::op::{Op, OpResult};
use leeward_format::routing::Routing;
use leeward_format::table::TableName;
use leeward_platform::{BootClock, Clock, Nanos};
use mio::Token;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Pause before the next question, if the primary has no link, or too many questions.
const NO_LINK_PAUSE: Duration = Duration::from_millis(50);
/// The same, if the fabric of its link does not let this process read by itself.
const NO_MAP_PAUSE: Duration = Duration::from_secs(10);

/// The links of the session.
struct Links<'a>(&'a FxHashMap<Token, Link>);

impl Source for Links<'_> {
    fn read(&self, link: Token, memory: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        self.0.get(&link).map_or(ReadNow::NotMapped, |link| link.read_now(memory, offset, bytes))
    }

    fn now(&self) -> Nanos {
        BootClock.now()
    }
}

impl Session {
    /// Counters of this session's direct reads.
    pub fn direct_stats(&self) -> DirectStats {
        self.direct.as_ref().map(|direct| direct.stats()).unwrap_or_default()
    }

    /// The value at the key of a get, if the session can read it by itself.
    pub(super) fn get_directly(&mut self, table: &TableName, op: &Op, now: Instant) -> Option<Bytes> {
        let Op::Get { key } = op else { return None };
        if self.options.at_most_stale.is_some() {
            return None;
        }
        let direct = self.direct.as_mut()?;
        let route = self.routes.regions().region_of(table, key)?;
        let Get { value, then } = direct.get(route, key, now, &Links(&self.links));
        let region = route.region;
        match then {
            None => {}
            Some(Then::Ask) => self.ask_about_index(table, op, region, now),
            Some(Then::Map { link, memory }) => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.map_memory(&memory, region);
                }
            }
        }
        value
    }

    /// Asks the primary of `region`, to which `op` would go, for its hash index.
    fn ask_about_index(&mut self, table: &TableName, op: &Op, region: RegionId, now: Instant) {
        let Some(direct) = &mut self.direct else { return };
        let address = primary_address(&self.routes, table, op);
        let link = self.links.iter_mut().find(|(_, link)| Some(&link.address[..]) == address);
        let Some((token, link)) = link else { return direct.postpone(region, now + NO_LINK_PAUSE) };
        match link.reads_now() {
            Some(true) => {}
            Some(false) => return direct.postpone(region, now + NO_MAP_PAUSE),
            None => return direct.postpone(region, now + NO_LINK_PAUSE),
        }
        let Some(question) = direct.question(region) else { return };
        // Before it is sent: the bound on the primary's clock counts from here.
        let clock = BootClock.now();
        match link.ask_about_index(table, question) {
            Some(number) => direct.asked(region, QuestionId { link: *token, number }, clock, now),
            None => direct.postpone(region, now + NO_LINK_PAUSE),
        }
    }

    /// Takes the answer to a question about the index of a region.
    pub(super) fn take_index(
        &mut self,
        link: Token,
        (number, region): (u64, RegionId),
        results: Vec<OpResult>,
        now: Instant,
    ) {
        let Ok([result]) = <[OpResult; 1]>::try_from(results) else {
            return self.fail(link, "answer of another length than its request");
        };
        if let Some(direct) = &mut self.direct {
            direct.answered(region, QuestionId { link, number }, result, now);
        }
    }

    /// A node does not let this process map a memory of a region's index.
    pub(super) fn cannot_map(&mut self, link: Token, region: RegionId) {
        if let Some(direct) = &mut self.direct {
            direct.unmappable(region, link, Instant::now());
        }
    }
}
