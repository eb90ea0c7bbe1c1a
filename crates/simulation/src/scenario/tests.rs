//! Scenarios of seeds: the seeds of CI contain every combination that can be drawn.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// A choice and the value that was drawn.
type Label = (&'static str, String);

fn of_ci() -> Vec<Scenario> {
    crate::seeds::ci().into_iter().map(Scenario::of).collect()
}

#[test]
fn seeds_differ_and_are_possible() {
    let scenarios: Vec<Scenario> = (0..400).map(Scenario::of).collect();
    let names: BTreeSet<String> = scenarios.iter().map(Scenario::name).collect();
    assert!(names.len() > 350, "only {} scenarios", names.len());
    for scenario in &scenarios {
        assert!(!scenario.fault_schedule.kinds.is_empty());
        assert!(scenario.fault_schedule.kinds.iter().all(|kind| kind.is_possible(scenario.nodes, scenario.durability)));
        assert!(scenario.nodes == 3 || scenario.durability == Durability::AllButTheLastSecond);
        assert!(table::is_possible(&scenario.table, scenario.nodes), "{}", scenario.name());
    }
}

/// Every pair of values of the table's options that the product allows in some table.
fn allowed_pairs() -> BTreeSet<(Label, Label)> {
    let choices = table::choices();
    assert_eq!(choices.len(), table::labels(&TableOptions::default()).len(), "each choice has its label, in its place");
    // The numbers of copies and members decide what else is allowed.
    let bases = (1..=3).flat_map(|replicas| (1..=replicas).map(move |min_in_sync| (replicas, min_in_sync)));
    let bases: Vec<TableOptions> = bases
        .map(|(replicas, min_in_sync)| TableOptions { replicas, min_in_sync, ..TableOptions::default() })
        .collect();
    let mut allowed = BTreeSet::new();
    for (first, second) in (0..choices.len()).flat_map(|first| (0..first).map(move |second| (first, second))) {
        for (left, right) in
            choices[first].values.iter().flat_map(|left| choices[second].values.iter().map(move |right| (left, right)))
        {
            for mut table in bases.iter().cloned() {
                left(&mut table);
                right(&mut table);
                if table::in_production(&table).check().is_ok() {
                    let labels = table::labels(&table);
                    allowed.insert((labels[first].clone(), labels[second].clone()));
                }
            }
        }
    }
    allowed
}

/// Why a seed cannot have both; `None` if one should.
fn excluded((first, one): &Label, (second, other): &Label) -> Option<&'static str> {
    let both = [(*first, one.as_str()), (*second, other.as_str())];
    let has = |name: &str, value: &str| both.contains(&(name, value));
    let has_not = |name: &str, value: &str| both.iter().any(|(known, found)| *known == name && *found != value);
    let alone = has("nodes", "1") || has("replicas", "1");
    match () {
        () if alone && (has_not("replicas", "1") || has_not("min_in_sync", "1") || has_not("quorum", "none")) => {
            Some("a node alone has one copy")
        }
        () if alone && (has_not("nodes", "1") || has_not("far", "none")) => Some("several nodes have several copies"),
        () if alone && ["balanced", "altered", "moves"].iter().any(|name| has(name, "true")) => {
            Some("of one node there is nothing to move")
        }
        () if alone && (has("durability", "Everything") || has("theme", "Network")) => Some("a node alone loses power"),
        () if has("theme", "Strand") && (has("nodes", "1") || has_not("replicas", "3")) => {
            Some("those that are left need each other")
        }
        () if (has("far", "140") && has("long_grants", "false"))
            || (has("far", "30") && has("long_grants", "true")) =>
        {
            Some("how far a member may be depends on the timeout of lease grants")
        }
        () => None,
    }
}

