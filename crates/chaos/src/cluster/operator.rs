//! Requests that operators make during a run: another primary, a split, a merge, another mode of backups, a server
//! drained and taken back. Whether a server accepts a request depends on the other faults. A request that no server
//! accepts is no failure.

use super::{ANSWER_WITHIN, Cluster, NAME};
use crate::workload;
use leeward_client::{Op, OpResult};
use leeward_format::ServerId;
use leeward_format::cluster::{BackupMode, GroupConfig, Intent, RegionRequest};
use leeward_format::table::TableChange;

const NO_SERVER: &str = "no server answers";
/// From this many regions on the tables are not split any more.
const MOST_REGIONS: usize = 24;

impl Cluster {
    /// Sends the request to one server after the other. Answers whether one has accepted it.
    fn request(&self, op: Op) -> bool {
        let ask = |address: &String| self.access.ask_node(address, NAME, op.clone(), ANSWER_WITHIN);
        self.hosts_and_ports().any(|address| matches!(ask(&address), Ok(OpResult::Done)))
    }

    /// The regions of all tables, as the first server that answers knows them.
    pub(crate) fn groups(&self) -> Option<Vec<GroupConfig>> {
        let mut maps =
            self.hosts_and_ports().filter_map(|address| self.access.shake_hands(&address, NAME, ANSWER_WITHIN).ok());
        maps.next().map(|node| node.map.regions)
    }

    /// Requests another mode of backups for a table. Answers a description of the request.
    pub(crate) fn alter(&self, target: usize, entropy: u64) -> String {
        let name = workload::TABLES[target % workload::TABLES.len()].name();
        let backups = match entropy % 3 {
            0 => BackupMode::SendIndex,
            1 => BackupMode::BuildIndex,
            _ => BackupMode::TwoLayerLog { ordering_degree: 1 + (entropy / 3 % 8) as u8 },
        };
        let change = Box::new(TableChange { name: name.clone(), backups: Some(backups), ..TableChange::default() });
        let accepted = self.request(Op::AlterTable { change });
        format!("table {name} to {backups}{}", if accepted { "" } else { " (not accepted)" })
    }

    /// Requests the split of a region in the middle of its keys. Answers a description of the request.
    pub(crate) fn split(&self, target: usize) -> String {
        let Some(groups) = self.groups() else { return NO_SERVER.into() };
        if groups.len() >= MOST_REGIONS {
            return format!("there are {} regions already", groups.len());
        }
        let Some(group) = groups.get(target % groups.len().max(1)) else { return NO_SERVER.into() };
        let accepted =
            self.request(Op::RequestRegion { region: group.region, request: RegionRequest::Split { at: None } });
        format!("region {} of {}{}", group.region, groups.len(), if accepted { "" } else { " (not accepted)" })
    }

    /// Requests the merge of a region into the one before or after it. Answers a description of the request.
    pub(crate) fn merge(&self, target: usize) -> String {
        let Some(groups) = self.groups() else { return NO_SERVER.into() };
        let pairs: Vec<_> = groups.windows(2).filter(|pair| pair[0].table == pair[1].table).collect();
        let Some(pair) = pairs.get(target % pairs.len().max(1)) else { return "each table has one region only".into() };
        let (source, into) = if target.is_multiple_of(2) { (1, 0) } else { (0, 1) };
        let (region, into) = (pair[source].region, pair[into].region);
        let accepted = self.request(Op::RequestRegion { region, request: RegionRequest::Merge { into } });
        format!("region {region} into region {into}{}", if accepted { "" } else { " (not accepted)" })
    }

    /// Requests another primary for one region, or for all. Answers a description of the request.
    pub(crate) fn hand_over(&self, number: usize, all: bool) -> String {
        let Some(groups) = self.groups() else { return NO_SERVER.into() };
        let mut requested = Vec::new();
        for (at, group) in groups.iter().enumerate().filter(|(at, _)| all || *at == number % groups.len()) {
            let candidates: Vec<ServerId> = group.backups.iter().map(|member| member.server).collect();
            let Some(target) = candidates.get((number + at) % candidates.len().max(1)) else { continue };
            let accepted =
                self.request(Op::RequestRegion { region: group.region, request: RegionRequest::Primary(*target) });
            requested.push(format!(
                "region {} to server {target}{}",
                group.region,
                if accepted { "" } else { " (not accepted)" }
            ));
        }
        requested.join(", ")
    }

    /// Requests the drain of a server. [`Cluster::take_back`] ends it.
    pub(crate) fn drain(&mut self, server: usize) {
        self.drained.push(server);
        self.request(Op::Intend { server: id(server), intent: Some(Intent::Leave) });
    }

    /// Takes back every drained server for which a server accepts the request.
    pub(crate) fn take_back(&mut self) {
        let mut drained = std::mem::take(&mut self.drained);
        drained.retain(|server| !self.request(Op::Intend { server: id(*server), intent: None }));
        self.drained = drained;
    }
}

fn id(server: usize) -> ServerId {
    ServerId(server as u32 + 1)
}
