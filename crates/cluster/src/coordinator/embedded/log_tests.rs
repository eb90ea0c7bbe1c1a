//! Every cut of and every kind of damage to the log's file, and compaction.

use super::*;
use bytes::Bytes;
use leeward_format::coordinator::CoordinatorOp;
use std::os::unix::fs::MetadataExt;

fn create(tree: &mut Tree, number: u32) -> LogEntry {
    let op = CoordinatorOp::Create { path: format!("/{number}"), value: Bytes::from(vec![7; 50]), ephemeral: false };
    tree.apply(None, &op).unwrap();
    LogEntry::Applied { session: None, op }
}

/// A log of a snapshot and three batches: its bytes, where each batch begins, and the tree after each.
fn written(directory: &Path) -> (Vec<u8>, Vec<usize>, Vec<Tree>) {
    let (mut log, mut tree) = Log::open(directory).unwrap();
    let mut offsets = vec![0, log.bytes as usize];
    let mut trees = vec![tree.clone()];
    for batch in 0..3 {
        let entries = (0..2).map(|number| create(&mut tree, batch * 2 + number)).collect();
        log.append(entries).unwrap();
        offsets.push(log.bytes as usize);
        trees.push(tree.clone());
    }
    let mut content = std::fs::read(directory.join("coordinator.log")).unwrap();
    assert!(content.len() as u64 >= log.bytes + LEAST_ROOM_BYTES);
    assert!(content.drain(log.bytes as usize..).all(|byte| byte == 0), "there is room after the last batch");
    (content, offsets, trees)
}

#[test]
fn a_log_cut_anywhere_holds_the_batches_before_the_cut() {
    let directory = tempfile::tempdir().unwrap();
    let (content, offsets, trees) = written(directory.path());
    assert_eq!(offsets.last(), Some(&content.len()));
    let path = directory.path().join("coordinator.log");
    for cut in offsets[1]..=content.len() {
        std::fs::write(&path, &content[..cut]).unwrap();
        let whole = offsets.iter().filter(|offset| **offset <= cut).count() - 2;
        let (mut log, mut tree) = Log::open(directory.path()).unwrap();
        assert_eq!(tree, trees[whole], "cut at {cut}");
        let after = std::fs::read(&path).unwrap().split_off(offsets[whole + 1]);
        assert!(after.into_iter().all(|byte| byte == 0), "a torn batch is cut off");
        let entry = create(&mut tree, 100);
        log.append(vec![entry]).unwrap();
        drop(log);
        assert_eq!(Log::open(directory.path()).unwrap().1, tree);
    }
    for cut in 0..offsets[1] {
        std::fs::write(&path, &content[..cut]).unwrap();
        assert!(matches!(Log::open(directory.path()), Err(HostError::Damaged { offset: 0, .. })), "cut at {cut}");
    }
}

/// A batch is torn where there is room: zeroes follow it.
#[test]
fn a_batch_that_is_torn_within_the_room_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let (content, offsets, trees) = written(directory.path());
    let path = directory.path().join(LOG_FILE);
    let last = offsets.len() - 2;
    for cut in offsets[last] + 1..content.len() {
        let mut torn = content[..cut].to_vec();
        torn.resize(content.len() + 100, 0);
        std::fs::write(&path, &torn).unwrap();
        let (mut log, mut tree) = Log::open(directory.path()).unwrap();
        // The last bytes of a batch may be zeroes.
        assert!(tree == trees[last - 1] || content[cut..].iter().all(|byte| *byte == 0), "cut at {cut}");
        let entry = create(&mut tree, 100);
        log.append(vec![entry]).unwrap();
        drop(log);
        assert_eq!(Log::open(directory.path()).unwrap().1, tree);
    }
}

#[test]
fn damage_before_the_last_batch_is_an_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let (content, offsets, trees) = written(directory.path());
    let path = directory.path().join("coordinator.log");
    for position in 0..content.len() {
        let mut damaged = content.clone();
        damaged[position] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let batch = offsets.iter().rposition(|offset| *offset <= position).unwrap();
        match Log::open(directory.path()) {
            Err(HostError::Damaged { offset, .. }) => {
                assert!(batch < 3, "byte {position}");
                assert_eq!(offset, offsets[batch] as u64);
                assert_eq!(std::fs::read(&path).unwrap(), damaged, "nothing is changed");
            }
            Ok((_, tree)) => assert_eq!((batch, &tree), (3, &trees[2]), "byte {position}: the last batch looks torn"),
            Err(other) => panic!("byte {position}: {other}"),
        }
    }
    let mut missing = content[..offsets[2]].to_vec();
    missing.extend_from_slice(&content[offsets[3]..]);
    std::fs::write(&path, missing).unwrap();
    let error = Log::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("batch 4 where 3 is due"), "{error}");
}

