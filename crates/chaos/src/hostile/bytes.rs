//! The bytes that hostile clients send. Pure: all of them follow from a seed. Commands that write name only keys with
//! [`PREFIX`].

use super::PREFIX;
use leeward_format::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use leeward_platform::Rng;

#[cfg(test)]
#[path = "bytes_tests.rs"]
mod tests;

/// Keys of a strike: so few that one command deletes them.
const KEYS: usize = 64;
/// Bytes of the value that is requested and not read. It fits into a segment of a chaos run.
const LARGE_BYTES: usize = 100_000;
/// Commands that are sent at once.
const PIPELINED: u64 = 40;
/// Keys of a batch of reads.
const BATCH: usize = 20_000;

/// An array of bulk strings, as clients send commands.
pub(super) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn key(number: usize) -> Vec<u8> {
    format!("{PREFIX}{}", number % KEYS).into_bytes()
}

fn large_key() -> Vec<u8> {
    format!("{PREFIX}large").into_bytes()
}

/// A key of this many bytes.
fn key_of(bytes: usize) -> Vec<u8> {
    let mut key = format!("{PREFIX}giant").into_bytes();
    key.resize(bytes.max(key.len()), b'k');
    key
}

/// Writes the value that is requested and not read.
pub(super) fn large_value() -> Vec<u8> {
    command(&[b"SET", &large_key(), &vec![b'v'; LARGE_BYTES]])
}

/// Requests that value.
pub(super) fn large_read() -> Vec<u8> {
    command(&[b"GET", &large_key()])
}

/// Deletes every key that hostile clients may have written.
pub(super) fn delete_all() -> Vec<u8> {
    let mut keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    keys.extend([large_key(), key_of(MAX_KEY_BYTES - 1), key_of(MAX_KEY_BYTES)]);
    let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
    command(&words)
}

/// A generator of hostile bytes.
pub(super) struct Script(Rng);

impl Script {
    pub(super) fn new(rng: Rng) -> Script {
        Script(rng)
    }

    /// A pattern that takes long to refuse a key.
    fn pattern(&mut self) -> Vec<u8> {
        let part: &[u8] = [&b"*a"[..], b"*?", b"[^b]*", b"*[a-z]", b"**"][self.0.index(5)];
        let mut pattern = part.repeat(self.0.between(1, 60) as usize);
        pattern.extend_from_slice(b"*!");
        pattern
    }

    /// Some commands that are cheap to send and expensive to answer.
    pub(super) fn flood(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..self.0.between(1, PIPELINED) {
            let pattern = self.pattern();
            let unknown = format!("NO{}", self.0.below(1_000));
            out.extend(match self.0.below(8) {
                0 => command(&[b"INFO"]),
                1 => command(&[b"INFO", b"everything"]),
                2 => command(&[b"KEYS", &pattern]),
                3 => command(&[b"SCAN", b"0", b"MATCH", &pattern, b"COUNT", b"1000"]),
                4 => command(&[b"SCAN", self.0.u64().to_string().as_bytes(), b"COUNT", b"10"]),
                5 => command(&[b"CLIENT", b"LIST"]),
                6 => command(&[unknown.as_bytes(), b"what"]),
                _ => command(&[b"KEYS", b"*"]),
            });
        }
        out
    }

    /// A try of a password, of one of many users.
    pub(super) fn guess(&mut self) -> Vec<u8> {
        let (user, password) = (format!("user{}", self.0.below(1_000)), format!("{:016x}", self.0.u64()));
        command(&[b"AUTH", user.as_bytes(), password.as_bytes()])
    }

    /// A request of the largest allowed size, or larger. Without `writes` it stores nothing.
    pub(super) fn giant(&mut self, writes: bool) -> Vec<u8> {
        let value = vec![b'v'; [MAX_VALUE_BYTES, MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES + 1][self.0.index(3)]];
        let long = key_of([MAX_KEY_BYTES, MAX_KEY_BYTES - 1, MAX_KEY_BYTES + 1, 1 << 20][self.0.index(4)]);
        let own = key(self.0.index(KEYS));
        match self.0.below(if writes { 12 } else { 7 }) {
            0 => self.batch(b"MGET"),
            1 => command(&[b"KEYS", b"*"]),
            2 => command(&[b"SCAN", b"0", b"COUNT", b"9223372036854775807"]),
            3 => command(&[b"GETRANGE", &own, b"-9223372036854775808", b"9223372036854775807"]),
            4 => command(&[b"GET", &long]),
            5 => [&b"*1000000000\r\n"[..], b"*2\r\n$3\r\nGET\r\n$9999999999\r\n", b"*-1\r\n", b"$5\r\n"]
                [self.0.index(4)]
            .to_vec(),
            6 => self.batch(b"EXISTS"),
            7 => command(&[b"SET", &long, b"v"]),
            8 => command(&[b"SET", &own, &value]),
            9 => command(&[b"SETRANGE", &own, b"9223372036854775807", b"v"]),
            10 => command(&[b"APPEND", &own, &value]),
            _ => self.batch(b"MSET"),
        }
    }

    /// One command with [`BATCH`] keys: the few keys of a strike, named many times.
    fn batch(&mut self, name: &[u8]) -> Vec<u8> {
        let is_write = name == b"MSET";
        let mut words: Vec<Vec<u8>> = vec![name.to_vec()];
        for number in 0..BATCH {
            words.push(key(number));
            words.extend(is_write.then(|| b"v".to_vec()));
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        command(&words)
    }

    /// Random bytes, or a valid request of some port, with a few bytes changed.
    pub(super) fn garbage(&mut self) -> Vec<u8> {
        let mut bytes = match self.0.below(6) {
            0 => self.flood(),
            1 => large_read(),
            2 => b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n".to_vec(),
            3 => {
                // A length field and mostly fewer bytes: the beginning of a frame in most protocols.
                let length = [0, 1, 16, 1 << 16, 1 << 31, u64::from(u32::MAX)][self.0.index(6)] as u32;
                let mut frame =
                    if self.0.one_in(2) { length.to_le_bytes().to_vec() } else { length.to_be_bytes().to_vec() };
                frame.resize(4 + self.0.index(512), 0);
                self.0.fill(&mut frame[4..]);
                frame
            }
            _ => {
                let mut random = vec![0; self.0.index(2_048) + 1];
                self.0.fill(&mut random);
                random
            }
        };
        for _ in 0..self.0.below(6) {
            let at = self.0.index(bytes.len());
            bytes[at] = self.0.u64() as u8;
        }
        bytes.truncate(self.0.index(bytes.len()) + 1);
        bytes
    }
}
