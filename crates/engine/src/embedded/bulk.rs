//! Bulk operations of a store: ingests of sorted pairs, and checkpoints. Any thread.

use super::Db;
use crate::error::{Error, Result};
use crate::region::{Checkpoint, CheckpointInfo, Region};
use leeward_format::VolumeId;
use leeward_platform::{Disk, RealDisk, Rng};
use std::path::Path;
use std::sync::Arc;

impl Db {
    /// Ingests pairs in ascending order of their keys, all or none, durably. Segments are built of them directly, past
    /// the logs and the L0, and become part of the store by one edit, without a merge. The pairs are newer than all writes
    /// before the call, and older than writes during it. All of them have one [version](super::Pair::version). Returns the
    /// number of pairs. Other threads read and write meanwhile, and compactions go on.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// let pairs = (0..10_000u32).map(|n| (n.to_be_bytes(), format!("value {n}")));
    /// assert_eq!(db.ingest(pairs)?, 10_000);
    /// assert_eq!(db.get(&77u32.to_be_bytes())?.as_deref(), Some(&b"value 77"[..]));
    /// assert!(db.ingest([("b", ""), ("a", "")]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that does not come after the one before, or is over the limits; [`Error::NoSpace`]
    /// and other faults. Nothing is changed then.
    pub fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, pairs: impl IntoIterator<Item = (K, V)>) -> Result<u64> {
        let _ingesting = self.ingesting.lock();
        let mut builder = self.append(false, Region::begin_ingest)?;
        for (key, value) in pairs {
            builder.push(key.as_ref(), value.as_ref())?;
        }
        let Some(sorted) = builder.finish()? else { return Ok(0) };
        // Earlier writes must be committed; their commit may be on its way.
        self.commit(sorted.lsn())?;
        let mut timeout = self.timeout();
        loop {
            let seen = self.workers.progress();
            if let Some(compaction) = self.region.ingest(&sorted)? {
                self.region.install(&compaction.finish()?)?;
                self.workers.advance();
                self.region.count_ingested(&sorted);
                return Ok(sorted.pairs());
            }
            // Earlier L0s are compacted first, and do not wait for further ones.
            self.workers.call();
            self.wait(seen, &mut timeout)?;
        }
    }

    /// Makes a checkpoint of all writes so far: a durable, named copy by reference. It shares segments with the store,
    /// and survives restarts and crashes until it is dropped. Costs a sync. While it exists, the space that it refers
    /// to is not freed.
    ///
    /// ```
    /// # use leeward_engine::{Db, DbOptions, Reach};
    /// # let directory = tempfile::tempdir()?;
    /// # let db = Db::open(directory.path(), DbOptions::default())?;
    /// db.put(b"key", b"then")?;
    /// db.checkpoint("monday")?;
    /// db.put(b"key", b"now")?;
    /// let monday = db.open_checkpoint("monday")?;
    /// assert_eq!(monday.snapshot().get(b"key", Reach::Device)?.into_value().as_deref(), Some(&b"then"[..]));
    /// db.drop_checkpoint("monday")?;
    /// assert!(db.checkpoints().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if a checkpoint has that name already, or the name is not 1 to 64 letters, digits and `-`,
    /// `_` or `.`; [`Error::NoSpace`] if the volume has no room for another; otherwise as [`Db::sync`].
    pub fn checkpoint(&self, name: &str) -> Result<()> {
        let made = self.region.checkpoint(name);
        // The workers flush the tails that it sealed.
        self.workers.call();
        made
    }

    /// All checkpoints, by name.
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.region.checkpoints()
    }

    /// Opens a checkpoint for reading; takes as long as opening the store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of that name; [`Error::Damaged`], [`Error::Io`].
    pub fn open_checkpoint(&self, name: &str) -> Result<Checkpoint> {
        self.region.open_checkpoint(name, self.now())
    }

    /// Drops a checkpoint, durably. Space that only it needed is free once no reader uses it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of that name; otherwise as [`Db::sync`].
    pub fn drop_checkpoint(&self, name: &str) -> Result<()> {
        self.region.drop_checkpoint(name)
    }

    /// Copies a checkpoint to `directory`, where it can be opened as a store. The directory must not hold one yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such checkpoint, or a store in the directory; those of reading and of writing.
    /// After an error no store is left there. A process that dies meanwhile leaves an empty one.
    pub fn export_checkpoint(&self, name: &str, directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        let at = directory.display().to_string();
        let io = |error| Error::Io { file: at.clone(), action: "open", offset: 0, source: Arc::new(error) };
        self.export_checkpoint_to(name, &RealDisk::open(directory).map_err(io)?, &at)
    }

    /// [`Db::export_checkpoint`] to `disk`, which messages call `at`.
    ///
    /// # Errors
    /// As [`Db::export_checkpoint`].
    #[doc(hidden)]
    pub fn export_checkpoint_to(&self, name: &str, disk: &dyn Disk, at: &str) -> Result<()> {
        self.open_checkpoint(name)?.copy_to(VolumeId(Rng::from_entropy().u64()), disk, at)
    }
}
