//! Requests: arrays of bulk strings, and inline commands as typed into a terminal.
//!
//! Both protocol versions frame requests alike. The parser keeps its place between calls, so an array that arrives
//! byte by byte costs no more than one that arrives whole. An inline command is searched for its end anew. A bulk
//! string longer than any value may be is not stored: its bytes are dropped as they arrive and the command is
//! reported as [`Parsed::TooLarge`], after which the connection continues. Bytes that are no request at all are a
//! [`ProtocolError`]; the connection must then be closed, since the start of the next request is unknown.

use crate::quota::Quota;
use bytes::{Buf, Bytes, BytesMut};
use leeward_format::MAX_VALUE_BYTES;

/// Longest inline command, in bytes (as Redis).
pub const MAX_INLINE_BYTES: usize = 64 * 1024;
/// Most arguments of one command, its name included.
pub const MAX_ARGUMENTS: usize = 1024 * 1024;
/// Most bytes of one command's arguments together; a longer one is dropped as it arrives.
pub const MAX_COMMAND_BYTES: usize = 32 * 1024 * 1024;
/// Most memory of an argument until its command is answered, besides its bytes: its place and framing, an operation, a
/// result.
pub const ARGUMENT_BYTES: usize = 320;
/// Longest bulk string that is skipped; a longer one closes the connection (as Redis).
const MAX_SKIPPED_BYTES: i64 = 512 * 1024 * 1024;
/// Bytes of the head of a bulk string, in a buffer of which its content is a slice.
const FRAMING_BYTES: usize = 16;
/// Longest line that holds a count.
const MAX_COUNT_LINE_BYTES: usize = 32;

/// The result of a look at the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command: its name and its arguments, never empty.
    Command(Vec<Bytes>),
    /// A command with an argument, or with arguments together, beyond what may be stored. It was dropped.
    TooLarge {
        /// Name of the command, if that was not itself too large.
        name: Bytes,
        /// What was too large, as a sentence for the client.
        reason: String,
    },
}

/// The bytes are no request. The connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub struct ProtocolError(pub String);

impl ProtocolError {
    fn new(what: impl Into<String>) -> ProtocolError {
        ProtocolError(what.into())
    }
}

/// Incremental parser of one connection.
#[derive(Debug)]
pub struct Parser {
    /// Most memory that one command may take.
    most: usize,
    /// Arguments still to come of the array that is being read.
    remaining: usize,
    /// Arguments read so far.
    args: Vec<Bytes>,
    /// Bytes of them.
    bytes: usize,
    /// Length of the bulk string whose header was read.
    bulk: Option<usize>,
    /// Bytes of a bulk string, its line end included, still to be dropped.
    skip: usize,
    /// Why the command that is being read will be refused.
    too_large: Option<String>,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::within(usize::MAX)
    }
}

impl Parser {
    /// A parser that refuses commands that would take more memory than `most`.
    pub fn within(most: usize) -> Parser {
        Parser { most, remaining: 0, args: Vec::new(), bytes: 0, bulk: None, skip: 0, too_large: None }
    }

