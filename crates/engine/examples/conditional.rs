//! Conditional writes: a lock that expires, and a counter that several threads increment without a lock.
//!
//!     cargo run -p leeward-engine --example conditional

use leeward_engine::{Condition, Db, DbOptions, Error, Lifetime, PutOptions};
use std::thread;

const THREADS: u64 = 4;
const ROUNDS: u64 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A program has a directory of its own; this one is removed at the end.
    let directory = tempfile::tempdir()?;
    let db = Db::open(directory.path(), DbOptions::default())?;

    // The first put gets the lock, the second does not. The lock expires after ten seconds, should its owner die.
    let lock = PutOptions { when: Condition::Absent, lifetime: Lifetime::For(10_000) };
    let first = db.put_with(b"lock", b"first", &lock)?;
    let second = db.put_with(b"lock", b"second", &lock)?;
    println!("first: {}, second: {}", first.done, second.done);

    // The owner releases the lock, if it still is the owner.
    let released = db.delete_if(b"lock", &Condition::Value("first".into()))?;
    println!("released: {}", released.done);

    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| (0..ROUNDS).try_for_each(|_| raise(&db)))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("raise does not panic"))
    })?;
    let sum = db.get(b"counter")?.expect("it was raised");
    println!("counter: {} after {} rounds", sum.escape_ascii(), THREADS * ROUNDS);
    assert_eq!(sum, (THREADS * ROUNDS).to_string());
    db.close()?;
    Ok(())
}

/// Adds 1 to the counter: reads it, and writes if no other thread has written since.
fn raise(db: &Db) -> Result<(), Error> {
    loop {
        let pair = db.get_pair(b"counter")?;
        let (count, when) = match &pair {
            Some(pair) => (parse(&pair.value), Condition::Version(pair.version)),
            None => (0, Condition::Absent),
        };
        let options = PutOptions { when, ..PutOptions::default() };
        if db.put_with(b"counter", (count + 1).to_string().as_bytes(), &options)?.done {
            return Ok(());
        }
    }
}

fn parse(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("only this program writes it")
}
