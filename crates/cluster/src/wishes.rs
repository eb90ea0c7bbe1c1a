//! What becomes of a wish: the configuration that says it, or why it cannot be.
//!
//! Pure functions of the view: whoever carries a wish out asks them again whenever the view has changed.

use crate::View;
use crate::agent::pace::LAST_ASKED_FOR;
use crate::bootstrap::free_numbers;
use leeward_format::cluster::{GroupConfig, Intent, Member, Plan, RegionWish, Wishes};
use leeward_format::{MAX_KEY_BYTES, RegionId, ServerId};
use std::fmt;

/// The configuration that has `wish` of `region` written down; `None`: it has it already, or it is so.
///
/// # Errors
/// It cannot be; says why, and what to do.
pub(crate) fn wished(view: &View, region: RegionId, wish: &RegionWish) -> Result<Option<GroupConfig>, String> {
    let config = view.region(region).ok_or_else(|| format!("there is no region {region}"))?;
    let wishes = &config.wishes;
    let next = match wish {
        RegionWish::Nothing => config.wishing(Wishes { plan: wishes.plan.clone(), ..Wishes::default() }),
        RegionWish::Whole => config.wishing(Wishes { plan: None, ..wishes.clone() }),
        RegionWish::Split { at } => split(view, config, at.as_deref())?,
        &RegionWish::Merge { into } => merged(view, config, into)?,
        &RegionWish::Primary(server) => {
            if !has(config, server) {
                return Err(format!(
                    "server {server} has no copy of region {region}: {}; move one there first",
                    listed("members are", config.members().map(|member| member.server))
                ));
            }
            let member = config.members().find(|member| member.server == server);
            if let Some(intent) = member.and_then(|member| view.departs(config, member)) {
                return Err(format!("server {server} {intent}: it takes no offices"));
            }
            let is_primary = config.primary.is_some_and(|primary| primary.server == server);
            config.wishing(Wishes { primary: Some(server).filter(|_| !is_primary), ..wishes.clone() })
        }
        &RegionWish::Move { from, to } => moved(view, config, from, to)?,
    };
    let is_so = (&next.wishes, &next.learners) == (wishes, &config.learners);
    if !is_so && next.epoch > LAST_ASKED_FOR {
        let epoch = config.epoch;
        return Err(format!(
            "region {region} has had {epoch} configurations: those that are left are for failovers. It goes on being served as it is; \
             copy its table into a new one to have its regions moved, divided or merged again"
        ));
    }
    Ok(Some(next).filter(|_| !is_so))
}

/// The configuration in which the region is to become two, at `at` or wherever that halves it.
fn split(view: &View, config: &GroupConfig, at: Option<&[u8]>) -> Result<GroupConfig, String> {
    let region = config.region;
    if view.table(&config.table).is_some_and(|table| table.partition.is_hash()) {
        return Err(format!(
            "region {region} cannot be divided: table {} is partitioned by hash, and has as many regions as it has tokens; move \
             regions instead, or make a table with more tokens",
            config.table
        ));
    }
    match &config.wishes.plan {
        Some(Plan::Split { at: planned, .. }) if at.is_none() || planned.as_deref() == at => return Ok(config.clone()),
        Some(plan) => return Err(planned_otherwise(region, plan)),
        None => {}
    }
    if let Some((other, _)) = view.merging().find(|(_, into)| *into == region) {
        return Err(is_taking_in(region, other));
    }
    if at.is_some() && at == config.end.as_deref() {
        // It was divided there while this was on its way.
        return Ok(config.clone());
    }
    if let Some(key) = at.filter(|key| *key <= &config.start[..] || !config.contains(key) || key.len() > MAX_KEY_BYTES)
    {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        let end = config.end.as_ref().map_or_else(|| "the last one".into(), |end| format!("{:?}", text(end)));
        return Err(format!(
            "region {region} cannot be divided at {:?}: its keys are from {:?} up to {end}; name one between, of at most \
             {MAX_KEY_BYTES} bytes",
            text(key),
            text(&config.start)
        ));
    }
    let child = free_numbers(view, 1)?[0];
    let plan = Some(Plan::Split { at: at.map(|key| key.to_vec().into()), child });
    Ok(config.wishing(Wishes { plan, ..config.wishes.clone() }))
}