    /// From now on refuses commands that would take more memory than `most`.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Bytes that the command takes that is being read, as far as it was taken off the input.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + self.args.capacity() * size_of::<Bytes>() + self.args.len() * FRAMING_BYTES
    }

    /// Takes the next command off the front of `input`; `None` if it is not complete yet, or the quota is used up.
    ///
    /// # Errors
    /// The bytes are no request. Do not call again.
    pub fn next(&mut self, input: &mut BytesMut, quota: &mut Quota) -> Result<Option<Parsed>, ProtocolError> {
        while !quota.is_used_up() {
            // An argument, a header, or an empty line.
            quota.take(1);
            if self.remaining > 0 {
                if !self.take_argument(input)? {
                    return Ok(None);
                }
                if self.remaining == 0 {
                    return Ok(Some(self.finish()));
                }
                continue;
            }
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {
                    let count = take_count(input, "invalid multibulk length", "too big mbulk count string")?;
                    let Some(count) = count else { return Ok(None) };
                    if count > MAX_ARGUMENTS as i64 {
                        return Err(ProtocolError::new("invalid multibulk length"));
                    }
                    // An empty or null array is skipped, as Redis does.
                    self.remaining = usize::try_from(count).unwrap_or(0);
                    self.args.reserve(self.remaining.min(16));
                }
                Some(_) => match take_inline(input)? {
                    None => return Ok(None),
                    Some(args) if args.is_empty() => {}
                    Some(args) => {
                        quota.take(args.len() as u32);
                        return Ok(Some(Parsed::Command(args)));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Reads one bulk string; `false` if it is not complete yet.
    fn take_argument(&mut self, input: &mut BytesMut) -> Result<bool, ProtocolError> {
        if self.skip == 0 && self.bulk.is_none() && !self.take_bulk_header(input)? {
            return Ok(false);
        }
        if self.skip > 0 {
            let dropped = self.skip.min(input.len());
            input.advance(dropped);
            self.skip -= dropped;
            if self.skip == 0 {
                self.remaining -= 1;
            }
            return Ok(self.skip == 0);
        }
        let len = self.bulk.expect("a header was read above");
        if input.len() < len + 2 {
            input.reserve(len + 2 - input.len());
            return Ok(false);
        }
        if &input[len..len + 2] != b"\r\n" {
            return Err(ProtocolError::new("expected the end of a bulk string"));
        }
        let arg = input.split_to(len).freeze();
        input.advance(2);
        self.bulk = None;
        self.remaining -= 1;
        self.bytes += len;
        self.args.push(arg);
        Ok(true)
    }

    /// Reads `$<length>`; `false` if it is not complete yet.
    fn take_bulk_header(&mut self, input: &mut BytesMut) -> Result<bool, ProtocolError> {
        match input.first() {
            None => return Ok(false),
            Some(b'$') => {}
            Some(&other) => {
                let found = other.escape_ascii();
                return Err(ProtocolError::new(format!("expected '$', got '{found}'")));
            }
        }
        let Some(len) = take_count(input, "invalid bulk length", "too big bulk count string")? else {
            return Ok(false);
        };
        if !(0..=MAX_SKIPPED_BYTES).contains(&len) {
            return Err(ProtocolError::new("invalid bulk length"));
        }
        let len = len as usize;
        if len > MAX_VALUE_BYTES {
            let position = self.args.len();
            self.refuse(format!("argument {position} is {len} bytes long, the limit is {MAX_VALUE_BYTES}"));
        } else if self.bytes + len > MAX_COMMAND_BYTES {
            self.refuse(format!("arguments of more than {MAX_COMMAND_BYTES} bytes together"));
        }
        let arguments = self.args.len() + 1;
        if self.too_large.is_none() && self.bytes + len + arguments * ARGUMENT_BYTES > self.most {
            let most = self.most;
            self.refuse(format!(
                "{arguments} arguments and their answers would take more than {most} bytes, an eighth of memory_budget: use fewer at once"
            ));
        }
        if self.too_large.is_some() {
            self.skip = len + 2;
        } else {
            self.bulk = Some(len);
        }
        Ok(true)
    }

    /// Gives up the command that is being read. Frees all that was read of it, except its name.
    fn refuse(&mut self, reason: String) {
        self.too_large.get_or_insert(reason);
        self.args.truncate(1);
        self.args.shrink_to_fit();
        self.bytes = 0;
    }

    fn finish(&mut self) -> Parsed {
        self.bytes = 0;
        let args = std::mem::take(&mut self.args);
        match self.too_large.take() {
            None => Parsed::Command(args),
            Some(reason) => Parsed::TooLarge { name: args.into_iter().next().unwrap_or_default(), reason },
        }
    }
}

/// Reads `<any byte><decimal>\r\n`; `None` if it is not complete yet.
fn take_count(input: &mut BytesMut, invalid: &str, too_long: &str) -> Result<Option<i64>, ProtocolError> {
    let seen = &input[..input.len().min(MAX_COUNT_LINE_BYTES)];
    let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
        if seen.len() == MAX_COUNT_LINE_BYTES {
            return Err(ProtocolError::new(too_long));
        }
        return Ok(None);
    };
    let line = seen[1..end].strip_suffix(b"\r").ok_or_else(|| ProtocolError::new(invalid))?;
    let count = parse_integer(line).ok_or_else(|| ProtocolError::new(invalid))?;
    input.advance(end + 1);
    Ok(Some(count))
}

/// A decimal integer exactly as Redis accepts it: no sign but `-`, no leading zeros, no spaces.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        b"0" => text.len() == 1,
        [b'1'..=b'9', ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Reads one line as words; `None` if its end has not come yet.
fn take_inline(input: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let seen = &input[..input.len().min(MAX_INLINE_BYTES)];
    let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
        if seen.len() == MAX_INLINE_BYTES {
            return Err(ProtocolError::new("too big inline request"));
        }
        return Ok(None);
    };
    let line = seen[..end].strip_suffix(b"\r").unwrap_or(&seen[..end]);
    let words = split_words(line).ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))?;
    // A web page can make a browser send any request here. The body of such a request must not be taken for commands.
    let is_http = |word: &Bytes| [&b"POST"[..], b"Host:"].iter().any(|http| word.eq_ignore_ascii_case(http));
    if words.first().is_some_and(is_http) {
        return Err(ProtocolError::new("this port speaks the Redis protocol, not HTTP"));
    }
    input.advance(end + 1);
    Ok(Some(words))
}

/// Words of a line; `"..."` with escapes and `'...'` as Redis reads them. `None`: quotes are unbalanced.
fn split_words(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        rest = match rest[0] {
            b'"' => quoted(&rest[1..], &mut word)?,
            b'\'' => single_quoted(&rest[1..], &mut word)?,
            _ => bare(rest, &mut word)?,
        };
        words.push(Bytes::from(word));
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

/// Reads up to white space. A quote inside a word begins a quoted part of it.
fn bare<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((&byte, after)) = rest.split_first() {
        match byte {
            b'"' => return quoted(after, word),
            b'\'' => return single_quoted(after, word),
            _ if byte.is_ascii_whitespace() || byte == 0 => return Some(after),
            _ => word.push(byte),
        }
        rest = after;
    }
    Some(rest)
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                rest = after;
            }
            [b'\'', after @ ..] => return closed(after),
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

fn quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| char::from(byte).to_digit(16).expect("checked by the guard") as u8;
                word.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            [b'\\', escaped, after @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = after;
            }
            [b'"', after @ ..] => return closed(after),
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

/// A closing quote must be followed by white space or the end.
fn closed(after: &[u8]) -> Option<&[u8]> {
    after.first().is_none_or(u8::is_ascii_whitespace).then_some(after)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
