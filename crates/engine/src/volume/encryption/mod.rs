//! Encryption of a volume: see docs/design/encryption.md.
//!
//! Everything above a [`Device`] works with the bytes and offsets of a plain volume. An [`EncryptedFile`] is between the
//! device and the file. The superblock is not encrypted. The manifest encrypts its entries itself, through the
//! [`Sealer`].

mod file;
mod keys;
mod rekey;
#[cfg(test)]
mod tests;
mod uses;

pub(crate) use keys::Sealer;
pub use rekey::rekey;

use super::device::Device;
use crate::error::{Error, RESTORE, Result};
use file::EncryptedFile;
use keys::DataKey;
use leeward_format::VolumeId;
use leeward_format::data_key::{WRAPPED_KEY_BYTES, WRAPPED_KEY_OFFSETS, WrappedKey};
use leeward_format::superblock::Superblock;
use leeward_platform::{Entropy, Secrets};
use std::sync::Arc;

/// The operator's keys, with which a volume is encrypted; and where nonces and data keys come from.
///
/// ```
/// use leeward_engine::{Db, DbOptions, Encryption, Secrets, VolumeOptions};
/// # let directory = tempfile::tempdir()?;
/// # let key_file = directory.path().join("keys");
/// # std::fs::write(&key_file, format!("2026-11 {}", "5c".repeat(32)))?;
///
/// let encryption = Some(Encryption::new(Secrets::from_file(&key_file)?));
/// let volume = VolumeOptions { encryption, ..VolumeOptions::default() };
/// let db = Db::open(directory.path().join("store"), DbOptions { volume, ..DbOptions::default() })?;
/// db.put(b"cargo", b"tea")?;
/// # drop(db);
/// # assert!(Db::open(directory.path().join("store"), DbOptions::default()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Encryption {
    secrets: Secrets,
    entropy: Entropy,
}

impl PartialEq for Encryption {
    fn eq(&self, other: &Encryption) -> bool {
        self.secrets == other.secrets
    }
}

impl Eq for Encryption {}

impl Encryption {
    /// With keys of the operator's. New data keys are encrypted with the last one.
    pub fn new(secrets: Secrets) -> Arc<Encryption> {
        Encryption::with_entropy(secrets, Entropy::system())
    }

    /// For simulations, where a seed decides everything.
    #[doc(hidden)]
    pub fn with_entropy(secrets: Secrets, entropy: Entropy) -> Arc<Encryption> {
        Arc::new(Encryption { secrets, entropy })
    }
}

/// The device of an encrypted volume's bytes, and the file that it writes to.
type DeviceAndFile = (Arc<Device>, Arc<EncryptedFile>);

/// Draws the data key of a new volume and writes it, encrypted and durably. Returns the device of the volume's bytes.
pub(super) fn create(raw: &Device, superblock: &Superblock, encryption: &Arc<Encryption>) -> Result<Arc<Device>> {
    create_parts(raw, superblock, encryption).map(|(device, _)| device)
}

fn create_parts(raw: &Device, superblock: &Superblock, encryption: &Arc<Encryption>) -> Result<DeviceAndFile> {
    let key = DataKey::draw(encryption).map_err(|error| raw.error("draw a key for", 0, error))?;
    write_key(raw, (&key, superblock.volume, 1), encryption)?;
    Ok(parts(raw, superblock, key, encryption))
}

/// The parts of a volume that is encrypted and not changed.
fn open_parts(raw: &Device, superblock: &Superblock, encryption: &Arc<Encryption>) -> Result<DeviceAndFile> {
    let (wrapped, _) = read_key(raw)?;
    let key = DataKey::unwrap(&wrapped, superblock.volume, encryption, raw.file().name())?;
    Ok(parts(raw, superblock, key, encryption))
}

