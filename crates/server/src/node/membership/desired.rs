//! Which members of a region should leave its group. The configuration and the coordinator say so; how a primary then hands its
//! role over is in [`crate::node::reshape::quiesce`].

use crate::node::Context;
use crate::node::region::Slot;

impl Slot {
    /// Tells the primary which members should leave, as the configuration and the coordinator say now.
    pub(crate) fn follow_desired(&mut self, context: &Context) {
        let Some(config) = &self.config else { return };
        let view = context.agent.view();
        let departs = |member| Some((member, view.departs(config, member)?));
        let departing = config.members().filter_map(departs).map(|(member, intent)| (member.server, intent)).collect();
        if let Some(serving) = self.serving() {
            serving.primary_mut().set_departing(departing);
        }
    }
}
