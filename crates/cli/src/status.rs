//! `leeward status`: the state of the cluster, from the newest region map that a node has and the status of each node. It
//! also shows nodes that are not part of the cluster, if they answer at one of the addresses given.

use crate::args::StatusArgs;
use crate::text::{bytes, table};
use crate::{Outcome, show};
use leeward_client::{Access, ClientError, GroupConfig, RegionMap};
use leeward_cluster::{MissingVolume, missing_volumes};
use leeward_format::cluster::{Member, Plan};
use leeward_format::status::{NodeStatus, RegionStatus, Role};
use leeward_format::table::TableName;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::thread;
use std::time::Duration;

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;

/// How long a node may take to answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// The state of a node whose admin port the user is not told.
const HIDDEN: &str = "hidden: the user lacks the right to operate on all tables";

/// Everything, as `--json` prints it.
#[derive(Serialize)]
struct Everything<'a> {
    /// `null` where only admin ports were asked.
    map: Option<&'a RegionMap>,
    nodes: Vec<&'a NodeStatus>,
    unreachable: Vec<&'a str>,
}

/// The admin addresses of the nodes that answer at their native addresses, and the newest map that one of them has.
struct FoundCluster {
    map: RegionMap,
    admin: BTreeMap<String, u32>,
}

/// The answer of a node's admin port, or why there is none; and the server's number, where it is known from elsewhere.
struct Answer {
    address: String,
    server: Option<u32>,
    status: Result<NodeStatus, String>,
}

/// The state of a cluster.
pub(crate) struct Overview {
    /// `None` where only admin ports were asked.
    map: Option<RegionMap>,
    answers: Vec<Answer>,
    /// Servers whose admin ports are hidden from the user.
    hidden: Vec<u32>,
}

impl Overview {
    /// Asks the nodes at these native addresses, and all nodes that those know.
    ///
    /// # Errors
    /// None of them answers.
    pub(crate) fn of(addresses: &[String]) -> Result<Overview, ClientError> {
        let access = Access::of(addresses)?;
        let found = find(&access, addresses)?;
        // A node that is not part of the cluster is not in the map. A node in the map may not answer at its native address.
        // A user that may not see all of the cluster is not told the admin ports of other nodes.
        let (told, hidden): (Vec<_>, Vec<_>) =
            found.map.servers.iter().partition(|info| !info.admin_address.is_empty());
        let registered = told.into_iter().map(|info| (info.admin_address.clone(), info.member.server.0));
        let all: BTreeMap<String, u32> = found.admin.into_iter().chain(registered).collect();
        let is_asked = |server: u32| all.values().any(|asked| *asked == server);
        let hidden: Vec<u32> =
            hidden.iter().map(|info| info.member.server.0).filter(|server| !is_asked(*server)).collect();
        let asked = all.into_iter().map(|(address, server)| (address, Some(server))).collect();
        Ok(Overview { map: Some(found.map), answers: ask(&access, asked), hidden })
    }

    /// The map; empty where only admin ports were asked.
    pub(crate) fn map(&self) -> Cow<'_, RegionMap> {
        self.map.as_ref().map_or_else(|| Cow::Owned(RegionMap::default()), Cow::Borrowed)
    }

    /// The status of each node that answers.
    pub(crate) fn nodes(&self) -> Vec<&NodeStatus> {
        self.answers.iter().filter_map(|answer| answer.status.as_ref().ok()).collect()
    }

    /// A line for each node.
    fn rows(&self) -> Vec<NodeRow> {
        let mut rows: Vec<NodeRow> = self.answers.iter().map(NodeRow::of).collect();
        rows.extend(self.hidden.iter().map(|server| NodeRow::silent(Some(*server), HIDDEN.into())));
        if let Some(map) = &self.map {
            rows.extend(missing(map, &rows));
        }
        rows
    }

    /// The table of nodes.
    pub(crate) fn node_table(&self) -> String {
        node_table(self.rows())
    }
}

/// Asks all admin ports at the same time.
fn ask(access: &Access, addresses: Vec<(String, Option<u32>)>) -> Vec<Answer> {
    at_once(addresses, |(address, server)| {
        let status = access.status(&address, TIMEOUT).map_err(|error| error.to_string());
        Answer { address, server, status }
    })
}

