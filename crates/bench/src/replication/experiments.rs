//! The experiments of the papers, which combine variants. Data; any thread.

use crate::keys::Mix;
use crate::workload::Workload;

/// One comparison of the papers: every variant with every row of its grids.
#[derive(Debug)]
pub struct Experiment {
    /// Selects it on the command line, and begins the names of its plots.
    pub name: &'static str,
    /// Heading in the report.
    pub title: &'static str,
    /// The sections of the papers, and their results.
    pub papers: &'static str,
    /// Results of the papers that cannot apply here, each with the reason.
    pub not_compared: &'static [(&'static str, &'static str)],
    /// Names of its variants.
    pub variants: &'static [&'static str],
    pub(super) grids: &'static [Grid],
}

/// Rows of an experiment: every mix with every number of replicas and every growth factor.
#[derive(Debug)]
pub(super) struct Grid {
    /// Names of the variants that have these rows; none: all of the experiment.
    pub(super) variants: &'static [&'static str],
    pub(super) mixes: &'static [Mix],
    /// Copies of a region, the primary's included.
    pub(super) replicas: &'static [u32],
    /// How much larger each level is than the one above.
    pub(super) growth_factors: &'static [u32],
    pub(super) shape: Shape,
}

impl Grid {
    const PAPERS: Grid =
        Grid { variants: &[], mixes: &[Mix::SD], replicas: &[2], growth_factors: &[8], shape: Shape::PAPERS };
}

/// What else the clusters of a row have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Nodes; `None`: as the options say.
    pub(crate) nodes: Option<u32>,
    /// Regions; `None`: as the options say.
    pub(crate) regions: Option<u32>,
    /// L0s that Load fills in each region, unless the options say how large an L0 is; `None`: as many as they become.
    pub(crate) l0s: Option<u32>,
    /// Whether two-layer logs must have merged all of their runs, for a run to prove anything.
    pub(crate) must_merge: bool,
    /// How much of the pairs of the primaries of a node its hash indexes hold, in percent; it has the memory for that.
    /// `None`: memory is as the options say.
    pub(crate) indexed_percent: Option<u32>,
    pub(crate) work: Work,
}

/// What is done with a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Load A and Run A.
    LoadAndA,
    /// Load A, and Run C with reads of so many members, one after the other.
    LoadAndReads(&'static [u32]),
    /// Load A. Then a node dies while clients read, and another comes back with an empty volume.
    Recovery,
    /// Load A, and then these phases.
    Steps(&'static [Step]),
    /// Load A, gets and updates; then a primary dies, and stays away while there are gets and updates again.
    Rebuild,
}

/// A phase of a workload with so many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its name in the JSON, and in the report.
    pub(crate) name: &'static str,
    title: &'static str,
    pub(crate) workload: Workload,
    pub(crate) threads: usize,
    pub(crate) depth: usize,
    /// Operations, in percent of those of the other phases: as many as take seconds.
    pub(crate) ops_percent: u64,
}

const fn step(name: &'static str, title: &'static str, workload: Workload, ops_percent: u64) -> Step {
    Step { name, title, workload, threads: 2, depth: 16, ops_percent }
}

/// Gets by one client and by many, updates, and the workloads of YCSB. Each follows on the one before.
const POINTS: [Step; 9] = [
    Step { threads: 1, depth: 1, ..step("c-1-1", "Run C, one thread, depth 1", Workload::C, 100) },
    step("c-2-16", "Run C, two threads, depth 16", Workload::C, 400),
    Step { depth: 64, ..step("c-2-64", "Run C, two threads, depth 64", Workload::C, 400) },
    step("u", "Updates", Workload::U, 100),
    step("b", "Run B", Workload::B, 100),
    step("a", "Run A", Workload::A, 100),
    step("f", "Run F", Workload::F, 100),
    step("d", "Run D", Workload::D, 100),
    step("e", "Run E", Workload::E, 40),
];
const GETS: [Step; 1] = [POINTS[1]];
/// Before a primary dies, and after it.
pub(super) const BEFORE: [Step; 2] = [POINTS[1], POINTS[3]];
pub(super) const AFTER: [Step; 2] = [
    Step { name: "c-down", title: "Run C without the dead node", ..POINTS[1] },
    Step { name: "u-down", title: "Updates without the dead node", ..POINTS[3] },
];

