//! `leeward verify --replicas` against real processes whose backups build their own index: copies are compared by ranges of
//! keys, and a damaged one takes its primary's index.

use crate::running::{Dev, leeward, wait_for};
use leeward_format::segment::LogHeader;
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{TryRecvError, channel};

const SEGMENT_BYTES: usize = 2 << 20;
const MARK: &str = "7f3a-a-value-that-no-other-pair-has-91bc";

/// What `verify --replicas` says of the table, and whether it found no fault.
fn verify(dev: &Dev, args: &[&str]) -> (bool, String) {
    verify_at(&format!("127.0.0.1:{}", dev.base + 100), args)
}

fn verify_at(native: &str, args: &[&str]) -> (bool, String) {
    let output =
        leeward().args(["verify", "--replicas", "--table", "built"]).args(args).args(["--connect", native]).output();
    let output = output.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The group of the table's region.
fn group(dev: &Dev) -> serde_json::Value {
    let map = dev.status()["map"].clone();
    let mut regions = map["regions"].as_array().expect("regions").iter();
    regions.find(|group| group["table"] == "built").expect("a region").clone()
}

/// The region's primary and its backups.
fn members(dev: &Dev) -> (u64, Vec<u64>) {
    let group = group(dev);
    let server = |member: &serde_json::Value| member["server"].as_u64();
    let backups = group["backups"].as_array().expect("backups").iter().filter_map(server).collect();
    (server(&group["primary"]).unwrap_or(0), backups)
}

/// Flips a bit of the marked value in each leaf of a node's volume that has it. Returns how many there were.
fn damage_leaves(dev: &Dev, node: u64) -> usize {
    let path = dev.directory.path().join(format!("node-{node}")).join("volume");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("a volume");
    let bytes = std::fs::read(&path).expect("it is read");
    let starts = (0..bytes.len()).step_by(SEGMENT_BYTES);
    let is_of_log = |start: &usize| LogHeader::decode(&bytes[*start..]).is_ok();
    let mut found = 0;
    for start in starts.filter(|start| !is_of_log(start)) {
        let segment = &bytes[start..bytes.len().min(start + SEGMENT_BYTES)];
        let places = segment.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK.as_bytes());
        for (at, _) in places {
            file.write_all_at(&[segment[at] ^ 1], (start + at) as u64).expect("it is written");
            found += 1;
        }
    }
    found
}

#[test]
fn an_index_that_a_backup_has_built_is_proven_and_replaced_if_it_is_damaged() {
    prove_and_replace("build-index");
}

#[test]
fn a_two_layer_log_is_proven_and_replaced_if_it_is_damaged() {
    prove_and_replace("two-layer-log");
}

fn prove_and_replace(backups: &str) {
    let mut dev = Dev::start(3, &["--restart"]);
    dev.leeward(&["table", "create", "built", "--backups", backups, "--l0-kib", "64", "--compression", "none"]);
    wait_for("every member is in sync", || members(&dev).1.len() == 2);
    let mut lines = format!("a\t{MARK}\n");
    for number in 0..6_000 {
        writeln!(lines, "key{number:05}\t{}", "v".repeat(number % 90)).expect("writing to memory");
    }
    let file = dev.directory.path().join("pairs.txt");
    std::fs::write(&file, &lines).expect("it is written");
    dev.leeward(&["ingest", file.to_str().expect("a path"), "--table", "built"]);
    let (primary, backups) = members(&dev);
    let victim = backups[0];
    let mut said = String::new();
    wait_for("a damaged leaf is found", || {
        // A leaf that no saved version had, or that is compacted, is written anew and whole.
        if damage_leaves(&dev, victim) > 0 {
            // What was read before is in no cache of the process that comes after.
            dev.kill_and_wait_for_the_next(victim as u32);
            wait_for("it is in sync again", || members(&dev).1.contains(&victim));
        }
        said = verify(&dev, &[]).1;
        said.contains("cannot be read:")
    });
    assert!(said.contains("keys from \"\"") && said.contains(&format!("server {victim} cannot be read")), "{said}");
    assert!(!verify(&dev, &[]).0, "a difference is exit code 1");
    wait_for("a rebuild begins", || {
        let (is_proven, said) = verify(&dev, &["--repair"]);
        assert!(!is_proven, "{said}");
        said.contains(&format!("server {victim} takes the primary's index"))
    });
    wait_for("the copy is whole again", || {
        let found = verify(&dev, &[]);
        said_sound(&found)
    });
    assert_eq!(members(&dev).0, primary, "the region was served all the time");
    dev.stop();
}

/// All pairs are the same on all three replicas.
fn said_sound((is_sound, said): &(bool, String)) -> bool {
    *is_sound
        && said.contains("3 replicas")
        && said.contains("6001 pairs are the same")
        && !said.contains("not compared")
}

#[test]
fn every_region_can_be_compared_by_ranges() {
    let dev = Dev::start(3, &[]);
    dev.leeward(&["table", "create", "built", "--l0-kib", "64"]);
    wait_for("every member is in sync", || members(&dev).1.len() == 2);
    let lines: String = (0..6_001).map(|number| format!("key{number:05}\t{}\n", "v".repeat(number % 90))).collect();
    let file = dev.directory.path().join("pairs.txt");
    std::fs::write(&file, &lines).expect("it is written");
    dev.leeward(&["ingest", file.to_str().expect("a path"), "--table", "built"]);
    let (is_sound, plain) = verify(&dev, &[]);
    assert!(is_sound && !plain.contains("ranges"), "{plain}");
    let ranges = verify(&dev, &["--ranges"]);
    assert!(said_sound(&ranges), "{ranges:?}");
    verified_while_its_primary_moves(&dev);
    dev.stop();
}

/// A verification succeeds although the primary that it knows has handed its role over.
fn verified_while_its_primary_moves(dev: &Dev) {
    let (primary, backups) = members(dev);
    let native = format!("127.0.0.1:{}", dev.base + 100);
    std::thread::scope(|scope| {
        // Dropped at the end, also by a panic here: then the other thread ends as well.
        let (moving, moved) = channel::<()>();
        let verifier = scope.spawn(move || {
            while moved.try_recv() == Err(TryRecvError::Empty) {
                let ranges = verify_at(&native, &["--ranges"]);
                assert!(ranges.0, "{ranges:?}");
            }
        });
        for server in [backups[0], backups[1], primary] {
            let region = group(dev)["region"].to_string();
            dev.leeward(&["move", "--region", &region, "--primary", &server.to_string()]);
            wait_for("the primary has moved", || verifier.is_finished() || members(dev).0 == server);
        }
        drop(moving);
    });
}
