//! Verdicts and losses are computed from medians; whether more or less is better depends on the figure.

use super::{Figure, losses, verdicts};
use crate::cells::groups;
use crate::engine::EngineName;
use crate::measurement::{DeviceBytes, Measurement};
use crate::rounds::Sample;
use crate::work::Work;
use leeward_bench::Workload;

/// A Load that took `seconds` for a million operations.
fn load(engine: EngineName, round: u32, seconds: f64) -> Sample {
    let measurement = Measurement {
        workload: Work::Ycsb(Workload::Load),
        ops: 1_000_000,
        seconds,
        settle_seconds: 0.0,
        cpu_seconds: seconds,
        user_bytes: 1000,
        device: DeviceBytes { read: 0, written: 1000 },
        engine_device: None,
        stored_bytes: 1000,
        live_bytes: 1000,
        write_latency_us: None,
        read_latency_us: None,
        levels: 3,
        peak_memory_bytes: 0,
    };
    Sample { mix: "sd".into(), records: 1_000_000, round, engine, measurement }
}

#[test]
fn a_target_is_judged_by_the_ratio_of_medians() {
    let engines = [EngineName::Leeward, EngineName::Rocksdb];
    let samples: Vec<Sample> = [1.0, 2.0, 9.0]
        .into_iter()
        .zip(1..)
        .flat_map(|(seconds, round)| [load(engines[0], round, seconds), load(engines[1], round, 8.0)])
        .collect();
    let verdicts = verdicts(&groups(&samples, &engines));
    let throughput = verdicts.iter().find(|verdict| verdict.figure == Figure::Throughput).expect("a target of Load");
    assert!((throughput.ratio - 4.0).abs() < 1e-9 && throughput.met, "{throughput:?}");
    assert!((throughput.range[0] - 8.0 / 9.0).abs() < 1e-9 && (throughput.range[1] - 8.0).abs() < 1e-9);
    let cpu = verdicts.iter().find(|verdict| verdict.figure == Figure::Cpu).expect("a target of Load");
    assert!((cpu.ratio - 0.25).abs() < 1e-9 && cpu.met, "{cpu:?}");
    let written =
        verdicts.iter().find(|verdict| verdict.figure == Figure::WriteAmplification).expect("a target of Load");
    assert!((written.ratio - 1.0).abs() < 1e-9 && !written.met, "{written:?}");
}

#[test]
fn a_loss_names_the_rival_that_is_furthest_ahead() {
    let engines = [EngineName::Leeward, EngineName::Rocksdb, EngineName::Fjall, EngineName::LeewardPgo];
    let seconds = [4.0, 3.0, 2.0, 1.0];
    let samples: Vec<Sample> =
        engines.into_iter().zip(seconds).map(|(engine, seconds)| load(engine, 1, seconds)).collect();
    let losses = losses(&groups(&samples, &engines));
    let lost: Vec<_> = losses.iter().map(|loss| (loss.figure, loss.rival)).collect();
    assert_eq!(
        lost,
        [(Figure::Throughput, EngineName::Fjall), (Figure::Cpu, EngineName::Fjall)],
        "equals are no loss, and Leeward is no rival"
    );
}
