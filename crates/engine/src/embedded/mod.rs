//! The engine as a library: one ordered key-value store in a directory, with threads of its own for flushes and
//! compactions.
//!
//! An acknowledged write survives the death of the process; a power loss loses at most what [`SyncMode`] says. All of
//! [`Db`] may be used from any thread. Writes are executed one after another, under one lock that is held while they
//! are copied. Writers that wait for a sync share it. The front page of the crate is written for the users of this
//! module.

mod append;
mod bulk;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod install_fault_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod space_tests;
mod stats;
mod worker;

pub use leeward_format::cluster::{CompactionMode, Placement};
pub use leeward_format::op::{Condition, Lifetime, PutOptions, Written};
pub use leeward_format::packed::Compression;

use crate::error::{Error, Result};
use crate::reads::Reach;
use crate::region::{Appended, Region, Write};
use crate::replica::Replica;
use crate::scan::{Cursor, ScanBounds};
use crate::verify::Verification;
use crate::version::{Approximation, Lookup, Snapshot};
use crate::volume::{VOLUME_NAME, Volume, VolumeOptions};
use append::TimedOut;
use bytes::Bytes;
use leeward_format::cluster::TableOptions;
use leeward_format::{Expiry, Lsn, RegionId, UnixMs, VolumeId};
use leeward_platform::{BootClock, Clock, Disk, RealDisk, Rng};
use parking_lot::Mutex;
use stats::StallClocks;
pub use stats::{Stalls, Stats};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use worker::Workers;

/// The one region of a [`Db`] that was created as one.
const REGION: RegionId = RegionId(1);

/// When writes become durable against a power loss. Acknowledged writes always survive `kill -9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Before they are acknowledged. Writers that wait share a sync.
    Always,
    /// At most this long after; a millisecond at least. The default is a second. A power loss loses only the newest
    /// writes: none while a later one survives.
    Every(Duration),
}

/// Least interval of [`SyncMode::Every`].
const LEAST_INTERVAL: Duration = Duration::from_millis(1);

/// Options of a [`Db`]. The defaults suit most programs; [`VolumeOptions::memory_budget`] is the first to change.
///
/// Some of them are kept by the store when it is created: later changes of these have no effect.
///
/// ```
/// use leeward_engine::{DbOptions, SyncMode, VolumeOptions};
///
/// let options = DbOptions {
///     volume: VolumeOptions { memory_budget: 64 << 20, ..VolumeOptions::default() },
///     sync: SyncMode::Always,
///     ..DbOptions::default()
/// };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DbOptions {
    /// The file: the size of its segments, how far it may grow, and how much memory the store takes.
    pub volume: VolumeOptions,
    /// Where values are kept. Only read when the store is made.
    pub placement: Placement,
    /// Size at which an L0 (the memtable) freezes, in bytes of memory, 64 KiB to 1 GiB. Only read when the store is
    /// made.
    pub l0_bytes: u64,
    /// Ratio between the sizes of neighbouring levels, from L1 on. Only read when the store is made.
    pub growth_factor: u32,
    /// Sorted runs of L1 from which on they are merged into L2, 1 to 6; with 1, L0s are merged with L1. Only read when
    /// the store is made.
    pub l1_runs: u32,
    /// How much of a level one compaction takes into the next. Only read when the store is made.
    pub compaction: CompactionMode,
    /// Percent of the large log that may be garbage before passing merges collect it, 1 to 90. With half as much again,
    /// it is collected for its own sake. Only read when the store is made.
    pub garbage_percent: u32,
    /// MiB that garbage collection may read and write per second while the next limit is kept; 0: unlimited. Only read
    /// when the store is made.
    pub garbage_mib_per_second: u32,
    /// Space that the large log may take, in percent of its live bytes, 105 to 1000: beyond it, writers wait for
    /// garbage collection. Only read when the store is made.
    pub max_space_percent: u32,
    /// How leaves are compressed. Only read when the store is made.
    pub compression: Compression,
    /// When writes become durable.
    pub sync: SyncMode,
}