/// Why a region that has this plan can have no other.
fn planned_otherwise(region: RegionId, plan: &Plan) -> String {
    let what = match plan {
        Plan::Split { child, .. } => format!("being divided already, into it and region {child}"),
        Plan::Merge { into } => format!("becoming part of region {into}"),
    };
    format!("region {region} is {what}: wait for it, or cancel that")
}

fn is_taking_in(region: RegionId, other: RegionId) -> String {
    format!("region {region} is taking in region {other}: wait for it, or cancel that")
}

/// The configuration in which the region is to be part of its neighbour `into`.
fn merged(view: &View, config: &GroupConfig, into: RegionId) -> Result<GroupConfig, String> {
    let region = config.region;
    if region == into {
        return Err(format!("region {region} cannot become part of itself: name a neighbour"));
    }
    if view.table(&config.table).is_some_and(|table| table.partition.is_hash()) {
        return Err(format!(
            "region {region} cannot become part of another: table {} is partitioned by hash, and has as many regions as it has tokens",
            config.table
        ));
    }
    match &config.wishes.plan {
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
    if let Some(plan) = &other.wishes.plan {
        return Err(planned_otherwise(into, plan));
    }
    if let Some((other, taking)) = view.merging().find(|(_, taking)| *taking == region || *taking == into) {
        return Err(is_taking_in(taking, other));
    }
    Ok(config.wishing(Wishes { plan: Some(Plan::Merge { into }), ..config.wishes.clone() }))
}

/// The configuration in which a region that is to be part of another is to have its primary where that has its own; `None`: it has,
/// or something else must come about first.
pub(crate) fn gathered(view: &View, config: &GroupConfig) -> Option<GroupConfig> {
    let other = view.region(config.wishes.plan.as_ref()?.neighbour()?)?;
    let (mine, wanted) = (config.primary?.server, other.primary.filter(|primary| view.is_live(*primary))?);
    let is_still = |config: &GroupConfig| {
        let Wishes { primary, leaving, .. } = &config.wishes;
        let is_changing = !config.learners.is_empty() || !config.former.is_empty() || config.must_hear > 0;
        primary.is_none() && leaving.is_none() && !is_changing
    };
    let stays = view.departs(other, wanted).is_none();
    // Of two that are to be part of each other the one with the lower number takes the other one in.
    let comes_here = other.wishes.plan.as_ref().and_then(Plan::neighbour) == Some(config.region);
    if mine == wanted.server
        || !stays
        || !is_still(config)
        || !is_still(other)
        || comes_here && config.region < other.region
    {
        return None;
    }
    let wish = match has(config, wanted.server) {
        true => RegionWish::Primary(wanted.server),
        false => RegionWish::Move { from: mine, to: wanted.server },
    };
    wished(view, config.region, &wish).ok().flatten()
}

/// The configuration in which the copy of `from` is to be on `to`.
fn moved(view: &View, config: &GroupConfig, from: ServerId, to: ServerId) -> Result<GroupConfig, String> {
    let region = config.region;
    if let Some(other) = config.wishes.leaving.filter(|other| *other != from) {
        return Err(format!(
            "the copy of region {region} on server {other} is being moved: wait for it, or cancel that"
        ));
    }
    if !has(config, from) {
        // It may have been moved while this was on its way.
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
    if has(config, to) && config.wishes.leaving != Some(from) {
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
    let primary = if is_primary { Some(to) } else { config.wishes.primary.filter(|wished| *wished != from) };
    let mut next = config.wishing(Wishes { primary, leaving: Some(from), ..config.wishes.clone() });
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

/// Whether `server` may be asked to leave for good: enough others must be there for every table's replicas.
///
/// # Errors
/// They are not; says which table lacks how many. Or nobody knows of such a server.
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
    /// Whether `member` is to leave the group of `config`, and if so whether another takes its place.
    pub fn departs(&self, config: &GroupConfig, member: Member) -> Option<Intent> {
        match self.intent(member.server) {
            None if config.wishes.leaving == Some(member.server) => Some(Intent::Leave),
            intent => intent,
        }
    }
}

#[cfg(test)]
#[path = "wishes_tests.rs"]
mod tests;
