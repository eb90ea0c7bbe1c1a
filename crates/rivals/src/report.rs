//! A comparison from end to end, and its report in Markdown tables, which show the losses as well as the wins.

use crate::Failure;
use crate::args::CompareArgs;
use crate::cells::{Cell, Group, groups};
use crate::engine::EngineName;
use crate::measurement::DeviceBytes;
use crate::plan::Plan;
use crate::plot;
use crate::rounds::{self, Failed, Results, Sample};
use crate::run::in_order;
use crate::targets::{Figure, Loss, MIXES, Verdict, figures, losses, verdicts};
use leeward_bench::{Machine, median, number, plot_file};
use serde::Serialize;
use std::fmt::{Result as Written, Write};
use std::fs;
use std::path::Path;

/// The engine's count of device bytes and the kernel's must agree within this fraction.
const AGREE_WITHIN: f64 = 0.05;

/// The JSON. Names in it are stable; others may be added.
#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    cells: Vec<Cell>,
    against_rocksdb: Vec<Verdict>,
    losses: Vec<Loss>,
    failures: &'a [Failed],
    samples: &'a [Sample],
}

/// Runs the comparison and writes JSON, report and plots; returns whether no run failed.
///
/// # Errors
/// Invalid options, or a file that cannot be written.
pub(crate) fn compare(args: &CompareArgs) -> Result<bool, Failure> {
    let plans = args.mix.iter().map(|mix| Plan::new(*mix, &args.sizes)).collect::<Result<Vec<_>, _>>()?;
    let works = in_order(&args.workloads.workloads);
    let results = rounds::run(&plans, &works, &args.rounds)?;
    let machine = Machine::here();
    let groups = groups(&results.samples, &args.rounds.engines);
    let json = Json {
        machine: &machine,
        cells: groups.iter().map(Group::cell).collect(),
        against_rocksdb: verdicts(&groups),
        losses: losses(&groups),
        failures: &results.failures,
        samples: &results.samples,
    };
    write(&args.rounds.json, &(serde_json::to_string_pretty(&json)? + "\n"))?;
    let mut text = String::new();
    markdown(&mut text, &machine, &plans, &groups, &results, &args.rounds.json)?;
    write(&args.rounds.json.with_extension("md"), &text)?;
    for figure in Figure::ALL {
        plot::comparison(&plot_file(&args.rounds.json, figure.name()), figure, &groups)?;
    }
    print!("{text}");
    Ok(results.failures.is_empty())
}

/// Writes a file whole.
///
/// # Errors
/// It cannot be written; the message names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn markdown(
    out: &mut String,
    machine: &Machine,
    plans: &[Plan],
    groups: &[Group<'_>],
    results: &Results,
    json: &Path,
) -> Written {
    writeln!(out, "# Embedded engines compared\n")?;
    let Machine { processor, cores, kernel } = machine;
    writeln!(
        out,
        "{processor}, {cores} cores, Linux {kernel}. Medians over the rounds; ratios travel, absolute figures do not."
    )?;
    writeln!(out, "How each engine is configured, and how to read this: docs/rivals.md.\n")?;
    sizes(out, plans)?;
    targets(out, &verdicts(groups))?;
    lost(out, &losses(groups))?;
    for figure in Figure::ALL {
        writeln!(out, "## {}\n", figure.title())?;
        let plot = plot_file(json, figure.name());
        writeln!(out, "![{}]({})\n", figure.title(), plot.file_name().unwrap_or_default().to_string_lossy())?;
        table(out, groups, |group| median(figures(group, figure)).map(number))?;
    }
    writeln!(out, "## Levels that hold data, L0 included\n")?;
    table(out, groups, |group| Some(group.cell().levels.to_string()))?;
    writeln!(out, "## Most memory of the process so far, MiB\n")?;
    table(out, groups, |group| Some(number(group.cell().peak_memory_bytes / f64::from(1 << 20))))?;
    writeln!(out, "## Seconds until the engine had settled after the last answer\n")?;
    table(out, groups, |group| Some(number(group.cell().settle_seconds)))?;
    counters(out, groups)?;
    failures(out, &results.failures)
}

fn sizes(out: &mut String, plans: &[Plan]) -> Written {
    writeln!(out, "| mix | records | data MiB | cache MiB | memtable KiB | operations | scans | clients |")?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for Plan { mix, records, ops, scans, data_bytes, cache_bytes, l0_bytes, threads } in plans {
        let (data, cache, l0) = (data_bytes >> 20, cache_bytes >> 20, l0_bytes >> 10);
        writeln!(out, "| {mix} | {records} | {data} | {cache} | {l0} | {ops} | {scans} | {threads} |")?;
    }
    writeln!(out)
}

