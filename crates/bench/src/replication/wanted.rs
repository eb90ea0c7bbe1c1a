//! The targets: of the gain of shipped indexes, and of two-layer logs. Data; any thread.

use super::experiments::{FIVE, HYBRID, HYBRID_REBUILD, MANY, ORDERED, REBUILD, RECOVERY, Shape, Work, indexed};
use super::figure::Figure;
use super::targets::Bound::{self, AtLeast, AtMost};
use super::variants::variant;
use crate::keys::Mix;

/// How often a backup with an LSM tree must write each byte of its index, so that two-layer logs can be faster by a
/// quarter with the default engine.
const C_WANTED: f64 = 2.5;

/// A figure of one variant over that of another, or by itself.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) figure: Figure,
    pub(super) of: &'static str,
    pub(super) over: Option<&'static str>,
    pub(super) workloads: &'static [&'static str],
    pub(super) mixes: &'static [Mix],
    /// Numbers of replicas, where there are any.
    replicas: &'static [u32],
    pub(super) shape: Shape,
    pub(super) bound: Bound,
    /// The bound that the best of the mixes must reach.
    pub(super) best: Option<f64>,
    pub(super) papers: &'static str,
}

const LOAD: &[&str] = &["load"];
const BOTH: &[&str] = &["load", "a"];
const S: &[Mix] = &[Mix::S];
const SD: &[Mix] = &[Mix::SD];

const GAIN: Target = Target {
    figure: Figure::Throughput,
    of: "send-index",
    over: Some("build-index"),
    workloads: LOAD,
    mixes: &[Mix::S, Mix::SD, Mix::MD],
    replicas: &[2, 3],
    shape: Shape::PAPERS,
    bound: AtLeast(1.3),
    best: Some(1.8),
    papers: "1.04 to 2.46 (Anthus), 1.1 to 1.48 (Tebis)",
};
const SAVED: Target = Target { of: "build-index", over: Some("send-index"), best: None, ..GAIN };
const NETWORK: Target =
    Target { figure: Figure::NetworkAmplification, mixes: SD, best: None, papers: "1.32 to 3.76 (Anthus)", ..GAIN };
/// All nodes with a second replica, over the one without.
const SECOND: Target = Target {
    figure: Figure::Cpu,
    of: "send-index-logical",
    over: Some("none"),
    mixes: SD,
    replicas: &[2],
    best: None,
    papers: "-",
    ..GAIN
};

