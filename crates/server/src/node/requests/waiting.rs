//! Operations on a region that this node is about to serve: when they wait, and when they go on.

use crate::node::Node;
use crate::node::requests::forward::Way;
use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::{Epoch, RegionId};
use leeward_platform::Nanos;
use leeward_region::serving::Serving;

impl Node {
    /// Whether this node is about to serve a region, whose configuration it knows with this epoch and primary. It is if it is
    /// that primary, or if the node that sent an operation here knows a newer configuration.
    pub(super) fn is_about_to_serve(&self, (known, primary): (Epoch, Option<Member>), way: Way) -> bool {
        let knows_less = matches!(way, Way::Forwarded(epoch) if epoch > known);
        self.presence.is_unique() && (knows_less || primary == Some(self.context.me))
    }

    /// Resumes the operations that wait for `region`: here, if it is open; or at its new primary, if that is another node.
    /// Answers whether any was executed here.
    pub(crate) fn wake_waiters(&mut self, now: Nanos, region: RegionId) -> bool {
        let Some(machine) = self.machines.get_mut(&region).filter(|machine| machine.has_waiting()) else {
            return false;
        };
        let me = self.context.me;
        let stays = |config: &GroupConfig| config.primary == Some(me) || config.epoch <= machine.waiting_since();
        let stays = machine.config().is_none_or(stays);
        if machine.served().is_some_and(Serving::is_open) {
            machine.take_waiting().for_each(|request| machine.execute(now, request));
            return true;
        }
        if !stays {
            machine.take_waiting().for_each(|request| self.route(now, request, Way::Any));
        }
        false
    }
}
