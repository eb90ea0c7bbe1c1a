//! From a request to a desired state: the configuration that records the request, or the reason why it is impossible.
//!
//! Pure functions of the view. The caller that executes a request calls them again whenever the view has changed.

use super::{LAST_ASKED_FOR, View};
use leeward_format::cluster::{DesiredState, GroupConfig, Intent, Member, Plan, RegionRequest};
use leeward_format::{MAX_KEY_BYTES, RegionId, ServerId};
use std::fmt;

/// The configuration of `region` that records `request`; `None`: the present one records it already, or the request is fulfilled.
///
/// # Errors
/// The request is impossible. The text says why, and what to do.
pub(crate) fn requested(view: &View, region: RegionId, request: &RegionRequest) -> Result<Option<GroupConfig>, String> {
    let config = view.region(region).ok_or_else(|| format!("there is no region {region}"))?;
    let desired = &config.desired;
    let next = match request {
        RegionRequest::KeepMembers => {
            config.with_desired(DesiredState { plan: desired.plan.clone(), ..DesiredState::default() })
        }
        RegionRequest::KeepBounds => config.with_desired(DesiredState { plan: None, ..desired.clone() }),
        RegionRequest::Split { at } => split(view, config, at.as_deref())?,
        &RegionRequest::Merge { into } => merged(view, config, into)?,
        &RegionRequest::Primary(server) => {
            if !has(config, server) {
                return Err(format!(
                    "server {server} has no copy of region {region}: {}; move one there first",
                    listed("members are", config.members().map(|member| member.server))
                ));
            }
            let member = config.members().find(|member| member.server == server);
            if let Some(intent) = member.and_then(|member| view.departs(config, member)) {
                return Err(format!("server {server} {intent}: it cannot become primary"));
            }
            let is_primary = config.primary.is_some_and(|primary| primary.server == server);
            config.with_desired(DesiredState { primary: Some(server).filter(|_| !is_primary), ..desired.clone() })
        }
        &RegionRequest::Move { from, to } => moved(view, config, from, to)?,
    };
    let is_so = (&next.desired, &next.learners) == (desired, &config.learners);
    if !is_so && next.epoch > LAST_ASKED_FOR {
        let epoch = config.epoch;
        return Err(format!(
            "region {region} has had {epoch} configurations: those that are left are for failovers. It goes on being served as it is; \
             copy its table into a new one to have its regions moved, split or merged again"
        ));
    }
    Ok(Some(next).filter(|_| !is_so))
}

/// The configuration with a plan to split the region at `at`, or at the key that halves it.
fn split(view: &View, config: &GroupConfig, at: Option<&[u8]>) -> Result<GroupConfig, String> {
    let region = config.region;
    if view.table(&config.table).is_some_and(|table| table.partition.is_hash()) {
        return Err(format!(
            "region {region} cannot be split: table {} is partitioned by hash, and has as many regions as it has tokens; move \
             regions instead, or make a table with more tokens",
            config.table
        ));
    }
    match &config.desired.plan {
        Some(Plan::Split { at: planned, .. }) if at.is_none() || planned.as_deref() == at => return Ok(config.clone()),
        Some(plan) => return Err(planned_otherwise(region, plan)),
        None => {}
    }
    if let Some((other, _)) = view.merging().find(|(_, into)| *into == region) {
        return Err(is_merge_target(region, other));
    }
    if at.is_some() && at == config.end.as_deref() {
        // The region was split there while the request was on its way.
        return Ok(config.clone());
    }
    if let Some(key) = at.filter(|key| *key <= &config.start[..] || !config.contains(key) || key.len() > MAX_KEY_BYTES)
    {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let end = config.end.as_ref().map_or_else(|| "the last one".into(), |end| format!("{:?}", text(end)));
        return Err(format!(
            "region {region} cannot be split at {:?}: its keys are from {:?} up to {end}; name one between, of at most \
             {MAX_KEY_BYTES} bytes",
            text(key),
            text(&config.start)
        ));
    }
    let child = view.free_numbers(1)?[0];
    let plan = Some(Plan::Split { at: at.map(|key| key.to_vec().into()), child });
    Ok(config.with_desired(DesiredState { plan, ..config.desired.clone() }))
}

/// Why a region that has this plan cannot get another.
fn planned_otherwise(region: RegionId, plan: &Plan) -> String {
    let what = match plan {
        Plan::Split { child, .. } => format!("being split already, into it and region {child}"),
        Plan::Merge { into } => format!("being merged into region {into}"),
    };
    format!("region {region} is {what}: wait for it, or cancel that")
}

fn is_merge_target(region: RegionId, other: RegionId) -> String {
    format!("region {region} is the target of a merge with region {other}: wait for it, or cancel that")
}

