//! The plan of a comparison: variants of a cluster, and the experiments of the papers, which combine them. Data; any
//! thread.
//!
//! A variant is a line of [`VARIANTS`], an experiment one of [`EXPERIMENTS`]. A cell of several experiments is measured
//! once.

use crate::keys::Mix;
use leeward_format::cluster::{Acknowledge, Addressing, BackupMode, Posting, Preset, TableOptions};
use leeward_format::packed::Codec;
use serde::Serialize;
use std::fmt;

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

/// How nodes and clients reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// Nodes by shared memory, clients by TCP.
    Shm,
    /// All by TCP.
    Tcp,
    /// All by shared memory.
    Rings,
    /// As `Rings`; nodes and clients poll for messages for 100 us before they sleep.
    SpinningRings,
    /// Nodes by libfabric's own TCP, where libfabric is installed; clients by TCP.
    Libfabric,
}

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
    /// Changes the options that differ from the preset.
    change: fn(&mut TableOptions),
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
    change: |table| table.replicas = 1,
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

/// Every variant. To measure another option of a table or a node, add a line here.
pub static VARIANTS: [Variant; 20] = [
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
];

fn build(table: &mut TableOptions) {
    table.backups = BackupMode::BuildIndex;
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

/// One comparison of the papers: every variant with every mix, number of replicas and growth factor.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The sections of the papers, and their results.
    pub papers: &'static str,
    /// Names of its variants.
    pub variants: &'static [&'static str],
    /// Its mixes.
    pub mixes: &'static [Mix],
    /// Copies of a region, the primary's included.
    pub replicas: &'static [u32],
    /// How much larger each level is than the one above.
    pub growth_factors: &'static [u32],
}