impl Default for DbOptions {
    fn default() -> Self {
        let table = TableOptions::default();
        DbOptions {
            volume: VolumeOptions::default(),
            placement: table.placement,
            l0_bytes: table.l0_bytes,
            growth_factor: table.growth_factor,
            l1_runs: table.l1_runs,
            compaction: table.compaction,
            garbage_percent: table.garbage_percent,
            garbage_mib_per_second: table.garbage_mib_per_second,
            max_space_percent: table.max_space_percent,
            compression: table.compression,
            sync: SyncMode::Every(Duration::from_secs(1)),
        }
    }
}

/// A key's value with its version and expiry: see [`Db::get_pair`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// 0 to [`leeward_format::MAX_VALUE_BYTES`] bytes.
    pub value: Bytes,
    /// LSN of the put: another put of the key has a higher one.
    pub version: Lsn,
    /// When the pair expires, if it does.
    pub expires: Option<Expiry>,
}

/// An open store: an ordered map of keys to values in a directory.
///
/// Any number of threads may use it, through a reference or an [`Arc`]. A key has 1 to 4096 bytes, a value up to 1 MiB.
/// Keys are ordered as bytes. Dropping it does what [`Db::close`] does.
pub struct Db {
    workers: Workers,
    volume: Arc<Volume>,
    region: Arc<Region>,
    sync: SyncMode,
    /// Decides which pairs have expired.
    clock: Arc<dyn Clock>,
    /// Held by an ingest from its first step to its last: ingests are installed in the order of their LSNs.
    ingesting: Mutex<()>,
    stalls: StallClocks,
    timed_out: TimedOut,
}

impl Db {
    /// Opens the store in `directory`; creates the directory and the store if there is none. Starts four threads. After
    /// a crash it replays the records of the logs that the levels lack.
    ///
    /// # Errors
    /// - [`Error::Locked`] if another process uses the directory, or this one does: an open store, or a snapshot of a
    ///   closed one.
    /// - [`Error::Invalid`] for options that are out of range, and for the data directory of a server.
    /// - [`Error::NotAVolume`] and [`Error::OtherVersion`] for a file that this program does not read. It is not
    ///   changed.
    /// - [`Error::Damaged`], [`Error::Io`], [`Error::NoSpace`].
    pub fn open(directory: impl AsRef<Path>, options: DbOptions) -> Result<Db> {
        let directory = directory.as_ref();
        let io = |error| Error::Io {
            file: directory.display().to_string(),
            action: "open",
            offset: 0,
            source: Arc::new(error),
        };
        let disk = RealDisk::open(directory).map_err(io)?;
        Db::open_on(&disk, &directory.display().to_string(), options, Arc::new(BootClock))
    }

    /// Opens the store on `disk`, which messages call `name`. The wall time of `clock` decides which pairs have
    /// expired.
    ///
    /// # Errors
    /// As [`Db::open`].
    #[doc(hidden)]
    pub fn open_on(disk: &dyn Disk, name: &str, options: DbOptions, clock: Arc<dyn Clock>) -> Result<Db> {
        let table = table_options(&options)?;
        let lock = disk.lock().map_err(|error| cannot_open(name, error))?;
        let (volume, mut replicas) = open_volume(disk, name, options.volume)?;
        volume.keep(lock);
        // A checkpoint of a node's region is the only one of its volume, and keeps its number.
        let replica = match (replicas.pop(), replicas.len()) {
            (Some(replica), 0) => replica,
            (Some(_), others) => {
                let detail = format!("{name}: holds {} regions: this is a node's data, not a store", others + 1);
                return Err(Error::Invalid(detail));
            }
            (None, _) => Replica::create(&volume, REGION, table)?,
        };
        let exhausted = || Error::Invalid(format!("{name}: was opened two billion times: export a checkpoint of it"));
        let term = replica.position().0.next_opening().ok_or_else(exhausted)?;
        let region = replica.serve(term)?;
        if region.last_lsn() == Lsn(0) {
            // The first term of a region begins without a sync. Here it is the volume that counts the terms: after a
            // power loss it must not begin this one again.
            volume.sync()?;
        }
        // A store without replicas has committed everything that it has.
        region.set_commit(region.last_lsn());
        if options.sync != SyncMode::Always {
            region.commit_written();
        }
        let workers = Workers::start(&region, options.sync, &clock)?;
        Ok(Db {
            workers,
            volume,
            region,
            sync: options.sync,
            clock,
            ingesting: Mutex::new(()),
            stalls: StallClocks::default(),
            timed_out: TimedOut::new(),
        })
    }

