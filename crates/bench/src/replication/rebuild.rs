//! A primary dies whose hash index clients read (HiStore 4.3, 5.4): how long it takes until clients read that of the new one, and
//! until it has all pairs again.

use super::experiments::REBUILD;
use crate::keys::key;
use crate::kills::{NO_PRIMARY, victim};
use crate::meter::Meter;
use crate::options::{self, Failure, client_options};
use crate::report::{PhaseReport, Rebuild};
use crate::settle::settle;
use crate::starter::Started;
use crate::worker::Measured;
use crate::workload::Workload;
use bytes::Bytes;
use leeward_client::{Access, ClientOptions, Op, OpResult, RegionMap, Session};
use leeward_format::RegionId;
use leeward_format::routes::{RouteCache, RoutesUpdate};
use leeward_format::status::NodeStatus;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

/// How long it may take until there is a direct read, and until an index is filled.
const WITHIN: Duration = Duration::from_secs(60);
/// An index that has not grown for so long is full.
const FULL_AFTER: Duration = Duration::from_secs(2);
/// Pause between looks at how much an index has.
const LOOK: Duration = Duration::from_millis(2);
/// Pause before a get is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Keys that are read until one is read directly.
const KEYS: usize = 64;
/// How long a node may take to answer for its status.
const STATUS_WITHIN: Duration = Duration::from_secs(5);

/// Kills the node with most primaries of a loaded cluster. It stays away.
pub(super) fn measure(started: &mut Started, load: &options::Options) -> Result<PhaseReport, Failure> {
    let options = || ClientOptions { retry_pause: RETRY_PAUSE, ..client_options(load) };
    let map = Session::connect(&load.seeds, options())?.fetch_map()?;
    let lost = victim(&map).ok_or(NO_PRIMARY)?;
    let (regions, keys) = of_server(&map, lost, load)?;
    let admins: Vec<String> = (map.servers.iter().filter(|server| server.member.server.0 != lost))
        .map(|server| server.admin_address.clone())
        .collect();
    let meter = Mutex::new(Meter::new(Access::of(&load.seeds)?, admins.clone()));
    started.cluster.kill(lost)?;
    let begun = Instant::now();
    // A session that has read no index of the dead primary.
    let mut session = Session::connect(&load.seeds, options())?;
    let (served, first_hit) = first_hit(&mut session, &keys, begun)?;
    let filled = filled(session.access(), &admins, &regions, keys.len() as u64)?;
    let rebuild = Rebuild {
        served_seconds: (served - begun).as_secs_f64(),
        first_hit_seconds: (first_hit - served).as_secs_f64(),
        fill_us_a_key: filled.map(|(at, pairs)| (at - first_hit).as_secs_f64() * 1e6 / pairs.max(1) as f64),
        filled: filled.map_or(0.0, |(_, pairs)| pairs as f64 / keys.len().max(1) as f64),
    };
    let phase = PhaseReport::new(Workload::C, &Measured::new(), begun.elapsed().as_secs_f64(), &settle(&meter));
    Ok(PhaseReport { workload: REBUILD.into(), rebuild: Some(rebuild), ..phase })
}

/// Kills the node with most primaries of a loaded cluster, and waits until others serve its regions.
pub(super) fn lose(started: &mut Started, load: &options::Options) -> Result<(), Failure> {
    let mut session = Session::connect(&load.seeds, client_options(load))?;
    let map = session.fetch_map()?;
    let lost = victim(&map).ok_or(NO_PRIMARY)?;
    let (_, keys) = of_server(&map, lost, load)?;
    started.cluster.kill(lost)?;
    // The session retries it until it is answered.
    session.execute(keys.into_iter().take(KEYS).map(|key| Op::Get { key }).collect())?;
    Ok(())
}

/// The regions of which a server is primary, and all keys of records in them.
fn of_server(
    map: &RegionMap,
    server: u32,
    load: &options::Options,
) -> Result<(BTreeSet<RegionId>, Vec<Bytes>), Failure> {
    let mut routes = RouteCache::default();
    routes.apply(RoutesUpdate::everything(map)).map_err(|error| error.to_string())?;
    let is_of_it = |op: &Op| {
        op.region_in(&routes, &load.table).is_some_and(|route| route.primary.is_some_and(|of| of.0 == server))
    };
    let keys = (0..load.records).map(key).filter(|key| is_of_it(&Op::Get { key: key.clone() }));
    let primaries = map.regions.iter().filter(|group| group.primary.is_some_and(|primary| primary.server.0 == server));
    Ok((primaries.map(|group| group.region).collect(), keys.collect()))
}

/// When the first get was answered, and when the first was answered from a hash index.
fn first_hit(session: &mut Session, keys: &[Bytes], begun: Instant) -> Result<(Instant, Instant), Failure> {
    let mut served = None;
    for key in keys.iter().take(KEYS).cycle() {
        let hits = session.direct_stats().hits;
        let results = session.execute(vec![Op::Get { key: key.clone() }])?;
        if matches!(results[..], [OpResult::Value(_)]) {
            let served = *served.get_or_insert_with(Instant::now);
            if session.direct_stats().hits > hits {
                return Ok((served, Instant::now()));
            }
        }
        if begun.elapsed() > WITHIN {
            break;
        }
    }
    Err(format!("no get was answered from a hash index within {WITHIN:?}").into())
}

/// When the indexes of these regions had all `pairs`, or stopped growing, and how many pairs they have.
fn filled(
    access: &Access,
    admins: &[String],
    regions: &BTreeSet<RegionId>,
    pairs: u64,
) -> Result<Option<(Instant, u64)>, Failure> {
    let mut grown = (Instant::now(), 0);
    loop {
        let asked = admins.iter().map(|address| access.status(address, STATUS_WITHIN));
        let statuses: Vec<NodeStatus> = asked.filter_map(Result::ok).collect();
        let of_them = statuses.iter().flat_map(|status| &status.regions).filter(|of| regions.contains(&of.region));
        let records: u64 = of_them.map(|of| of.hash_index.records).sum();
        if records > grown.1 {
            grown = (Instant::now(), records);
        }
        if records >= pairs || grown.0.elapsed() > FULL_AFTER {
            return Ok((grown.1 > 0).then_some(grown));
        }
        thread::sleep(LOOK);
    }
}
