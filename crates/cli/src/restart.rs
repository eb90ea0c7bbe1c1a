//! `leeward restart`: restarts one server after the other with a command of the operator, so that no request fails.
//!
//! A server that gets SIGTERM hands over its primary roles and leaves its groups by itself. This command adds the order, and
//! that the next server is restarted only once every group has all of its members again.

use crate::args::Connect;
use crate::status::{Overview, TIMEOUT};
use crate::wait::{Waited, wait};
use crate::{Outcome, data};
use clap::Args;
use leeward_client::{Client, ClientError, RegionMap};
use leeward_format::ServerId;
use leeward_format::cluster::ServerInfo;
use std::error::Error;
use std::process::Command;
use std::time::Instant;

#[cfg(test)]
#[path = "restart_tests.rs"]
mod tests;

#[derive(Args, Debug)]
#[command(after_help = "\
sh runs the command for one server after the other, the master last. The command must end the server with SIGTERM and make sure
that it starts again. Its environment has LEEWARD_SERVER (the number of the server), LEEWARD_HOST (the host of its admin port) and
LEEWARD_PID (its process there).

A server that gets SIGTERM hands over its primary roles, in a pause of some milliseconds, and leaves its groups, so no request
fails. Redis clients of that server get the answers to what it has begun for them, and must connect again. Native clients connect
again by themselves. The next server follows when this one is back and every region has all of its members. If that takes too
long, or the command fails, the other servers are not restarted.

Examples:
  leeward restart --command 'ssh $LEEWARD_HOST systemctl restart leeward'
  leeward restart --server 2,3 --command 'ssh $LEEWARD_HOST systemctl restart leeward'
  leeward restart --command 'kill $LEEWARD_PID'        for `leeward dev --restart`")]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    connect: Connect,
    /// Shell command that ends a server and has it started again
    #[arg(long, value_name = "COMMAND")]
    command: String,
    /// Only these servers
    #[arg(long = "server", value_name = "SERVERS", value_delimiter = ',')]
    servers: Vec<u32>,
    /// Restart even if a table's writes will wait while one of its members is away
    #[arg(long)]
    with_pauses: bool,
    /// Seconds to wait until a server and its regions are back
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

pub(crate) fn run(args: &RestartArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let map = client.region_map()?;
    if let Some(why) = pauses(&map).filter(|_| !args.with_pauses) {
        return Err(format!("{why}; --with-pauses restarts all the same").into());
    }
    if let Some(lack) = lack(&map) {
        return Err(
            format!("{lack}: no server is restarted until that is repaired; `leeward status` shows more").into()
        );
    }
    let servers = order(&map, &args.servers, master(&args.connect.addresses())?)?;
    for (done, info) in servers.iter().enumerate() {
        let begun = Instant::now();
        eprintln!("server {} ({} of {})", info.member.server, done + 1, servers.len());
        restart(args, &client, info).map_err(|error| {
            let left: Vec<String> = servers[done..].iter().map(|info| info.member.server.to_string()).collect();
            format!(
                "server {}: {error}; to continue, run it again with --server {}",
                info.member.server,
                left.join(",")
            )
        })?;
        println!("server {}: restarted, and all regions are whole after {:.1} s", info.member.server, seconds(begun));
    }
    Ok(true)
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// The server that is the master, by its own status.
fn master(addresses: &[String]) -> Result<Option<ServerId>, ClientError> {
    let overview = Overview::of(addresses)?;
    let found = overview.nodes().into_iter().find(|node| node.is_master).map(|node| node.server);
    Ok(found)
}

/// The servers in the order in which they are restarted: those that are wanted, or all, the master last.
fn order(map: &RegionMap, wanted: &[u32], master: Option<ServerId>) -> Result<Vec<ServerInfo>, String> {
    let is_known = |server: &&u32| map.servers.iter().any(|info| info.member.server.0 == **server);
    if let Some(unknown) = wanted.iter().find(|server| !is_known(server)) {
        return Err(format!("there is no server {unknown}"));
    }
    let is_wanted = |info: &&ServerInfo| wanted.is_empty() || wanted.contains(&info.member.server.0);
    let mut servers: Vec<ServerInfo> = map.servers.iter().filter(is_wanted).cloned().collect();
    servers.sort_by_key(|info| (Some(info.member.server) == master, info.member.server));
    Ok(servers)
}

/// Why writes would wait while a server is away, if they would.
fn pauses(map: &RegionMap) -> Option<String> {
    let waits = map.tables.iter().find(|table| table.replicas <= table.min_in_sync.max(1))?;
    let needed = waits.min_in_sync.max(1);
    Some(format!(
        "table {}: its regions have {} replicas and need {needed} in sync: while one is away, writes would wait",
        waits.name, waits.replicas
    ))
}

/// Describes a region that lacks members; `None` if every region has all of them.
fn lack(map: &RegionMap) -> Option<String> {
    map.regions.iter().find_map(|group| {
        let replicas = map.table(&group.table).map_or(1, |table| table.replicas as usize);
        let here = group.in_sync().filter(|member| map.member(member.server) == Some(*member)).count();
        let lacks = || format!("region {} of table {} has {here} of {replicas} members", group.region, group.table);
        (group.primary.is_none() || here < replicas).then(lacks)
    })
}

fn restart(args: &RestartArgs, client: &Client, info: &ServerInfo) -> Result<(), Box<dyn Error>> {
    let pid = client.access().status(&info.admin_address, TIMEOUT).ok().and_then(|status| status.pid);
    let host = info.admin_address.rsplit_once(':').map_or("", |(host, _)| host);
    let status = Command::new("sh")
        .args(["-c", &args.command])
        .env("LEEWARD_SERVER", info.member.server.to_string())
        .env("LEEWARD_HOST", host)
        .env("LEEWARD_PID", pid.map(|pid| pid.to_string()).unwrap_or_default())
        .status()
        .map_err(|error| format!("sh cannot be run: {error}"))?;
    if !status.success() {
        return Err(format!("the command failed ({status})").into());
    }
    let lack = || {
        Ok(match client.region_map() {
            Ok(map) => match map.member(info.member.server) {
                Some(member) if member != info.member => lack(&map),
                Some(_) => Some("it has not ended yet".into()),
                None => Some("it is not back yet".into()),
            },
            Err(error) => Some(error.to_string()),
        })
    };
    match wait(args.timeout, |lack| eprintln!("  {lack}"), lack)? {
        Waited::Done => Ok(()),
        Waited::Late(lack) => Err(format!("not back after {} s: {lack}", args.timeout).into()),
    }
}
