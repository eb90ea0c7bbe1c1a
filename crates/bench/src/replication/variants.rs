//! The variants of a cluster that experiments compare. Data; any thread.

use crate::options::Reading;
use crate::starter::Link;
use leeward_format::cluster::{
    Acknowledge, Addressing, BackupMode, CompactionMode, Posting, Preset, ReadPaths, Reads, TableOptions,
};
use leeward_format::packed::Codec;
use leeward_format::partition::Partition;

/// A way to run a cluster.
#[derive(Debug)]
pub struct Variant {
    /// Its name in tables.
    pub name: &'static str,
    /// How backups get their index; `none`: there are no backups.
    pub mode: &'static str,
    /// How pointers of a shipped index are made valid; `None` where none is shipped.
    pub addressing: Option<&'static str>,
    /// The preset of its table.
    pub preset: Preset,
    /// The transports between nodes, and to clients.
    pub link: Link,
    /// Its client has one operation in flight, and its table one region. So the cost of a single request shows.
    pub one_by_one: bool,
    /// How its clients read.
    pub(super) reading: Reading,
    /// Changes the options that differ from the preset.
    pub(super) change: fn(&mut TableOptions),
    /// Red, green and blue in plots.
    pub(super) color: (u8, u8, u8),
}

const NONE: Variant = Variant {
    name: "none",
    mode: "none",
    addressing: None,
    preset: Preset::Anthus,
    link: Link::Shm,
    one_by_one: false,
    reading: Reading::Usual,
    change: alone,
    color: (120, 120, 120),
};
const BUILD: Variant = Variant { name: "build-index", mode: "build-index", change: build, color: (213, 94, 0), ..NONE };
const SEND: Variant = Variant {
    name: "send-index",
    mode: "send-index",
    addressing: Some("physical"),
    change: |_| {},
    color: (0, 114, 178),
    ..NONE
};

/// A two-layer log. As in DEPART, values are in leaves. The benchmark's keys are hashes already, so regions of ranges do
/// what DEPART's tokens do.
const TWO_LAYER: Variant = Variant {
    name: "two-layer-20",
    mode: "two-layer-log",
    preset: Preset::Depart,
    change: depart,
    color: (0, 150, 90),
    ..NONE
};
/// A backup that builds its index, with the other options of [`TWO_LAYER`].
const BUILD_DEPART: Variant = Variant {
    name: "build-index-depart",
    change: |table| [depart, build].iter().for_each(|change| change(table)),
    preset: Preset::Depart,
    ..BUILD
};

/// A hash index at the primary, and scans at backups, which build their index; clients in shared memory (HiStore).
const HISTORE: Variant = Variant {
    name: "histore",
    mode: "build-index",
    preset: Preset::Histore,
    link: Link::Rings,
    change: logical,
    color: (204, 121, 167),
    ..NONE
};
/// The same copies, without a hash index, read at the primary.
const LSM: Variant = Variant { name: "lsm-rings", change: lsm, color: (0, 114, 178), ..HISTORE };

