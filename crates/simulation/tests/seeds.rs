//! The seeds that CI runs. None of them fails.

use leeward_simulation::{DirectReads, Report, seeds};
use std::ops::ControlFlow;
use std::sync::Mutex;

#[test]
fn nothing_goes_wrong() {
    let ci = seeds::ci();
    let seeds = ci.len() as u64;
    let (failed, total) = (Mutex::new(Vec::new()), Mutex::new(Report::default()));
    seeds::search(ci.into_iter(), None, None, |report| {
        let mut total = total.lock().expect("no thread panics with it");
        total.answered += report.answered;
        total.compactions += report.compactions;
        total.promotions += report.promotions;
        total.splits += report.splits;
        total.merges += report.merges;
        total.piece_merges += report.piece_merges;
        total.run_merges += report.run_merges;
        total.promotions_with_pieces += report.promotions_with_pieces;
        total.splits_with_pieces += report.splits_with_pieces;
        total.compared += report.compared;
        total.faults += report.faults;
        total.again += report.again;
        total.direct += report.direct;
        total.fresh += report.fresh;
        if let Some(failure) = report.failure {
            let replay = seeds::replay_command(report.seed, None);
            failed.lock().expect("no thread panics with it").push(format!("{replay}\n    {failure}"));
        }
        ControlFlow::Continue(())
    });
    let failed = failed.into_inner().expect("no thread panics with it");
    assert!(failed.is_empty(), "{} seeds failed; repeat them:\n{}", failed.len(), failed.join("\n"));
    // A simulation in which nothing happens proves nothing.
    let total = total.into_inner().expect("no thread panics with it");
    assert!(total.answered > 1_000 * seeds && total.faults > 2 * seeds, "{total:?}");
    assert!(total.compactions > 5 * seeds && total.promotions > seeds && total.again > 3 * seeds, "{total:?}");
    assert!(total.splits > seeds / 2, "{total:?}");
    assert!(total.merges > seeds / 2, "{total:?}");
    // Two-layer logs: a third of all seeds has them at some time. Of seeds 1..=900 one in seven merges pieces (128); the
    // bound is half of that, since 277 seeds gave from 26 to 35.
    assert!(total.piece_merges > seeds / 15 && total.run_merges > seeds / 10, "{total:?}");
    assert!(total.promotions_with_pieces > seeds / 10 && total.splits_with_pieces > 0, "{total:?}");
    assert!(total.compared > seeds, "{total:?}");
    // A third of all seeds has hash indexes that clients read.
    let DirectReads { hits, asks, refused, too_old, evicted, .. } = total.direct;
    assert!(hits > 20 * seeds && asks > 20 * seeds && refused > seeds && too_old > seeds, "{total:?}");
    assert!(evicted > 2 * seeds, "{total:?}");
    // Of a third of all seeds, backups answer the scans.
    assert!(total.fresh > 10 * seeds, "{total:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in (1..=60).step_by(7) {
        let first = leeward_simulation::run(seed, None);
        assert_eq!(first, leeward_simulation::run(seed, None), "seed {seed} is not deterministic");
    }
}
