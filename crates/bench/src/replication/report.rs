//! The report for people, in Markdown and in plots: targets, then each experiment with the results of the papers.

use super::cells::{Sample, middle, shares, values};
use super::experiments::{self, Experiment};
use super::figure::Figure;
use super::plan::{Row, Scope};
use super::targets::{Bound, Verdict};
use super::variants::variant;
use super::{CellOptions, Failed, Options, Results};
use crate::figures::number;
use crate::machine::Machine;
use crate::plot::{Panel, Point, Series, draw};
use std::error::Error;
use std::fmt::{Result as Written, Write};
use std::path::Path;

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;

/// Figures that are drawn.
const DRAWN: [Figure; 5] =
    [Figure::Throughput, Figure::Cpu, Figure::IoAmplification, Figure::NetworkAmplification, Figure::P99];

/// The whole report. With `plots`, it includes the plots that [`draw_all`] makes.
pub(super) fn markdown(
    machine: &Machine,
    options: &Options,
    scope: &Scope,
    results: &Results,
    verdicts: &[Verdict],
    plots: bool,
) -> String {
    let mut out = String::new();
    let written = write_all(&mut out, (machine, options), scope, results, verdicts, plots);
    written.expect("writing to a string cannot fail");
    out
}

fn write_all(
    out: &mut String,
    (machine, options): (&Machine, &Options),
    scope: &Scope,
    results: &Results,
    verdicts: &[Verdict],
    plots: bool,
) -> Written {
    let Machine { processor, cores, kernel } = machine;
    writeln!(out, "# Replication compared\n")?;
    writeln!(out, "{processor}, {cores} cores, Linux {kernel}; all nodes and their clients on this machine.")?;
    writeln!(out, "Medians over {} rounds. Ratios travel, absolute figures do not.\n", options.rounds)?;
    let CellOptions { l0_kib, nodes, memory_mib, regions, threads, depth } = options.cell;
    let l0_bytes = l0_kib.map_or("as the experiments say, or of 256 KiB".into(), |kib| format!("of {kib} KiB"));
    writeln!(
        out,
        "{nodes} nodes and {regions} regions where a row has no others, L0s {l0_bytes}, {memory_mib} MiB of memory a node, \
         {threads} client threads with {depth} operations each under way. How to read this: docs/replication-bench.md.\n"
    )?;
    targets(out, verdicts)?;
    for experiment in scope.experiments() {
        let variants = scope.variants(experiment);
        let rows = scope.rows(experiment);
        if !variants.is_empty() && !rows.is_empty() {
            one(out, experiment, (&variants, &rows), &results.samples, plots)?;
        }
    }
    failures(out, &results.failures)
}

fn targets(out: &mut String, verdicts: &[Verdict]) -> Written {
    writeln!(out, "## Targets\n")?;
    if verdicts.is_empty() {
        return writeln!(out, "Nothing that was run has any.\n");
    }
    let met = verdicts.iter().filter(|verdict| verdict.met).count();
    writeln!(out, "{met} of {} are met. In brackets the lowest and highest of a round.\n", verdicts.len())?;
    writeln!(out, "| figure | of | over | workload | mix | replicas | measured | wanted | | papers |")?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|---|")?;
    for verdict in verdicts {
        let Verdict { figure, of, over, workload, mix, replicas, ratio, range: [low, high], bound, papers, .. } =
            verdict;
        let wanted = match bound {
            Bound::AtLeast(bound) => format!(">= {bound}"),
            Bound::AtMost(bound) => format!("<= {bound}"),
        };
        let met = match verdict.met {
            true => "met".into(),
            false if verdict.missed_by() < 1e3 => format!("**MISSED** by a factor of {:.2}", verdict.missed_by()),
            false => "**MISSED**".into(),
        };
        let over = over.unwrap_or("-");
        let (ratio, low, high) = (number(*ratio), number(*low), number(*high));
        writeln!(
            out,
            "| {} | {of} | {over} | {workload} | {mix} | {replicas} | {ratio} ({low} to {high}) | {wanted} | {met} | {papers} |",
            figure.name()
        )?;
    }
    writeln!(out)
}

