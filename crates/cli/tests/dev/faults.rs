//! `leeward bench faults` with a real cluster: primaries die while the table changes, and nothing is lost.

use crate::running::leeward;

#[test]
fn nothing_is_lost_while_modes_change_and_primaries_die() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("result.json");
    let output = leeward()
        .args(["bench", "faults", "--only", "send-index,3", "--kills", "0", "--kill-primary-every", "0.1"])
        .args(["--records", "3000", "--regions", "2", "--depth", "8", "--json"])
        .arg(&json)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("kill 6: node") && text.contains("1 runs, 0 failed"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("it is JSON");
    let run = &report["runs"][0];
    let figures = ["kills", "changes", "errors", "lost_writes", "replica_faults"].map(|name| run[name].as_u64());
    assert_eq!(figures, [6, 6, 0, 0, 0].map(Some), "{run}");
}
