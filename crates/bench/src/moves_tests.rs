//! How stages are evaluated.

use super::*;

fn stage(name: &'static str, ops_per_second: f64, widest_spread: f64) -> Stage {
    Stage { name, seconds: 10.0, ops_per_second, widest_spread, primaries: (4, 5) }
}

#[test]
fn each_move_is_compared_with_the_stage_before_it() {
    let stages = vec![
        stage(NO_MOVES, 1000.0, 0.5),
        stage("two servers join", 900.0, 0.04),
        stage(NO_MOVES, 1200.0, 0.04),
        stage("they leave", 960.0, 0.0),
        stage(NO_MOVES, 100.0, 0.0),
    ];
    let mut measured = Measured::new();
    measured.ops = 70_000;
    let mut moves = Moves::of(stages, &measured);
    assert!((moves.least_throughput - 0.8).abs() < 1e-9);
    assert!(moves.is_met(), "what is uneven before a move does not count");
    let text = moves.to_string();
    assert!(text.contains("| two servers join | 10.0 | 900 | 4.0 % | 4 to 5 |"), "{text}");
    assert!(text.contains("failed requests: 0 of 70000, 0 misses (should be 0: met)"), "{text}");
    assert!(text.contains("before: 0.80 (should be at least 0.7: met)"), "{text}");
    moves.requests.failed = 1;
    assert!(!moves.is_met());
    (moves.requests.failed, moves.least_throughput) = (0, 0.6);
    assert!(!moves.is_met());
    (moves.least_throughput, moves.stages[1].widest_spread) = (0.8, 0.11);
    assert!(!moves.is_met() && moves.to_string().contains("11.0 % (should be at most 10 %: MISSED)"));
}