/// Every target of the papers of shipped indexes.
static SHIPPED: [Target; 20] = [
    GAIN,
    Target {
        figure: Figure::Cpu,
        workloads: BOTH,
        mixes: &[Mix::S, Mix::M, Mix::SD, Mix::MD],
        best: Some(1.8),
        papers: "1.06 to 2.1 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::Cpu,
        workloads: BOTH,
        mixes: &[Mix::L, Mix::LD],
        bound: AtLeast(1.1),
        papers: "1.06 to 2.1 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::BackupIndexCpu,
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtLeast(10.0),
        papers: "1.8 to 4 (Anthus, all of a backup), 10 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::BackupIndexCpu,
        over: Some("send-index-logical"),
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtLeast(20.0),
        papers: "1.8 to 4 (Anthus, all of a backup), 10 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::NetworkAmplification,
        of: "send-index-lz4",
        mixes: SD,
        bound: AtMost(1.5),
        best: None,
        papers: "1.32 to 3.76 (Anthus), not compressed",
        ..GAIN
    },
    Target {
        of: "send-index-last-flush",
        over: Some("send-index"),
        mixes: &[Mix::S, Mix::SD, Mix::LD],
        workloads: BOTH,
        bound: AtMost(1.10),
        best: None,
        papers: "1 to 1.15 (Anthus)",
        ..GAIN
    },
    Target {
        figure: Figure::BackupIndexRead,
        of: "send-index",
        over: None,
        workloads: BOTH,
        mixes: &Mix::ALL,
        bound: AtMost(0.0),
        best: None,
        papers: "none (all)",
        ..GAIN
    },
    Target {
        figure: Figure::IoAmplification,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "1.08 to 1.42 (Anthus), 1.13 to 1.81 (Tebis)",
        ..SAVED
    },
    Target {
        over: Some("build-index-reduced-l0"),
        mixes: SD,
        bound: AtLeast(2.0),
        best: None,
        papers: "1.06 to 2.9 (Anthus), 1.2 to 1.32 (Tebis)",
        ..GAIN
    },
    Target {
        figure: Figure::IoAmplification,
        of: "build-index-reduced-l0",
        mixes: SD,
        bound: AtLeast(2.0),
        papers: "1.7 to 3.27 (Anthus), 1.95 to 5.48 (Tebis)",
        ..SAVED
    },
    Target { mixes: S, bound: AtMost(2.5), ..NETWORK },
    Target { bound: AtMost(1.5), ..NETWORK },
    Target { mixes: S, bound: AtMost(1.12), ..SECOND },
    Target { bound: AtMost(1.15), ..SECOND },
    Target {
        figure: Figure::Cpu,
        of: "build-index-tebis",
        over: Some("tebis"),
        workloads: BOTH,
        mixes: &[Mix::S, Mix::SD],
        papers: "1.06 to 1.54 (Tebis)",
        ..SAVED
    },
    Target { of: "send-index-tcp", over: Some("send-index"), bound: AtMost(1.5), ..SECOND },
    Target {
        figure: Figure::P99,
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "1.05 to 1.9 (Tebis), 1.1 to 1.5 (Talos)",
        ..SAVED
    },
    Target {
        figure: Figure::ClientCpu,
        of: "none-one-by-one",
        over: Some("none-rings-one-by-one"),
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(2.5),
        papers: "6.8 (Anthus)",
        ..SAVED
    },
    Target {
        figure: Figure::Cpu,
        of: "none-one-by-one",
        over: Some("none-rings-one-by-one"),
        workloads: BOTH,
        mixes: SD,
        bound: AtLeast(1.5),
        papers: "2.4 to 2.55 (Anthus)",
        ..SAVED
    },
];

const S_SD_L: &[Mix] = &[Mix::S, Mix::SD, Mix::L];
const THREE: &[u32] = &[3];
const THREE_AND_FIVE: &[u32] = &[3, 5];

/// Of two-layer logs over a backup with an LSM tree.
const DEPART: Target = Target {
    figure: Figure::Throughput,
    of: "two-layer-20",
    over: Some("build-index-depart"),
    workloads: LOAD,
    mixes: S_SD_L,
    replicas: THREE,
    shape: Shape::RUNS,
    bound: AtLeast(1.25),
    best: None,
    papers: "1.2 (DEPART over mLSM)",
};
/// What a backup with an LSM tree costs more.
const LESS: Target = Target {
    figure: Figure::WriteAmplification,
    of: "build-index-depart",
    over: Some("two-layer-20"),
    papers: "1.58 (mLSM over DEPART)",
    ..DEPART
};
/// The engine of the paper, with one run in L1.
const ONE_RUN: Target = Target { of: "two-layer-one-run", over: Some("build-index-one-run"), ..DEPART };
const LESS_ONE_RUN: Target = Target { of: "build-index-one-run", over: Some("two-layer-one-run"), ..LESS };
/// Against shipped indexes.
const SHIPS: Target = Target { of: "send-index-depart", papers: "-", ..LESS };
const RECOVERED: Target = Target {
    of: "two-layer-20",
    over: None,
    workloads: &[RECOVERY],
    mixes: SD,
    shape: Shape { work: Work::Recovery, ..FIVE },
    ..DEPART
};

const INDEX_CPU: Target =
    Target { figure: Figure::BackupIndexCpu, bound: AtLeast(1.5), papers: "about 2 (mLSM over DEPART)", ..LESS };
