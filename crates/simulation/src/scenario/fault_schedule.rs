//! The faults of a seed: their kinds, how often they strike, and how long they last. Drawn by
//! [`super::Scenario::choose`], after the options of the table.

use super::Durability;
use crate::world::{FaultKind, Forget};
use leeward_format::cluster::{Reads, TableOptions};
use leeward_platform::{Nanos, Rng};

/// The kinds of faults, how often they strike, and how long they last.
#[derive(Clone, Debug)]
pub(crate) struct FaultSchedule {
    /// No fault strikes after this.
    pub(crate) end: Nanos,
    pub(crate) kinds: Vec<FaultKind>,
    /// Usual time between two faults.
    pub(crate) gap: Nanos,
    /// Percentage of faults that outlast leases and sessions. The others are short.
    pub(crate) long: u64,
}

impl FaultSchedule {
    /// When the coordinator forgets something, and what: in a third of the seeds where the nodes certainly know it still.
    pub(super) fn forgets(&self, rng: &mut Rng) -> Vec<(Nanos, Forget)> {
        if !self.kinds.iter().all(|kind| kind.leaves_knowledge()) || !rng.one_in(3) {
            return Vec::new();
        }
        let mut forget = || {
            let at = Nanos::from_millis(rng.between(1_000, self.end.as_millis()));
            let age = Nanos::from_millis(rng.between(50, 4_000));
            (at, if rng.one_in(3) { Forget::Everything } else { Forget::Newer(age) })
        };
        let (first, second) = (forget(), forget());
        if first.0.as_millis().is_multiple_of(2) { vec![first, second] } else { vec![first] }
    }
}

/// A time in which others than the store fill the disks of some nodes.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    pub(crate) at: Nanos,
    pub(crate) until: Nanos,
    pub(crate) nodes: Vec<usize>,
}

impl FaultSchedule {
    /// When disks fill, in a quarter of the seeds: a disk, all others, or all.
    pub(super) fn fillings(&self, nodes: usize, rng: &mut Rng) -> Vec<Filling> {
        if !rng.one_in(4) {
            return Vec::new();
        }
        let mut filling = || {
            let at = Nanos::from_millis(rng.between(300, self.end.as_millis()));
            let until = at + Nanos::from_millis(rng.between(200, 4_000));
            let (one, which) = (rng.index(nodes), rng.index(3));
            let is_one = |node: &usize| [*node == one, nodes == 1 || *node != one, true][which];
            Filling { at, until, nodes: (0..nodes).filter(is_one).collect() }
        };
        let (first, second) = (filling(), filling());
        if first.at.as_millis().is_multiple_of(2) { vec![first, second] } else { vec![first] }
    }
}

/// Which disk an intruder has, a process beside another one that has its volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A copy of that of a running process.
    Running,
    /// A copy of that of a process that was stopped, and starts again.
    Stopped,
    /// The disk itself. The other process goes on with the copy, on another host.
    Moved,
}

/// A disk that is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cloning {
    pub(crate) at: Nanos,
    pub(crate) node: usize,
    pub(crate) origin: Origin,
    /// How long the process stays stopped.
    pub(crate) pause_ms: u64,
    /// How long the intruder runs, at most.
    pub(crate) lasts_ms: u64,
}

impl FaultSchedule {
    /// The copies of a seed, in one of four.
    pub(super) fn clonings(&self, nodes: usize, rng: &mut Rng) -> Vec<Cloning> {
        let count = if rng.one_in(4) { rng.between(1, 3) } else { 0 };
        let cloning = |_| Cloning {
            at: Nanos::from_millis(rng.between(300, self.end.as_millis())),
            node: rng.index(nodes),
            origin: [Origin::Running, Origin::Stopped, Origin::Moved][rng.index(3)],
            pause_ms: rng.between(10, 800),
            lasts_ms: rng.between(200, 3_000),
        };
        (0..count).map(cloning).collect()
    }
}

/// How long syncs take in a seed in which that changes.
#[derive(Clone, Debug)]
pub(super) struct SyncTimes {
    pub(super) salt: u64,
    /// Up to seconds. Where acknowledged writes may be lost, they are to be no older than usual.
    pub(super) may_be_long: bool,
}

/// The time that a sync of a disk takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyncTime {
    pub(crate) time: Nanos,
    /// Jobs wait for it before they begin: for the sync of another one. Otherwise they wait for their own, at their end.
    pub(crate) is_behind: bool,
}

