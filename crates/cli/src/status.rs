//! `leeward status`: what the cluster looks like, from the region map of any node and the status of each.

use crate::args::StatusArgs;
use crate::{Outcome, show};
use leeward_bench::{NodeStatus, RegionStatus, fetch_status};
use leeward_client::{ClientOptions, GroupConfig, RegionMap, Session};
use leeward_format::ServerId;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Everything, as `--json` prints it.
#[derive(Serialize)]
struct Everything<'a> {
    /// `null` where only admin ports were asked.
    map: Option<&'a RegionMap>,
    nodes: Vec<&'a NodeStatus>,
    unreachable: Vec<&'a str>,
}

pub(crate) fn run(args: &StatusArgs) -> Outcome {
    let map = if args.admin.is_empty() { Some(fetch_map(args)?) } else { None };
    let addresses = match &map {
        Some(map) => map.servers.iter().map(|server| server.admin_address.clone()).collect(),
        None => args.admin.clone(),
    };
    let answers: Vec<(String, Result<NodeStatus, String>)> = addresses
        .into_iter()
        .map(|address| {
            let status = fetch_status(&address, PATIENCE).map_err(|error| error.to_string());
            (address, status)
        })
        .collect();
    let nodes: Vec<&NodeStatus> = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).collect();
    let failed = answers.iter().filter_map(|(address, answer)| Some((address, answer.as_ref().err()?)));
    if args.json {
        let unreachable = failed.map(|(address, _)| address.as_str()).collect();
        let json = serde_json::to_string_pretty(&Everything { map: map.as_ref(), nodes, unreachable })?;
        show(&(json + "\n"))?;
        return Ok(true);
    }
    let mut text = String::new();
    for (address, error) in failed {
        writeln!(text, "admin port {address}: {error}")?;
    }
    let regions = match &map {
        Some(map) => region_table(map, &nodes),
        None => copy_table(&nodes),
    };
    show(&format!("{text}{}\n{regions}", node_table(&nodes)))?;
    Ok(!nodes.is_empty())
}

fn fetch_map(args: &StatusArgs) -> Result<RegionMap, Box<dyn std::error::Error>> {
    let options = ClientOptions { name: "leeward-status".into(), deadline: PATIENCE, ..ClientOptions::default() };
    let mut session = Session::connect(&args.connect.connect, options)?;
    Ok(RegionMap::clone(&*session.fetch_map()?))
}

/// Rows of cells with aligned columns, two spaces apart.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head = head.iter().map(|cell| (*cell).to_string()).collect();
    for row in std::iter::once(head).chain(rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(&row) {
            write!(line, "{cell:width$}  ").expect("writing to memory");
        }
        writeln!(text, "{}", line.trim_end()).expect("writing to memory");
    }
    text
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn node_table(nodes: &[&NodeStatus]) -> String {
    let in_role =
        |node: &NodeStatus, role: &str| node.regions.iter().filter(|region| region.role == role).count().to_string();
    let health = |node: &NodeStatus| match (&node.volume_failure, node.coordinator_up) {
        (Some(failure), _) => format!("volume: {failure}"),
        (None, Some(false)) => "no coordinator".into(),
        _ => "ok".into(),
    };
    let row = |node: &&NodeStatus| {
        let mut name = node.server.to_string();
        if node.is_master == Some(true) {
            name.push_str(" master");
        }
        let (primaries, backups) = (in_role(node, "primary"), in_role(node, "backup"));
        let learners = in_role(node, "learner");
        let cells = [or_dash(node.pid), or_dash(node.incarnation), primaries, backups, learners];
        let in_use = or_dash(node.device.segment_bytes_used.map(bytes));
        [name].into_iter().chain(cells).chain([in_use, health(node)]).collect()
    };
    let mut sorted: Vec<&NodeStatus> = nodes.to_vec();
    sorted.sort_by_key(|node| node.server);
    let head = ["node", "pid", "life", "primary of", "backup of", "building", "in use", "state"];
    table(&head, sorted.iter().map(row).collect())
}

fn region_table(map: &RegionMap, nodes: &[&NodeStatus]) -> String {
    let of_primary = |group: &GroupConfig| {
        let primary = group.primary?.server;
        let node = nodes.iter().find(|node| ServerId(node.server) == primary)?;
        node.regions.iter().find(|region| region.region == group.region)
    };
    let row = |group: &GroupConfig| {
        let status = of_primary(group);
        let range = range(
            &group.start.escape_ascii().to_string(),
            group.end.as_ref().map(|end| end.escape_ascii().to_string()),
        );
        let members = |members: &[leeward_format::cluster::Member]| {
            let names: Vec<String> = members.iter().map(|member| member.server.to_string()).collect();
            if names.is_empty() { "-".into() } else { names.join(",") }
        };
        let primary = group.primary.map(|primary| primary.server);
        let state = status.map_or_else(|| "unknown".into(), |status| status.state.clone());
        let mut cells = vec![group.region.to_string(), range, or_dash(primary), members(&group.backups)];
        cells.extend([members(&group.learners), group.epoch.to_string(), state]);
        cells.extend(figures(status));
        cells
    };
    let head =
        ["region", "range", "primary", "in sync", "building", "epoch", "state", "last LSN", "commit", "lag", "levels"];
    table(&head, map.regions.iter().map(row).collect())
}

/// The regions as single nodes tell them.
fn copy_table(nodes: &[&NodeStatus]) -> String {
    let mut rows = Vec::new();
    for node in nodes {
        for status in &node.regions {
            let mut cells = vec![node.server.to_string(), status.region.to_string()];
            cells.extend([range(&status.start, status.end.clone()), status.role.clone(), status.epoch.to_string()]);
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
    let commit = (status.role == "primary").then_some(status.commit_lsn);
    [status.last_lsn.to_string(), or_dash(commit), or_dash(lag), levels]
}

fn range(start: &str, end: Option<String>) -> String {
    let start = if start.is_empty() { "first" } else { start };
    format!("{start} .. {}", end.as_deref().unwrap_or("last"))
}

/// A size for people.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
