//! Commands about the server: `INFO`, `COMMAND`, `CONFIG GET`.

use super::session::Session;
use super::table::{self, Spec};
use super::work::Work;
use super::{Context, glob, strings};
use crate::metrics::Class;
use crate::resp::Reply;
use bytes::Bytes;
use leeward_format::status::NodeStatus;
use leeward_format::{MAX_VALUE_BYTES, RegionId};
use std::fmt::Write;
use std::sync::Arc;

/// The version of Redis whose commands Leeward follows, where it has them. Some clients look at it.
const REDIS_VERSION: &str = "7.2.0";

const SECTIONS: &[&str] = &[
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "commandstats",
    "cluster",
    "keyspace",
    "leeward",
];
/// Shown only when named, or by `all` and `everything`.
const ON_DEMAND: &str = "commandstats";

/// `INFO [section ...]`
pub(super) fn info(args: &[Bytes], session: &Session, context: &mut Context) -> Work {
    let mut wanted: Vec<&str> = Vec::new();
    for section in SECTIONS {
        let named = |name: &str| args[1..].iter().any(|arg| arg.eq_ignore_ascii_case(name.as_bytes()));
        let by_default = (args.len() == 1 || named("default")) && *section != ON_DEMAND;
        if by_default || named("all") || named("everything") || named(section) {
            wanted.push(section);
        }
    }
    let needs_figures = |section: &&str| ["memory", "persistence", "stats", "leeward"].contains(section);
    let status = if wanted.iter().any(needs_figures) { context.status() } else { Arc::default() };
    let mut text = String::new();
    let mode = session.mode(context.routes);
    for section in wanted.iter().filter(|section| **section != "keyspace") {
        write_section(section, &status, mode, context, &mut text);
    }
    // Writing a line takes longer than copying it.
    context.quota.take(text.len() as u32 / 16);
    if !wanted.contains(&"keyspace") {
        return Work::Ready(Reply::Verbatim(text));
    }
    // A region that cannot answer must not fail INFO, which operators look at when something fails.
    let tables = context.routes.tables().map(|table| (table.name.clone(), context.routes.regions_of(&table.name)));
    let counts: Vec<_> = tables.map(|(name, regions)| (name, strings::counts(regions))).collect();
    let first = context.shared.facts.redis_table.clone();
    let lengths: Vec<(String, usize)> = counts.iter().map(|(name, ops)| (name.clone(), ops.len())).collect();
    Work::many_with_errors(counts.into_iter().flat_map(|(_, ops)| ops).collect(), move |mut counts| {
        heading("keyspace", &mut text);
        for (table, regions) in lengths {
            let rest = counts.split_off(regions);
            if let Some(keys) = strings::sum(&counts).filter(|keys| *keys > 0) {
                let name = if table == *first { "db0".into() } else { format!("table_{table}") };
                line(&mut text, &name, format_args!("keys={keys},expires=0,avg_ttl=0"));
            }
            counts = rest;
        }
        Reply::Verbatim(text)
    })
}

fn heading(section: &str, out: &mut String) {
    if !out.is_empty() {
        out.push_str("\r\n");
    }
    let (first, rest) = section.split_at(1);
    write!(out, "# {}{rest}\r\n", first.to_ascii_uppercase()).expect("writing to a string cannot fail");
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    write!(out, "{name}:{value}\r\n").expect("writing to a string cannot fail");
}

