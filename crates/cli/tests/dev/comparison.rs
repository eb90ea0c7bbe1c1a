//! `leeward bench replication` with real clusters: what it writes, and what it refuses to measure.

use crate::running::leeward;

/// So many that L0s of the smallest size are merged often.
const RECORDS: u32 = 40_000;
/// So many that twenty pieces become a run more than forty times: more than twenty runs are merged.
const TWICE_MERGED: u32 = 10 * RECORDS;

#[test]
fn replication_is_compared_by_clusters_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let (json, out) = (directory.path().join("result.json"), directory.path().join("out"));
    let output = leeward()
        .args(["bench", "replication", "--quick", "--only", "modes,send-index,build-index,sd", "--regions", "1"])
        .args(["--records", "40000", "--ops", "2000", "--l0-kib", "128", "--json"])
        .arg(&json)
        .arg("--out")
        .arg(&out)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("| throughput | send-index | build-index | load | sd | 2 |"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).expect("it was written")).expect("JSON");
    let cells = json["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 4, "two variants, Load A and Run A");
    for cell in cells {
        let is_sent = cell["mode"] == "send-index";
        let figure = |name: &str| cell[name].as_f64().unwrap_or_else(|| panic!("no {name}: {cell}"));
        assert!(figure("ops_per_second") > 0.0 && figure("cpu_seconds_per_million_ops") > 0.0);
        let spent = |activity: &str| {
            let parts = cell["cpu"].as_array().expect("its parts");
            let part = parts.iter().find(|part| part["activity"] == activity && part["role"] == "backup");
            part.and_then(|part| part["seconds_per_million_ops"].as_f64()).expect("every account is told")
        };
        if is_sent {
            assert_eq!((spent("compaction"), figure("backup_index_bytes_read")), (0.0, 0.0), "{cell}");
        }
        if cell["workload"] == "load" {
            assert!(spent(if is_sent { "rewriting" } else { "compaction" }) > 0.0, "{cell}");
        }
    }
    assert!(out.join("report.md").exists() && out.join("modes-throughput.svg").exists());
}

#[test]
fn data_without_levels_is_refused() {
    let output = leeward()
        .args(["bench", "replication", "--quick", "--only", "modes,send-index,s", "--records", "1000"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("refused: the data has 1 levels") && text.contains("--records"), "{text}");
}

/// Runs experiments with few records, and returns the cells of the JSON and the report.
fn small(only: &str, records: u32, more: &[&str]) -> (Vec<serde_json::Value>, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("result.json");
    let output = leeward()
        .args(["bench", "replication", "--rounds", "1", "--regions", "1", "--only", only, "--ops", "2000"])
        .args(["--records", &records.to_string(), "--json"])
        .arg(&json)
        .args(more)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).expect("it was written")).expect("JSON");
    (json["cells"].as_array().expect("cells").clone(), text)
}

/// The figure of each cell of this variant and phase.
fn figure<'a>(cells: &'a [serde_json::Value], variant: &str, workload: &str) -> &'a serde_json::Value {
    let found = cells.iter().find(|cell| cell["variant"] == variant && cell["workload"] == workload);
    found.unwrap_or_else(|| panic!("{variant}, {workload} is missing in {cells:?}"))
}

#[test]
fn two_layer_logs_are_compared_with_backups_that_sort_more() {
    let (cells, text) = small("two-layer,two-layer-20,build-index-depart,sd", TWICE_MERGED, &["--quick"]);
    let of = |variant: &str, name: &str| figure(&cells, variant, "load")[name].as_f64().expect("a figure");
    assert_eq!(figure(&cells, "two-layer-20", "load")["mode"], "two-layer-log");
    assert!(of("two-layer-20", "run_merges") >= 2.0 && of("build-index-depart", "run_merges") == 0.0, "{text}");
    // Pieces count too.
    assert!((3.0..=45.0).contains(&of("two-layer-20", "sorted_runs")), "{text}");
    for variant in ["two-layer-20", "build-index-depart"] {
        assert!(of(variant, "index_write_amplification_of_a_copy") > 0.5, "{text}");
        assert!(of(variant, "space_bytes") > 0.0 && of(variant, "backup_l0_bytes") > 0.0, "{text}");
    }
    assert!(text.contains("| throughput | two-layer-20 | build-index-depart | load | sd | 2 |"), "{text}");
    assert!(text.contains("Not compared: 2.43 times the reads"), "{text}");
}

#[test]
fn members_are_read_in_turn_where_the_ordering_degree_is_compared() {
    // Few records: with this degree each L0 is merged with the whole copy.
    let (cells, text) = small("ordering,two-layer-1,sd", RECORDS, &[]);
    let load = figure(&cells, "two-layer-1", "load");
    assert!((1.0..=2.0).contains(&load["sorted_runs"].as_f64().expect("a figure")), "{load}\n{text}");
    assert!(load["run_merges"].as_f64().expect("a figure") > 2.0, "{load}\n{text}");
    let reads = figure(&cells, "two-layer-1", "c-2");
    assert!(reads["ops_per_second"].as_f64().expect("a figure") > 0.0, "{reads}\n{text}");
    assert!(text.contains("| Run C, reads of 2 members |"), "{text}");
}

#[test]
fn five_nodes_have_five_copies() {
    let (cells, text) = small("levels,build-index-depart,sd", RECORDS, &[]);
    let replicas = |workload: &str| {
        let cells = cells.iter().filter(|cell| cell["workload"] == workload);
        cells.map(|cell| (cell["nodes"].as_u64(), cell["replicas"].as_u64())).collect::<Vec<_>>()
    };
    assert_eq!(replicas("c-3"), [(Some(5), Some(3)), (Some(5), Some(5))], "{text}");
}

#[test]
fn a_node_dies_and_another_comes_back_empty() {
    let (cells, text) = small("recovery,build-index-depart,sd", RECORDS, &[]);
    let recovery = &figure(&cells, "build-index-depart", "recovery")["recovery"];
    for name in ["outage_ms", "reads_after", "in_sync_seconds", "in_sync_speed"] {
        assert!(recovery[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {recovery}\n{text}");
    }
    assert!(text.contains("| Recovery | sd, 3 replicas, growth 8, 5 nodes, 5 regions |"), "{text}");
}

#[test]
fn a_two_layer_log_that_has_not_merged_is_refused() {
    let output = leeward()
        .args(["bench", "replication", "--quick", "--only", "two-layer,two-layer-20,sd", "--regions", "1"])
        .args(["--records", "40000", "--l0-kib", "512"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("merged all of its sorted runs") && text.contains("--records"), "{text}");
}