/// Every experiment, in the order of the report.
pub static EXPERIMENTS: [Experiment; 9] = [
    Experiment {
        name: "modes",
        title: "Replication by itself",
        papers: "Tebis 5.1, 5.4, 5.5 (figures 7, 8, 10), Anthus 4.3.1 to 4.3.5 (figures 4.2, 4.3, 4.5), Talos 5.1 (figures 6, 7). \
                 Send-index over build-index: throughput 1.04 to 2.24 with two replicas and 1.05 to 2.46 with three (Anthus), \
                 1.1 to 1.41 and 1.1 to 1.48 (Tebis), 1.1 to 1.7 (Talos, against a halved L0); CPU efficiency 1.06 to 1.9 and \
                 1.2 to 2.1 (Anthus), 1.06 to 1.36 and 1.16 to 1.54 (Tebis); I/O 1.08 to 1.28 and 1.11 to 1.42 (Anthus), \
                 1.13 to 1.45 and 1.23 to 1.81 (Tebis); network 1.32 to 3.76 times as much (Anthus). Against build-index with a \
                 reduced L0: throughput 1.06 to 2.9, CPU 1.21 to 2.78, I/O 1.7 to 3.27 (Anthus); 1.2 to 1.32, 1.17 to 1.53, \
                 1.95 to 5.48 (Tebis).",
        variants: &["none", "build-index", "build-index-reduced-l0", "send-index", "send-index-logical"],
        mixes: &Mix::ALL,
        replicas: &[2, 3],
        growth_factors: &[8],
    },
    Experiment {
        name: "wire",
        title: "Segments compressed on the wire, by LZ4",
        papers: "Not measured there: Talos 3.5 and Anthus 4.3.5 name the network as the price of sent indexes, 1.32 to 3.76 times as much.",
        variants: &["build-index", "send-index", "send-index-lz4"],
        mixes: &Mix::ALL,
        replicas: &[2],
        growth_factors: &[8],
    },
    Experiment {
        name: "acknowledge",
        title: "Acknowledged at the last write (`send-index`) against the last flush",
        papers: "Anthus 4.3.3 (figure 4.4), Load A and Run A of the mixes of several sizes: last-write has 1 to 1.14 times less throughput, 1.05 to \
                 1.15 times less CPU efficiency.",
        variants: &["send-index", "send-index-last-flush"],
        mixes: &[Mix::S, Mix::SD, Mix::MD, Mix::LD],
        replicas: &[2],
        growth_factors: &[8],
    },
    Experiment {
        name: "posting",
        title: "Coalesced writes (`send-index`) against in-order replication, a write for each record",
        papers: "Anthus 4.3.7 (figure 4.7), Load A of SD, MD and LD, three replicas: out of order, each of several threads by itself, over in \
                 order: throughput 1.01 to 1.05, CPU efficiency 1.03 to 1.1. Records that share a write are not among it. Here \
                 both variants post in the order of LSNs; `send-index-per-record` is the paper's in order.",
        variants: &["send-index", "send-index-per-record"],
        mixes: &[Mix::S, Mix::SD, Mix::MD, Mix::LD],
        replicas: &[2, 3],
        growth_factors: &[8],
    },
    Experiment {
        name: "growth",
        title: "Growth factors",
        papers: "Talos 5.3 (figure 9): on Load A the gains do not depend on the growth factor; on Run A throughput gains 2.1 and \
                 1.7 and efficiency 2.4 and 1.9 with factors 12 and 16.",
        variants: &["build-index", "send-index"],
        mixes: &[Mix::SD],
        replicas: &[2],
        growth_factors: &[4, 8, 12, 16],
    },
    Experiment {
        name: "small-share",
        title: "Share of small pairs: 40, 60, 80 and 100 %",
        papers: "Tebis 5.3 (figure 9), growth factor 4: throughput 1.13 to 1.38, CPU efficiency 1.13 to 1.39, I/O 1.23 to 1.5, more \
                 with more small pairs. Talos 5.4 (figure 10), growth factor 12: throughput and efficiency 1.2 to 2.3.",
        variants: &["build-index", "send-index"],
        mixes: &[Mix::S40, Mix::SD, Mix::S80, Mix::S],
        replicas: &[2],
        growth_factors: &[8],
    },
    Experiment {
        name: "presets",
        title: "Anthus (`send-index`) against Tebis, and Tebis against backups of its kind that build their index",
        papers: "Anthus 1.1 and 5: throughput 1.06 to 1.95, CPU efficiency 1.14 to 1.8, I/O 1.5 to 1.87, network 1.21 to 2.06 times \
                 as much. Tebis 5.1, 5.4: `tebis` over `build-index-tebis`, throughput 1.1 to 1.48, CPU efficiency 1.06 to 1.54.",
        variants: &["send-index", "tebis", "build-index-tebis"],
        mixes: &Mix::ALL,
        replicas: &[2],
        growth_factors: &[8],
    },
    Experiment {
        name: "links",
        title: "TCP against shared memory",
        papers: "Anthus 4.3.6 (figure 4.6, table 4.3), RDMA over TCP between clients and one server: throughput 1.39 to 2.07, CPU \
                 efficiency 2.4 to 2.55; receiving takes 87 % less CPU, sending 83 %. Here `none-rings` has its clients on rings in \
                 shared memory, and `send-index-tcp` its nodes on TCP as well.",
        variants: &["none", "none-rings", "send-index", "send-index-tcp"],
        mixes: &[Mix::SD, Mix::MD, Mix::LD],
        replicas: &[2],
        growth_factors: &[8],
    },
    Experiment {
        name: "one-by-one",
        title: "One operation at a time: TCP against rings that are looked into for 100 us",
        papers: "Anthus 4.3.6 (table 4.3), one server: receiving and sending take 37.0 thousand cycles by TCP and 5.4 by RDMA, 6.8 times \
                 less; all of the server 2.4 to 2.55 times less. Here one client thread waits for each answer, and one node serves \
                 the only region.",
        variants: &["none-one-by-one", "none-rings-one-by-one"],
        mixes: &[Mix::SD],
        replicas: &[2],
        growth_factors: &[8],
    },
];

/// The variant called `name`.
pub(crate) fn variant(name: &str) -> &'static Variant {
    VARIANTS.iter().find(|variant| variant.name == name).expect("tables name only variants that there are")
}

/// The parameters of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) variant: &'static str,
    pub(crate) mix: Mix,
    pub(crate) replicas: u32,
    pub(crate) growth_factor: u32,
}

impl Setup {
    /// A variant without backups has one replica, whatever `replicas` is.
    pub(crate) fn new(variant_name: &'static str, mix: Mix, replicas: u32, growth_factor: u32) -> Setup {
        let replicas = if variant(variant_name).mode == "none" { 1 } else { replicas };
        Setup { variant: variant_name, mix, replicas, growth_factor }
    }

