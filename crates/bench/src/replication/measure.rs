//! Measures one cell: starts its cluster, runs its phases, and refuses a run that would prove nothing.

use super::cells::levels;
use super::experiments::{AFTER, BEFORE, Step, Work, reads_of};
use super::figure::Figure;
use super::plan::Setup;
use super::{Options, rebuild, recovery, variant};
use crate::keys::{Mix, key};
use crate::options::{self, BenchError};
use crate::report::PhaseReport;
use crate::starter::{Started, Starter, WantedCluster};
use crate::workload::Workload;
use crate::ycsb;
use leeward_client::{Op, OpResult, Session};
use leeward_format::cluster::IndexKind;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;

/// Levels, L0 included, below which a run is refused.
const MIN_LEVELS: u32 = 3;
/// Merges of all runs of each two-layer log in Load, below which a run is refused.
const MIN_RUN_MERGES: u64 = 2;
/// The highest ordering degree to which that applies: with more runs, many are what is measured.
const MERGING_DEGREE: u8 = 20;
/// The part of the reads which backups should answer that they must answer. They forward some to primaries.
const MIN_READS_OF_BACKUPS: f64 = 0.5;
/// How long backups may take after other work until they answer so many, and the pause between two looks.
const BACKUPS_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// Reads that show whether they do.
const LOOKS: u64 = 120;
/// Bytes that a record of a hash index needs beside the pair: its head, the rest of its lines, its place in a bucket.
const RECORD_BYTES: u64 = 80;
/// Bytes that an L0 needs for an entry beside the pair.
const ENTRY_BYTES: u64 = 10;
/// Segments that the pairs of a copy fill in Load, at least, where two-layer logs must merge. Pieces become a run once they
/// fill a segment, and 41 runs are merged twice where 20 are allowed.
const SEGMENTS_OF_A_COPY: u64 = 52;
/// The smallest and the largest segments that are chosen for that; the largest is the default of nodes.
const SEGMENT_BYTES: RangeInclusive<u64> = 64 << 10..=2 << 20;
/// Records where a hash index has all of them, and where it has a part.
const RECORDS_INDEXED: u64 = 300_000;
const RECORDS_INDEXED_IN_PART: u64 = 3_200_000;
/// Of so many bytes of a node's memory, one is for hash indexes.
const HASH_SHARE: u64 = 4;
/// The smallest L0 that a table may have.
const LEAST_L0_BYTES: u64 = 64 << 10;

/// The phases of `setup` on a new cluster.
pub(super) fn measure(options: &Options, setup: Setup, starter: &Starter) -> Result<Vec<PhaseReport>, BenchError> {
    let of = variant(setup.variant);
    let cell = options.cell;
    let (regions, threads, depth) = match of.one_by_one {
        true => (1, 1, 1),
        false => (regions(options, setup), cell.threads, cell.depth),
    };
    let wanted = WantedCluster {
        table: setup.table(l0_bytes(options, setup)),
        link: of.link,
        regions,
        nodes: setup.shape.nodes.unwrap_or(cell.nodes),
        late: 0,
        memory_bytes: memory_bytes(options, setup)?,
        segment_bytes: segment_bytes(options, setup),
    };
    let mut started = starter.start(wanted).map_err(|error| BenchError::Start(error.to_string()))?;
    let records = records(options, setup);
    let load = options::Options {
        seeds: started.seeds.clone(),
        workloads: vec![Workload::Load],
        mix: setup.mix,
        records,
        ops: options.ops.unwrap_or(records),
        threads,
        depth,
        reading: of.reading,
        ..options::Options::default()
    };
    match setup.shape.work {
        Work::LoadAndA => {
            let work = options::Options { workloads: vec![Workload::Load, Workload::A], ..load };
            run(setup, &work, Some(started))
        }
        Work::LoadAndReads(members) => {
            let mut phases = run(setup, &load, None)?;
            for &read_members in members {
                let reads = options::Options { workloads: vec![Workload::C], read_members, ..load.clone() };
                wait_for_backups(setup, &reads)?;
                phases.extend(run(setup, &reads, None)?);
            }
            Ok(phases)
        }
        Work::Steps(steps) => {
            let mut phases = run(setup, &load, None)?;
            phases.extend(run_steps(setup, &load, steps)?);
            Ok(phases)
        }
        Work::Rebuild => {
            let mut phases = run(setup, &load, None)?;
            phases.extend(run_steps(setup, &load, &BEFORE)?);
            if setup.table(LEAST_L0_BYTES).reads.index == IndexKind::Hybrid {
                let rebuilt = rebuild::measure(&mut started, &load);
                phases.push(rebuilt.map_err(|error| BenchError::Recovery(error.to_string()))?);
                phases.last().into_iter().for_each(print_phase);
            } else {
                rebuild::lose(&mut started, &load).map_err(|error| BenchError::Recovery(error.to_string()))?;
            }
            phases.extend(run_steps(setup, &load, &AFTER)?);
            Ok(phases)
        }
        Work::Recovery => {
            let mut phases = run(setup, &load, None)?;
            let recovered = recovery::measure(started, &load, starter.directory());
            phases.push(recovered.map_err(|error| BenchError::Recovery(error.to_string()))?);
            phases.last().into_iter().for_each(print_phase);
            Ok(phases)
        }
    }
}

