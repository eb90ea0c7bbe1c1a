//! Faults: their kinds ([`kind`]), when they strike ([`schedule`]), and how they strike and heal (here). [`heal`] undoes all
//! faults of a round at once. Belongs to the run's thread.

pub(crate) mod kind;
pub(crate) mod schedule;

use crate::cluster::{Cluster, FABRIC, ON_ONE_HOST};
use crate::error::ChaosError;
use crate::hostile::Hostile;
use crate::tool;
use kind::{FaultKind, Need};
use schedule::Fault;
use std::fs;
use std::time::Duration;

/// How far ahead a boot clock is set, at most, in seconds.
const LONGEST_JUMP: u64 = 30 * 86_400;
/// How far ahead a boot clock is set to test whether offsets work on this machine.
const TRIED_JUMP: u64 = 100_000;
/// Least bytes that are left for clients to fill; the most is eight times as much.
const LEAST_ROOM: u64 = 1 << 20;

/// What a machine offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    pub(crate) namespaces: bool,
    pub(crate) slow_disks: bool,
    pub(crate) clock_offsets: bool,
    pub(crate) spare_servers: bool,
}

impl Means {
    /// Why a kind cannot strike, if it cannot.
    pub(crate) fn refusal(self, kind: FaultKind) -> Option<&'static str> {
        match kind.need() {
            Need::Stress => Some("only measured, by `stress`"),
            Need::Namespaces if !self.namespaces => Some("no network namespaces"),
            Need::OwnDisks | Need::SlowDisks if !self.namespaces => Some("no disks of their own"),
            Need::SlowDisks if !self.slow_disks => Some("no control groups (version 1) that limit a device"),
            Need::ClockOffsets if !self.clock_offsets => {
                Some("no time namespaces that begin with a program (Linux 6.3, util-linux)")
            }
            Need::SpareServer if !self.spare_servers => Some("as many servers as replicas; try --servers 4"),
            _ => None,
        }
    }
}

/// Whether a program can be started with a boot clock of its own.
pub(crate) fn has_clock_offsets() -> bool {
    let uptime = |text: &str| text.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    let own = fs::read_to_string("/proc/uptime").ok().and_then(|text| uptime(&text));
    let other = tool::run(&format!("unshare --time --boottime {TRIED_JUMP} cat /proc/uptime")).ok();
    let other = other.and_then(|text| uptime(&text));
    own.zip(other).is_some_and(|(own, other)| other >= own + TRIED_JUMP)
}

/// Lets a fault strike. Answers a description of what happened.
///
/// # Errors
/// The machine refuses.
pub(crate) fn strike(cluster: &mut Cluster, fault: Fault) -> Result<String, ChaosError> {
    let Fault { kind, target, entropy } = fault;
    let servers = cluster.servers();
    let server = target % servers;
    let named = server + 1;
    match kind {
        FaultKind::Kill | FaultKind::KillAll | FaultKind::Host => Ok(kill(cluster, kind, server)),
        FaultKind::Stop => {
            cluster.process(server).stop();
            Ok(format!("server {named}"))
        }
        FaultKind::Partition => partition(cluster, server, entropy),
        FaultKind::OneWay => one_way(cluster, server, entropy),
        FaultKind::Mute => {
            cluster.network.mute(server)?;
            Ok(format!("server {named}"))
        }
        FaultKind::Delay | FaultKind::Loss => impair(cluster, server, fault),
        FaultKind::SlowDisk => {
            let bytes_per_second = (64 << 10) << (entropy % 5);
            cluster.disk(server).throttle(bytes_per_second)?;
            Ok(format!("{} KiB a second at server {named}", bytes_per_second >> 10))
        }
        FaultKind::FullDisk => fill(cluster, fault, 0),
        FaultKind::Fill => {
            let left = LEAST_ROOM << (entropy / 3 % 4);
            let said = fill(cluster, fault, left)?;
            cluster.hostile.push(Hostile::begin(FaultKind::Giants, &cluster.targets(), entropy));
            Ok(format!("{} MiB left {said}, and clients that write large values", left >> 20))
        }
        FaultKind::CoordinatorKill | FaultKind::CoordinatorStop => Ok(strike_coordinator(cluster, fault)),
        FaultKind::CoordinatorCut => {
            for host in cluster.coordinator.hosts().collect::<Vec<_>>() {
                cluster.network.cut(host, server)?;
                cluster.network.cut(server, host)?;
            }
            Ok(format!("server {named} and the coordinator"))
        }
        FaultKind::Clock => {
            let ahead = 1 + entropy % LONGEST_JUMP;
            cluster.process(server).kill();
            cluster.start_server(server, Some(ahead))?;
            Ok(format!("server {named} starts {ahead} s ahead"))
        }
        FaultKind::Restart => {
            cluster.process(server).terminate();
            Ok(format!("server {named}"))
        }
        FaultKind::HandOver => Ok(cluster.hand_over(target, entropy.is_multiple_of(2))),
        FaultKind::Split => Ok(cluster.split(target)),
        FaultKind::Merge => Ok(cluster.merge(target)),
        FaultKind::Alter => Ok(cluster.alter(target, entropy)),
        FaultKind::Drain => {
            cluster.drain(server);
            Ok(format!("server {named}"))
        }
        FaultKind::Flood | FaultKind::Hoard | FaultKind::Giants | FaultKind::Garbage | FaultKind::Guesses => {
            let targets = cluster.targets();
            cluster.hostile.push(Hostile::begin(kind, &targets, entropy));
            Ok("hostile clients at all servers".into())
        }
    }
}