    /// Options of its table.
    pub(crate) fn table(self, l0_bytes: u64) -> TableOptions {
        let Setup { replicas, growth_factor, .. } = self;
        let variant = variant(self.variant);
        // As in the papers, unless the variant changes it.
        let addressing = Addressing::Physical;
        let mut table = TableOptions { replicas, growth_factor, l0_bytes, addressing, ..variant.preset.options() };
        (variant.change)(&mut table);
        table.min_in_sync = table.replicas / 2 + 1;
        table
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { variant, mix, replicas, growth_factor } = self;
        write!(f, "{variant}, mix {mix}, {replicas} replicas, growth factor {growth_factor}")
    }
}

/// A row of an experiment's tables: the parameters that its variants share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) mix: Mix,
    pub(crate) replicas: u32,
    pub(crate) growth_factor: u32,
}

impl Row {
    pub(crate) fn setup(self, variant: &'static str) -> Setup {
        Setup::new(variant, self.mix, self.replicas, self.growth_factor)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { mix, replicas, growth_factor } = self;
        write!(f, "{mix}, {replicas} replicas, growth {growth_factor}")
    }
}

/// The part of the plan that is run. An empty list means all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    experiments: Vec<&'static str>,
    variants: Vec<&'static str>,
    mixes: Vec<Mix>,
    replicas: Vec<u32>,
}

impl Scope {
    /// Limits the run to the experiments, variants and mixes that `only` names. If it names none of a kind, all of that
    /// kind are run.
    ///
    /// # Errors
    /// A name is unknown; the message lists the known ones.
    pub(crate) fn new(only: &[String], is_quick: bool) -> Result<Scope, String> {
        let mut scope = Scope::default();
        for name in only {
            if let Some(experiment) = EXPERIMENTS.iter().find(|experiment| experiment.name == name) {
                scope.experiments.push(experiment.name);
            } else if let Some(variant) = VARIANTS.iter().find(|variant| variant.name == name) {
                scope.variants.push(variant.name);
            } else if let Ok(mix) = name.parse() {
                scope.mixes.push(mix);
            } else {
                let experiments = EXPERIMENTS.iter().map(|experiment| experiment.name);
                let all: Vec<&str> = experiments.chain(VARIANTS.iter().map(|variant| variant.name)).collect();
                return Err(format!("--only {name}: it is a mix, or one of {}", all.join(", ")));
            }
        }
        if is_quick {
            scope.replicas.push(2);
            if scope.mixes.is_empty() {
                scope.mixes = vec![Mix::SD, Mix::S];
            }
        }
        Ok(scope)
    }

    /// Experiments that are run.
    pub(crate) fn experiments(&self) -> impl Iterator<Item = &'static Experiment> {
        EXPERIMENTS.iter().filter(|experiment| wants(&self.experiments, &experiment.name))
    }

    /// Variants of `experiment` that are run.
    pub(crate) fn variants(&self, experiment: &Experiment) -> Vec<&'static str> {
        experiment.variants.iter().copied().filter(|variant| wants(&self.variants, variant)).collect()
    }

    /// Rows of `experiment` that are run.
    pub(crate) fn rows(&self, experiment: &Experiment) -> Vec<Row> {
        let mut rows = Vec::new();
        for &replicas in experiment.replicas.iter().filter(|replicas| wants(&self.replicas, replicas)) {
            for &mix in experiment.mixes.iter().filter(|mix| wants(&self.mixes, mix)) {
                rows.extend(experiment.growth_factors.iter().map(|&growth_factor| Row {
                    mix,
                    replicas,
                    growth_factor,
                }));
            }
        }
        rows
    }

    /// All clusters, each once, in groups of those that are compared with each other.
    pub(crate) fn setups(&self) -> Vec<Vec<Setup>> {
        let mut seen: Vec<Setup> = Vec::new();
        let mut groups: Vec<(Row, Vec<Setup>)> = Vec::new();
        for experiment in self.experiments() {
            for row in self.rows(experiment) {
                for setup in self.variants(experiment).into_iter().map(|variant| row.setup(variant)) {
                    if seen.contains(&setup) {
                        continue;
                    }
                    seen.push(setup);
                    match groups.iter_mut().find(|(of, _)| *of == row) {
                        Some((_, group)) => group.push(setup),
                        None => groups.push((row, vec![setup])),
                    }
                }
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}

/// Whether `wanted` has `one`, or is empty, which means all.
fn wants<T: PartialEq>(wanted: &[T], one: &T) -> bool {
    wanted.is_empty() || wanted.contains(one)
}