#[test]
fn every_pair_of_values_that_the_product_allows_occurs_in_the_seeds_of_ci() {
    let draws: Vec<Vec<Label>> = of_ci().iter().map(Scenario::draw).collect();
    let mut found: BTreeMap<(&Label, &Label), usize> = BTreeMap::new();
    for draw in &draws {
        for (position, left) in draw.iter().enumerate() {
            for right in &draw[..position] {
                *found.entry((left, right)).or_default() += 1;
            }
        }
    }
    let is_found =
        |left: &Label, right: &Label| found.contains_key(&(left, right)) || found.contains_key(&(right, left));

    // Options of the table: every pair that the product's check allows.
    let allowed = allowed_pairs();
    let missing: Vec<_> = allowed.iter().filter(|(left, right)| !is_found(left, right)).collect();
    assert!(missing.is_empty(), "{} of {} pairs do not occur: {missing:?}", missing.len(), allowed.len());
    assert!(allowed.len() > 1_000, "{}", allowed.len());

    // Pairs with every other choice, except those that the simulated world excludes.
    let labels: BTreeSet<&Label> = draws.iter().flatten().collect();
    let of_table: BTreeSet<&str> = table::labels(&TableOptions::default()).into_iter().map(|(name, _)| name).collect();
    let is_of_world = |label: &Label| !of_table.contains(label.0) && label.0 != "preset";
    let mut missing = Vec::new();
    for left in labels.iter().filter(|label| is_of_world(label)) {
        for right in labels.iter().filter(|right| right.0 != left.0 && right.0 != "preset") {
            if excluded(left, right).is_none() && !is_found(left, right) {
                missing.push((left, right));
            }
        }
    }
    assert!(missing.is_empty(), "{} pairs do not occur: {missing:?}", missing.len());
}

#[test]
fn every_preset_occurs_whole_in_the_seeds_of_ci() {
    let scenarios = of_ci();
    for preset in Preset::ALL {
        let is_it = |one: &&Scenario| {
            let TableOptions { replicas, min_in_sync, l0_bytes, growth_factor, split_bytes, .. } = one.table;
            one.table
                == TableOptions {
                    replicas,
                    min_in_sync,
                    l0_bytes,
                    growth_factor,
                    split_bytes,
                    partition: one.table.partition,
                    reads: one.table.reads,
                    ..preset.options()
                }
        };
        let alone = scenarios.iter().filter(is_it).filter(|one| one.nodes == 1).count();
        let replicated = scenarios.iter().filter(is_it).filter(|one| one.nodes > 1).count();
        assert!(alone > 0 && replicated >= 10, "{preset:?}: {replicated} replicated, {alone} not");
    }
}

#[test]
fn every_fault_strikes_under_every_value_of_every_option() {
    let scenarios = of_ci();
    let values: BTreeSet<Label> = scenarios.iter().flat_map(|one| table::labels(&one.table)).collect();
    let mut kinds = FaultKind::ALL.to_vec();
    kinds.push(FaultKind::Strand);
    for kind in kinds {
        let found: BTreeSet<Label> = scenarios
            .iter()
            .filter(|one| one.fault_schedule.kinds.contains(&kind))
            .flat_map(|one| table::labels(&one.table))
            .collect();
        let is_possible = |label: &&Label| match (label.0, label.1.as_str()) {
            ("replicas", "1") => kind.is_possible(1, Durability::AllButTheLastSecond),
            ("replicas", "2") => kind != FaultKind::Strand,
            _ => true,
        };
        let missing: Vec<_> = values.iter().filter(is_possible).filter(|label| !found.contains(*label)).collect();
        assert!(missing.is_empty(), "{kind:?} never strikes where {missing:?}");
    }
}

#[test]
fn the_seeds_of_ci_change_every_mode_beside_crashes() {
    let scenarios = of_ci();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    scenarios.iter().filter_map(Scenario::conversion).for_each(|one| *count.entry(one).or_default() += 1);
    assert!(count.len() == 12, "{count:?} of {}", scenarios.len());
}