fn write_section(section: &str, status: &NodeStatus, mode: &str, context: &Context, out: &mut String) {
    heading(section, out);
    let shared = &*context.shared;
    let (device, network) = (status.device.unwrap_or_default(), status.network.unwrap_or_default());
    match section {
        "server" => server(mode, context, out),
        "cluster" => line(out, "cluster_enabled", u8::from(mode == "cluster")),
        "clients" => {
            line(out, "connected_clients", shared.clients.len());
            line(out, "maxclients", shared.facts.max_connections);
            line(out, "blocked_clients", 0);
        }
        "memory" => {
            line(out, "used_memory", status.memory.used);
            line(out, "used_memory_l0", status.memory.l0s);
            line(out, "used_memory_cache", status.memory.cache);
            line(out, "maxmemory", status.memory.budget);
            line(out, "maxmemory_policy", "noeviction");
        }
        "persistence" => {
            line(out, "loading", u8::from(status.regions.iter().any(|region| region.state == "recovering")));
            line(out, "aof_enabled", 1);
            line(out, "rdb_bgsave_in_progress", 0);
            line(out, "volume_failure", status.volume_failure.as_deref().unwrap_or(""));
            line(out, "volume_full", status.volume_full.as_deref().unwrap_or(""));
            line(out, "volume_used_bytes", device.segment_bytes_used);
        }
        "stats" => {
            let totals = shared.metrics.totals();
            line(out, "total_connections_received", totals.connections);
            line(out, "rejected_connections", totals.refused);
            line(out, "total_commands_processed", totals.commands);
            line(out, "total_error_replies", totals.failed);
            line(out, "keyspace_cache_hits", status.cache.hits);
            line(out, "keyspace_cache_misses", status.cache.misses);
            line(out, "device_bytes_read", device.bytes_read);
            line(out, "device_bytes_written", device.bytes_written);
            line(out, "fabric_bytes_sent", network.bytes_sent);
            line(out, "fabric_bytes_received", network.bytes_received);
        }
        "replication" => {
            // Any node takes any command, so a Redis client sees every node as a master without replicas.
            line(out, "role", "master");
            line(out, "connected_slaves", 0);
            line(out, "master_replid", &shared.facts.run_id);
        }
        "commandstats" => shared.metrics.each_command(|name, calls, nanos, failed| {
            let micros = nanos / 1000;
            let per_call = micros as f64 / calls as f64;
            let value = format!(
                "calls={calls},usec={micros},usec_per_call={per_call:.2},rejected_calls=0,failed_calls={failed}"
            );
            line(out, &format!("cmdstat_{name}"), value);
        }),
        _ => leeward(status, out),
    }
}

