//! The latest writes with a request id that a primary has executed. If such a write comes again, the primary answers it and
//! does not execute it once more.
//!
//! Each of these writes is in the log, and a new primary finds those that it replays. An LSN tells which are forgotten: every
//! write beyond `Requests::forgotten` is here. So a write whose caller counts from a later LSN ([`Once::since`]), and which
//! is not found here, was certainly not executed.
//!
//! Invariant: between `Requests::look_up` and `Requests::remember` of an id, no other operation with it is executed. An id
//! is of one key, and operations on a key run one after the other; operations on ranges do too.

use leeward_engine::{MOST_REQUESTS, Requests as Found};
use leeward_format::op::{Op, OpError, OpResult};
use leeward_format::request::{Effect, Once, RequestId};
use leeward_format::{Lsn, RegionId};
use leeward_platform::planted::{Bug, planted};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most requests that all regions of a node remember together; regions below their share may remember more.
const MOST_OF_A_NODE: usize = 128 << 10;
/// As many requests each region may always remember.
const LEAST_OF_A_REGION: usize = 64;

/// How much all regions of a node remember.
#[derive(Debug, Default)]
pub struct OfNode {
    requests: AtomicUsize,
    /// Regions that remember any request.
    regions: AtomicUsize,
}

impl OfNode {
    /// How many requests a region may remember, no matter how many the others do.
    fn share(&self) -> usize {
        LEAST_OF_A_REGION.max(MOST_OF_A_NODE / self.regions.load(Relaxed).max(1))
    }
}

/// What is known of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// It was certainly not executed.
    New,
    /// The record at this LSN executed it, and this is its answer.
    Done(Lsn, Result<OpResult, OpError>),
    /// It may have been executed, too long ago to be remembered.
    Forgotten,
}

/// The latest writes with a request id, and their answers.
#[derive(Debug)]
pub struct Requests {
    region: RegionId,
    by_id: HashMap<RequestId, (Lsn, Effect)>,
    /// In order of LSNs.
    order: VecDeque<RequestId>,
    forgotten: Lsn,
    /// Whether `of_node` counts this region as one that remembers any request.
    is_counted: bool,
    of_node: Arc<OfNode>,
}

impl Requests {
    /// The requests that a replay of a region has found.
    pub(crate) fn new(region: RegionId, found: Found, of_node: Arc<OfNode>) -> Requests {
        let found = if planted(Bug::ForgetAtTakeover) { Found::since(Lsn(0)) } else { found };
        let count = found.found.len();
        let (by_id, order, forgotten) =
            (HashMap::with_capacity(count), VecDeque::with_capacity(count), found.forgotten);
        let mut requests = Requests { region, by_id, order, forgotten, of_node, is_counted: false };
        for (request, lsn, effect) in found.found {
            requests.remember(request, lsn, effect);
        }
        requests
    }

    /// Whether `op`, with the request id in `once`, was executed. `last` is the region's last LSN.
    pub(crate) fn look_up(&self, once: Once, op: &Op, last: Lsn) -> Known {
        if planted(Bug::ForgetRequests) {
            return Known::New;
        }
        // An LSN of another region says nothing about this one.
        let is_of_here = once.region == self.region || planted(Bug::ForgetMergeSource);
        let since = if is_of_here { once.since } else { Lsn(0) };
        match self.by_id.get(&once.request) {
            Some((lsn, effect)) => Known::Done(*lsn, effect.answer(*lsn, op)),
            // This LSN belonged to records that the region has lost, and the region will assign it again. So it tells nothing,
            // now or later. For a first attempt the caller asks again with another LSN.
            None if since > last => Known::Forgotten,
            None if since < self.forgotten => Known::Forgotten,
            None => Known::New,
        }
    }

    /// The record at `lsn`, which is the latest, executed a request.
    pub(crate) fn remember(&mut self, request: RequestId, lsn: Lsn, effect: Effect) {
        while self.is_full()
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some((lsn, _)) = self.by_id.remove(&oldest) {
                self.forgotten = self.forgotten.max(lsn);
                self.of_node.requests.fetch_sub(1, Relaxed);
            }
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            self.of_node.regions.fetch_add(1, Relaxed);
        }
        // A request that a merge source executed may come to this region more than once.
        if let Some((before, _)) = self.by_id.get(&request) {
            let at = self.place_of(*before);
            at.ok().and_then(|at| self.order.remove(at));
        } else {
            self.of_node.requests.fetch_add(1, Relaxed);
        }
        self.by_id.insert(request, (lsn, effect));
        self.order.push_back(request);
    }

    /// Position in the order of the request that the record at this LSN executed.
    fn place_of(&self, lsn: Lsn) -> Result<usize, usize> {
        let lsn_of = |request: &RequestId| self.by_id.get(request).map_or(Lsn(0), |(lsn, _)| *lsn);
        self.order.binary_search_by_key(&lsn, lsn_of)
    }

    /// Requests that are not known may have been executed: in this region up to this LSN, or anywhere in another region.
    pub(crate) fn forget_up_to(&mut self, lsn: Lsn) {
        if !planted(Bug::ForgetMergeSource) {
            self.forgotten = self.forgotten.max(lsn);
        }
    }

    /// The request that the record at this LSN executed, if it is remembered.
    pub(crate) fn written_at(&self, lsn: Lsn) -> Option<RequestId> {
        self.place_of(lsn).ok().map(|at| self.order[at])
    }

    fn is_full(&self) -> bool {
        let here = self.order.len();
        let is_out_of_space = || self.of_node.requests.load(Relaxed) >= MOST_OF_A_NODE && here >= self.of_node.share();
        here >= MOST_REQUESTS || is_out_of_space()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.of_node.requests.fetch_sub(self.by_id.len(), Relaxed);
        self.of_node.regions.fetch_sub(usize::from(self.is_counted), Relaxed);
    }
}

#[cfg(test)]
#[path = "dedup_tests.rs"]
mod tests;
