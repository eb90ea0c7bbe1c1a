//! Cost by size: Load of growing data sets. The figure is the throughput of each engine with the largest data set over
//! that with the smallest.

use crate::Failure;
use crate::args::{ScaleArgs, SizeArgs};
use crate::cells::{Cell, Group, groups};
use crate::engine::EngineName;
use crate::plan::Plan;
use crate::plot::series;
use crate::report::write;
use crate::rounds::{self, Failed, Sample};
use crate::targets::{Figure, figures};
use crate::work::Work;
use leeward_bench::{Machine, Mix, Panel, Point, Workload, draw as draw_panels, median, plot_file};
use serde::Serialize;
use std::fmt::{Result as Written, Write};

/// The JSON. Names in it are stable; others may be added.
#[derive(Serialize)]
struct Json<'a> {
    machine: Machine,
    cells: Vec<Cell>,
    falls: &'a [Fall],
    failures: &'a [Failed],
    samples: &'a [Sample],
}

/// How throughput changes with the size of the data set.
#[derive(Clone, Debug, Serialize)]
struct Fall {
    mix: String,
    engine: EngineName,
    /// Records and operations a second, ascending.
    throughput: Vec<(u64, f64)>,
    /// Throughput of the largest data set over that of the smallest.
    ratio: f64,
}

/// Runs Load at every size and writes JSON, report and plot; returns whether no run failed.
///
/// # Errors
/// Invalid options, or a file that cannot be written.
pub(crate) fn scale(args: &ScaleArgs) -> Result<bool, Failure> {
    if args.record_counts.is_empty() || !args.record_counts.is_sorted() {
        return Err("--record-counts: one or more numbers, ascending".into());
    }
    let plans = args.mix.iter().map(|mix| plans(*mix, args)).collect::<Result<Vec<_>, _>>()?.concat();
    let results = rounds::run(&plans, &[Work::Ycsb(Workload::Load)], &args.rounds)?;
    let groups = groups(&results.samples, &args.rounds.engines);
    let falls = falls(&groups, &args.rounds.engines);
    let json = Json {
        machine: Machine::here(),
        cells: groups.iter().map(Group::cell).collect(),
        falls: &falls,
        failures: &results.failures,
        samples: &results.samples,
    };
    write(&args.rounds.json, &(serde_json::to_string_pretty(&json)? + "\n"))?;
    let mut text = String::new();
    markdown(&mut text, &falls, &args.record_counts)?;
    for Failed { mix, records, round, engine, reason } in &results.failures {
        writeln!(text, "- failed: {engine}, {mix}, {records} records, round {round}: {reason}")?;
    }
    write(&args.rounds.json.with_extension("md"), &text)?;
    draw(args, &groups)?;
    print!("{text}");
    Ok(results.failures.is_empty())
}

/// One plan for each size. All have the cache of the smallest.
fn plans(mix: Mix, args: &ScaleArgs) -> Result<Vec<Plan>, Failure> {
    let mut memory = args.memory.clone();
    let mut plans = Vec::new();
    for records in &args.record_counts {
        let plan = Plan::new(mix, &SizeArgs { records: Some(*records), ops: None, memory: memory.clone() })?;
        memory.cache_mib.get_or_insert(plan.cache_bytes >> 20);
        plans.push(plan);
    }
    Ok(plans)
}

fn falls(groups: &[Group<'_>], engines: &[EngineName]) -> Vec<Fall> {
    let mut falls: Vec<Fall> = Vec::new();
    for group in groups {
        let Some(throughput) = median(figures(group, Figure::Throughput)) else { continue };
        let point = (group.records, throughput * 1000.0);
        match falls.iter_mut().find(|fall| fall.mix == group.mix && fall.engine == group.engine) {
            Some(fall) => fall.throughput.push(point),
            None => falls.push(Fall {
                mix: group.mix.to_owned(),
                engine: group.engine,
                throughput: vec![point],
                ratio: 1.0,
            }),
        }
    }
    for fall in &mut falls {
        fall.throughput.sort_by_key(|(records, _)| *records);
        if let [(_, smallest), .., (_, largest)] = fall.throughput[..] {
            fall.ratio = largest / smallest;
        }
    }
    falls.sort_by_key(|fall| (fall.mix.clone(), engines.iter().position(|engine| *engine == fall.engine)));
    falls
}

fn markdown(out: &mut String, falls: &[Fall], counts: &[u64]) -> Written {
    writeln!(out, "# Load against the size of the data set\n")?;
    writeln!(out, "Thousands of operations a second, medians over the rounds.\n")?;
    write!(out, "| mix | engine |")?;
    counts.iter().try_for_each(|count| write!(out, " {count} records |"))?;
    writeln!(out, " largest over smallest |\n|---|---|{}---|", "---|".repeat(counts.len()))?;
    for Fall { mix, engine, throughput, ratio } in falls {
        write!(out, "| {mix} | {engine} |")?;
        for count in counts {
            match throughput.iter().find(|(records, _)| records == count) {
                Some((_, throughput)) => write!(out, " {:.0} |", throughput / 1000.0)?,
                None => write!(out, " - |")?,
            }
        }
        writeln!(out, " {ratio:.2} |")?;
    }
    writeln!(out)
}

fn draw(args: &ScaleArgs, groups: &[Group<'_>]) -> Result<(), Failure> {
    let panels: Vec<Panel> = args
        .mix
        .iter()
        .map(|mix| Panel {
            title: format!("Load, thousands of operations a second, mix {mix}, by records"),
            labels: args.record_counts.iter().map(u64::to_string).collect(),
            points: groups
                .iter()
                .filter(|group| group.mix == mix.to_string())
                .filter_map(|group| {
                    let place = args.record_counts.iter().position(|count| *count == group.records)?;
                    Some(Point { series: series(group.engine), place, values: figures(group, Figure::Throughput) })
                })
                .collect(),
        })
        .collect();
    draw_panels(&plot_file(&args.rounds.json, "load"), &panels)
}