fn server(mode: &str, context: &Context, out: &mut String) {
    let facts = &context.shared.facts;
    let uptime = context.now.0.saturating_sub(facts.started.0) / 1_000_000_000;
    line(out, "redis_version", REDIS_VERSION);
    line(out, "redis_mode", mode);
    line(out, "leeward_version", env!("CARGO_PKG_VERSION"));
    line(out, "os", format_args!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(out, "arch_bits", usize::BITS);
    line(out, "process_id", std::process::id());
    line(out, "run_id", &facts.run_id);
    line(out, "tcp_port", facts.resp_port);
    line(out, "uptime_in_seconds", uptime);
    line(out, "uptime_in_days", uptime / 86_400);
}

fn leeward(status: &NodeStatus, out: &mut String) {
    line(out, "server_id", status.server);
    line(out, "volume_id", status.volume);
    line(out, "incarnation", status.incarnation);
    line(out, "is_master", u8::from(status.is_master));
    line(out, "coordinator_up", u8::from(status.coordinator_up));
    line(out, "absence", status.not_joined.as_deref().unwrap_or(""));
    line(out, "forwarded", status.forwarded);
    line(out, "stale_reads", status.stale_reads);
    line(out, "fresh_reads", status.fresh_reads);
    line(out, "safe_lsn_questions", status.safe_lsn_questions);
    for region in &status.regions {
        let role = region.role.name();
        let RegionId(id) = region.region;
        let lag: u64 = region.peers.iter().map(|peer| peer.lag_bytes).sum();
        let value = format!(
            "role={role},state={},epoch={},last_lsn={},commit_lsn={},lag_bytes={lag}",
            region.state, region.epoch, region.last_lsn, region.commit_lsn
        );
        line(out, &format!("region{id}"), value);
    }
}

/// `COMMAND [COUNT | INFO [name ...] | DOCS [name ...] | LIST]`
pub(super) fn command(args: &[Bytes]) -> Work {
    let Some(subcommand) = args.get(1) else {
        return Work::Ready(Reply::Array(table::all().iter().map(describe).collect()));
    };
    let names = &args[2..];
    let named = || names.iter().map(|name| table::position(name).map(|position| &table::all()[position]));
    Work::Ready(if subcommand.eq_ignore_ascii_case(b"COUNT") && !names.is_empty() {
        Reply::err("wrong number of arguments for 'command|count' command")
    } else if subcommand.eq_ignore_ascii_case(b"COUNT") {
        Reply::Integer(table::all().len() as i64)
    } else if subcommand.eq_ignore_ascii_case(b"INFO") {
        match names {
            [] => Reply::Array(table::all().iter().map(describe).collect()),
            _ => Reply::Array(named().map(|spec| spec.map_or(Reply::NullArray, describe)).collect()),
        }
    } else if subcommand.eq_ignore_ascii_case(b"DOCS") {
        match names {
            [] => Reply::Map(table::all().iter().map(document).collect()),
            _ => Reply::Map(named().flatten().map(document).collect()),
        }
    } else if subcommand.eq_ignore_ascii_case(b"LIST") {
        Reply::Array(table::all().iter().map(|spec| Reply::text(spec.name)).collect())
    } else {
        return table::unknown_subcommand("COMMAND", subcommand);
    })
}

/// The ten elements of Redis 7: name, arity, flags, keys, ACL categories, and three that are empty here.
fn describe(spec: &Spec) -> Reply {
    let (flags, category): (&[&'static str], &'static str) = match (spec.class, spec.name) {
        (Class::Write, "del" | "unlink" | "getdel") => (&["write", "fast"], "@write"),
        (Class::Write, _) => (&["write", "denyoom", "fast"], "@write"),
        (Class::Read, _) => (&["readonly", "fast"], "@read"),
        (Class::Scan, _) => (&["readonly"], "@read"),
        (Class::Other, _) => (&["loading", "stale", "fast"], "@connection"),
    };
    let (first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::text(spec.name),
        Reply::Integer(spec.arity.into()),
        Reply::Set(flags.iter().map(|flag| Reply::Simple(flag)).collect()),
        Reply::Integer(first.into()),
        Reply::Integer(last.into()),
        Reply::Integer(step.into()),
        Reply::Set(vec![Reply::Simple(category)]),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

fn document(spec: &Spec) -> (Reply, Reply) {
    let group = match (spec.class, spec.name) {
        (Class::Other, "info" | "command" | "config") => "server",
        (Class::Other, _) => "connection",
        (Class::Scan, _) | (_, "del" | "unlink" | "exists" | "type" | "dbsize") => "generic",
        _ => "string",
    };
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    let fields = vec![
        pair("summary", Reply::text(spec.summary)),
        pair("since", Reply::text("0.1.0")),
        pair("group", Reply::text(group)),
        pair("syntax", Reply::text(spec.usage)),
    ];
    (Reply::text(spec.name), Reply::Map(fields))
}

/// `CONFIG GET pattern [pattern ...]`
pub(super) fn config(args: &[Bytes], context: &mut Context) -> Work {
    if !args[1].eq_ignore_ascii_case(b"GET") {
        return table::unknown_subcommand("CONFIG", &args[1]);
    }
    if args.len() < 3 {
        return Work::Ready(Reply::err("wrong number of arguments for 'config|get' command"));
    }
    let bytes: usize = args[2..].iter().map(Bytes::len).sum();
    if bytes > glob::MAX_PATTERN_BYTES {
        return Work::Ready(Reply::err(glob::too_long()));
    }
    context.quota.take(bytes as u32);
    // As `INFO` says it.
    let maxmemory = context.status().memory.budget;
    let facts = &context.shared.facts;
    let settings: [(&str, String); 9] = [
        ("appendonly", "yes".into()),
        ("bind", facts.bind.clone()),
        ("databases", "1".into()),
        ("dir", facts.data_dir.clone()),
        ("maxclients", facts.max_connections.to_string()),
        ("maxmemory", maxmemory.to_string()),
        ("port", facts.resp_port.to_string()),
        ("proto-max-bulk-len", MAX_VALUE_BYTES.to_string()),
        // No snapshots on a schedule: everything acknowledged is in the logs.
        ("save", String::new()),
    ];
    let wanted =
        |name: &str| args[2..].iter().any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
    let found = settings.into_iter().filter(|(name, _)| wanted(name));
    Work::Ready(Reply::Map(found.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect()))
}
