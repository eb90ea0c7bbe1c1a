//! Gathers the node's figures for operators, a few regions a turn of the event loop, so that ten thousand regions delay
//! leases and clients no more than one. All that ask meanwhile are answered by the next gathering, with one copy.
//!
//! Belongs to the event loop's thread.

use crate::figures::Figures;
use crate::node::Node;
use crate::session_context::figures_last;
use leeward_format::RegionId;
use leeward_format::status::RegionStatus;
use leeward_platform::Nanos;
use std::sync::Arc;
use tokio::sync::oneshot::Sender;

/// Regions of which the figures are gathered in one turn: some 0.3 ms.
const REGIONS_PER_TURN: usize = 128;

/// The gathering of figures that is under way, and who asks for the next.
#[derive(Default)]
pub(super) struct Gathering {
    /// Requests for figures that are gathered next.
    asking: Vec<Sender<Arc<Figures>>>,
    under_way: Option<UnderWay>,
    /// When the next gathering may begin.
    due: Nanos,
}

struct UnderWay {
    asked: Vec<Sender<Arc<Figures>>>,
    regions: Vec<RegionStatus>,
    /// The last region of those.
    last: Option<RegionId>,
}

impl Gathering {
    /// Takes a request for figures. They will be younger than the request.
    pub(super) fn ask(&mut self, reply: Sender<Arc<Figures>>) {
        self.asking.push(reply);
    }

    /// Does what a turn may do. Returns when to call this again; `None`: when someone asks.
    pub(super) fn advance(&mut self, now: Nanos, node: &Node) -> Option<Nanos> {
        if self.under_way.is_none() {
            // Those that wait no longer need no answer.
            self.asking.retain(|reply| !reply.is_closed());
            if self.asking.is_empty() {
                return None;
            }
            if now < self.due {
                return Some(self.due);
            }
            let asked = std::mem::take(&mut self.asking);
            self.under_way = Some(UnderWay { asked, regions: Vec::new(), last: None });
        }
        let mut gathering = self.under_way.take()?;
        let before = gathering.regions.len();
        gathering.regions.extend(node.region_statuses(gathering.last).take(REGIONS_PER_TURN));
        if gathering.regions.len() == before + REGIONS_PER_TURN {
            gathering.last = gathering.regions.last().map(|region| region.region);
            self.under_way = Some(gathering);
            return Some(now);
        }
        let UnderWay { asked, regions, .. } = gathering;
        let map = node.routes().map_parts();
        self.due = now + figures_last(regions.len() + map.regions.len());
        let mut status = node.own_status();
        status.regions = regions;
        let figures = Arc::new(Figures::new(now, status, map));
        for reply in asked {
            // The receiver may have stopped waiting.
            drop(reply.send(figures.clone()));
        }
        (!self.asking.is_empty()).then_some(self.due)
    }
}