pub(crate) fn run(args: &StatusArgs) -> Outcome {
    let overview = match args.admin.is_empty() {
        true => Overview::of(&args.connect.addresses())?,
        false => {
            let asked = args.admin.iter().map(|address| (address.clone(), None)).collect();
            let answers = ask(&Access::of(&args.connect.addresses())?, asked);
            Overview { map: None, answers, hidden: Vec::new() }
        }
    };
    if let Some(table) = &args.table {
        return show_table(&overview, table, args.json);
    }
    let (map, nodes) = (overview.map.as_ref(), overview.nodes());
    if args.json {
        let silent = overview.answers.iter().filter(|answer| answer.status.is_err());
        let unreachable = silent.map(|answer| answer.address.as_str()).collect();
        let json = serde_json::to_string_pretty(&Everything { map, nodes, unreachable })?;
        show(&(json + "\n"))?;
        return Ok(true);
    }
    let regions = match map {
        Some(map) => region_table(map, &nodes),
        None if nodes.is_empty() => String::new(),
        None => copy_table(&nodes),
    };
    let gap = if regions.is_empty() { "" } else { "\n" };
    show(&format!("{}{gap}{regions}", overview.node_table()))?;
    Ok(!nodes.is_empty())
}

/// Shows the regions of one table: with members, state and lag, or with their configurations as JSON.
fn show_table(overview: &Overview, table: &TableName, is_json: bool) -> Outcome {
    let mut map = overview.map().into_owned();
    if map.table(table).is_none() {
        return Err(format!("there is no table {table}; `leeward table list` shows all tables").into());
    }
    map.regions.retain(|group| group.table == **table);
    match is_json {
        true => show(&(serde_json::to_string_pretty(&map.regions)? + "\n"))?,
        false => show(&region_table(&map, &overview.nodes()))?,
    }
    Ok(true)
}

/// Asks all native addresses at the same time.
fn find(access: &Access, addresses: &[String]) -> Result<FoundCluster, ClientError> {
    let asked = at_once(addresses.to_vec(), |address| {
        access.shake_hands(&address, "leeward-status", TIMEOUT).map_err(|error| format!("{address}: {error}"))
    });
    let mut found = FoundCluster { map: RegionMap::default(), admin: BTreeMap::new() };
    let mut reason = "no address given".to_string();
    for answer in asked {
        match answer {
            Ok(node) => {
                found.admin.insert(node.admin_address, node.server.0);
                if node.map.version >= found.map.version {
                    found.map = node.map;
                }
            }
            Err(error) => reason = error,
        }
    }
    match found.admin.is_empty() {
        true => Err(ClientError::Unreachable { seeds: addresses.join(", "), reason }),
        false => Ok(found),
    }
}

/// Calls `ask` for each of `all`, each on a thread of its own: a node that does not answer must not delay the others.
fn at_once<A: Send, B: Send>(all: Vec<A>, ask: impl Fn(A) -> B + Sync) -> Vec<B> {
    let ask = &ask;
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || ask(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
    })
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// A node as the table shows it.
struct NodeRow {
    /// Its number; `None` if it did not answer, and was asked by an address only.
    server: Option<u32>,
    cells: Vec<String>,
}

impl NodeRow {
    fn of(answer: &Answer) -> NodeRow {
        match &answer.status {
            Ok(status) => NodeRow::answered(status),
            Err(error) => NodeRow::silent(answer.server, format!("its admin port {}: {error}", answer.address)),
        }
    }

    fn answered(node: &NodeStatus) -> NodeRow {
        let in_role = |role| node.regions.iter().filter(|region| region.role == role).count().to_string();
        let mut name = node.server.to_string();
        if node.is_master {
            name.push_str(" master");
        }
        let in_use = node.device.map(|device| match (bytes(device.segment_bytes_used), device.capacity_bytes) {
            (used, Some(capacity)) => format!("{used} of {}", bytes(capacity)),
            (used, None) => used,
        });
        let mut cells = vec![name, or_dash(node.pid), node.incarnation.to_string()];
        cells.extend([Role::Primary, Role::Backup, Role::Learner].map(in_role));
        cells.extend([or_dash(in_use), health(node)]);
        NodeRow { server: Some(node.server.0), cells }
    }

    /// A node that did not answer: only its number, if known, and the reason.
    fn silent(server: Option<u32>, state: String) -> NodeRow {
        let mut cells = vec![or_dash(server)];
        cells.extend(["-"; 6].map(String::from));
        cells.push(state);
        NodeRow { server, cells }
    }
}