fn targets(out: &mut String, verdicts: &[Verdict]) -> Written {
    writeln!(out, "## Against RocksDB\n")?;
    if verdicts.is_empty() {
        return writeln!(out, "Leeward or RocksDB is not in this comparison, or no mix that has targets.\n");
    }
    let met = verdicts.iter().filter(|verdict| verdict.met).count();
    writeln!(out, "Leeward's median over RocksDB's (lowest and highest ratio of a round), and what it is to be.")?;
    writeln!(out, "{met} of {} targets are met.\n", verdicts.len())?;
    writeln!(out, "| figure | workload | {} |", MIXES.join(" | "))?;
    writeln!(out, "|---|---|---|---|---|")?;
    for row in verdicts.chunk_by(|a, b| (a.figure, a.workload) == (b.figure, b.workload)) {
        write!(out, "| {} | {} |", row[0].figure.name(), row[0].workload)?;
        for mix in MIXES {
            match row.iter().find(|verdict| verdict.mix == mix) {
                None => write!(out, " - |")?,
                Some(Verdict { figure, ratio, range: [low, high], target, met, .. }) => {
                    let sign = if *figure == Figure::Throughput { ">=" } else { "<=" };
                    let verdict = if *met { "met" } else { "**missed**" };
                    write!(out, " {ratio:.2} ({low:.2} to {high:.2}), {sign} {target}: {verdict} |")?;
                }
            }
        }
        writeln!(out)?;
    }
    writeln!(out)
}

fn lost(out: &mut String, losses: &[Loss]) -> Written {
    writeln!(out, "## Where a rival is ahead of Leeward\n")?;
    if losses.is_empty() {
        return writeln!(out, "Nowhere in this comparison.\n");
    }
    writeln!(out, "| figure | mix | workload | leeward | best | by |\n|---|---|---|---|---|---|")?;
    for Loss { figure, workload, mix, rival, leeward, best } in losses {
        let (leeward, best) = (number(*leeward), number(*best));
        writeln!(out, "| {} | {mix} | {workload} | {leeward} | {best} | {rival} |", figure.name())?;
    }
    writeln!(out)
}

/// A row a mix and workload, a column an engine.
fn table(out: &mut String, groups: &[Group<'_>], figure: impl Fn(&Group<'_>) -> Option<String>) -> Written {
    let mut engines: Vec<EngineName> = Vec::new();
    for group in groups {
        if !engines.contains(&group.engine) {
            engines.push(group.engine);
        }
    }
    write!(out, "| mix | workload |")?;
    engines.iter().try_for_each(|engine| write!(out, " {engine} |"))?;
    writeln!(out, "\n|---|---|{}", "---|".repeat(engines.len()))?;
    for row in groups.chunk_by(|a, b| (a.mix, a.records, a.workload) == (b.mix, b.records, b.workload)) {
        let figures: Vec<Option<String>> =
            engines.iter().map(|engine| row.iter().find(|group| group.engine == *engine).and_then(&figure)).collect();
        if figures.iter().all(Option::is_none) {
            continue;
        }
        write!(out, "| {} | {} |", row[0].mix, row[0].workload)?;
        figures.into_iter().try_for_each(|figure| write!(out, " {} |", figure.unwrap_or_else(|| "-".into())))?;
        writeln!(out)?;
    }
    writeln!(out)
}

fn counters(out: &mut String, groups: &[Group<'_>]) -> Written {
    writeln!(out, "## The engine's counters of device bytes against /proc/self/io, MiB\n")?;
    writeln!(out, "| engine | mix | workload | read: kernel | engine | off by | written: kernel | engine | off by |")?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for cell in groups.iter().map(Group::cell) {
        let Some(DeviceBytes { read, written }) = cell.engine_device_bytes else { continue };
        let Cell { engine, mix, workload, device_bytes: kernel, .. } = &cell;
        write!(out, "| {engine} | {mix} | {workload} |")?;
        for (kernel, engine) in [(kernel.read, read), (kernel.written, written)] {
            let off = kernel.abs_diff(engine) as f64 / kernel.max(engine).max(1) as f64;
            let note = if off > AGREE_WITHIN { " (**more than 5 %**)" } else { "" };
            write!(out, " {} | {} | {:.1} %{note} |", kernel >> 20, engine >> 20, off * 100.0)?;
        }
        writeln!(out)?;
    }
    writeln!(out)
}

fn failures(out: &mut String, failures: &[Failed]) -> Written {
    if failures.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Runs that failed\n")?;
    for Failed { mix, records, round, engine, reason } in failures {
        writeln!(out, "- {engine}, {mix}, {records} records, round {round}: {reason}")?;
    }
    Ok(())
}