const SPACE: Target =
    Target { figure: Figure::Space, workloads: BOTH, bound: AtMost(1.15), papers: "1.07 (DEPART over mLSM)", ..DEPART };
const WITH_FIVE: Target = Target {
    mixes: SD,
    replicas: &[5],
    shape: FIVE,
    bound: AtLeast(1.4),
    papers: "1.59 (DEPART over Cassandra)",
    ..DEPART
};
const RISES: Target = Target { replicas: THREE_AND_FIVE, bound: AtLeast(1.0), papers: "1.59 / 1.43", ..WITH_FIVE };

/// Every target of DEPART.
static TWO_LAYER: [Target; 24] = [
    Target {
        figure: Figure::BackupIndexWritten,
        over: None,
        bound: AtLeast(C_WANTED),
        papers: "-; with less, two-layer logs cannot gain 1.25",
        ..LESS
    },
    LESS,
    Target { bound: AtLeast(1.6), ..LESS_ONE_RUN },
    DEPART,
    Target { replicas: &[2], bound: AtLeast(1.15), ..DEPART },
    ONE_RUN,
    Target { replicas: &[2], bound: AtLeast(1.15), ..ONE_RUN },
    INDEX_CPU,
    INDEX_CPU.between(LESS_ONE_RUN),
    Target {
        figure: Figure::L0,
        mixes: SD,
        shape: MANY,
        bound: AtLeast(1.8),
        papers: "1.83 (mLSM over DEPART), in the mean",
        ..LESS
    },
    SPACE,
    SPACE.between(ONE_RUN),
    Target { figure: Figure::NetworkAmplification, mixes: S, bound: AtLeast(3.5), ..SHIPS },
    Target { figure: Figure::NetworkAmplification, mixes: SD, bound: AtLeast(1.7), ..SHIPS },
    Target { mixes: &[Mix::S, Mix::SD], bound: AtLeast(1.15), ..SHIPS },
    Target {
        figure: Figure::BackupIndexCpu,
        over: Some("send-index-depart"),
        mixes: &[Mix::S, Mix::SD],
        bound: AtMost(5.0),
        papers: "-",
        ..DEPART
    },
    WITH_FIVE,
    WITH_FIVE.between(ONE_RUN),
    Target {
        over: Some("two-layer-1"),
        mixes: SD,
        shape: ORDERED,
        bound: AtLeast(1.4),
        papers: "1.74 (S = 20 over 1)",
        ..DEPART
    },
    Target {
        figure: Figure::ClientThroughput,
        of: "two-layer-1",
        over: Some("two-layer-20"),
        workloads: &["c-2"],
        mixes: SD,
        shape: ORDERED,
        bound: AtMost(1.4),
        papers: "1.83 (S = 1 over 20)",
        ..DEPART
    },
    Target {
        figure: Figure::InSync,
        over: Some("send-index-depart"),
        bound: AtMost(1.05),
        papers: "0.46 to 0.62 (DEPART over Cassandra)",
        ..RECOVERED
    },
    Target { figure: Figure::InSyncSpeed, bound: AtLeast(0.8), papers: "-", ..RECOVERED },
    Target { figure: Figure::Outage, bound: AtMost(300.0), papers: "-", ..RECOVERED },
    Target {
        figure: Figure::ReadsAfter,
        bound: AtLeast(0.8),
        papers: "1.69 (DEPART over Cassandra, while a node is down)",
        ..RECOVERED
    },
];

const HISTORE: Target = Target {
    figure: Figure::ClientThroughput,
    of: "histore",
    over: Some("lsm-any"),
    workloads: &["c-1-1", "c-2-16", "c-2-64"],
    mixes: SD,
    shape: HYBRID,
    bound: AtLeast(1.7),
    papers: "2.03 with 64 clients (HiStore)",
    ..DEPART
};
const ALONE: Target = Target { over: None, papers: "-", ..HISTORE };
const YCSB: Target = Target { papers: "2.39 to 2.96 (HiStore, workloads without scans)", ..HISTORE };
const PART: Target = Target {
    over: Some("lsm-rings"),
    workloads: &["c-2-16"],
    bound: AtLeast(0.9),
    papers: "-; no cliff where the index holds a part",
    ..HISTORE
};