/// The worst fault of a node that answers. Without a fault: its intent (`leaves`, `restarts`), or `ok`.
fn health(node: &NodeStatus) -> String {
    let broken = node.regions.iter().find(|region| region.state.starts_with("broken"));
    match (&node.volume_failure, &node.volume_full, &node.not_joined, broken) {
        (Some(failure), ..) => format!("volume failed: {failure}"),
        (_, _, Some(not_joined), _) => format!("not part of the cluster: {not_joined}"),
        (_, _, _, Some(region)) => format!("region {} {}", region.region, region.state),
        (_, Some(full), ..) => format!("volume full: {full}"),
        _ if !node.settings_differ.is_empty() => node.settings_differ.join("; "),
        _ => match (&node.intent, &node.gets_no_roles) {
            (Some(intent), _) => intent.clone(),
            (None, Some(why)) => format!("gets no roles: {why}"),
            (None, None) => "ok".into(),
        },
    }
}

/// Servers that regions name and that are neither registered nor in `rows`.
fn missing(map: &RegionMap, rows: &[NodeRow]) -> Vec<NodeRow> {
    let named = map.regions.iter().flat_map(|group| group.in_sync().chain(group.learners.iter().copied()));
    let named: BTreeSet<u32> = named.map(|member| member.server.0).collect();
    let unknown = named.into_iter().filter(|server| rows.iter().all(|row| row.server != Some(*server)));
    unknown.map(|server| NodeRow::silent(Some(server), "not registered: dead, or cut off".into())).collect()
}

fn node_table(mut rows: Vec<NodeRow>) -> String {
    rows.sort_by_key(|row| row.server.unwrap_or(u32::MAX));
    let head = ["node", "pid", "incarnation", "primary of", "backup of", "building", "in use", "state"];
    table(&head, rows.into_iter().map(|row| row.cells).collect())
}

/// A line for each region, and what some of them wait for.
pub(crate) fn region_table(map: &RegionMap, nodes: &[&NodeStatus]) -> String {
    if map.regions.is_empty() {
        return "no node knows of a region\n".into();
    }
    let of_primary = |group: &GroupConfig| {
        let primary = group.primary?.server;
        let node = nodes.iter().find(|node| node.server == primary)?;
        node.regions.iter().find(|region| region.region == group.region)
    };
    let has_tables = map.regions.iter().any(|group| group.table != map.regions[0].table);
    let has_desired_state = map.regions.iter().any(|group| desired(group).is_some());
    let row = |group: &GroupConfig| {
        let status = of_primary(group);
        let range =
            range(&bound_text(map, group, &group.start), group.end.as_ref().map(|end| bound_text(map, group, end)));
        let members = |members: &[Member]| {
            let names: Vec<String> = members.iter().map(|member| member.server.to_string()).collect();
            if names.is_empty() { "-".into() } else { names.join(",") }
        };
        let primary = group.primary.map(|primary| primary.server);
        let state = match status {
            _ if !waits_for(map, group).is_empty() => "waiting for a volume".into(),
            _ if group.contradicted_by(&map.servers).is_some() => "the coordinator forgot".into(),
            Some(status) if status.state == "serving" && reads_only(map, group) => "reads only".into(),
            Some(status) => status.state.clone(),
            None => "unknown".into(),
        };
        let mut cells = vec![group.region.to_string()];
        cells.extend(has_tables.then(|| group.table.clone()));
        cells.extend([range, or_dash(primary), members(&group.backups)]);
        cells.push(learners(&group.learners, status));
        cells.extend(has_desired_state.then(|| or_dash(desired(group))));
        cells.extend([group.epoch.to_string(), state]);
        cells.extend(figures(status));
        cells
    };
    let mut head = vec![
        "region", "range", "primary", "in sync", "building", "epoch", "state", "last LSN", "commit", "lag", "levels",
    ];
    if has_desired_state {
        head.insert(5, "requested");
    }
    if has_tables {
        head.insert(1, "table");
    }
    let mut text = table(&head, map.regions.iter().map(row).collect());
    for group in &map.regions {
        for missing in waits_for(map, group) {
            write!(text, "\n{}\n", missing.explain(group.region)).expect("writing to memory");
        }
        if let Some(contradiction) = group.contradicted_by(&map.servers) {
            write!(text, "\n{}\n", contradiction.explain(group)).expect("writing to memory");
        }
        if let Some(explained) = group.explain_restored() {
            write!(text, "\n{explained}\n").expect("writing to memory");
        }
    }
    for group in &map.regions {
        text += &plan(group, of_primary(group)).unwrap_or_default();
    }
    for sentence in map.shared_places().explain() {
        write!(text, "\n{sentence}\n").expect("writing to memory");
    }
    text
}