/// Every variant. To measure another option of a table or a node, add a line here.
pub static VARIANTS: [Variant; 39] = [
    NONE,
    BUILD,
    Variant { name: "build-index-reduced-l0", change: reduced_l0, color: (230, 159, 0), ..BUILD },
    SEND,
    Variant { name: "send-index-logical", addressing: Some("logical"), change: logical, color: (0, 60, 120), ..SEND },
    Variant { name: "send-index-lz4", change: |table| table.wire = Codec::Lz4, color: (148, 103, 189), ..SEND },
    Variant { name: "send-index-last-flush", change: last_flush, color: (140, 86, 75), ..SEND },
    Variant { name: "send-index-per-record", change: per_record, color: (188, 189, 34), ..SEND },
    Variant { name: "tebis", preset: Preset::Tebis, color: (204, 121, 167), ..SEND },
    Variant { name: "send-index-tcp", link: Link::Tcp, color: (86, 180, 233), ..SEND },
    Variant { name: "none-rings", link: Link::Rings, color: (0, 158, 115), ..NONE },
    Variant { name: "send-index-zstd", change: |table| table.wire = Codec::Zstd, color: (100, 60, 160), ..SEND },
    Variant { name: "send-index-libfabric", link: Link::Libfabric, color: (23, 190, 207), ..SEND },
    Variant {
        name: "send-index-logical-last-flush",
        addressing: Some("logical"),
        change: |table| [logical, last_flush].iter().for_each(|change| change(table)),
        color: (90, 60, 60),
        ..SEND
    },
    Variant {
        name: "build-index-logical",
        change: |table| [build, logical].iter().for_each(|change| change(table)),
        color: (160, 70, 0),
        ..BUILD
    },
    Variant {
        name: "build-index-last-flush",
        change: |table| [build, last_flush].iter().for_each(|change| change(table)),
        color: (170, 110, 90),
        ..BUILD
    },
    Variant { name: "build-index-tebis", preset: Preset::Tebis, color: (240, 150, 200), ..BUILD },
    Variant { name: "build-index-tcp", link: Link::Tcp, color: (255, 190, 120), ..BUILD },
    Variant { name: "none-one-by-one", one_by_one: true, color: (170, 170, 170), ..NONE },
    Variant {
        name: "none-rings-one-by-one",
        one_by_one: true,
        link: Link::SpinningRings,
        color: (100, 200, 170),
        ..NONE
    },
    TWO_LAYER,
    BUILD_DEPART,
    Variant {
        name: "send-index-depart",
        addressing: Some("logical"),
        change: |table| [depart, send].iter().for_each(|change| change(table)),
        preset: Preset::Depart,
        ..SEND
    },
    Variant {
        name: "two-layer-one-run",
        change: |table| [depart, one_run].iter().for_each(|change| change(table)),
        color: (120, 200, 120),
        ..TWO_LAYER
    },
    Variant {
        name: "build-index-one-run",
        change: |table| [depart, build, one_run].iter().for_each(|change| change(table)),
        color: (240, 170, 90),
        ..BUILD_DEPART
    },
    Variant { name: "two-layer-1", change: |table| sorted(table, 1), color: (0, 70, 40), ..TWO_LAYER },
    Variant { name: "two-layer-10", change: |table| sorted(table, 10), color: (0, 110, 70), ..TWO_LAYER },
    Variant {
        name: "two-layer-31",
        change: |table| sorted(table, BackupMode::MOST_RUNS),
        color: (150, 220, 180),
        ..TWO_LAYER
    },
    Variant {
        name: "two-layer-quorum",
        change: |table| [depart, quorum].iter().for_each(|change| change(table)),
        color: (60, 180, 160),
        ..TWO_LAYER
    },
    Variant {
        name: "build-index-depart-quorum",
        change: |table| [depart, build, quorum].iter().for_each(|change| change(table)),
        color: (220, 130, 60),
        ..BUILD_DEPART
    },
    Variant {
        name: "two-layer-last-flush",
        change: |table| [depart, last_flush].iter().for_each(|change| change(table)),
        color: (90, 150, 130),
        ..TWO_LAYER
    },
    Variant {
        name: "build-index-depart-last-flush",
        change: |table| [depart, build, last_flush].iter().for_each(|change| change(table)),
        color: (190, 120, 80),
        ..BUILD_DEPART
    },
    HISTORE,
    Variant {
        name: "histore-send",
        mode: "send-index",
        addressing: Some("logical"),
        preset: Preset::HistoreSend,
        color: (148, 103, 189),
        ..HISTORE
    },
    Variant { name: "hybrid-rpc", reading: Reading::Requests, color: (230, 159, 0), ..HISTORE },
    Variant {
        name: "hybrid-none",
        mode: "none",
        change: |table| [logical, alone].iter().for_each(|change| change(table)),
        color: (120, 120, 120),
        ..HISTORE
    },
    LSM,
    Variant { name: "lsm-spinning", link: Link::SpinningRings, color: (86, 180, 233), ..LSM },
    Variant {
        name: "lsm-any",
        reading: Reading::AnyMember,
        change: |table| {
            lsm(table);
            table.reads.stale = Reads::ANY;
        },
        color: (213, 94, 0),
        ..LSM
    },
];

fn alone(table: &mut TableOptions) {
    table.replicas = 1;
}

/// No hash index, and scans at the primary.
fn lsm(table: &mut TableOptions) {
    logical(table);
    table.reads = ReadPaths::default();
}

fn build(table: &mut TableOptions) {
    table.backups = BackupMode::BuildIndex;
}

fn send(table: &mut TableOptions) {
    table.backups = BackupMode::SendIndex;
}

fn depart(table: &mut TableOptions) {
    (table.partition, table.addressing) = (Partition::Range, Addressing::Logical);
}

/// A two-layer log with at most so many sorted runs.
fn sorted(table: &mut TableOptions, ordering_degree: u8) {
    depart(table);
    table.backups = BackupMode::TwoLayerLog { ordering_degree };
}

/// Each L0 is merged with L1, and levels as a whole: the engines of the papers, mLSM's among them.
fn one_run(table: &mut TableOptions) {
    (table.l1_runs, table.compaction) = (1, CompactionMode::WholeLevel);
}

/// Two members of all have a write before it is acknowledged.
fn quorum(table: &mut TableOptions) {
    table.quorum = Some(2);
}

fn logical(table: &mut TableOptions) {
    table.addressing = Addressing::Logical;
}

fn last_flush(table: &mut TableOptions) {
    table.acknowledge = Acknowledge::LastFlush;
}

fn per_record(table: &mut TableOptions) {
    table.posting = Posting::PerRecord;
}

/// Gives the L0s of all replicas together the memory that send-index needs for the primary's L0 alone.
fn reduced_l0(table: &mut TableOptions) {
    build(table);
    table.l0_bytes /= u64::from(table.replicas);
}

/// The variant called `name`.
pub(crate) fn variant(name: &str) -> &'static Variant {
    VARIANTS.iter().find(|variant| variant.name == name).expect("tables name only variants that there are")
}
