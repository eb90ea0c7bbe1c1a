//! The engine as a library: writes, reads, a scan and a snapshot in a temporary directory.
//!
//! `cargo run -p leeward-engine --example embedded`

use leeward_engine::embedded::{Db, DbOptions};
use leeward_engine::{Reach, ScanBounds, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let db = Db::open(directory.path(), DbOptions::default())?;

    for day in 1..=9 {
        db.put(format!("log/2024-05-{day:02}").as_bytes(), format!("wind {} kn", 4 * day).as_bytes())?;
    }
    db.write(&[Write::delete(b"log/2024-05-03"), Write::put(b"log/2024-05-04", b"calm")])?;

    let snapshot = db.snapshot();
    db.delete(b"log/2024-05-01")?;
    println!("then: {:?}", snapshot.get(b"log/2024-05-01", Reach::Device)?);
    println!("now:  {:?}", db.get(b"log/2024-05-01")?);

    let bounds = ScanBounds { start: "log/".into(), end: Some("log/~".into()), reverse: true, ..ScanBounds::default() };
    let mut cursor = db.scan(bounds);
    while let Some(entry) = cursor.next()? {
        println!("{} = {}", String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
    }
    db.close()?;
    Ok(())
}