/// L0s that Load fills in each region: several of a [segment](super::measure), which compactions take together.
const L0S: u32 = 400;

impl Shape {
    /// What the experiments of the other papers have.
    pub(crate) const PAPERS: Shape =
        Shape { nodes: None, regions: None, l0s: None, must_merge: false, indexed_percent: None, work: Work::LoadAndA };
    /// The same with so many L0s that two-layer logs merge.
    pub(crate) const RUNS: Shape = Shape { l0s: Some(L0S), must_merge: true, ..Shape::PAPERS };
}

/// Many regions, as a node of DEPART has range groups: the memory of their L0s is compared, which are as large as elsewhere.
/// Their runs need not be so many that they are merged.
pub(super) const MANY: Shape = Shape { regions: Some(100), ..Shape::PAPERS };
/// As in DEPART; each node is primary of a region.
pub(super) const FIVE: Shape =
    Shape { nodes: Some(5), regions: Some(5), work: Work::LoadAndReads(&[1, 2, 3]), ..Shape::RUNS };
/// All pairs are in the hash indexes, as in HiStore.
pub(super) const HYBRID: Shape = Shape { indexed_percent: Some(100), work: Work::Steps(&POINTS), ..Shape::PAPERS };
/// The same, and a primary dies.
pub(super) const HYBRID_REBUILD: Shape = Shape { work: Work::Rebuild, ..HYBRID };
/// A part of them is.
pub(super) const fn indexed(percent: u32) -> Shape {
    Shape { indexed_percent: Some(percent), work: Work::Steps(&GETS), ..Shape::PAPERS }
}
pub(super) const ORDERED: Shape = Shape { work: Work::LoadAndReads(&[2]), ..Shape::RUNS };

/// Name of the phase in which a primary with a hash index dies.
pub(super) const REBUILD: &str = "rebuild";
/// Name of the phase in which a node dies.
pub(super) const RECOVERY: &str = "recovery";
/// Phases after Load, by their names in the JSON and in the report.
const READS: [(&str, &str); 3] =
    [("c", "Run C"), ("c-2", "Run C, reads of 2 members"), ("c-3", "Run C, reads of 3 members")];
/// Every phase: its name in the JSON, and in the report.
pub(super) fn phases() -> impl Iterator<Item = (&'static str, &'static str)> {
    let first = [("load", "Load A"), ("a", "Run A"), READS[0], READS[1], READS[2], (RECOVERY, "Recovery")];
    let of_steps = POINTS.iter().filter(|step| step.name != "a").map(|step| (step.name, step.title));
    let of_rebuild = AFTER.iter().map(|step| (step.name, step.title));
    first.into_iter().chain(of_steps).chain([(REBUILD, "A primary dies")]).chain(of_rebuild)
}

/// Name of the phase of reads of so many members.
pub(crate) fn reads_of(members: u32) -> &'static str {
    READS[members as usize - 1].0
}

impl Work {
    /// Whether the phase with this name is a part of it.
    pub(super) fn has(self, phase: &str) -> bool {
        let reads = |members: &[u32]| members.iter().any(|members| reads_of(*members) == phase);
        phase == "load"
            || match self {
                Work::LoadAndA => phase == "a",
                Work::LoadAndReads(members) => reads(members),
                Work::Recovery => phase == RECOVERY,
                Work::Steps(steps) => steps.iter().any(|step| step.name == phase),
                Work::Rebuild => phase == REBUILD || BEFORE.iter().chain(&AFTER).any(|step| step.name == phase),
            }
    }

    /// Most members that a read asks.
    pub(crate) fn read_members(self) -> u32 {
        match self {
            Work::LoadAndReads(members) => members.iter().copied().max().unwrap_or(1),
            Work::LoadAndA | Work::Recovery | Work::Steps(_) | Work::Rebuild => 1,
        }
    }
}