/// The configuration with a plan to merge the region into its neighbour `into`.
fn merged(view: &View, config: &GroupConfig, into: RegionId) -> Result<GroupConfig, String> {
    let region = config.region;
    if region == into {
        return Err(format!("region {region} cannot be merged into itself: name a neighbour"));
    }
    if view.table(&config.table).is_some_and(|table| table.partition.is_hash()) {
        return Err(format!(
            "region {region} cannot be merged into another: table {} is partitioned by hash, and has as many regions as it has tokens",
            config.table
        ));
    }
    match &config.desired.plan {
        Some(plan) if plan.neighbour() == Some(into) => return Ok(config.clone()),
        Some(plan) => return Err(planned_otherwise(region, plan)),
        None => {}
    }
    let Some(other) = view.region(into).filter(|other| config.is_next_to(other)) else {
        let neighbours = view.routes().regions_of(&config.table).filter(|other| config.is_next_to(other));
        return Err(format!(
            "region {into} is no neighbour of region {region}: {}",
            listed("neighbours are", neighbours.map(|other| other.region))
        ));
    };
    if let Some(plan) = &other.desired.plan {
        return Err(planned_otherwise(into, plan));
    }
    if let Some((other, target)) = view.merging().find(|(_, target)| *target == region || *target == into) {
        return Err(is_merge_target(target, other));
    }
    Ok(config.with_desired(DesiredState { plan: Some(Plan::Merge { into }), ..config.desired.clone() }))
}

/// The configuration that asks a merge source to move its primary to the server of the target's primary; `None`: it is there, or
/// something else must be done first. It is not moved to a full server, which can neither merge nor take writes.
pub(crate) fn merge_source_moved(
    view: &View,
    config: &GroupConfig,
    is_full: impl Fn(Member) -> bool,
) -> Option<GroupConfig> {
    let other = view.region(config.desired.plan.as_ref()?.neighbour()?)?;
    let (mine, wanted) = (config.primary?.server, other.primary.filter(|primary| view.is_live(*primary))?);
    let is_idle = |config: &GroupConfig| {
        let DesiredState { primary, leaving, .. } = &config.desired;
        let is_changing = !config.learners.is_empty() || !config.prior_members.is_empty() || config.recovery_quorum > 0;
        primary.is_none() && leaving.is_none() && !is_changing
    };
    let may_have_it = view.departs(other, wanted).is_none() && !is_full(wanted);
    if mine == wanted.server || !may_have_it || !is_idle(config) || !is_idle(other) {
        return None;
    }
    let request = match has(config, wanted.server) {
        true => RegionRequest::Primary(wanted.server),
        false => RegionRequest::Move { from: mine, to: wanted.server },
    };
    requested(view, config.region, &request).ok().flatten()
}

/// The configuration with a request to move the copy of `from` to `to`.
fn moved(view: &View, config: &GroupConfig, from: ServerId, to: ServerId) -> Result<GroupConfig, String> {
    let region = config.region;
    if let Some(other) = config.desired.leaving.filter(|other| *other != from) {
        return Err(format!(
            "the copy of region {region} on server {other} is being moved: wait for it, or cancel that"
        ));
    }
    if !has(config, from) {
        // The copy may have been moved while the request was on its way.
        return match has(config, to) {
            true => Ok(config.clone()),
            false => Err(format!(
                "server {from} has no copy of region {region}: {}",
                listed("members are", config.members().map(|member| member.server))
            )),
        };
    }
    if from == to {
        return Err(format!("region {region} cannot be moved from server {from} to itself"));
    }
    if has(config, to) && config.desired.leaving != Some(from) {
        return Err(format!("server {to} has a copy of region {region} already"));
    }
    let Some(target) = view.server(to).map(|info| info.member) else {
        let live = view.servers().map(|info| info.member.server);
        return Err(format!("server {to} is not there: {}", listed("live servers are", live)));
    };
    if let Some(intent) = view.intent(to) {
        return Err(format!("server {to} {intent}: it takes no copies"));
    }
    let is_primary = config.primary.is_some_and(|primary| primary.server == from);
    let primary = if is_primary { Some(to) } else { config.desired.primary.filter(|requested| *requested != from) };
    let mut next = config.with_desired(DesiredState { primary, leaving: Some(from), ..config.desired.clone() });
    if !has(config, to) {
        next.learners.push(target);
    }
    Ok(next)
}

fn has(config: &GroupConfig, server: ServerId) -> bool {
    config.members().any(|member| member.server == server)
}

fn listed(what: &str, servers: impl Iterator<Item = impl fmt::Display>) -> String {
    let servers: Vec<String> = servers.map(|server| server.to_string()).collect();
    match servers.is_empty() {
        true => format!("{what} none"),
        false => format!("{what} {}", servers.join(", ")),
    }
}

/// Checks that `server` may be asked to leave for good: enough others must be there for every table's replicas.
///
/// # Errors
/// There are too few others: the text names the table and its number of replicas. Or the cluster knows no such server.
pub(crate) fn may_leave(view: &View, server: ServerId) -> Result<(), String> {
    if view.server(server).is_none()
        && view.intent(server).is_none()
        && !view.regions().any(|config| has(config, server))
    {
        return Err(format!(
            "there is no server {server}: none of that number is in the cluster or has a copy of a region"
        ));
    }
    let stays = |other: &ServerId| *other != server && view.intent(*other) != Some(Intent::Leave);
    let staying = view.servers().map(|info| info.member.server).filter(stays).count();
    let most = view.tables().max_by_key(|table| table.replicas);
    match most.filter(|table| table.replicas as usize > staying) {
        None => Ok(()),
        Some(table) => Err(format!(
            "server {server} cannot leave: table {} has {} replicas, and {staying} servers would be left; start another first",
            table.name, table.replicas
        )),
    }
}

impl View {
    /// Whether `member` is to leave the group of `config`, and if so whether another member is to replace it.
    pub fn departs(&self, config: &GroupConfig, member: Member) -> Option<Intent> {
        match self.intent(member.server) {
            None if config.desired.leaving == Some(member.server) => Some(Intent::Leave),
            intent => intent,
        }
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