/// Every target of HiStore.
static HASHED: [Target; 23] = [
    HISTORE,
    Target { workloads: &["c-2-64"], bound: AtLeast(2.03), ..HISTORE },
    Target { figure: Figure::P50, workloads: &["c-1-1"], bound: AtMost(1.5), ..ALONE },
    Target {
        figure: Figure::P50,
        of: "lsm-spinning",
        over: Some("histore"),
        workloads: &["c-1-1"],
        bound: AtLeast(4.0),
        ..ALONE
    },
    Target { over: Some("lsm-spinning"), workloads: &["c-1-1"], bound: AtLeast(4.0), ..ALONE },
    Target { figure: Figure::Cpu, workloads: &["c-2-16"], bound: AtMost(0.05), papers: "0 (HiStore)", ..ALONE },
    Target {
        over: Some("lsm-rings"),
        workloads: &["u"],
        bound: AtLeast(0.92),
        papers: "1.45 (HiStore, over all sorted)",
        ..ALONE
    },
    Target { over: Some("lsm-rings"), workloads: &["e"], bound: AtLeast(0.9), papers: "1.0 (HiStore)", ..ALONE },
    Target {
        figure: Figure::PrimaryCpu,
        of: "lsm-rings",
        over: Some("histore"),
        workloads: &["e"],
        bound: AtLeast(5.0),
        ..ALONE
    },
    Target { workloads: &["c-2-16", "b"], bound: AtLeast(2.0), ..YCSB },
    Target { workloads: &["d"], bound: AtLeast(1.7), ..YCSB },
    Target { workloads: &["a"], bound: AtLeast(1.2), ..YCSB },
    Target { workloads: &["f"], bound: AtLeast(1.1), ..YCSB },
    Target { workloads: &["e"], bound: AtLeast(0.9), papers: "1.0 (HiStore)", ..YCSB },
    Target { of: "histore-send", workloads: &["c-2-64"], bound: AtLeast(2.03), ..HISTORE },
    Target {
        figure: Figure::FillTime,
        workloads: &[REBUILD],
        shape: HYBRID_REBUILD,
        bound: AtMost(0.7),
        papers: "1.4 to 1.55 (HiStore)",
        ..ALONE
    },
    Target { figure: Figure::FirstHit, workloads: &[REBUILD], shape: HYBRID_REBUILD, bound: AtMost(100.0), ..ALONE },
    Target { over: Some("lsm-rings"), workloads: &["c-down"], shape: HYBRID_REBUILD, bound: AtLeast(1.0), ..ALONE },
    Target { over: Some("lsm-rings"), workloads: &["u-down"], shape: HYBRID_REBUILD, bound: AtLeast(0.92), ..ALONE },
    Target { shape: indexed(5), ..PART },
    Target { shape: indexed(10), ..PART },
    Target { shape: indexed(25), ..PART },
    Target { shape: indexed(100), ..PART },
];

/// A gain that is to grow with the number of replicas: (what, with so many, over that with so many).
pub(super) static RISING: [(Target, u32, u32); 2] = [(RISES, 5, 3), (RISES.between(ONE_RUN), 5, 3)];

/// Every target.
pub(super) fn targets() -> impl Iterator<Item = &'static Target> {
    SHIPPED.iter().chain(&TWO_LAYER).chain(&HASHED)
}

impl Target {
    /// The same of the variants of `other`.
    const fn between(self, other: Target) -> Target {
        Target { of: other.of, over: other.over, ..self }
    }

    /// Numbers of replicas of the cells that it compares. Without backups there is only one replica.
    pub(super) fn replicas(&self) -> &'static [u32] {
        if variant(self.of).mode == "none" { &[1] } else { self.replicas }
    }
}