/// Every experiment, in the order of the report.
pub static EXPERIMENTS: [Experiment; 16] = [
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
        not_compared: &[],
        variants: &["none", "build-index", "build-index-reduced-l0", "send-index", "send-index-logical"],
        grids: &[Grid { mixes: &Mix::ALL, replicas: &[2, 3], ..Grid::PAPERS }],
    },
    Experiment {
        name: "wire",
        title: "Segments compressed on the wire, by LZ4",
        papers: "Not measured there: Talos 3.5 and Anthus 4.3.5 name the network as the price of sent indexes, 1.32 to 3.76 times as much.",
        not_compared: &[],
        variants: &["build-index", "send-index", "send-index-lz4"],
        grids: &[Grid { mixes: &Mix::ALL, ..Grid::PAPERS }],
    },
    Experiment {
        name: "acknowledge",
        title: "Acknowledged at the last write (`send-index`) against the last flush",
        papers: "Anthus 4.3.3 (figure 4.4), Load A and Run A of the mixes of several sizes: last-write has 1 to 1.14 times less throughput, 1.05 to \
                 1.15 times less CPU efficiency.",
        not_compared: &[],
        variants: &["send-index", "send-index-last-flush"],
        grids: &[Grid { mixes: &[Mix::S, Mix::SD, Mix::MD, Mix::LD], ..Grid::PAPERS }],
    },
    Experiment {
        name: "posting",
        title: "Coalesced writes (`send-index`) against in-order replication, a write for each record",
        papers: "Anthus 4.3.7 (figure 4.7), Load A of SD, MD and LD, three replicas: out of order, each of several threads by itself, over in \
                 order: throughput 1.01 to 1.05, CPU efficiency 1.03 to 1.1. Records that share a write are not among it. Here \
                 both variants post in the order of LSNs; `send-index-per-record` is the paper's in order.",
        not_compared: &[],
        variants: &["send-index", "send-index-per-record"],
        grids: &[Grid { mixes: &[Mix::S, Mix::SD, Mix::MD, Mix::LD], replicas: &[2, 3], ..Grid::PAPERS }],
    },
    Experiment {
        name: "growth",
        title: "Growth factors",
        papers: "Talos 5.3 (figure 9): on Load A the gains do not depend on the growth factor; on Run A throughput gains 2.1 and \
                 1.7 and efficiency 2.4 and 1.9 with factors 12 and 16.",
        not_compared: &[],
        variants: &["build-index", "send-index"],
        grids: &[Grid { mixes: &[Mix::SD], replicas: &[2], growth_factors: &[4, 8, 12, 16], ..Grid::PAPERS }],
    },
    Experiment {
        name: "small-share",
        title: "Share of small pairs: 40, 60, 80 and 100 %",
        papers: "Tebis 5.3 (figure 9), growth factor 4: throughput 1.13 to 1.38, CPU efficiency 1.13 to 1.39, I/O 1.23 to 1.5, more \
                 with more small pairs. Talos 5.4 (figure 10), growth factor 12: throughput and efficiency 1.2 to 2.3.",
        not_compared: &[],
        variants: &["build-index", "send-index"],
        grids: &[Grid { mixes: &[Mix::S40, Mix::SD, Mix::S80, Mix::S], ..Grid::PAPERS }],
    },
    Experiment {
        name: "presets",
        title: "Anthus (`send-index`) against Tebis, and Tebis against backups of its kind that build their index",
        papers: "Anthus 1.1 and 5: throughput 1.06 to 1.95, CPU efficiency 1.14 to 1.8, I/O 1.5 to 1.87, network 1.21 to 2.06 times \
                 as much. Tebis 5.1, 5.4: `tebis` over `build-index-tebis`, throughput 1.1 to 1.48, CPU efficiency 1.06 to 1.54.",
        not_compared: &[],
        variants: &["send-index", "tebis", "build-index-tebis"],
        grids: &[Grid { mixes: &Mix::ALL, ..Grid::PAPERS }],
    },
    Experiment {
        name: "links",
        title: "TCP against shared memory",
        papers: "Anthus 4.3.6 (figure 4.6, table 4.3), RDMA over TCP between clients and one server: throughput 1.39 to 2.07, CPU \
                 efficiency 2.4 to 2.55; receiving takes 87 % less CPU, sending 83 %. Here `none-rings` has its clients on rings in \
                 shared memory, and `send-index-tcp` its nodes on TCP as well.",
        not_compared: &[],
        variants: &["none", "none-rings", "send-index", "send-index-tcp"],
        grids: &[Grid { mixes: &[Mix::SD, Mix::MD, Mix::LD], ..Grid::PAPERS }],
    },
    Experiment {
        name: "one-by-one",
        title: "One operation at a time: TCP against rings that are looked into for 100 us",
        papers: "Anthus 4.3.6 (table 4.3), one server: receiving and sending take 37.0 thousand cycles by TCP and 5.4 by RDMA, 6.8 times \
                 less; all of the server 2.4 to 2.55 times less. Here one client thread waits for each answer, and one node serves \
                 the only region.",
        not_compared: &[],
        variants: &["none-one-by-one", "none-rings-one-by-one"],
        grids: &[Grid { mixes: &[Mix::SD], ..Grid::PAPERS }],
    },
    Experiment {
        name: "two-layer",
        title: "Two-layer logs against backups with an LSM tree, and against shipped indexes",
        papers: "DEPART 5.2, experiment 1 (figures 10, 11), k = 3, five nodes, over mLSM, which keeps each copy in an LSM tree of \
                 its own as `build-index` does: writes 1.2, updates 1.2 to 1.25; compactions write 1.65 TiB against 2.72 TiB; \
                 memory of L0s 183.9 MiB against 335.7 MiB; space 654.8 GiB against 611.3 GiB. `-one-run` is the engine of mLSM: \
                 one run in L1, and levels merged as a whole. Backups with two-layer logs merge all of their runs with the 21st.",
        not_compared: &[
            (
                "2.43 times the reads and 2.68 times the scans of Cassandra",
                "Cassandra keeps all copies of a node in one LSM tree, which a read then searches. A region of Leeward is an \
                 LSM tree of its own, so there is nothing to compare with; keeping several regions' copies in one tree would \
                 need an engine that shares levels between regions",
            ),
            (
                "less than 0.4 % of the time of a write for telling primary from redundant copies",
                "a region's members know their roles from its configuration, so no write asks",
            ),
        ],
        variants: &[
            "build-index-depart",
            "two-layer-20",
            "send-index-depart",
            "build-index-one-run",
            "two-layer-one-run",
        ],
        grids: &[
            Grid { mixes: &[Mix::S, Mix::SD, Mix::L], replicas: &[2, 3], shape: Shape::RUNS, ..Grid::PAPERS },
            Grid { variants: &["build-index-depart", "two-layer-20"], replicas: &[3], shape: MANY, ..Grid::PAPERS },
        ],
    },
    Experiment {
        name: "levels",
        title: "More copies, and members that are asked: five nodes, three and five replicas",
        papers: "DEPART 5.2, experiments 2 and 3 (figures 12, 13). k from 3 to 5, over Cassandra: writes 1.43 to 1.59, reads 2.43 \
                 to 3.61. WCL 2 and RCL 2: writes 1.43, reads 1.70; WCL 1 and RCL 3: 1.44 and 1.72; from RCL 2 on reads are \
                 below those of mLSM. WCL 3 is Leeward's default, WCL 2 is `-quorum`, WCL 1 is `-last-flush`. RCL R is run C \
                 with reads of R members, which is load only: the lease makes the read of one linearizable.",
        not_compared: &[
            (
                "2.43 to 3.61 times the reads of Cassandra with RCL 1, and 1.70 and 1.72 with RCL 2 and 3",
                "these are gains over uniform indexing, which Leeward does not have; over mLSM the paper tells only that reads \
                 with RCL 2 are below it",
            ),
            (
                "a consistent read from RCL members where WCL + RCL exceeds k",
                "a backup answers as of the safe LSN that the primary published, so reading more members makes no answer newer",
            ),
        ],
        variants: &[
            "build-index-depart",
            "two-layer-20",
            "build-index-one-run",
            "two-layer-one-run",
            "build-index-depart-quorum",
            "two-layer-quorum",
            "build-index-depart-last-flush",
            "two-layer-last-flush",
        ],
        grids: &[
            Grid {
                variants: &["build-index-depart", "two-layer-20", "build-index-one-run", "two-layer-one-run"],
                replicas: &[3, 5],
                shape: FIVE,
                ..Grid::PAPERS
            },
            Grid {
                variants: &[
                    "build-index-depart-quorum",
                    "two-layer-quorum",
                    "build-index-depart-last-flush",
                    "two-layer-last-flush",
                ],
                replicas: &[3],
                shape: FIVE,
                ..Grid::PAPERS
            },
        ],
    },
    Experiment {
        name: "ordering",
        title: "The ordering degree S: most sorted runs of a copy",
        papers: "DEPART 5.2, experiment 8 (table 1), WCL 2 and RCL 2, thousands of operations a second with S = 1, 10, 20 and \
                 infinite: writes 37.2, 57.2, 64.7 and 78.4; reads 42.3, 31.5, 23.1 and 7.6. So writes with S = 20 are 1.74 times \
                 those with S = 1, and reads 1.83 times less.",
        not_compared: &[(
            "78.4 and 7.6 thousand writes and reads a second with an infinite S",
            "a copy has at most 31 sorted runs and merges then; `two-layer-31` is the nearest",
        )],
        variants: &[
            "two-layer-1",
            "two-layer-10",
            "two-layer-20",
            "two-layer-31",
            "build-index-depart",
            "build-index-one-run",
        ],
        grids: &[Grid { replicas: &[3], shape: ORDERED, ..Grid::PAPERS }],
    },
    Experiment {
        name: "recovery",
        title: "A node dies, and one comes back with an empty volume: five nodes, three replicas",
        papers: "DEPART 5.2, experiments 6 and 7 (figures 16, 17). Recovery of a node after 20, 50 and 100 million pairs takes 4.1, \
                 15.4 and 45.2 minutes against 8.9, 26.9 and 72.4 of Cassandra: 0.46 to 0.62. While the node is down, reads are \
                 1.69 and writes 1.59 times those of Cassandra.",
        not_compared: &[
            (
                "1.69 times the reads and 1.59 times the writes of Cassandra while a node is down",
                "these are gains over uniform indexing; here the reads of the ten seconds after the outage are compared with \
                 those before it",
            ),
            (
                "the parts of the time: building, comparing and using Merkle trees",
                "a copy that is built anew gets all segments of its primary, so there are no trees",
            ),
        ],
        variants: &["send-index-depart", "two-layer-20", "build-index-depart"],
        grids: &[Grid { replicas: &[3], shape: Shape { work: Work::Recovery, ..FIVE }, ..Grid::PAPERS }],
    },
    Experiment {
        name: "hybrid",
        title: "A hash index at the primary and scans at backups, against sorted indexes alone",
        papers: "HiStore 5.2, 5.3 (figures 9, 10, 12), five servers, 100 Gb/s RDMA, keys of 16 B and values of 32 B. Over sorted indexes \
                 alone that every member answers from: gets 2.03 with 64 clients, puts 1.45, scans 1.0, YCSB without scans 2.39 to \
                 2.96. `lsm-any` is that system here: each member answers gets and scans, and asks the primary for its safe LSN \
                 first, since no answer may be stale. `hybrid-rpc` has the index, and clients that do not read it.",
        not_compared: &[(
            "1.45 times the puts",
            "the paper's primary keeps a hash table in the place of its sorted index; here it keeps both, so puts are compared \
             with those of the primary's sorted index alone",
        )],
        variants: &["lsm-rings", "lsm-spinning", "lsm-any", "hybrid-rpc", "hybrid-none", "histore", "histore-send"],
        grids: &[Grid { replicas: &[3], shape: HYBRID, ..Grid::PAPERS }],
    },
    Experiment {
        name: "hybrid-recovery",
        title: "A primary with a hash index dies, and stays away",
        papers: "HiStore 5.4 (figures 13, 14): a new hash table is built in 1.4 to 1.55 us a key; while a server is down, gets and puts go on.",
        not_compared: &[],
        variants: &["lsm-rings", "histore", "histore-send"],
        grids: &[Grid { replicas: &[3], shape: HYBRID_REBUILD, ..Grid::PAPERS }],
    },
    Experiment {
        name: "hybrid-memory",
        title: "A hash index that holds 5, 10, 25 and 100 % of the pairs",
        papers: "Not measured there: all pairs are in HiStore's hash table.",
        not_compared: &[],
        variants: &["lsm-rings", "histore"],
        grids: &[
            Grid { replicas: &[3], shape: indexed(5), ..Grid::PAPERS },
            Grid { replicas: &[3], shape: indexed(10), ..Grid::PAPERS },
            Grid { replicas: &[3], shape: indexed(25), ..Grid::PAPERS },
            Grid { replicas: &[3], shape: indexed(100), ..Grid::PAPERS },
        ],
    },
];