impl SyncTimes {
    /// The time of a sync of this node's disk. Another one every 0.4 s.
    pub(super) fn at(&self, node: usize, now: Nanos) -> SyncTime {
        let span = ((node as u64) << 32) | (now.as_millis() / 400);
        let mut rng = Rng::new(self.salt.wrapping_add(span.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let most_us = match rng.below(10) {
            0..4 => 100,
            4..7 => 20_000,
            7 | 8 if self.may_be_long => 200_000,
            9 if self.may_be_long => 3_000_000,
            _ => 50_000,
        };
        SyncTime { time: Nanos::from_micros(rng.between(most_us / 4, most_us)), is_behind: rng.one_in(2) }
    }
}

/// The theme of the faults of a seed, which decides their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    Network,
    Crash,
    Power,
    Disk,
    Mixture,
    /// A primary that keeps the coordinator is cut off from the others, which lose the coordinator.
    Strand,
}

impl Theme {
    /// [`Theme::Strand`] is likely where a single member accepts writes and every member answers reads: only there can it do
    /// harm. It is possible with every table of three copies.
    pub(super) fn choose(nodes: usize, table: &TableOptions, rng: &mut Rng) -> Theme {
        let answers_alone = table.min_in_sync == 1 && table.quorum.is_none() && table.reads.stale != Reads::Primary;
        if table.replicas > 2 && rng.one_in(if answers_alone { 2 } else { 20 }) {
            return Theme::Strand;
        }
        match rng.below(10) {
            0..4 if nodes > 1 => Theme::Network,
            0..=4 => Theme::Power,
            5 | 6 => Theme::Crash,
            7 => Theme::Disk,
            _ => Theme::Mixture,
        }
    }

    fn kinds(self) -> &'static [FaultKind] {
        match self {
            Theme::Network => &[
                FaultKind::Isolate,
                FaultKind::CutOneWay,
                FaultKind::SlowLink,
                FaultKind::CutCoordinator,
                FaultKind::CoordinatorDown,
                FaultKind::Pause,
                FaultKind::SuspendMachine,
            ],
            Theme::Crash => &[
                FaultKind::Kill,
                FaultKind::KillAll,
                FaultKind::KillOthers,
                FaultKind::DiskKill,
                FaultKind::Pause,
                FaultKind::SuspendMachine,
                FaultKind::ReplaceDisk,
            ],
            Theme::Power => &[
                FaultKind::PowerLoss,
                FaultKind::PowerLossAll,
                FaultKind::DiskPowerLoss,
                FaultKind::DiskPowerLoss,
                FaultKind::Kill,
            ],
            Theme::Disk => &[
                FaultKind::DiskError,
                FaultKind::DiskFull,
                FaultKind::SlowDisk,
                FaultKind::DiskKill,
                FaultKind::ReplaceDisk,
                FaultKind::RestoreCopy,
            ],
            Theme::Mixture => &FaultKind::ALL,
            // No other fault that cuts links: its healing would end this one.
            Theme::Strand => {
                &[FaultKind::Kill, FaultKind::DiskFull, FaultKind::SlowDisk, FaultKind::Pause, FaultKind::PowerLoss]
            }
        }
    }
}

/// A seed has only a few kinds of fault. A mixture of all kinds would be the same mixture every time.
pub(super) fn choose(nodes: usize, theme: Theme, durability: Durability, rng: &mut Rng) -> FaultSchedule {
    let mut kinds = theme.kinds().to_vec();
    kinds.retain(|kind| kind.is_possible(nodes, durability));
    rng.shuffle(&mut kinds);
    kinds.truncate(rng.between(1, 4) as usize);
    // A power loss beside a failed volume may take the only copy, which the store does not claim to survive.
    let loses_power = kinds.iter().any(|kind| kind.loses_power());
    kinds.retain(|kind| *kind != FaultKind::DiskError || !loses_power);
    let mut long = [0, 30, 60, 90][rng.index(4)];
    if theme == Theme::Strand {
        kinds.truncate(2);
        kinds.extend([FaultKind::Strand; 2]);
        long = 90;
    }
    FaultSchedule {
        end: Nanos::from_millis(rng.between(3_000, 8_000)),
        kinds,
        gap: Nanos::from_millis(rng.between(150, if theme == Theme::Power { 800 } else { 2_000 })),
        long,
    }
}
