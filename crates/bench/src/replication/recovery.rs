//! A node dies while clients read, and later another one comes back with an empty volume (DEPART 5.2, experiments 6 and
//! 7): how long regions are unavailable, how fast reads are afterwards, and how long it takes until all members are in
//! sync again.
//!
//! A node that stays away is replaced by others within moments. So the one that comes back is started at once.

use super::experiments::RECOVERY;
use crate::kills::{NO_PRIMARY, Probes, members_in_sync, victim};
use crate::loaded::{Stretch, while_working};
use crate::meter::Meter;
use crate::options::{self, Failure, client_options};
use crate::report::{PhaseReport, Recovery};
use crate::settle::settle;
use crate::starter::Started;
use crate::worker::PhaseState;
use crate::workload::Workload;
use leeward_client::{ClientOptions, GroupConfig, RegionMap, Session};
use leeward_format::cluster::Member;
use leeward_operate::dev::NodeProcesses;
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long clients read before their reads are counted.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long reads are counted before the kill.
const STEADY: Duration = Duration::from_secs(5);
/// How long reads are counted after the outage.
const AFTER: Duration = Duration::from_secs(10);
/// How long an outage may last.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take until all members are in sync.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(600);
/// Pause between looks at the region map.
const LOOK: Duration = Duration::from_millis(20);
/// Pause before an unanswered probe is sent again.
const PROBE_PAUSE: Duration = Duration::from_millis(1);
/// Bytes that are written to see what the device takes, and how many at a time.
const DEVICE_BYTES: usize = 128 << 20;
const CHUNK_BYTES: usize = 2 << 20;

/// What was measured of the first kill.
struct Outage {
    /// `None`: a region was not served in time.
    seconds: Option<f64>,
    reads_per_second_before: f64,
    reads_per_second_after: f64,
}

/// Kills the node with most primaries of a loaded cluster, and then another one, which comes back empty. `directory` is
/// where the nodes have their volumes.
pub(super) fn measure(started: Started, load: &options::Options, directory: &Path) -> Result<PhaseReport, Failure> {
    let mut cluster = started.cluster;
    let options = ClientOptions { retry_pause: PROBE_PAUSE, ..client_options(load) };
    let mut session = Session::connect(&load.seeds, options)?;
    let map = session.fetch_map()?;
    let whole = members_in_sync(&map);
    let admins = map.servers.iter().map(|server| server.admin_address.clone()).collect();
    let meter = Mutex::new(Meter::new(session.access().clone(), admins));
    let begun = Instant::now();
    let (outage, measured) =
        while_working(load, Workload::C, |shared| fail_over(shared, &mut session, &map, &mut *cluster))?;
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(error) = measured.first_error {
        return Err(format!("a read failed: {error}").into());
    }
    wait_until_whole(&mut session, &mut *cluster, whole, None)?;
    let sent = |meter: &Mutex<Meter>| {
        let mut meter = meter.lock();
        meter.sample();
        meter.totals().primaries.sync_bytes_shipped
    };
    let sent_before = sent(&meter);
    let map = session.fetch_map()?;
    let lost = victim(&map).ok_or(NO_PRIMARY)?;
    let lost_member = map.servers.iter().map(|server| server.member).find(|of| of.server.0 == lost);
    cluster.kill(lost)?;
    cluster.wipe(lost)?;
    let restarted = Instant::now();
    cluster.restart(lost)?;
    wait_until_whole(&mut session, &mut *cluster, whole, lost_member)?;
    let in_sync_seconds = restarted.elapsed().as_secs_f64();
    let recovery = Recovery {
        outage_seconds: outage.seconds,
        reads_per_second_after: outage.reads_per_second_after,
        reads_per_second_before: outage.reads_per_second_before,
        in_sync_seconds,
        sync_bytes: sent(&meter) - sent_before,
        device_bytes_per_second: device_speed(directory)?,
    };
    let phase = PhaseReport::new(Workload::C, &measured, seconds, &settle(&meter));
    Ok(PhaseReport { workload: RECOVERY.into(), recovery: Some(recovery), ..phase })
}

/// Waits until so many members are in sync over all regions, and `gone` is none of them.
fn wait_until_whole(
    session: &mut Session,
    cluster: &mut dyn NodeProcesses,
    whole: usize,
    gone: Option<Member>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let map = session.fetch_map()?;
        let has_gone = |group: &GroupConfig| group.in_sync().any(|member| Some(member) == gone);
        if members_in_sync(&map) >= whole && !map.regions.iter().any(has_gone) {
            return Ok(());
        }
        cluster.check()?;
        if begun.elapsed() > IN_SYNC_WITHIN {
            return Err(format!("not all members are in sync after {IN_SYNC_WITHIN:?}").into());
        }
        thread::sleep(LOOK);
    }
}

/// Counts reads, kills the node, waits until each of its regions takes a write, and counts reads again.
fn fail_over(
    shared: &PhaseState<'_>,
    session: &mut Session,
    map: &RegionMap,
    cluster: &mut dyn NodeProcesses,
) -> Result<Outage, Failure> {
    thread::sleep(WARM_UP);
    let steady = Stretch::begin(shared);
    thread::sleep(STEADY);
    let (_, reads_per_second_before) = steady.end();
    let server = victim(map).ok_or(NO_PRIMARY)?;
    let is_of_it = |group: &&GroupConfig| group.primary.is_some_and(|primary| primary.server.0 == server);
    let regions: Vec<&GroupConfig> = map.regions.iter().filter(is_of_it).collect();
    let killed = Instant::now();
    cluster.kill(server)?;
    let mut probes = Probes::new(session, &regions, None, killed + SERVED_WITHIN);
    while !probes.is_over() {
        probes.poll(session, killed)?;
    }
    let served: Option<Vec<f64>> = probes.seconds.iter().copied().collect();
    let after = Stretch::begin(shared);
    thread::sleep(AFTER);
    let (_, reads_per_second_after) = after.end();
    let seconds = served.map(|seconds| seconds.into_iter().fold(0.0, f64::max));
    Ok(Outage { seconds, reads_per_second_before, reads_per_second_after })
}

/// Bytes a second that the device under `directory` takes, in order, until they are durable.
fn device_speed(directory: &Path) -> Result<f64, Failure> {
    let mut file: File = tempfile::tempfile_in(directory)?;
    let chunk: Vec<u8> = (0..CHUNK_BYTES).map(|byte| byte as u8).collect();
    let begun = Instant::now();
    for _ in 0..DEVICE_BYTES / CHUNK_BYTES {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(DEVICE_BYTES as f64 / begun.elapsed().as_secs_f64())
}