/// Leaves so many bytes of the disk of a server, or of all.
fn fill(cluster: &Cluster, fault: Fault, left: u64) -> Result<String, ChaosError> {
    let (servers, all) = (cluster.servers(), fault.entropy.is_multiple_of(3));
    let server = fault.target % servers;
    let struck = (0..servers).filter(|other| all || *other == server);
    struck.into_iter().try_for_each(|server| cluster.disk(server).fill(left))?;
    Ok(if all { "at all servers".into() } else { format!("at server {}", server + 1) })
}

fn kill(cluster: &mut Cluster, kind: FaultKind, server: usize) -> String {
    let (struck, said) = match kind {
        FaultKind::KillAll => (0..cluster.servers(), "all servers".into()),
        FaultKind::Host => (ON_ONE_HOST, format!("servers 1 to {}", ON_ONE_HOST.end)),
        _ => (server..server + 1, format!("server {}", server + 1)),
    };
    struck.for_each(|server| cluster.process(server).kill());
    said
}

fn strike_coordinator(cluster: &mut Cluster, fault: Fault) -> String {
    let members = cluster.coordinator.members();
    let all = members > 1 && fault.entropy.is_multiple_of(3);
    let first = fault.target % members;
    let struck: Vec<usize> = (0..members).filter(|member| all || *member == first).collect();
    for member in &struck {
        let process = cluster.coordinator.process(*member);
        if fault.kind == FaultKind::CoordinatorKill { process.kill() } else { process.stop() }
    }
    format!("{} of {members} of the coordinator's processes", struck.len())
}

fn others(servers: usize, server: usize) -> impl Iterator<Item = usize> {
    (0..servers).filter(move |other| *other != server)
}

/// Packets between a server and the others are late, or lost.
fn impair(cluster: &mut Cluster, server: usize, fault: Fault) -> Result<String, ChaosError> {
    let others = others(cluster.servers(), server);
    if fault.kind == FaultKind::Delay {
        let delay = Duration::from_millis(20 + fault.entropy % 231);
        for other in others {
            cluster.network.delay(server, other, FABRIC, delay)?;
        }
        return Ok(format!("{delay:?} each way, between server {} and the others", server + 1));
    }
    let per_mille = 20 + (fault.entropy % 281) as u32;
    for other in others {
        cluster.network.lose(server, other, per_mille)?;
    }
    Ok(format!("{per_mille} of 1000 packets, between server {} and the others", server + 1))
}

/// Both ways: a minority from the rest, and in two cases of three from the coordinator.
fn partition(cluster: &mut Cluster, server: usize, entropy: u64) -> Result<String, ChaosError> {
    let servers = cluster.servers();
    let size = if servers >= 5 && entropy.is_multiple_of(2) { 2 } else { 1 };
    let minority: Vec<usize> = (0..size).map(|next| (server + next) % servers).collect();
    let with_coordinator = !entropy.is_multiple_of(3);
    let coordinator = cluster.coordinator.hosts().filter(|_| with_coordinator);
    let rest: Vec<usize> = (0..servers).filter(|other| !minority.contains(other)).chain(coordinator).collect();
    for (one, other) in minority.iter().flat_map(|one| rest.iter().map(move |other| (*one, *other))) {
        cluster.network.cut(one, other)?;
        cluster.network.cut(other, one)?;
    }
    let named: Vec<String> = minority.iter().map(|server| (server + 1).to_string()).collect();
    let from = if with_coordinator { "the others and the coordinator" } else { "the others" };
    Ok(format!("server {} from {from}", named.join(" and ")))
}

fn one_way(cluster: &mut Cluster, server: usize, entropy: u64) -> Result<String, ChaosError> {
    let is_deaf = entropy.is_multiple_of(2);
    let with_coordinator = entropy.is_multiple_of(3);
    let coordinator = cluster.coordinator.hosts().filter(|_| with_coordinator);
    for other in others(cluster.servers(), server).chain(coordinator).collect::<Vec<_>>() {
        let (from, to) = if is_deaf { (other, server) } else { (server, other) };
        cluster.network.cut(from, to)?;
    }
    let others = if with_coordinator { "the others and the coordinator" } else { "the others" };
    Ok(match is_deaf {
        true => format!("nothing reaches server {} from {others}", server + 1),
        false => format!("nothing from server {} reaches {others}", server + 1),
    })
}

/// Undoes all faults: every process runs, and reaches every other one.
///
/// # Errors
/// The machine refuses.
pub(crate) fn heal(cluster: &mut Cluster) -> Result<(), ChaosError> {
    cluster.network.heal()?;
    cluster.hostile.clear();
    for member in 0..cluster.coordinator.members() {
        cluster.coordinator.process(member).resume();
        cluster.coordinator.start(member, &cluster.network)?;
    }
    for server in 0..cluster.servers() {
        cluster.disk(server).empty();
        cluster.disk(server).throttle(0)?;
        cluster.process(server).resume();
        cluster.process(server).end_leaving();
        cluster.start_server(server, None)?;
    }
    cluster.take_back();
    Ok(())
}
