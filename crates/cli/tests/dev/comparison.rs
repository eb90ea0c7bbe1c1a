//! `leeward bench replication` with real clusters: what it writes, and what it refuses to measure.

use crate::running::leeward;

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