/// The device of the volume's bytes, if it is encrypted. It needs `encryption` then; no other volume may have it, unless
/// it is only read. With `may_write`, the data key is encrypted with the operator's current key, if it is not yet.
pub(crate) fn open(
    raw: Arc<Device>,
    superblock: &Superblock,
    encryption: Option<&Arc<Encryption>>,
    may_write: bool,
) -> Result<Arc<Device>> {
    let file = raw.file().name();
    let encryption = match (superblock.is_encrypted(), encryption) {
        (true, Some(encryption)) => encryption,
        (true, None) => {
            let name = read_key(&raw)?.0.wrapped_with;
            let detail = format!("it needs the key {name}, and no keys are given");
            return Err(Error::Key { file: file.into(), detail });
        }
        (false, Some(_)) if may_write => {
            return Err(Error::Invalid(format!(
                "{file}: the volume is not encrypted, although keys are given, and no volume becomes encrypted in \
                 place: begin with an empty directory, or give no keys"
            )));
        }
        (false, _) => return Ok(raw),
    };
    let (wrapped, is_whole) = read_key(&raw)?;
    let key = DataKey::unwrap(&wrapped, superblock.volume, encryption, file)?;
    let current = encryption.secrets.current().0;
    if may_write && (wrapped.wrapped_with != current || !is_whole) {
        write_key(&raw, (&key, superblock.volume, wrapped.generation + 1), encryption)?;
        tracing::info!(file, key = current, "the volume's data key is encrypted with this key now");
    }
    Ok(parts(&raw, superblock, key, encryption).0)
}

fn parts(raw: &Device, superblock: &Superblock, key: DataKey, encryption: &Arc<Encryption>) -> DeviceAndFile {
    let (key, volume, encryption) = (Arc::new(key), superblock.volume, Arc::clone(encryption));
    let sealer = Sealer { key: Arc::clone(&key), volume, encryption: Arc::clone(&encryption) };
    let file = Arc::new(EncryptedFile::new(Arc::clone(raw.file()), superblock, key, encryption));
    (Arc::new(Device::encrypted(file.clone(), sealer)), file)
}

/// Writes both copies of a data key, durably one after the other, so that one is readable at any time.
fn write_key(
    raw: &Device,
    (key, volume, generation): (&DataKey, VolumeId, u64),
    encryption: &Encryption,
) -> Result<()> {
    let wrapped = key.wrap(volume, generation, encryption);
    let mut bytes = wrapped.map_err(|error| raw.error("encrypt the key of", 0, error))?.encode();
    bytes.resize(WRAPPED_KEY_BYTES, 0);
    for offset in WRAPPED_KEY_OFFSETS {
        raw.write_buffered(offset, &bytes)?;
        raw.sync()?;
    }
    Ok(())
}

/// The newest copy of the data key, and whether both are the same.
fn read_key(raw: &Device) -> Result<(WrappedKey, bool)> {
    let read = |offset| {
        let mut bytes = [0; WRAPPED_KEY_BYTES];
        raw.read(offset, &mut bytes)?;
        Ok::<_, Error>(WrappedKey::decode(&bytes))
    };
    match (read(WRAPPED_KEY_OFFSETS[0])?, read(WRAPPED_KEY_OFFSETS[1])?) {
        (Ok(first), Ok(second)) if first == second => Ok((first, true)),
        (Ok(first), Ok(second)) => Ok((if first.generation >= second.generation { first } else { second }, false)),
        (Ok(key), Err(_)) | (Err(_), Ok(key)) => Ok((key, false)),
        (Err(error), Err(_)) => {
            let (file, detail) = (raw.file().name().to_owned(), format!("both copies of the data key: {error}"));
            Err(Error::Damaged { file, offset: WRAPPED_KEY_OFFSETS[0], detail, advice: RESTORE })
        }
    }
}

/// Name of the operator's key that a volume needs, which is known without any key.
pub(crate) fn key_name(raw: &Device) -> Result<String> {
    Ok(read_key(raw)?.0.wrapped_with)
}
