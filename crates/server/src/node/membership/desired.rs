//! Which members of a region should leave its group. The configuration and the coordinator say so; how a primary then hands its
//! role over is in [`crate::node::reshape::quiesce`].

use crate::node::Node;
use crate::node::region::Slot;
use leeward_format::RegionId;

impl Node {
    /// Tells the primary of a region which members should leave, as the configuration and the coordinator say now.
    pub(crate) fn follow_desired(&mut self, region: RegionId) {
        let Some(slot) = self.slots.get_mut(&region) else { return };
        let Some(config) = &slot.config else { return };
        let view = self.context.agent.view();
        let departs = |member| Some((member, view.departs(config, member)?));
        let departing = config.members().filter_map(departs).map(|(member, intent)| (member.server, intent)).collect();
        if let Some(serving) = Slot::serving(slot) {
            serving.primary_mut().set_departing(departing);
        }
    }
}
