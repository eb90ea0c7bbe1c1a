//! The answers of `/status` and `/readyz`, made from a snapshot.

use super::Snapshot;
use leeward_cluster::{ServerCopy, missing_volumes};
use leeward_format::VolumeId;
use leeward_format::cluster::{GroupConfig, Member, RegionMap};
use leeward_format::status::{NodeStatus, Role};
use serde::Serialize;

/// The body of `/status`.
#[derive(Serialize)]
struct Status<'a> {
    #[serde(flatten)]
    node: &'a NodeStatus,
    map: Map<'a>,
}

/// The cluster as the node knows it; keys as text, servers by number.
#[derive(Serialize)]
struct Map<'a> {
    version: u64,
    regions: Vec<Region<'a>>,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
struct Region<'a> {
    region: u32,
    table: &'a str,
    start: String,
    end: Option<String>,
    epoch: u32,
    term: u32,
    primary: Option<u32>,
    backups: Vec<u32>,
    learners: Vec<u32>,
    /// The volumes that it cannot continue without, and what to do.
    waits_for: Vec<String>,
}

#[derive(Serialize)]
struct Server<'a> {
    server: u32,
    volume: VolumeId,
    incarnation: u64,
    resp_address: &'a str,
    native_address: &'a str,
    admin_address: &'a str,
    fabric_address: &'a str,
    location: String,
}

/// `/status` as JSON.
pub(super) fn json(snapshot: &Snapshot) -> String {
    let status = Status { node: &snapshot.status, map: map(&snapshot.map) };
    serde_json::to_string_pretty(&status).expect("structs of numbers and strings are JSON")
}

fn map(map: &RegionMap) -> Map<'_> {
    let servers = map.servers.iter().map(|info| Server {
        server: info.member.server.0,
        volume: info.member.volume,
        incarnation: info.member.incarnation.0,
        resp_address: &info.resp_address,
        native_address: &info.native_address,
        admin_address: &info.admin_address,
        fabric_address: &info.fabric_address,
        location: info.location.to_string(),
    });
    Map {
        version: map.version,
        regions: map.regions.iter().map(|group| region(map, group)).collect(),
        servers: servers.collect(),
    }
}

fn region<'a>(map: &RegionMap, group: &'a GroupConfig) -> Region<'a> {
    let partition = map.table(&group.table).map(|table| table.partition).unwrap_or_default();
    let text = |bound: &[u8]| partition.bound_text(bound, |key| String::from_utf8_lossy(key).into_owned());
    let servers = |members: &[Member]| members.iter().map(|member| member.server.0).collect();
    Region {
        region: group.region.0,
        table: &group.table,
        start: text(&group.start),
        end: group.end.as_ref().map(|end| text(end)),
        epoch: group.epoch.0,
        term: group.term.0,
        primary: group.primary.map(|member| member.server.0),
        backups: servers(&group.backups),
        learners: servers(&group.learners),
        waits_for: waits_for(map, group),
    }
}

/// The volumes that a region cannot continue without, and what the coordinator has forgotten of it, in sentences.
pub(super) fn waits_for(map: &RegionMap, group: &GroupConfig) -> Vec<String> {
    let found = |server| map.server(server).map(|info| ServerCopy::of(info, group));
    let contradiction = group.contradicted_by(&map.servers).map(|one| one.explain(group));
    let missing = missing_volumes(group, found).into_iter().map(|one| one.explain(group.region));
    missing.chain(contradiction).chain(group.explain_restored()).collect()
}

/// The text of `/readyz` for an operator, and whether the node should get traffic.
pub(super) fn readiness(snapshot: &Snapshot) -> (bool, String) {
    let concern = snapshot.status.coordinator_concern.clone();
    let concern = concern.or_else(|| snapshot.map.regions.iter().find_map(GroupConfig::explain_restored));
    match (not_ready(snapshot), concern) {
        (None, None) => (true, "ok\n".into()),
        (None, Some(concern)) => (true, format!("ok, but {concern}\n")),
        (Some(reason), None) => (false, format!("{reason}\n")),
        (Some(reason), Some(concern)) => (false, format!("{reason}\n{concern}\n")),
    }
}

/// Why the node should get no traffic; `None` if it should.
fn not_ready(snapshot: &Snapshot) -> Option<String> {
    let status = &snapshot.status;
    if let Some(failure) = &status.volume_failure {
        return Some(format!("the volume takes no writes: {failure}"));
    }
    if let Some(not_joined) = &status.not_joined {
        return Some(not_joined.clone());
    }
    if snapshot.map.regions.is_empty() {
        return Some("the cluster has no regions yet".into());
    }
    let waiting = status.regions.iter().find(|region| region.role == Role::Primary && region.state != "serving")?;
    Some(format!("region {} is {}", waiting.region, waiting.state))
}
