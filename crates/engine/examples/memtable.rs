//! Times inserts, look-ups and steps of an L0, in nanoseconds each, the best of some rounds. Keys of 24 bytes in random
//! order end in 20 decimal digits, or in 16 hexadecimal ones; tables have about the default size. To compare two
//! versions, run them in turn.
//!
//!     cargo run --release -p leeward-engine --example memtable

use leeward_engine::memtable::{Entry, MemTable};
use leeward_format::Lsn;
use std::hint::black_box;
use std::time::{Duration, Instant};

const ENTRIES: u64 = 50_000;
const ROUNDS: u64 = 40;

fn scattered(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0x2545_f491_4f6c_dd1d)
}

fn main() {
    measure("decimal", |n| format!("user{:020}", scattered(n)));
    measure("hexadecimal", |n| format!("user-id:{:016x}", scattered(n)));
}

fn measure(what: &str, key: impl Fn(u64) -> String) {
    let (mut insert, mut get, mut walk) = (Duration::MAX, Duration::MAX, Duration::MAX);
    let mut table = MemTable::new();
    let mut bytes = 0;
    for round in 0..ROUNDS {
        let keys: Vec<_> = (0..ENTRIES).map(|n| key(round * ENTRIES + n).into_bytes()).collect();
        let started = Instant::now();
        for (lsn, key) in (1..).zip(&keys) {
            table.insert(key, Lsn(lsn), Entry::InPlace(&key[..9]));
        }
        insert = insert.min(started.elapsed());
        let started = Instant::now();
        for at in 0..ENTRIES {
            let key = &keys[(at * 7919 % ENTRIES) as usize];
            assert!(black_box(table.get(key, Lsn(u64::MAX))).is_some());
        }
        get = get.min(started.elapsed());
        let started = Instant::now();
        let mut cursor = table.cursor(Lsn(u64::MAX));
        cursor.seek(&[]);
        while black_box(cursor.current()).is_some() {
            cursor.step();
        }
        walk = walk.min(started.elapsed());
        bytes = table.bytes();
        table = MemTable::new();
    }
    let each = |time: Duration| time.as_nanos() as f64 / ENTRIES as f64;
    println!(
        "{what}: insert {:.0} ns, get {:.0} ns, step {:.0} ns, {} bytes",
        each(insert),
        each(get),
        each(walk),
        bytes / ENTRIES
    );
}