fn one(
    out: &mut String,
    experiment: &Experiment,
    (variants, rows): (&[&'static str], &[Row]),
    samples: &[Sample],
    plots: bool,
) -> Written {
    writeln!(out, "## {}\n", experiment.title)?;
    writeln!(out, "Papers: {}\n", experiment.papers)?;
    for (what, why) in experiment.not_compared {
        writeln!(out, "- Not compared: {what}. Reason: {why}.")?;
    }
    if !experiment.not_compared.is_empty() {
        writeln!(out)?;
    }
    let phases = phases(rows);
    let is_of_it = |sample: &&Sample| rows.iter().any(|row| sample.setup == row.setup(sample.setup.variant));
    let has = |figure: &Figure| {
        let own = samples.iter().filter(is_of_it);
        !figure.is_rare() || own.into_iter().any(|sample| figure.of(&sample.phase).is_some_and(|value| value > 0.0))
    };
    for figure in Figure::ALL.into_iter().filter(has) {
        writeln!(out, "### {}\n", figure.title())?;
        if plots && DRAWN.contains(&figure) {
            writeln!(out, "![{}]({})\n", figure.title(), plot_name(experiment, figure))?;
        }
        heading(out, "workload | cell", variants)?;
        for &(workload, name) in &phases {
            for row in rows.iter().filter(|row| row.shape.work.has(workload)) {
                let of = |variant: &&'static str| {
                    let values = values(samples, row.setup(variant), workload, |phase| figure.of(phase));
                    middle(&values).map_or_else(|| "-".into(), number)
                };
                writeln!(out, "| {name} | {row} | {} |", variants.iter().map(of).collect::<Vec<_>>().join(" | "))?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "### Where the CPU time goes, seconds per million operations\n")?;
    for &(workload, name) in &phases {
        for row in rows {
            breakdown(out, (name, workload), (variants, *row), samples)?;
        }
    }
    Ok(())
}

/// Phases that the rows have, by their names in the JSON and here.
fn phases(rows: &[Row]) -> Vec<(&'static str, &'static str)> {
    experiments::phases().filter(|(name, _)| rows.iter().any(|row| row.shape.work.has(name))).collect()
}

fn heading(out: &mut String, first: &str, variants: &[&str]) -> Written {
    writeln!(out, "| {first} | {} |", variants.join(" | "))?;
    writeln!(out, "|---|---|{}", "---|".repeat(variants.len()))
}

/// CPU time of each variant by activity: Tebis table 3, Anthus table 4.3.
fn breakdown(
    out: &mut String,
    (name, workload): (&str, &str),
    (variants, row): (&[&'static str], Row),
    samples: &[Sample],
) -> Written {
    let columns: Vec<_> = variants.iter().map(|variant| shares(samples, row.setup(variant), workload)).collect();
    let mut accounts: Vec<(&str, &str)> = Vec::new();
    for share in columns.iter().flatten() {
        if !accounts.contains(&(&share.activity, &share.role)) {
            accounts.push((&share.activity, &share.role));
        }
    }
    if accounts.is_empty() {
        return Ok(());
    }
    writeln!(out, "{name}, {row}:\n")?;
    heading(out, "activity | for", variants)?;
    for (activity, role) in accounts {
        let of = |column: &Vec<super::cells::CpuShare>| {
            let share = column.iter().find(|share| share.activity == activity && share.role == role);
            share.map_or_else(|| "-".into(), |share| number(share.seconds_per_million_ops))
        };
        writeln!(out, "| {activity} | {role} | {} |", columns.iter().map(of).collect::<Vec<_>>().join(" | "))?;
    }
    writeln!(out)
}

fn failures(out: &mut String, failures: &[Failed]) -> Written {
    if failures.is_empty() {
        return Ok(());
    }
    writeln!(out, "## Cells that failed\n")?;
    for Failed { cell, round, reason } in failures {
        writeln!(out, "- {cell}, round {round}: {reason}")?;
    }
    Ok(())
}

fn plot_name(experiment: &Experiment, figure: Figure) -> String {
    format!("{}-{}.svg", experiment.name, figure.name())
}

/// Draws the plots of all experiments into `directory`.
///
/// # Errors
/// A file cannot be written.
pub(super) fn draw_all(
    directory: &Path,
    scope: &Scope,
    samples: &[Sample],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for experiment in scope.experiments() {
        let (variants, rows) = (scope.variants(experiment), scope.rows(experiment));
        for figure in DRAWN {
            let panels: Vec<Panel> = phases(&rows)
                .into_iter()
                .map(|(workload, name)| Panel {
                    title: format!("{}: {name}, {}", experiment.title, figure.title()),
                    labels: rows.iter().map(|row| label(&rows, row)).collect(),
                    points: points(&variants, &rows, samples, (workload, figure)),
                })
                .collect();
            if panels.iter().any(|panel| !panel.points.is_empty()) {
                draw(&directory.join(plot_name(experiment, figure)), &panels)?;
            }
        }
    }
    Ok(())
}

/// The label of a row: its mix, and the parameters by which it differs from other rows of its experiment.
fn label(rows: &[Row], row: &Row) -> String {
    let parameters = |row: &Row| {
        [
            ("x", row.growth_factor),
            ("r", row.replicas),
            ("regions ", row.shape.regions.unwrap_or(0)),
            ("indexed % ", row.shape.indexed_percent.unwrap_or(0)),
        ]
    };
    let mut label = row.mix.to_string();
    for (at, (name, value)) in parameters(row).into_iter().enumerate() {
        if value > 0 && rows.iter().any(|other| parameters(other)[at].1 != value) {
            write!(label, " {name}{value}").expect("writing to a string cannot fail");
        }
    }
    label
}

fn points(
    variants: &[&'static str],
    rows: &[Row],
    samples: &[Sample],
    (workload, figure): (&str, Figure),
) -> Vec<Point> {
    let mut points = Vec::new();
    for name in variants {
        let series = Series { name: (*name).to_owned(), color: variant(name).color };
        for (place, row) in rows.iter().enumerate() {
            let values = values(samples, row.setup(name), workload, |phase| figure.of(phase));
            let values: Vec<f64> = values.into_iter().map(|(_, value)| value).filter(|value| *value > 0.0).collect();
            if !values.is_empty() {
                points.push(Point { series: series.clone(), place, values });
            }
        }
    }
    points
}
