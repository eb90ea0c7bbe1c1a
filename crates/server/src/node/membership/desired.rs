//! Which members of a region should leave its group. The configuration and the coordinator say so; how a primary then hands its
//! role over is in [`leeward_region::serving::reshape::quiesce`].

use crate::node::Node;
use leeward_format::cluster::Intent;
use leeward_format::{RegionId, ServerId};
use std::collections::BTreeMap;

impl Node {
    /// The members that should leave a region's group, as the configuration and the coordinator say now.
    pub(crate) fn departing_from(&self, region: RegionId) -> BTreeMap<ServerId, Intent> {
        let config = self.machines.get(&region).and_then(|machine| machine.config());
        let view = self.context.agent.view();
        let departs = |config, member| Some((member, view.departs(config, member)?));
        let departing =
            config.into_iter().flat_map(|config| config.members().filter_map(move |one| departs(config, one)));
        departing.map(|(member, intent)| (member.server, intent)).collect()
    }
}
