//! Operations on a region that this node is about to serve: when they wait, and when they go on.

use super::Reach;
use crate::node::front::forward::Travel;
use leeward_format::Epoch;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_region::machine::RegionMachine;

impl Reach<'_> {
    /// Whether this node is about to serve a region, whose configuration it knows with this epoch and primary. It is if it is
    /// that primary, or if the node that sent an operation here knows a newer configuration.
    pub(super) fn is_about_to_serve(&self, (known, primary): (Epoch, Option<Member>), travel: Travel) -> bool {
        let knows_less = matches!(travel, Travel::Forwarded(epoch) if epoch > known);
        self.control.is_unique() && (knows_less || primary == Some(self.control.me()))
    }
}

/// Whether operations go on waiting for a region here: its primary is this node, or they came with news of that.
pub(super) fn stays(machine: &RegionMachine, me: Member) -> bool {
    let stays = |config: &GroupConfig| config.primary == Some(me) || config.epoch <= machine.waiting_since();
    machine.config().is_none_or(stays)
}
