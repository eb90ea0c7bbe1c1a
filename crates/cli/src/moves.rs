//! `leeward move` and `leeward drain`: move copies and primary roles while the cluster serves.
//!
//! Each command stores a request at the coordinator, and then waits until it is executed. Interrupting the command
//! does not withdraw the request.

use crate::args::Connect;
use crate::wait::{Waited, wait};
use crate::{Outcome, data};
use clap::{ArgGroup, Args};
use leeward_client::{Client, GroupConfig, RegionMap};
use leeward_format::cluster::{Intent, RegionRequest};
use leeward_format::{RegionId, ServerId};
use std::cell::Cell;
use std::fmt;

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("what").required(true).args(["primary", "from", "cancel"]),
    after_help = "\
Copies and primary roles move while the region serves. The new copy is built first, then the old one leaves. A transfer of the
primary role pauses the region for some milliseconds.

Examples:
  leeward move --region 3 --primary 2          the member on server 2 becomes the primary
  leeward move --region 3 --from 1 --to 4      the copy on server 1 moves to server 4, with the primary role if it has it
  leeward move --region 3 --cancel             drop the requests for its members that are not done yet"
)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    connect: Connect,
    /// The region
    #[arg(long)]
    region: u32,
    /// Server whose member becomes the primary
    #[arg(long, value_name = "SERVER")]
    primary: Option<u32>,
    /// Server whose copy moves
    #[arg(long, value_name = "SERVER", requires = "to")]
    from: Option<u32>,
    /// Server that gets the copy
    #[arg(long, value_name = "SERVER", requires = "from")]
    to: Option<u32>,
    /// Drop what was requested
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The server hands over its primary roles and leaves every group, each as soon as another server has taken its place. Then it can
be stopped for good. The command is refused if too few servers would be left for the replicas of a table. The server gets no new
copies until the drain is cancelled, by `--cancel` or `leeward join`.

Examples:
  leeward drain --server 3
  leeward drain --server 3 --cancel")]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    connect: Connect,
    /// The server
    #[arg(long)]
    server: u32,
    /// Cancel the drain
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// Do not wait until it is done
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Seconds to wait until it is done
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout: u64,
}

pub(crate) fn move_copy(args: &MoveArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let region = RegionId(args.region);
    let (request, what) = match (args.primary, args.from.zip(args.to)) {
        (Some(server), _) => (RegionRequest::Primary(ServerId(server)), format!("server {server} is its primary")),
        (None, Some((from, to))) => (
            RegionRequest::Move { from: ServerId(from), to: ServerId(to) },
            format!("its copy has moved from server {from} to server {to}"),
        ),
        (None, None) => (RegionRequest::KeepMembers, "no change of its members is requested".into()),
    };
    client.request(region, request.clone())?;
    let is_so = |map: &RegionMap| {
        let group = map.regions.iter().find(|group| group.region == region);
        group.is_some_and(|group| is_fulfilled(group, &request))
    };
    args.wait.until(&client, &format!("region {region}"), is_so, |map| progress_of(map, region))?;
    if !args.wait.no_wait {
        println!("region {region}: {what}");
    }
    Ok(true)
}

fn is_fulfilled(group: &GroupConfig, request: &RegionRequest) -> bool {
    let is_in_sync = |server| group.in_sync().any(|member| member.server == server);
    match *request {
        RegionRequest::Primary(server) => group.primary.is_some_and(|primary| primary.server == server),
        RegionRequest::Move { from, to } => is_in_sync(to) && group.members().all(|member| member.server != from),
        RegionRequest::KeepMembers
        | RegionRequest::Split { .. }
        | RegionRequest::KeepBounds
        | RegionRequest::Merge { .. } => true,
    }
}

fn progress_of(map: &RegionMap, region: RegionId) -> String {
    let Some(group) = map.regions.iter().find(|group| group.region == region) else { return "there is none".into() };
    let listed = |members: &[leeward_format::cluster::Member]| {
        let servers: Vec<String> = members.iter().map(|member| member.server.to_string()).collect();
        servers.join(", ")
    };
    let primary = group.primary.map_or_else(|| "none".into(), |primary| primary.server.to_string());
    format!("primary {primary}, backups [{}], being built [{}]", listed(&group.backups), listed(&group.learners))
}

pub(crate) fn drain(args: &DrainArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let server = ServerId(args.server);
    client.intend(server, Some(Intent::Leave).filter(|_| !args.cancel))?;
    if args.cancel {
        println!("server {server} may have copies again");
        return Ok(true);
    }
    let left = |map: &RegionMap| {
        let is_there = |group: &&GroupConfig| group.members().any(|member| member.server == server);
        map.regions.iter().filter(is_there).count()
    };
    let progress = |map: &RegionMap| format!("{} copies are left", left(map));
    args.wait.until(&client, &format!("server {server}"), |map| left(map) == 0, progress)?;
    if !args.wait.no_wait {
        println!("server {server} has no copies any more, and can be stopped");
    }
    Ok(true)
}

impl Wait {
    /// Waits, as [`Wait::until`], until a plan is executed or dropped. The node that is asked may not know of the plan
    /// yet. So "not planned" counts only once the plan was seen.
    pub(crate) fn until_planned(
        &self,
        client: &Client,
        what: &str,
        is_planned: impl Fn(&RegionMap) -> bool,
        has_come_about: impl Fn(&RegionMap) -> bool,
        progress: impl Fn(&RegionMap) -> String,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let was_planned = Cell::new(false);
        let is_so = |map: &RegionMap| {
            if is_planned(map) {
                was_planned.set(true);
                return false;
            }
            was_planned.get() || has_come_about(map)
        };
        self.until(client, what, is_so, progress)
    }

    /// Waits until `is_so`, and prints the progress whenever it changes.
    pub(crate) fn until(
        &self,
        client: &Client,
        what: &str,
        is_so: impl Fn(&RegionMap) -> bool,
        progress: impl Fn(&RegionMap) -> String,
    ) -> Result<(), Box<dyn std::error::Error>> {
        if self.no_wait {
            println!("{what}: requested; `leeward status` shows the progress");
            return Ok(());
        }
        let lack = || {
            let map = client.region_map()?;
            Ok((!is_so(&map)).then(|| progress(&map)))
        };
        match wait(self.timeout, |now| eprintln!("{what}: {now}"), lack)? {
            Waited::Done => Ok(()),
            Waited::Late(now) => Err(Box::new(NotYet { what: what.into(), seconds: self.timeout, now })),
        }
    }
}

/// A request that was not executed in time.
#[derive(Debug)]
struct NotYet {
    what: String,
    seconds: u64,
    now: String,
}

impl std::error::Error for NotYet {}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotYet { what, seconds, now } = self;
        write!(
            f,
            "{what}: not done after {seconds} s ({now}); the request stands, and `leeward status` shows the progress"
        )
    }
}