    /// Sets `key`, 1 to 4096 bytes, to `value`, up to 1 MiB, without expiry. Waits while compactions or flushes are
    /// behind.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a key or a value over the limits. Nothing was written.
    /// - [`Error::NoSpace`] if the device or [`VolumeOptions::capacity_bytes`] is used up. Nothing was written.
    /// - [`Error::Io`], [`Error::VolumeFailed`] or [`Error::Panicked`]: the write may be there when the store is opened
    ///   again.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(&[Write::put(key, value)])
    }

    /// Sets `key` to `value` as `options` say: if a condition holds, with a lifetime, or both. Returns whether it did.
    ///
    /// The condition is decided on the newest pair, and no other write comes between. Later reads do not see an expired
    /// pair; compactions free its space. Expiry goes by the wall clock: if the clock is set back, an expired pair that
    /// no compaction has dropped yet may be seen again.
    ///
    /// ```
    /// # use leeward_engine::{Condition, Db, DbOptions, Lifetime, PutOptions};
    /// # use std::time::Duration;
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// let forever = db.put_with(b"n", b"1", &PutOptions { when: Condition::Absent, ..PutOptions::default() })?;
    /// assert!(forever.done);
    /// // Another writer would have changed the version.
    /// let when = Condition::Version(forever.version.expect("it was put"));
    /// assert!(db.put_with(b"n", b"2", &PutOptions { when, lifetime: Lifetime::For(1) })?.done);
    /// std::thread::sleep(Duration::from_millis(2));
    /// assert_eq!(db.get(b"n")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn put_with(&self, key: &[u8], value: &[u8], options: &PutOptions) -> Result<Written> {
        if options.when == Condition::Always && options.lifetime != Lifetime::AsBefore {
            let expires = options.lifetime.expiry(None, self.now());
            let version = self.write_all(&[Write { expires, ..Write::put(key, value) }])?;
            return Ok(Written { done: true, version: Some(version) });
        }
        self.write_if(Write::put(key, value), options.lifetime, &options.when)
    }

    /// Removes `key` if it exists and the condition holds. Returns whether it did.
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn delete_if(&self, key: &[u8], when: &Condition) -> Result<Written> {
        self.write_if(Write::delete(key), Lifetime::Forever, when)
    }

    /// Decides on the newest pair of the key, and tries again if another write changed the pair meanwhile.
    fn write_if(&self, mut write: Write<'_>, lifetime: Lifetime, when: &Condition) -> Result<Written> {
        loop {
            let (since, now) = (self.region.moment(), self.now());
            let (lsn, pair) = match self.region.get(write.key, Reach::Device, &|| now)? {
                Lookup::Found { lsn, expires, value } => (lsn, Some((value, expires))),
                Lookup::Deleted { lsn } => (lsn, None),
                _ => (Lsn(0), None),
            };
            let has_something_to_do = pair.is_some() || write.value.is_some();
            if !has_something_to_do || !when.holds(pair.as_ref().map(|(value, _)| (lsn, &value[..]))) {
                // The reported result must not be undone by a crash.
                self.commit(lsn)?;
                return Ok(Written { done: false, version: pair.map(|_| lsn) });
            }
            write.expires = lifetime.expiry(pair.and_then(|(_, expires)| expires), now);
            let appended = self.append(write.makes_room(), |region| region.append_unchanged(&write, since))?;
            if let Some(appended) = appended {
                self.finish(&appended)?;
                return Ok(Written { done: true, version: write.value.map(|_| appended.last) });
            }
        }
    }

    /// Removes `key`, whether or not it exists.
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.write(&[Write::delete(key)])
    }

    /// Removes every key from `start` up to, but without, `end`. An empty start and no end are no bounds. Costs one
    /// record for any number of keys; later compactions free their space.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.put(b"log/1", b"calm")?;
    /// db.put(b"log/2", b"gale")?;
    /// db.delete_range(b"log/", Some(b"log/2"))?;
    /// assert_eq!(db.multi_get(&[b"log/1", b"log/2"])?, [None, Some("gale".into())]);
    /// assert!(db.delete_range(b"z", Some(b"a")).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is empty or reversed, or a bound over the limit of a key; otherwise as
    /// [`Db::put`].
    pub fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.write(&[Write::delete_range(start, end)])
    }

    /// Executes all of `writes`, or none even after a crash. Of two writes of one key the later one counts. Waits
    /// while compactions or flushes are behind.
    ///
    /// The records of a batch in one log must fit a segment, 2 MiB by default: see [`VolumeOptions::segment_bytes`].
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions, Write};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.write(&[Write::delete(b"from"), Write::put(b"to", b"1")])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::put`]; also [`Error::Invalid`] for a batch that is empty, too large, or deletes more than 1024 ranges.
    pub fn write(&self, writes: &[Write<'_>]) -> Result<()> {
        self.write_all(writes).map(drop)
    }

    /// Returns the LSN of the last of them.
    fn write_all(&self, writes: &[Write<'_>]) -> Result<Lsn> {
        let appended = self.append(writes.iter().all(Write::makes_room), |region| region.append(writes))?;
        self.finish(&appended)?;
        Ok(appended.last)
    }

    /// Makes everything up to `lsn` as durable as acknowledged writes must be, and shows it to readers.
    fn commit(&self, lsn: Lsn) -> Result<()> {
        if self.region.commit() >= lsn {
            return Ok(());
        }
        if self.sync == SyncMode::Always {
            // Writers that wait for a sync share it. Another may have synced this as well.
            if self.region.synced_lsn() < lsn {
                self.region.sync_tails()?;
            }
        } else {
            self.region.write_tails()?;
        }
        self.region.set_commit(lsn);
        Ok(())
    }

    /// Ends a write that was appended.
    fn finish(&self, appended: &Appended) -> Result<()> {
        if !appended.is_committed {
            self.commit(appended.last)?;
        }
        if appended.wants_upkeep {
            self.workers.call();
        }
        if !appended.pause.is_zero() {
            std::thread::sleep(appended.pause);
            self.stalls.slowed.add(appended.pause);
        }
        Ok(())
    }

    fn now(&self) -> UnixMs {
        UnixMs(self.clock.unix_ms())
    }

    /// The value of `key`; `None` if there is none.
    ///
    /// # Errors
    /// The device fails ([`Error::Io`]) or holds damaged bytes ([`Error::Damaged`]).
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.get_pair(key)?.map(|pair| pair.value))
    }

    /// The value of `key` with its version and its expiry.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn get_pair(&self, key: &[u8]) -> Result<Option<Pair>> {
        match self.region.read(key, Reach::Device, &|| self.now())? {
            Lookup::Found { lsn, expires, value } => Ok(Some(Pair { value, version: lsn, expires })),
            _ => Ok(None),
        }
    }

    /// The values of `keys`, in their order, as of one instant. Pairs that are not in memory are read from the device
    /// several at a time: much faster than one [`Db::get`] after the other.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.put(b"a", b"1")?;
    /// let values = db.multi_get(&[b"b", b"a"])?;
    /// assert_eq!(values, [None, Some("1".into())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::get`], for any of the keys.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        Ok(self.snapshot().get_many(keys)?.into_iter().map(Lookup::into_value).collect())
    }

    /// The store as of now: later writes do not change what the snapshot returns. Costs next to nothing.
    pub fn snapshot(&self) -> Snapshot {
        self.region.snapshot(self.region.commit(), self.now())
    }

    /// A cursor over the pairs within `bounds`, in key order, as of now. It reads on demand, at most 128 pairs ahead.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions, ScanBounds};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// for key in [b"a", b"b", b"c"] {
    ///     db.put(key, b"")?;
    /// }
    /// let mut cursor = db.scan(ScanBounds { start: "b".into(), ..ScanBounds::default() });
    /// assert_eq!(cursor.next()?.expect("b is there").key, "b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(&self, bounds: ScanBounds) -> Cursor {
        if self.region.scans_call() {
            self.workers.call();
        }
        self.snapshot().cursor(bounds)
    }

    /// Approximate number and bytes of the pairs with keys from `start` up to, but without, `end`; without an end, of
    /// all from `start` on. Reads index nodes, and at most two leaves of each level.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// for key in [b"a", b"b", b"c"] { db.put(key, b"123")?; }
    /// let found = db.approximate(b"b", None)?;
    /// assert_eq!((found.pairs, found.bytes), (2, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn approximate(&self, start: &[u8], end: Option<&[u8]>) -> Result<Approximation> {
        self.region.approximate(start, end)
    }

    /// Makes everything written so far durable against a power loss. With [`SyncMode::Always`] it is already.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::VolumeFailed`] if the device fails, [`Error::NoSpace`].
    pub fn sync(&self) -> Result<()> {
        self.region.sync_tails().map(drop)
    }

    /// Reads everything on the device and checks every checksum, while all other operations continue. Unreadable parts
    /// are reported as damage.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.put(b"key", b"value")?;
    /// assert!(db.verify().damaged.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn verify(&self) -> Verification {
        self.volume.verify()
    }

    /// Stops the threads and makes everything durable. Dropping does the same, and does not report a failure. Snapshots
    /// and cursors stay readable; the directory stays in use until they are dropped.
    ///
    /// # Errors
    /// As [`Db::sync`].
    pub fn close(mut self) -> Result<()> {
        self.workers.stop();
        self.sync()
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.workers.stop();
        if self.region.is_unsynced()
            && let Err(error) = self.sync()
        {
            tracing::warn!(%error, "the last writes may not survive a power loss");
        }
    }
}

