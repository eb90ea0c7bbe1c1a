//! The engines: the trait of a driver, and the names of all configurations. The modules below are the drivers.
//!
//! Client threads may call any method at the same time. In every engine an acknowledged write survives the death of the
//! process, since it is at least in the page cache. No engine syncs each write.

#[cfg(feature = "fjall")]
mod fjall;
mod leeward;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::Failure;
use crate::measurement::DeviceBytes;
use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// An open store.
pub(crate) trait Engine: Sync {
    /// Sets `key` to `value`.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure>;
    /// Calls `see` with the value of `key`, without a copy if the engine can. Returns whether there is one.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure>;
    /// Calls `see` with up to `limit` pairs from `start` on, in key order.
    fn scan(&self, start: &[u8], limit: u32, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Failure>;
    /// Levels that hold data, L0 included.
    fn levels(&self) -> Result<u32, Failure>;
    /// Device bytes by the engine's own count; `None` if it does not count all of its traffic.
    fn device_bytes(&self) -> Option<DeviceBytes> {
        None
    }
    /// Closes the store.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// An engine in one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EngineName {
    /// Leeward, as an embedded library.
    Leeward,
    /// Leeward with a growth factor of 4.
    LeewardGrowth4,
    /// Leeward with a growth factor of 16.
    LeewardGrowth16,
    /// Leeward with every value in leaves.
    LeewardInPlace,
    /// Leeward, run by the program that `--pgo` names.
    LeewardPgo,
    /// RocksDB without compression. The targets compare Leeward with it.
    Rocksdb,
    /// RocksDB with LZ4.
    RocksdbLz4,
    /// RocksDB with values of 512 bytes and more in blob files.
    RocksdbBlob,
    /// fjall.
    Fjall,
}

impl EngineName {
    /// The engines that are compared by default, if this program has their drivers.
    const COMPARED: [EngineName; 5] =
        [EngineName::Leeward, EngineName::Rocksdb, EngineName::RocksdbLz4, EngineName::RocksdbBlob, EngineName::Fjall];
    /// Leeward with other options than its defaults.
    const TUNED: [EngineName; 4] =
        [EngineName::LeewardGrowth4, EngineName::LeewardGrowth16, EngineName::LeewardInPlace, EngineName::LeewardPgo];

    /// Engines to compare that this program was built with.
    pub(crate) fn built_in() -> Vec<EngineName> {
        EngineName::COMPARED.into_iter().filter(|name| name.is_built_in()).collect()
    }

    fn is_built_in(self) -> bool {
        self.feature().is_none_or(|(_, enabled)| enabled)
    }

    /// Whether it is another engine than Leeward.
    pub(crate) fn is_rival(self) -> bool {
        self.feature().is_some()
    }

    /// Whether the engine bypasses the page cache.
    pub(crate) fn has_direct_io(self) -> bool {
        self != EngineName::Fjall
    }

    /// The feature with the driver of a rival, and whether it is enabled.
    fn feature(self) -> Option<(&'static str, bool)> {
        match self {
            EngineName::Leeward
            | EngineName::LeewardGrowth4
            | EngineName::LeewardGrowth16
            | EngineName::LeewardInPlace
            | EngineName::LeewardPgo => None,
            EngineName::Rocksdb | EngineName::RocksdbLz4 | EngineName::RocksdbBlob => {
                Some(("rocksdb", cfg!(feature = "rocksdb")))
            }
            EngineName::Fjall => Some(("fjall", cfg!(feature = "fjall"))),
        }
    }

    /// Makes a store in `directory`, which is empty.
    ///
    /// # Errors
    /// An error of the engine, or this program was built without its driver.
    pub(crate) fn open(self, directory: &Path, plan: &Plan) -> Result<Box<dyn Engine>, Failure> {
        match self {
            EngineName::Leeward | EngineName::LeewardPgo => leeward::open(directory, plan, leeward::Tuning::Default),
            EngineName::LeewardGrowth4 => leeward::open(directory, plan, leeward::Tuning::Growth(4)),
            EngineName::LeewardGrowth16 => leeward::open(directory, plan, leeward::Tuning::Growth(16)),
            EngineName::LeewardInPlace => leeward::open(directory, plan, leeward::Tuning::InPlace),
            #[cfg(feature = "rocksdb")]
            EngineName::Rocksdb => rocksdb::open(directory, plan, rocksdb::Variant::Plain),
            #[cfg(feature = "rocksdb")]
            EngineName::RocksdbLz4 => rocksdb::open(directory, plan, rocksdb::Variant::Lz4),
            #[cfg(feature = "rocksdb")]
            EngineName::RocksdbBlob => rocksdb::open(directory, plan, rocksdb::Variant::Blob),
            #[cfg(feature = "fjall")]
            EngineName::Fjall => fjall::open(directory, plan),
            #[cfg(not(all(feature = "rocksdb", feature = "fjall")))]
            other => Err(format!("{other} has no driver in this program").into()),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineName::Leeward => "leeward",
            EngineName::LeewardGrowth4 => "leeward-growth4",
            EngineName::LeewardGrowth16 => "leeward-growth16",
            EngineName::LeewardInPlace => "leeward-in-place",
            EngineName::LeewardPgo => "leeward-pgo",
            EngineName::Rocksdb => "rocksdb",
            EngineName::RocksdbLz4 => "rocksdb-lz4",
            EngineName::RocksdbBlob => "rocksdb-blob",
            EngineName::Fjall => "fjall",
        })
    }
}

impl FromStr for EngineName {
    type Err = String;
    fn from_str(text: &str) -> Result<EngineName, String> {
        let all = || EngineName::COMPARED.into_iter().chain(EngineName::TUNED);
        let name = all().find(|name| name.to_string() == text.to_ascii_lowercase()).ok_or_else(|| {
            let names: Vec<String> = all().map(|name| name.to_string()).collect();
            format!("unknown engine {text:?}: it is one of {}", names.join(", "))
        })?;
        match name.feature() {
            Some((feature, false)) => {
                Err(format!("this program was built without {name}: build it with --features {feature}"))
            }
            _ => Ok(name),
        }
    }
}
