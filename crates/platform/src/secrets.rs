//! Named secrets of 32 bytes, from a file or from the output of a command: the keys that volumes are encrypted with.
//!
//! ```text
//! # one line each: a name, and 64 hexadecimal digits; the last one is the current one
//! 2026-01 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! ```
//! The memory of a secret is overwritten when it is dropped. No message and no `Debug` output has one.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Most bytes of a file or of an output.
const MOST_BYTES: u64 = 64 << 10;

/// A secret. Clones share nothing: each overwrites its own memory.
pub type Secret = Zeroizing<[u8; SECRET_BYTES]>;

/// Secrets by name, in the order of their lines.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    /// At least one.
    secrets: Vec<(String, Secret)>,
    origin: String,
}

impl Secrets {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Those of the operating system; `InvalidData` names the line that is wrong.
    pub fn from_file(path: &Path) -> io::Result<Secrets> {
        let origin = path.display().to_string();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{origin}: {error}"));
        Secrets::read(std::fs::File::open(path).map_err(named)?, &origin)
    }

    /// Runs `command`, a program and its arguments, and reads what it prints. Its standard input is empty, and its
    /// errors go where those of this process go.
    ///
    /// # Errors
    /// As [`Secrets::from_file`]; `Other` if the command fails.
    pub fn from_command(command: &[String]) -> io::Result<Secrets> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{program}: {error}"));
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(named)?;
        let output = child.stdout.take().expect("it was piped");
        let read = Secrets::read(output, program);
        let status = child.wait().map_err(named)?;
        match status.success() {
            true => read,
            false => Err(io::Error::other(format!("{program}: it failed ({status})"))),
        }
    }

    fn read(source: impl Read, origin: &str) -> io::Result<Secrets> {
        // As large as it can become, so that no copy is left behind by growing.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_BYTES as usize + 1));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{origin}: {error}"));
        source.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(named)?;
        if bytes.len() as u64 > MOST_BYTES {
            let detail = format!("{origin}: more than {MOST_BYTES} bytes: this is no list of keys");
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{origin}: not a text")))?;
        Secrets::parse(text, origin)
    }

    /// Reads the lines of `text`, which messages call `origin`.
    ///
    /// # Errors
    /// `InvalidData` names the line that is wrong, and never quotes it.
    pub fn parse(text: &str, origin: &str) -> io::Result<Secrets> {
        let mut secrets: Vec<(String, Secret)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let wrong =
                |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("{origin}: line {}: {what}", at + 1));
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let secret = match (words.next(), words.next()) {
                (Some(digits), None) => decode(digits),
                _ => None,
            };
            let Some(secret) = secret else {
                return Err(wrong("must be a name and 64 hexadecimal digits".into()));
            };
            if name.len() > MAX_NAME_BYTES {
                return Err(wrong(format!("a name has at most {MAX_NAME_BYTES} bytes")));
            }
            if secrets.iter().any(|(known, _)| known == name) {
                return Err(wrong(format!("there is a key {name} already")));
            }
            secrets.push((name.to_owned(), secret));
        }
        if secrets.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{origin}: has no key")));
        }
        Ok(Secrets { secrets, origin: origin.to_owned() })
    }

    /// Name and value of the last one, which is the current one.
    pub fn current(&self) -> (&str, &Secret) {
        let (name, secret) = self.secrets.last().expect("there is at least one");
        (name, secret)
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.secrets.iter().find(|(known, _)| known == name).map(|(_, secret)| secret)
    }

    /// Where they are from, for messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

fn decode(digits: &str) -> Option<Secret> {
    let digits = digits.as_bytes();
    let mut secret = Secret::default();
    if digits.len() != 2 * SECRET_BYTES {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(secret)
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.secrets.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Secrets").field("names", &names).field("origin", &self.origin).finish()
    }
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;
