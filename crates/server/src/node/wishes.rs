//! Who should have the offices of this node, as configurations and the coordinator say; how an office is given up is for
//! [`super::stand_still`].

use super::Context;
use super::slot::Slot;

impl Slot {
    /// Who should leave, as the configuration and the coordinator say now.
    pub(super) fn follow_wishes(&mut self, context: &Context) {
        let Some(config) = &self.config else { return };
        let view = context.agent.view();
        let departs = |member| Some((member, view.departs(config, member)?));
        let departing = config.members().filter_map(departs).map(|(member, intent)| (member.server, intent)).collect();
        if let Some(serving) = self.serving() {
            serving.primary.set_departing(departing);
        }
    }
}
