//! The data key of a volume, which encrypts it, and which is kept encrypted with a key of the operator's.

use super::Encryption;
use crate::error::{Error, Result};
use aes::Aes256;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use ctr::cipher::{InnerIvInit, StreamCipherSeek};
use ctr::{Ctr32BE, CtrCore};
use leeward_format::data_key::{DATA_KEY_BYTES, SEAL_NONCE_BYTES, SealedEntry, WrappedKey, wrapping_context};
use leeward_format::nonces::{NONCE_BYTES, Use};
use leeward_format::{DecodeError, VolumeId};
use leeward_platform::secrets::{SECRET_BYTES, Secret};
use std::fmt;
use std::io;
use std::sync::Arc;
use zeroize::Zeroizing;

pub(super) type Stream = Ctr32BE<Aes256>;

/// The data key of a volume. All copies of it in memory are overwritten when they are dropped.
pub(super) struct DataKey {
    bytes: Zeroizing<[u8; DATA_KEY_BYTES]>,
    stream: Aes256,
    seal: XChaCha20Poly1305,
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}

fn wrapping(secret: &Secret) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new_from_slice(&secret[..]).expect("the length of a key")
}

impl DataKey {
    fn new(bytes: Zeroizing<[u8; DATA_KEY_BYTES]>) -> DataKey {
        let (stream, seal) = bytes.split_at(SECRET_BYTES);
        let stream = Aes256::new_from_slice(stream).expect("the length of a key");
        let seal = XChaCha20Poly1305::new_from_slice(seal).expect("the length of a key");
        DataKey { bytes, stream, seal }
    }

    /// A random one.
    pub(super) fn draw(encryption: &Encryption) -> io::Result<DataKey> {
        let mut bytes = Zeroizing::new([0; DATA_KEY_BYTES]);
        encryption.entropy.fill(&mut bytes[..])?;
        Ok(DataKey::new(bytes))
    }

    /// The keystream of a use, from byte `at` of its segment on.
    pub(super) fn stream(&self, of: &Use, at: u32) -> Stream {
        let mut block = [0; 16];
        block[..NONCE_BYTES].copy_from_slice(&of.nonce);
        let mut stream = Stream::from_core(CtrCore::inner_iv_init(self.stream.clone(), &block.into()));
        stream.seek(at);
        stream
    }

    /// The key, encrypted with the operator's current one.
    pub(super) fn wrap(&self, volume: VolumeId, generation: u64, encryption: &Encryption) -> io::Result<WrappedKey> {
        let (name, secret) = encryption.secrets.current();
        let mut nonce = [0; SEAL_NONCE_BYTES];
        encryption.entropy.fill(&mut nonce)?;
        let payload = Payload { msg: &self.bytes[..], aad: &wrapping_context(volume) };
        let sealed = wrapping(secret).encrypt(&XNonce::from(nonce), payload).expect("a key is not too long");
        Ok(WrappedKey { generation, wrapped_with: name.to_owned(), nonce, sealed })
    }

    /// The key that `wrapped` is.
    pub(super) fn unwrap(
        wrapped: &WrappedKey,
        volume: VolumeId,
        encryption: &Encryption,
        file: &str,
    ) -> Result<DataKey> {
        let (name, origin) = (&wrapped.wrapped_with, encryption.secrets.origin());
        let refuse = |detail| Error::Key { file: file.to_owned(), detail };
        let Some(secret) = encryption.secrets.get(name) else {
            return Err(refuse(format!("it needs the key {name}, which {origin} does not have")));
        };
        let payload = Payload { msg: &wrapped.sealed, aad: &wrapping_context(volume) };
        let opened = wrapping(secret).decrypt(&XNonce::from(wrapped.nonce), payload).map(Zeroizing::new);
        let mut bytes = Zeroizing::new([0; DATA_KEY_BYTES]);
        match opened {
            Ok(opened) if opened.len() == DATA_KEY_BYTES => bytes.copy_from_slice(&opened),
            _ => {
                let detail = format!("the key {name} of {origin} is another one than it was encrypted with");
                return Err(refuse(detail));
            }
        }
        Ok(DataKey::new(bytes))
    }
}

/// Encrypts the manifest's entries, each with a nonce of its own, and finds every change of one.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    pub(super) key: Arc<DataKey>,
    pub(super) volume: VolumeId,
    pub(super) encryption: Arc<Encryption>,
}

impl Sealer {
    /// # Errors
    /// There is no randomness.
    pub(crate) fn seal(&self, frame: &[u8]) -> io::Result<SealedEntry> {
        let mut nonce = [0; SEAL_NONCE_BYTES];
        self.encryption.entropy.fill(&mut nonce)?;
        let payload = Payload { msg: frame, aad: &self.volume.0.to_le_bytes() };
        let sealed = self.key.seal.encrypt(&XNonce::from(nonce), payload).expect("an entry is not too long");
        Ok(SealedEntry { nonce, sealed })
    }

    /// # Errors
    /// It is not as it was sealed, or was sealed with another key.
    pub(crate) fn open(&self, entry: &SealedEntry) -> Result<Vec<u8>, DecodeError> {
        let payload = Payload { msg: &entry.sealed, aad: &self.volume.0.to_le_bytes() };
        let opened = self.key.seal.decrypt(&XNonce::from(entry.nonce), payload);
        opened.map_err(|_| DecodeError::invalid("sealed entry", "it is not as it was encrypted"))
    }

    /// The operator's keys.
    pub(crate) fn encryption(&self) -> &Arc<Encryption> {
        &self.encryption
    }
}
