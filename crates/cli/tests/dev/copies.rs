//! `leeward checkpoint` and `leeward ingest` against real processes: ingested pairs are read back, from a checkpoint as
//! well.

use crate::running::{Dev, leeward};
use leeward_engine::embedded::{Db, DbOptions};
use std::fmt::Write;

/// Runs a command without a cluster; answers what it printed.
fn run(args: &[&str]) -> (bool, String) {
    let output = leeward().args(args).output().expect("it runs");
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn pairs_go_into_a_table_and_out_of_its_checkpoint() {
    let dev = Dev::start(3, &[]);
    dev.leeward(&["table", "create", "copied", "--split-at", "m", "--l0-kib", "64"]);
    let mut lines = String::new();
    for number in 0..3_000 {
        let side = if number < 1_500 { 'a' } else { 'z' };
        writeln!(lines, "{side}{number:05}\t{}", "v\\t".repeat(number % 90)).expect("writing to memory");
    }
    let file = dev.directory.path().join("pairs.txt");
    std::fs::write(&file, &lines).expect("it is written");
    let path = file.to_str().expect("a path");
    assert_eq!(dev.leeward(&["ingest", path, "--table", "copied"]), "3000 pairs\n");
    assert_eq!(dev.leeward(&["scan", "--table", "copied"]), lines);
    let described = dev.leeward(&["table", "describe", "copied"]);
    assert!(described.contains("about 3") && described.contains("KiB of keys and values"), "{described}");

    let made = dev.leeward(&["checkpoint", "monday", "--table", "copied"]);
    dev.leeward(&["del", "--table", "copied", "--from", "a"]);
    let paths: Vec<&str> =
        made.lines().skip(1).map(|line| line.split_whitespace().last().expect("the path is last")).collect();
    assert_eq!(paths.len(), 2, "{made}");
    for path in &paths {
        let (is_sound, text) = run(&["verify", path]);
        assert!(is_sound, "{text}");
        let db = Db::open(path, DbOptions::default()).expect("the copy is a store");
        assert!(db.get(b"a00001").expect("it reads").is_some() != db.get(b"z01501").expect("it reads").is_some());
        db.close().expect("it closes");
        assert_eq!(dev.leeward(&["ingest", "--from-store", path, "--table", "copied"]), "1500 pairs\n");
    }
    assert_eq!(dev.leeward(&["scan", "--table", "copied"]), lines);

    let native = format!("127.0.0.1:{}", dev.base + 100);
    let fails = |args: &[&str]| {
        let (is_done, text) = run(&[args, &["--connect", &native]].concat());
        assert!(!is_done, "{text}");
        text
    };
    std::fs::write(&file, "b\t1\na\t2\n").expect("it is written");
    let text = fails(&["ingest", path, "--table", "copied"]);
    assert!(text.contains("pairs.txt, line 2: key \"a\" does not come after the one before"), "{text}");
    assert!(fails(&["checkpoint", "../up", "--table", "copied"]).contains("a name has 1 to 64 letters"));
    assert!(fails(&["checkpoint", "x", "--table", "none"]).contains("there is no table none"));
    dev.stop();
}