fn open_volume(disk: &dyn Disk, name: &str, options: VolumeOptions) -> Result<(Arc<Volume>, Vec<Replica>)> {
    let file = disk.open(VOLUME_NAME).map_err(|error| cannot_open(name, error))?;
    Volume::open(file, VolumeId(Rng::from_entropy().u64()), options)
}

fn cannot_open(name: &str, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::Locked(name.to_owned()),
        _ => Error::Io { file: name.to_owned(), action: "open", offset: 0, source: Arc::new(error) },
    }
}

/// Checks all options; returns the table options of the store.
fn table_options(options: &DbOptions) -> Result<TableOptions> {
    if let SyncMode::Every(interval) = options.sync
        && interval < LEAST_INTERVAL
    {
        let detail =
            format!("sync every {interval:?}: must be at least {LEAST_INTERVAL:?}; SyncMode::Always syncs each write");
        return Err(Error::Invalid(detail));
    }
    let table = TableOptions {
        placement: options.placement,
        replicas: 1,
        min_in_sync: 1,
        l0_bytes: options.l0_bytes,
        growth_factor: options.growth_factor,
        l1_runs: options.l1_runs,
        compaction: options.compaction,
        garbage_percent: options.garbage_percent,
        garbage_mib_per_second: options.garbage_mib_per_second,
        max_space_percent: options.max_space_percent,
        compression: options.compression,
        // Options of replication.
        ..TableOptions::default()
    };
    table.check().map_err(Error::Invalid)?;
    Ok(table)
}

#[cfg(test)]
mod tests;
