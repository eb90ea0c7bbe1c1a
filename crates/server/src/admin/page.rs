//! The status page for people: one HTML document, no scripts, refreshed by the browser.

use super::{Snapshot, view};
use leeward_format::cluster::{GroupConfig, RegionMap};
use leeward_format::partition::Partition;
use leeward_format::status::{NodeStatus, RegionStatus};
use std::fmt::Write;

const STYLE: &str = "body{font:15px system-ui,sans-serif;margin:2rem;max-width:72rem;color:#222}\
    h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\
    table{border-collapse:collapse}td,th{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid #ddd}\
    td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00020;font-weight:600}\
    @media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}td,th{border-color:#333}.bad{color:#ff6b7f}}";

pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    write_page(snapshot, &mut out).expect("writing to a string cannot fail");
    out
}

fn write_page(snapshot: &Snapshot, out: &mut String) -> std::fmt::Result {
    let status = &snapshot.status;
    write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Leeward node {0}</title><style>{STYLE}</style>\
         </head><body><h1>Leeward node {0}{1}</h1>",
        status.server,
        if status.is_master { ", master" } else { "" }
    )?;
    write_node(status, out)?;
    write!(
        out,
        "<h2>Regions here</h2><table><tr><th>Region<th>Keys or #tokens<th>Role<th>State<th>Epoch<th>Last LSN<th>Committed\
         <th>L0<th>Levels<th>Peers</tr>"
    )?;
    for region in &status.regions {
        write_region(region, out)?;
    }
    write!(
        out,
        "</table><h2>Cluster</h2><table><tr><th>Region<th>Keys or #tokens<th>Epoch<th>Primary<th>Backups<th>Learners</tr>"
    )?;
    for group in &snapshot.map.regions {
        write_group(group, partition_of(&snapshot.map, group), out)?;
    }
    write!(out, "</table>")?;
    for why in snapshot.map.regions.iter().flat_map(|group| view::waits_for(&snapshot.map, group)) {
        write!(out, "<p class=\"bad\">{}</p>", escape(&why))?;
    }
    for sentence in snapshot.map.shared_places().explain() {
        write!(out, "<p>{}</p>", escape(&sentence))?;
    }
    write!(
        out,
        "<h2>Servers</h2><table><tr><th>Server<th>Location<th>Volume<th>Life<th>Redis<th>Native<th>Admin</tr>"
    )?;
    for info in &snapshot.map.servers {
        let admin = escape(&info.admin_address);
        write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td><a href=\"//{admin}/\">{admin}</a></tr>",
            info.member.server,
            info.location,
            info.member.volume,
            info.member.incarnation,
            escape(&info.resp_address),
            escape(&info.native_address),
        )?;
    }
    write!(out, "</table><p><a href=\"/status\">status</a> <a href=\"/metrics\">metrics</a></p></body></html>")
}

fn write_node(status: &NodeStatus, out: &mut String) -> std::fmt::Result {
    if let Some(failure) = &status.volume_failure {
        write!(out, "<p class=\"bad\">The volume takes no writes: {}</p>", escape(failure))?;
    }
    if let Some(full) = &status.volume_full {
        write!(out, "<p class=\"bad\">The volume is full: {}. Writes are refused, reads go on.</p>", escape(full))?;
    }
    if let Some(why) = &status.gets_no_roles {
        let why = escape(why);
        write!(out, "<p class=\"bad\">Other servers get its primary roles and new copies, if they can: {why}.</p>")?;
    }
    for difference in &status.settings_differ {
        write!(out, "<p class=\"bad\">A setting differs: {}.</p>", escape(difference))?;
    }
    if let Some(not_joined) = &status.not_joined {
        write!(out, "<p class=\"bad\">Not part of the cluster: {}.</p>", escape(not_joined))?;
    }
    let (device, network) = (status.device.unwrap_or_default(), status.network.unwrap_or_default());
    write!(
        out,
        "<p>Life {}, process {}. Device: {} read, {} written, {} in use{}. Fabric: {} sent, {} received. \
         Memory: {} of {}, {} of that in the cache: {} hits, {} misses. {} operations forwarded.</p>",
        status.incarnation,
        status.pid.unwrap_or_default(),
        bytes(device.bytes_read),
        bytes(device.bytes_written),
        bytes(device.segment_bytes_used),
        device.capacity_bytes.map_or_else(String::new, |most| format!(" of {}", bytes(most))),
        bytes(network.bytes_sent),
        bytes(network.bytes_received),
        bytes(status.memory.used),
        bytes(status.memory.budget),
        bytes(status.memory.cache),
        status.cache.hits,
        status.cache.misses,
        status.forwarded,
    )
}

fn write_region(region: &RegionStatus, out: &mut String) -> std::fmt::Result {
    write!(
        out,
        "<tr><td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>",
        region.region,
        range(&region.start, region.end.as_deref()),
        region.role.name(),
        escape(&region.state),
        region.epoch,
        region.last_lsn,
        region.commit_lsn,
        bytes(region.l0_bytes),
    )?;
    for level in &region.levels {
        write!(out, "L{} {} ", level.level, bytes(level.bytes))?;
    }
    write!(out, "<td>")?;
    for peer in &region.peers {
        let lag = bytes(peer.lag_bytes);
        write!(out, "{}: {}, lag {lag}, {} to ship", peer.server, escape(&peer.state), peer.segments_to_ship)?;
        if peer.state == "syncing" {
            write!(out, ", {} of {} segments sent", peer.segments_sent, peer.segments_lacked)?;
        }
        write!(out, "<br>")?;
    }
    write!(out, "</tr>")
}

fn partition_of(map: &RegionMap, group: &GroupConfig) -> Partition {
    map.table(&group.table).map(|table| table.partition).unwrap_or_default()
}

fn write_group(group: &GroupConfig, partition: Partition, out: &mut String) -> std::fmt::Result {
    let servers = |members: &[leeward_format::cluster::Member]| {
        members.iter().map(|member| member.server.to_string()).collect::<Vec<_>>().join(", ")
    };
    let text = |bound: &[u8]| partition.bound_text(bound, |key| String::from_utf8_lossy(key).into_owned());
    let end = group.end.as_ref().map(|end| text(end));
    write!(
        out,
        "<tr><td>{}<td>{}<td class=\"n\">{}<td>{}<td>{}<td>{}</tr>",
        group.region,
        range(&text(&group.start), end.as_deref()),
        group.epoch,
        group.primary.map_or_else(|| "<span class=\"bad\">none</span>".into(), |member| member.server.to_string()),
        servers(&group.backups),
        servers(&group.learners),
    )
}

fn range(start: &str, end: Option<&str>) -> String {
    let shown = |key: &str| if key.is_empty() { "&minus;&infin;".to_owned() } else { escape(key) };
    format!("{} &hellip; {}", shown(start), end.map_or_else(|| "&infin;".to_owned(), shown))
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