/// A bound of a region, as its table splits keys.
pub(crate) fn bound_text(map: &RegionMap, group: &GroupConfig, bound: &[u8]) -> String {
    let partition = map.table(&group.table).map(|table| table.partition).unwrap_or_default();
    partition.bound_text(bound, |key| key.escape_ascii().to_string())
}

/// Whether too few members are in sync for a write.
fn reads_only(map: &RegionMap, group: &GroupConfig) -> bool {
    map.table(&group.table).is_some_and(|table| !table.takes_writes(group))
}

/// The requests for a region that are not executed yet.
fn desired(group: &GroupConfig) -> Option<String> {
    let primary = group.desired.primary.map(|server| format!("primary {server}"));
    let leaving = group.desired.leaving.map(|server| format!("{server} leaves"));
    let plan = group.desired.plan.as_ref().map(|plan| match plan {
        Plan::Split { .. } => "split".to_owned(),
        Plan::Merge { into } => format!("merge into {into}"),
    });
    let all: Vec<String> = primary.into_iter().chain(leaving).chain(plan).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The split or merge that is planned for a region, and why it has not happened yet.
fn plan(group: &GroupConfig, status: Option<&RegionStatus>) -> Option<String> {
    let what = match group.desired.plan.as_ref()? {
        Plan::Split { at: None, child } => format!("split at the key that halves it; the new region is {child}"),
        Plan::Split { at: Some(at), child } => format!("split at {}; the new region is {child}", at.escape_ascii()),
        Plan::Merge { into } => format!("merged into region {into}"),
    };
    let waits_for = status.and_then(|status| status.plan.as_ref()?.waits_for.as_deref());
    let why = waits_for.map(|why| format!("; not yet: {why}")).unwrap_or_default();
    Some(format!("\nregion {} is to be {what}{why}\n", group.region))
}

/// The members that are being built, each with how many of the segments that it lacked were sent.
fn learners(members: &[Member], status: Option<&RegionStatus>) -> String {
    let name = |member: &Member| {
        let peers = status.map_or(&[][..], |status| &status.peers);
        match peers.iter().find(|peer| peer.server == member.server && peer.segments_lacked > 0) {
            Some(peer) => format!("{} ({}/{})", member.server, peer.segments_sent, peer.segments_lacked),
            None => member.server.to_string(),
        }
    };
    let names: Vec<String> = members.iter().map(name).collect();
    if names.is_empty() { "-".into() } else { names.join(",") }
}

/// The volumes that a region waits for.
fn waits_for(map: &RegionMap, group: &GroupConfig) -> Vec<MissingVolume> {
    missing_volumes(group, |server| map.server(server).map(|info| leeward_cluster::ServerCopy::of(info, group)))
}

/// The regions by the status of single nodes.
fn copy_table(nodes: &[&NodeStatus]) -> String {
    let mut rows = Vec::new();
    for node in nodes {
        for status in &node.regions {
            let mut cells = vec![node.server.to_string(), status.region.to_string()];
            cells.extend([
                range(&status.start, status.end.clone()),
                status.role.name().into(),
                status.epoch.to_string(),
            ]);
            cells.push(status.state.clone());
            cells.extend(figures(Some(status)));
            rows.push(cells);
        }
    }
    let head = ["node", "region", "range", "role", "epoch", "state", "last LSN", "commit", "lag", "levels"];
    table(&head, rows)
}

/// Last LSN, commit LSN, the largest lag, and the sizes of the levels.
fn figures(status: Option<&RegionStatus>) -> [String; 4] {
    let Some(status) = status else { return ["-", "-", "-", "-"].map(String::from) };
    let lag = status.peers.iter().map(|peer| peer.lag_bytes).max().map(bytes);
    let levels: Vec<String> = status.levels.iter().map(|level| bytes(level.bytes)).collect();
    let levels = if levels.is_empty() { "-".into() } else { levels.join(" ") };
    let commit = (status.role == Role::Primary).then_some(status.commit_lsn);
    [status.last_lsn.to_string(), or_dash(commit), or_dash(lag), levels]
}

fn range(start: &str, end: Option<String>) -> String {
    let start = if start.is_empty() { "first" } else { start };
    format!("{start} .. {}", end.as_deref().unwrap_or("last"))
}