#[test]
fn a_directory_serves_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let first = Log::open(directory.path()).unwrap();
    let error = Log::open(directory.path()).unwrap_err();
    assert!(matches!(error, HostError::Locked { .. }), "{error}");
    drop(first);
    Log::open(directory.path()).unwrap();
}

#[test]
fn compaction_keeps_the_tree_and_bounds_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, mut tree) = Log::open(directory.path()).unwrap();
    let entry = create(&mut tree, 0);
    log.append(vec![entry]).unwrap();
    let value = Bytes::from(vec![1; 100_000]);
    for _ in 0..40 {
        let version = tree.get("/0").unwrap().0;
        let op = CoordinatorOp::Set { path: "/0".into(), value: value.clone(), version };
        tree.apply(None, &op).unwrap();
        log.append(vec![LogEntry::Applied { session: None, op }]).unwrap();
        log.compact_if_due(&tree).unwrap();
        assert!(log.bytes < MIN_COMPACTION_BYTES + 200_000);
    }
    let length = std::fs::metadata(directory.path().join("coordinator.log")).unwrap().len();
    assert!((log.bytes..=log.bytes + ROOM_BYTES).contains(&length), "{length} bytes for a log of {}", log.bytes);
    drop(log);
    // An interrupted compaction leaves a file that is never read.
    std::fs::write(directory.path().join("coordinator.log.new"), b"half").unwrap();
    let (mut log, restored) = Log::open(directory.path()).unwrap();
    assert_eq!(restored, tree);
    log.compact_if_due(&tree).unwrap();
}

#[test]
fn a_log_of_another_version_is_left_alone_and_a_file_in_the_way_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (mut content, offsets, _) = written(directory.path());
    content.truncate(offsets[1]);
    content[4] += 1;
    let path = directory.path().join("coordinator.log");
    std::fs::write(&path, &content).unwrap();
    let error = Log::open(directory.path()).unwrap_err().to_string();
    assert!(
        error.contains("frame format 2, this program reads format 1") && error.contains("another directory"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), content);
    for directory in [path.clone(), path.join("below")] {
        let error = Log::open(&directory).unwrap_err().to_string();
        assert!(error.contains("A file is where a directory should be"), "{error}");
    }
}

/// The disk has room for batches, and not for a second log.
#[test]
fn a_log_that_cannot_be_compacted_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, mut tree) = Log::open(directory.path()).unwrap();
    let new = directory.path().join(NEW_FILE);
    std::os::unix::fs::symlink("/dev/full", &new).unwrap();
    for number in 0..20 {
        let op = CoordinatorOp::Create { path: format!("/{number}"), value: vec![7; 100_000].into(), ephemeral: false };
        tree.apply(None, &op).unwrap();
        log.append(vec![LogEntry::Applied { session: None, op }]).unwrap();
        log.compact_if_due(&tree).unwrap();
        if !new.is_symlink() {
            // What was left of the new log was removed: the next one finds a full disk as well.
            std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        }
    }
    drop(log);
    assert_eq!(Log::open(directory.path()).unwrap().1, tree);
}

#[test]
fn a_log_that_failed_is_what_can_be_read_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, mut tree) = Log::open(directory.path()).unwrap();
    let entry = create(&mut tree, 1);
    log.append(vec![entry]).unwrap();
    // A batch that has no room, in part.
    let path = directory.path().join(LOG_FILE);
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[7; 30], log.bytes).unwrap();
    log.fill_disk();
    let mut refused = tree.clone();
    let entry = create(&mut refused, 2);
    log.append(vec![entry]).unwrap_err();
    assert_eq!(log.reopen().unwrap(), tree);
    let entry = create(&mut tree, 3);
    log.append(vec![entry]).unwrap();
    drop(log);
    assert_eq!(Log::open(directory.path()).unwrap().1, tree);
}

/// A node that starts writes to the log: its session, and what its regions become.
#[test]
fn a_log_has_room_ahead_of_its_end_at_any_time() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(LOG_FILE);
    let has_room = |log: &Log, when: &str| {
        let file = std::fs::metadata(&path).unwrap();
        let room = file.len().min(file.blocks() * 512);
        assert!(room >= log.bytes + LEAST_ROOM_BYTES, "{when}: {room} bytes for a log of {}", log.bytes);
    };
    let (mut log, mut tree) = Log::open(scratch.path()).unwrap();
    has_room(&log, "a new one");
    for number in 0..40 {
        let mut entries = vec![create(&mut tree, number)];
        entries.extend((1..200).map(|more| create(&mut tree, 1000 + number * 200 + more)));
        log.append(entries).unwrap();
        has_room(&log, "after a batch");
    }
    drop(log);
    let (mut log, tree) = Log::open(scratch.path()).unwrap();
    has_room(&log, "opened again");
    log.reopen().unwrap();
    has_room(&log, "written anew");
    log.compact_beyond = 0;
    log.snapshot_bytes = 0;
    log.bytes = MIN_COMPACTION_BYTES;
    log.compact_if_due(&tree).unwrap();
    has_room(&log, "compacted");
}