fn run_steps(setup: Setup, load: &options::Options, steps: &[Step]) -> Result<Vec<PhaseReport>, BenchError> {
    let mut phases = Vec::new();
    for &Step { name, workload, threads, depth, ops_percent, .. } in steps {
        let ops = load.ops * ops_percent / 100;
        let work = options::Options { workloads: vec![workload], threads, depth, ops, ..load.clone() };
        let mut of_it = run(setup, &work, None)?;
        of_it.iter_mut().for_each(|phase| name.clone_into(&mut phase.workload));
        phases.append(&mut of_it);
    }
    Ok(phases)
}

/// Runs the workloads of `work`. A cluster that is given is dropped at the end.
fn run(setup: Setup, work: &options::Options, cluster: Option<Started>) -> Result<Vec<PhaseReport>, BenchError> {
    let report = ycsb::measure(work, cluster.map(|started| started.cluster), &mut |phase| {
        print_phase(phase);
        check(setup, phase, work.read_members)
    })?;
    let mut phases = report.phases;
    if let Some(error) = phases.iter().find_map(|phase| phase.first_error.as_ref().filter(|_| phase.errors > 0)) {
        return Err(BenchError::Failed { errors: report.errors, error: error.clone() });
    }
    let read = Workload::C.to_string();
    for phase in phases.iter_mut().filter(|phase| phase.workload == read) {
        reads_of(work.read_members).clone_into(&mut phase.workload);
    }
    Ok(phases)
}

