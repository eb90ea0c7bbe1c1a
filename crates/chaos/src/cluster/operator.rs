//! What operators wish for while all goes on: another primary, a server drained and taken back. Whether a wish is heard depends on
//! what else strikes; one that is not is no fault of anybody's.

use super::{ANSWER_WITHIN, Cluster, NAME};
use leeward_client::{Op, OpResult, ask_node, introduce};
use leeward_format::ServerId;
use leeward_format::cluster::{GroupConfig, Intent, RegionWish};

const NOBODY: &str = "nobody is there to ask";
/// Regions that the table may have before it is not divided any more.
const MOST_REGIONS: usize = 24;

impl Cluster {
    /// Asks one server after the other; answers whether one has done it.
    fn wish(&self, op: Op) -> bool {
        let ask = |address: &String| ask_node(address, NAME, op.clone(), ANSWER_WITHIN);
        self.addresses().iter().any(|address| matches!(ask(address), Ok(OpResult::Done)))
    }

    /// The table's regions, as somebody knows them.
    pub(crate) fn groups(&self) -> Option<Vec<GroupConfig>> {
        let mut maps = self.addresses().into_iter().filter_map(|address| introduce(&address, NAME, ANSWER_WITHIN).ok());
        maps.next().map(|node| node.map.regions_of(&self.plan.table.name).to_vec())
    }

    /// Wishes for one region to become two, in the middle of what it has; answers what was wished for, for people.
    pub(crate) fn split(&self, target: usize) -> String {
        let Some(groups) = self.groups() else { return NOBODY.into() };
        if groups.len() >= MOST_REGIONS {
            return format!("there are {} regions already", groups.len());
        }
        let Some(group) = groups.get(target % groups.len().max(1)) else { return NOBODY.into() };
        let heard = self.wish(Op::Wish { region: group.region, wish: RegionWish::Split { at: None } });
        format!("region {} of {}{}", group.region, groups.len(), if heard { "" } else { " (not heard)" })
    }

    /// Wishes for one region to become part of the one before or behind it; answers what was wished for, for people.
    pub(crate) fn merge(&self, target: usize) -> String {
        let Some(groups) = self.groups() else { return NOBODY.into() };
        if groups.len() < 2 {
            return "there is one region only".into();
        }
        let (left, right) = (target % (groups.len() - 1), target % (groups.len() - 1) + 1);
        let (taken, into) = if target.is_multiple_of(2) { (right, left) } else { (left, right) };
        let (region, into) = (groups[taken].region, groups[into].region);
        let heard = self.wish(Op::Wish { region, wish: RegionWish::Merge { into } });
        format!("region {region} into region {into}{}", if heard { "" } else { " (not heard)" })
    }

    /// Wishes for another primary of one region, or of all; answers what was wished for, for people.
    pub(crate) fn hand_over(&self, target: usize, all: bool) -> String {
        let Some(groups) = self.groups() else { return NOBODY.into() };
        let mut wished = Vec::new();
        for (at, group) in groups.iter().enumerate().filter(|(at, _)| all || *at == target % groups.len()) {
            let heirs: Vec<ServerId> = group.backups.iter().map(|member| member.server).collect();
            let Some(heir) = heirs.get((target + at) % heirs.len().max(1)) else { continue };
            let heard = self.wish(Op::Wish { region: group.region, wish: RegionWish::Primary(*heir) });
            wished.push(format!("region {} to server {heir}{}", group.region, if heard { "" } else { " (not heard)" }));
        }
        wished.join(", ")
    }

    /// Drains a server, if it is heard; [`Cluster::take_back`] takes it back.
    pub(crate) fn drain(&mut self, server: usize) {
        self.drained.push(server);
        self.wish(Op::Intend { server: id(server), intent: Some(Intent::Leave) });
    }

    /// Takes back what was drained, as far as it is heard.
    pub(crate) fn take_back(&mut self) {
        let mut drained = std::mem::take(&mut self.drained);
        drained.retain(|server| !self.wish(Op::Intend { server: id(*server), intent: None }));
        self.drained = drained;
    }
}

fn id(server: usize) -> ServerId {
    ServerId(server as u32 + 1)
}
