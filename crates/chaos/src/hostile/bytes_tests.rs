//! Hostile clients write no key that is judged, and a seed repeats their bytes.

use super::*;
use crate::workload;

/// The keys that a command writes, of one that is whole.
fn written(bytes: &[u8]) -> Vec<&[u8]> {
    let mut words = Vec::new();
    let mut rest = bytes;
    let line = |bytes: &[u8]| bytes.windows(2).position(|pair| pair == b"\r\n").expect("a line");
    rest = &rest[line(rest) + 2..];
    while !rest.is_empty() {
        let end = line(rest);
        let length: usize = std::str::from_utf8(&rest[1..end]).expect("a number").parse().expect("a length");
        words.push(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 2 + length + 2..];
    }
    match words[0] {
        b"SET" | b"APPEND" | b"SETRANGE" => vec![words[1]],
        b"MSET" => words[1..].iter().step_by(2).copied().collect(),
        b"DEL" => words[1..].to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn only_keys_of_their_own_are_written_and_all_of_them_are_deleted() {
    let mut script = Script::new(Rng::new(1));
    let delete = delete_all();
    let deleted = written(&delete);
    let mut writes = 0;
    for _ in 0..400 {
        let giant = script.giant(true);
        if giant.starts_with(b"*1000000000") || giant.ends_with(b"$9999999999\r\n") || giant.len() < 10 {
            continue;
        }
        for key in written(&giant) {
            writes += 1;
            assert!(key.starts_with(PREFIX.as_bytes()));
            // A key that is too long is refused.
            assert!(key.len() > MAX_KEY_BYTES || deleted.contains(&key), "{} bytes stay", key.len());
        }
    }
    assert!(writes > 100 && deleted.iter().all(|key| key.starts_with(PREFIX.as_bytes())));
    assert!(written(&large_value()).iter().all(|key| deleted.contains(key)));
    assert!((0..workload::regions()).all(|region| !workload::filling_key(region, 1).starts_with(PREFIX.as_bytes())));
}

#[test]
fn without_writes_nothing_is_stored() {
    let mut script = Script::new(Rng::new(2));
    for _ in 0..300 {
        let giant = script.giant(false);
        let names = ["MSET", "SET", "APPEND", "SETRANGE"];
        assert!(
            !names
                .iter()
                .any(|name| giant.windows(name.len() + 2).any(|part| part == format!("{name}\r\n").as_bytes()))
        );
    }
}

#[test]
fn a_seed_gives_the_same_bytes_and_what_is_sent_is_bounded() {
    let sent = |seed| {
        let mut script = Script::new(Rng::new(seed));
        (0..200).map(|_| (script.garbage(), script.flood())).collect::<Vec<_>>()
    };
    assert_eq!(sent(3), sent(3));
    assert_ne!(sent(3), sent(4));
    assert!(sent(3).iter().all(|(garbage, flood)| garbage.len() < 64 << 10 && flood.len() < 64 << 10));
}