/// Waits until backups answer reads, if several members are asked: a copy begins once its L0s fit its memory and it has
/// heard from its primary. [`check`] refuses the phase if they still do not.
fn wait_for_backups(setup: Setup, reads: &options::Options) -> Result<(), BenchError> {
    if reads.read_members == 1 {
        return Ok(());
    }
    let mut session = Session::connect(&reads.seeds, options::reading_options(reads))?;
    let begun = Instant::now();
    while begun.elapsed() < BACKUPS_WITHIN {
        let sample = (0..LOOKS).map(|part| Op::Get { key: key(reads.records * part / LOOKS) });
        let results = session.execute(sample.collect())?;
        let answered = results.iter().filter(|result| matches!(result, OpResult::Stale { .. })).count();
        if answered as f64 >= LOOKS as f64 * part_of_backups(setup) * MIN_READS_OF_BACKUPS {
            break;
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// The part of reads that backups answer if all members are asked in turn.
fn part_of_backups(setup: Setup) -> f64 {
    f64::from(setup.replicas - 1) / f64::from(setup.replicas)
}

/// Refuses a phase that would prove nothing.
fn check(setup: Setup, phase: &PhaseReport, read_members: u32) -> Result<(), BenchError> {
    let levels = levels(phase);
    // What a hash index has is read from no level.
    if levels < MIN_LEVELS && setup.shape.indexed_percent.is_none() {
        return Err(BenchError::Shallow { levels, least: MIN_LEVELS });
    }
    let degree = setup.table(LEAST_L0_BYTES).backups.ordering_degree();
    let must_merge = setup.shape.must_merge && degree.is_some_and(|degree| degree <= MERGING_DEGREE);
    let is_load = phase.workload == Workload::Load.to_string();
    if must_merge && is_load && phase.run_merges < MIN_RUN_MERGES {
        return Err(BenchError::Unmerged { merges: phase.run_merges, least: MIN_RUN_MERGES });
    }
    if let Some(stale_reads) = phase.stale_reads.filter(|_| read_members > 1) {
        let answered = stale_reads as f64 / phase.ops.max(1) as f64;
        let wanted = f64::from(read_members) * part_of_backups(setup);
        if answered < wanted * MIN_READS_OF_BACKUPS {
            return Err(BenchError::Primaries { answered, wanted });
        }
    }
    Ok(())
}

/// Memory of a node in bytes. A quarter of it is for hash indexes ([`HASH_SHARE`]).
///
/// # Errors
/// That much memory has more than the part of the pairs that is to be indexed.
fn memory_bytes(options: &Options, setup: Setup) -> Result<u64, BenchError> {
    let usual = options.cell.memory_mib << 20;
    let Some(percent) = setup.shape.indexed_percent else { return Ok(usual) };
    let nodes = u64::from(setup.shape.nodes.unwrap_or(options.cell.nodes));
    let pair = setup.mix.mean_pair_bytes() + RECORD_BYTES;
    let of_all = records(options, setup) * pair * HASH_SHARE / nodes;
    if percent >= 100 {
        // Regions are not spread evenly if there are few.
        return Ok((of_all * 2).max(usual));
    }
    let of_part = of_all * u64::from(percent) / 100;
    if of_part < usual {
        let least = (usual * 100 * nodes).div_ceil(pair * HASH_SHARE * u64::from(percent));
        return Err(BenchError::Indexed { percent, least });
    }
    Ok(of_part)
}

/// Size of an L0 in bytes.
pub(super) fn l0_bytes(options: &Options, setup: Setup) -> u64 {
    let Some(l0s) = setup.shape.l0s.filter(|_| options.cell.l0_kib.is_none()) else { return options.cell.l0_bytes() };
    let bytes = records(options, setup) * (setup.mix.mean_pair_bytes() + ENTRY_BYTES);
    (bytes / u64::from(regions(options, setup) * l0s)).max(LEAST_L0_BYTES)
}

/// Size of a segment in bytes, so small that a two-layer log merges although Load is short; `None`: the default.
fn segment_bytes(options: &Options, setup: Setup) -> Option<u64> {
    let of_a_copy = records(options, setup) * setup.mix.mean_pair_bytes() / u64::from(regions(options, setup));
    let fitting = (of_a_copy / SEGMENTS_OF_A_COPY).clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
    setup.shape.must_merge.then(|| 1 << fitting.ilog2())
}

fn regions(options: &Options, setup: Setup) -> u32 {
    setup.shape.regions.unwrap_or(options.cell.regions)
}

/// The number of records, by default enough for tens of MiB of index in each region, and for seconds of load on a small
/// machine. With fewer, the one compaction that runs when the load ends would decide how long the nodes take to settle.
fn records(options: &Options, setup: Setup) -> u64 {
    options.records.unwrap_or(match setup.mix {
        _ if setup.shape.indexed_percent.is_some_and(|percent| percent < 100) => RECORDS_INDEXED_IN_PART,
        _ if setup.shape.indexed_percent.is_some() => RECORDS_INDEXED,
        Mix::S => 2_500_000,
        Mix::M | Mix::S80 => 1_200_000,
        Mix::SD | Mix::MD | Mix::S40 => 1_000_000,
        Mix::L | Mix::LD => 400_000,
    })
}

fn print_phase(phase: &PhaseReport) {
    let figure = |figure: Figure| figure.of(phase).map_or_else(|| "-".into(), crate::figures::number);
    eprintln!(
        "  {:>8}: {:>7.0} ops/s, until settled {:>7.0}; {} CPU-s/Mop, of them {} for backups' index; I/O {}, network {}, {} levels, \
         {} runs, {} merges of all runs, {} times each byte into a backup's index",
        phase.workload,
        phase.ops_per_second,
        phase.settled_ops_per_second,
        figure(Figure::Cpu),
        figure(Figure::BackupIndexCpu),
        figure(Figure::IoAmplification),
        figure(Figure::NetworkAmplification),
        levels(phase),
        phase.sorted_runs,
        phase.run_merges,
        figure(Figure::BackupIndexWritten)
    );
}
