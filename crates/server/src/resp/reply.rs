//! Replies: one value, encoded for the protocol version that the connection speaks.
//!
//! Values without a type in version 2 are encoded as by Redis: a map as a flat array, a set as an array, a verbatim
//! string as a bulk string, null as a null bulk string.

use bytes::{BufMut, Bytes, BytesMut};

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version that every connection starts with.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// One value, encoded by the version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and its like.
    Simple(&'static str),
    /// `-CODE text`; line ends in it become spaces.
    Error(String),
    /// `:1`
    Integer(i64),
    /// `$3 abc`
    Bulk(Bytes),
    /// `_`, or `$-1` in version 2.
    Null,
    /// `_`, or `*-1` in version 2.
    NullArray,
    /// `*`
    Array(Vec<Reply>),
    /// `%`, or a flat array in version 2.
    Map(Vec<(Reply, Reply)>),
    /// `~`, or an array in version 2.
    Set(Vec<Reply>),
    /// `=` of plain text, or a bulk string in version 2.
    Verbatim(String),
    /// Bulk strings.
    Keys(Vec<Bytes>),
    /// Keys and values in an order that matters: an array of pairs, flat in version 2 (as `ZRANGE WITHSCORES`).
    Entries(Vec<(Bytes, Bytes)>),
}

impl Reply {
    /// `+OK`
    pub const OK: Reply = Reply::Simple("OK");

    /// An error with the general code `ERR`.
    pub fn err(text: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {text}"))
    }

    /// A bulk string of `text`.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Bulk(Bytes::from(text.into()))
    }

    /// A bulk string, or null.
    pub fn bulk_or_null(value: Option<Bytes>) -> Reply {
        value.map_or(Reply::Null, Reply::Bulk)
    }

    /// Bytes that it takes besides its own place.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of = |replies: &[Reply]| replies.iter().map(|reply| size_of::<Reply>() + reply.memory_bytes()).sum();
        match self {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Null | Reply::NullArray => 0,
            Reply::Error(text) | Reply::Verbatim(text) => text.len(),
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Array(items) | Reply::Set(items) => of(items),
            Reply::Map(pairs) => {
                let pair = |(key, value): &(Reply, Reply)| key.memory_bytes() + value.memory_bytes();
                pairs.iter().map(|both| 2 * size_of::<Reply>() + pair(both)).sum()
            }
            Reply::Keys(keys) => keys.iter().map(|key| size_of::<Bytes>() + key.len()).sum(),
            Reply::Entries(entries) => {
                entries.iter().map(|(key, value)| 2 * size_of::<Bytes>() + key.len() + value.len()).sum()
            }
        }
    }

    /// Bytes of its text or value, if it is one text or value; else 0.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Reply::Error(text) | Reply::Verbatim(text) => text.len(),
            Reply::Bulk(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Appends the reply to `out`.
    pub fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let resp3 = protocol == Protocol::Resp3;
        match self {
            Reply::Simple(text) => put_line(b'+', text.as_bytes(), out),
            Reply::Error(text) => {
                out.put_u8(b'-');
                out.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
                out.put_slice(b"\r\n");
            }
            Reply::Integer(number) => put_number(b':', *number, out),
            Reply::Bulk(bytes) => put_bulk(bytes, out),
            Reply::Null | Reply::NullArray if resp3 => out.put_slice(b"_\r\n"),
            Reply::Null => out.put_slice(b"$-1\r\n"),
            Reply::NullArray => out.put_slice(b"*-1\r\n"),
            Reply::Array(items) => put_items(b'*', items, protocol, out),
            Reply::Set(items) => put_items(if resp3 { b'~' } else { b'*' }, items, protocol, out),
            Reply::Map(pairs) => {
                if resp3 {
                    put_len(b'%', pairs.len(), out);
                } else {
                    put_len(b'*', pairs.len() * 2, out);
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Reply::Verbatim(text) if resp3 => {
                put_len(b'=', text.len() + 4, out);
                out.put_slice(b"txt:");
                out.put_slice(text.as_bytes());
                out.put_slice(b"\r\n");
            }
            Reply::Verbatim(text) => put_bulk(text.as_bytes(), out),
            Reply::Keys(keys) => {
                put_len(b'*', keys.len(), out);
                keys.iter().for_each(|key| put_bulk(key, out));
            }
            Reply::Entries(entries) => {
                put_len(b'*', entries.len() * if resp3 { 1 } else { 2 }, out);
                for (key, value) in entries {
                    if resp3 {
                        put_len(b'*', 2, out);
                    }
                    put_bulk(key, out);
                    put_bulk(value, out);
                }
            }
        }
    }
}

fn put_items(kind: u8, items: &[Reply], protocol: Protocol, out: &mut BytesMut) {
    put_len(kind, items.len(), out);
    items.iter().for_each(|item| item.encode(protocol, out));
}

fn put_bulk(bytes: &[u8], out: &mut BytesMut) {
    out.reserve(bytes.len() + 16);
    put_len(b'$', bytes.len(), out);
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
}

fn put_line(kind: u8, text: &[u8], out: &mut BytesMut) {
    out.put_u8(kind);
    out.put_slice(text);
    out.put_slice(b"\r\n");
}

fn put_len(kind: u8, len: usize, out: &mut BytesMut) {
    put_number(kind, i64::try_from(len).expect("no reply holds that many"), out);
}

/// Writes `kind`, the number in decimal and a line end, without the formatting machinery: it is on every reply's path.
fn put_number(kind: u8, number: i64, out: &mut BytesMut) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    put_line(kind, &digits[at..], out);
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
