//! Passwords: their hashes (argon2id, as PHC strings), new ones, and credentials in headers of HTTP.
//!
//! Hashing takes some 20 ms and 19 MiB of memory on purpose, so no thread that others wait for may do it. No hash of
//! another process is checked before its costs are: see [`check_hash`]. Values may be used by any thread.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use zeroize::Zeroizing;

#[cfg(test)]
#[path = "passwords_tests.rs"]
mod tests;

/// Costs of a hash: those that OWASP recommends for argon2id with little memory.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// Highest costs of a hash that is checked: a hash of another program may be stronger than ours, within reason.
const MOST_MEMORY_KIB: u32 = 64 * 1024;
const MOST_PASSES: u32 = 8;
/// Bytes of a salt.
const SALT_BYTES: usize = 16;
/// Bytes of a password that is made here.
const GENERATED_BYTES: usize = 32;
/// Longest header with credentials, in bytes.
const MOST_HEADER_BYTES: usize = 2048;

/// A password. Its memory is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<Vec<u8>>);

impl Password {
    /// A copy of these bytes.
    pub fn new(bytes: &[u8]) -> Password {
        Password(Zeroizing::new(bytes.to_vec()))
    }

    /// A new one, of 256 random bits as 64 hexadecimal digits.
    ///
    /// # Panics
    /// The system has no randomness.
    pub fn generate() -> Password {
        Password(Zeroizing::new(random_hex(GENERATED_BYTES).into_bytes()))
    }

    /// In plain text. Copies are not overwritten.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// So many random bytes, as hexadecimal digits.
///
/// # Panics
/// The system has no randomness.
pub fn random_hex(bytes: usize) -> String {
    random(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    SystemRandom::new().fill(&mut random).expect("the system has randomness");
    random
}

fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("these costs are possible");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// The hash of a password, as a PHC string with a new salt. Takes some 20 ms.
///
/// # Panics
/// The system has no randomness.
pub fn hash(password: &Password) -> String {
    let salt = SaltString::encode_b64(&random(SALT_BYTES)).expect("a salt may be so long");
    let hash = hasher().hash_password(password.bytes(), &salt).expect("a password of this length can be hashed");
    hash.to_string()
}

/// Checks that a hash is one that nodes check passwords against: a PHC string of argon2id with bearable costs.
///
/// # Errors
/// The reason.
pub fn check_hash(phc: &str) -> Result<(), String> {
    parse(phc).map(|_| ())
}

fn parse(phc: &str) -> Result<(PasswordHash<'_>, Params), String> {
    let parsed = PasswordHash::new(phc).map_err(|error| format!("no PHC string: {error}"))?;
    if parsed.algorithm != Algorithm::Argon2id.ident() || parsed.hash.is_none() || parsed.salt.is_none() {
        return Err("no hash of argon2id".into());
    }
    let params = Params::try_from(&parsed).map_err(|error| format!("no costs of argon2id: {error}"))?;
    if params.m_cost() > MOST_MEMORY_KIB || params.t_cost() > MOST_PASSES || params.p_cost() != 1 {
        return Err(format!(
            "its costs are m={},t={},p={}: at most m={MOST_MEMORY_KIB},t={MOST_PASSES},p=1",
            params.m_cost(),
            params.t_cost(),
            params.p_cost()
        ));
    }
    Ok((parsed, params))
}

/// Whether `phc` is the hash of this password. Takes some 20 ms. A hash that [`check_hash`] refuses is of none.
pub fn verify(password: &Password, phc: &str) -> bool {
    let Ok((parsed, _)) = parse(phc) else { return false };
    hasher().verify_password(password.bytes(), &parsed).is_ok()
}

/// Takes as long as [`verify`], with a hash of no password: what is answered for an unknown user comes no sooner than
/// what is answered for a wrong password.
pub fn verify_nothing(password: &Password) {
    let salt = SaltString::encode_b64(&[0; SALT_BYTES]).expect("a salt may be so long");
    // Its result is of no use; computing it is.
    drop(hasher().hash_password(password.bytes(), &salt));
}

/// A key with which a process remembers passwords that it has checked, drawn anew by each process.
pub struct MemoryKey(hmac::Key);

impl MemoryKey {
    /// A random key.
    ///
    /// # Panics
    /// The system has no randomness.
    pub fn generate() -> MemoryKey {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        MemoryKey(key.expect("the system has randomness"))
    }

    /// The mark of a user's password. Without the key, it tells nothing of the password.
    pub fn mark(&self, user: &str, password: &Password) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        context.update(password.bytes());
        let mut mark = [0; 32];
        mark.copy_from_slice(context.sign().as_ref());
        mark
    }
}

impl fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryKey(..)")
    }
}

/// A user's name and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// Overwritten in memory when it is dropped.
    pub password: Password,
}

impl Credentials {
    /// The value of the header `Authorization` with them (basic authentication).
    pub fn header(&self) -> Zeroizing<String> {
        let pair = Zeroizing::new([self.user.as_bytes(), b":", self.password.bytes()].concat());
        Zeroizing::new(format!("Basic {}", &*Zeroizing::new(Base64::encode_string(&pair))))
    }

    /// Reads the header `Authorization`: `Basic` with the base64 of `USER:PASSWORD`, or `Bearer USER.PASSWORD`, whose
    /// password has no dot. `None`: it has neither form.
    pub fn of_header(header: &[u8]) -> Option<Credentials> {
        let text = std::str::from_utf8(header).ok().filter(|text| text.len() <= MOST_HEADER_BYTES)?;
        let (scheme, rest) = text.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            let (user, password) = rest.rsplit_once('.')?;
            return Some(Credentials { user: user.into(), password: Password::new(password.as_bytes()) });
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let pair = Zeroizing::new(Base64Unpadded::decode_vec(rest.trim_end_matches('=')).ok()?);
        let at = pair.iter().position(|byte| *byte == b':')?;
        let (user, password) = pair.split_at(at);
        let user = std::str::from_utf8(user).ok()?.into();
        Some(Credentials { user, password: Password::new(password.get(1..)?) })
    }
}
