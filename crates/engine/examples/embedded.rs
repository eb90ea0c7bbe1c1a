//! A store in a directory: writes, a batch, a scan and a snapshot. `conditional.rs` shows writes on a condition.
//!
//!     cargo run -p leeward-engine --example embedded

use leeward_engine::{Db, DbOptions, Reach, ScanBounds, SyncMode, VolumeOptions, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A program has a directory of its own; this one is removed at the end.
    let directory = tempfile::tempdir()?;
    let options = DbOptions {
        // Caches, memtables and buffers together.
        volume: VolumeOptions { memory_budget: 32 << 20, ..VolumeOptions::default() },
        // A write that returned survives a power loss. By default it survives the death of the process at once, and a
        // power loss after a second.
        sync: SyncMode::Always,
        ..DbOptions::default()
    };
    let db = Db::open(directory.path(), options)?;

    for day in 1..=5 {
        db.put(format!("wind/2024-05-{day:02}").as_bytes(), format!("{} kn", 4 * day).as_bytes())?;
    }
    // A batch is executed as a whole, or not at all.
    db.write(&[Write::delete(b"wind/2024-05-03"), Write::put(b"wind/2024-05-04", b"calm")])?;

    // A snapshot does not see what is written after it.
    let snapshot = db.snapshot();
    db.delete(b"wind/2024-05-01")?;
    println!("then: {:?}", snapshot.get(b"wind/2024-05-01", Reach::Device)?.into_value());
    println!("now:  {:?}", db.get(b"wind/2024-05-01")?);

    // A scan goes in either direction, and sees one instant. `0` comes after `/`, so these bounds are all keys that
    // begin with `wind/`.
    let bounds =
        ScanBounds { start: "wind/".into(), end: Some("wind0".into()), reverse: true, ..ScanBounds::default() };
    let mut cursor = db.scan(bounds);
    while let Some(entry) = cursor.next()? {
        println!("{} = {}", entry.key.escape_ascii(), entry.value.escape_ascii());
    }

    // The directory stays in use while a snapshot or a cursor exists.
    drop((snapshot, cursor));
    db.close()?;
    Ok(())
}
