//! The plan of a comparison: which clusters are run. Data; any thread.
//!
//! A variant is a line of [`VARIANTS`], an experiment one of [`EXPERIMENTS`]. A cell of several experiments is measured
//! once.

use super::experiments::{EXPERIMENTS, Experiment, Grid, Shape};
use super::variants::{VARIANTS, variant};
use crate::keys::Mix;
use crate::options::STALE;
use leeward_format::cluster::{Addressing, Reads, TableOptions};
use std::fmt;

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

/// The parameters of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) variant: &'static str,
    pub(crate) mix: Mix,
    pub(crate) replicas: u32,
    pub(crate) growth_factor: u32,
    pub(crate) shape: Shape,
}

impl Setup {
    /// A variant without backups has one replica, whatever `replicas` is.
    pub(crate) fn new(variant_name: &'static str, mix: Mix, replicas: u32, growth_factor: u32) -> Setup {
        let replicas = if variant(variant_name).mode == "none" { 1 } else { replicas };
        Setup { variant: variant_name, mix, replicas, growth_factor, shape: Shape::PAPERS }
    }

    /// Options of its table.
    pub(crate) fn table(self, l0_bytes: u64) -> TableOptions {
        let Setup { replicas, growth_factor, .. } = self;
        let variant = variant(self.variant);
        // As in the papers, unless the variant changes it.
        let addressing = Addressing::Physical;
        let mut table = TableOptions { replicas, growth_factor, l0_bytes, addressing, ..variant.preset.options() };
        (variant.change)(&mut table);
        if self.shape.work.read_members() > 1 {
            table.reads.stale = Reads::Any { max_staleness_ms: STALE.as_millis() as u32 };
        }
        table.min_in_sync = table.replicas / 2 + 1;
        table
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { variant, mix, replicas, growth_factor, shape } = self;
        write!(f, "{variant}, mix {mix}, {replicas} replicas, growth factor {growth_factor}{shape}")
    }
}

/// A row of an experiment's tables: the parameters that its variants share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) mix: Mix,
    pub(crate) replicas: u32,
    pub(crate) growth_factor: u32,
    pub(crate) shape: Shape,
}

impl Row {
    pub(crate) fn setup(self, variant: &'static str) -> Setup {
        Setup { shape: self.shape, ..Setup::new(variant, self.mix, self.replicas, self.growth_factor) }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { mix, replicas, growth_factor, shape } = self;
        write!(f, "{mix}, {replicas} replicas, growth {growth_factor}{shape}")
    }
}

/// What it says beside the options.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [(self.nodes, "nodes"), (self.regions, "regions"), (self.indexed_percent, "% of the pairs indexed")];
        parts
            .iter()
            .filter_map(|(count, what)| Some((count.as_ref()?, what)))
            .try_for_each(|(n, what)| write!(f, ", {n} {what}"))
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
        experiment.grids.iter().flat_map(|grid| self.rows_of(grid)).collect()
    }

    fn rows_of(&self, grid: &Grid) -> Vec<Row> {
        let mut rows = Vec::new();
        for &replicas in grid.replicas.iter().filter(|replicas| wants(&self.replicas, replicas)) {
            for &mix in grid.mixes.iter().filter(|mix| wants(&self.mixes, mix)) {
                let row = |&growth_factor| Row { mix, replicas, growth_factor, shape: grid.shape };
                rows.extend(grid.growth_factors.iter().map(row));
            }
        }
        rows
    }

    /// Rows of `experiment` that are run, each with its variants.
    fn cells(&self, experiment: &Experiment) -> Vec<(Row, Vec<&'static str>)> {
        let variants = self.variants(experiment);
        let of_grid = |grid: &Grid| {
            let variants: Vec<_> = variants.iter().copied().filter(|name| wants(grid.variants, name)).collect();
            self.rows_of(grid).into_iter().map(move |row| (row, variants.clone()))
        };
        experiment.grids.iter().flat_map(of_grid).collect()
    }

    /// All clusters, each once, in groups of those that are compared with each other.
    pub(crate) fn setups(&self) -> Vec<Vec<Setup>> {
        let mut seen: Vec<Setup> = Vec::new();
        let mut groups: Vec<(Row, Vec<Setup>)> = Vec::new();
        for experiment in self.experiments() {
            for (row, variants) in self.cells(experiment) {
                for setup in variants.into_iter().map(|variant| row.setup(variant)) {
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
