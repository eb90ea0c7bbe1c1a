//! Rights, and the tables and keys that they are for.

use super::MAX_PREFIXES;
use crate::MAX_KEY_BYTES;
use crate::table::TableName;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;
use std::str::FromStr;

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Rights(u8);

/// Rights with their names, in the order in which they are shown.
const NAMES: [(Rights, &str); 4] =
    [(Rights::READ, "read"), (Rights::WRITE, "write"), (Rights::ADMIN, "admin"), (Rights::OPERATE, "operate")];

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights(0);
    /// Reads and scans of keys.
    pub const READ: Rights = Rights(1);
    /// Writes of keys, and deletes of ranges.
    pub const WRITE: Rights = Rights(2);
    /// Making, changing and dropping of tables; with all tables, also of users.
    pub const ADMIN: Rights = Rights(4);
    /// Status and metrics, and what operators do with regions and servers.
    pub const OPERATE: Rights = Rights(8);
    /// All rights.
    pub const ALL: Rights = Rights(15);

    /// Whether it has all of `others`.
    pub const fn contains(self, others: Rights) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether it has none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rights of both.
    #[must_use]
    pub const fn and(self, others: Rights) -> Rights {
        Rights(self.0 | others.0)
    }

    /// The rights without `others`.
    #[must_use]
    pub const fn without(self, others: Rights) -> Rights {
        Rights(self.0 & !others.0)
    }

    /// Its rights one by one, each with its name.
    pub fn each(self) -> impl Iterator<Item = (Rights, &'static str)> {
        NAMES.into_iter().filter(move |(right, _)| self.contains(*right))
    }

    /// The rights that both have.
    #[must_use]
    pub const fn common(self, others: Rights) -> Rights {
        Rights(self.0 & others.0)
    }

    /// Those for which the keys of a grant do not matter.
    pub(super) const fn keyless(self) -> Rights {
        self.without(Rights::READ.and(Rights::WRITE))
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rights, D::Error> {
        match u8::deserialize(deserializer)? {
            bits if bits <= Rights::ALL.0 => Ok(Rights(bits)),
            bits => Err(de::Error::custom(format_args!("unknown rights: {bits:#x}"))),
        }
    }
}

/// Names, joined by commas; `all`, `none`.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rights::ALL => f.write_str("all"),
            Rights::NONE => f.write_str("none"),
            some => f.write_str(&some.each().map(|(_, name)| name).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Rights {
    type Err = String;
    fn from_str(text: &str) -> Result<Rights, String> {
        let one = |word: &str| match word {
            "all" => Some(Rights::ALL),
            "none" => Some(Rights::NONE),
            _ => NAMES.iter().find(|(_, name)| *name == word).map(|(right, _)| *right),
        };
        text.split(',').try_fold(Rights::NONE, |rights, word| match one(word) {
            Some(more) => Ok(rights.and(more)),
            None => Err(format!("{word:?} is no right: rights are read, write, admin, operate, or all")),
        })
    }
}

/// Rights on tables, and on keys in them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// `prefixes` limit reads and writes among them.
    pub rights: Rights,
    /// The table; `None`: all tables, also future ones.
    pub table: Option<TableName>,
    /// Beginnings of the keys that may be read and written; the empty one: all keys. None at all: no keys. The other
    /// rights do not look at keys.
    #[serde(deserialize_with = "crate::bounded::at_most::<MAX_PREFIXES, _, _>")]
    pub prefixes: Vec<Bytes>,
}

/// The keys that something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys<'a> {
    /// No particular ones.
    None,
    /// One key.
    One(&'a [u8]),
    /// The keys from the first, inclusive, to the second, exclusive; `None`: to the last key.
    Range(&'a [u8], Option<&'a [u8]>),
}

impl Keys<'_> {
    /// All keys.
    pub const ALL: Keys<'static> = Keys::Range(b"", None);

    /// Whether all of them begin with `prefix`.
    pub(super) fn are_within(&self, prefix: &[u8]) -> bool {
        match self {
            _ if prefix.is_empty() => true,
            Keys::None => true,
            Keys::One(key) => key.starts_with(prefix),
            Keys::Range(start, end) => {
                let last = after_prefix(prefix);
                start.starts_with(prefix)
                    && match (end, last) {
                        (_, None) => true,
                        (Some(end), Some(last)) => **end <= last[..],
                        (None, Some(_)) => false,
                    }
            }
        }
    }
}

/// The key after all those that begin with `prefix`; `None` if there is none.
pub fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(Bytes::from(end))
}

impl Grant {
    /// All rights on everything.
    pub fn everything() -> Grant {
        Grant { rights: Rights::ALL, table: None, prefixes: vec![Bytes::new()] }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.prefixes.len() > MAX_PREFIXES {
            return Err(format!("{} prefixes in a grant: at most {MAX_PREFIXES}", self.prefixes.len()));
        }
        match self.prefixes.iter().find(|prefix| prefix.len() > MAX_KEY_BYTES) {
            Some(prefix) => Err(format!("a prefix has {} bytes: at most {MAX_KEY_BYTES}", prefix.len())),
            None => Ok(()),
        }
    }
}

/// As it is parsed.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rights)?;
        if let Some(table) = &self.table {
            write!(f, "@{table}")?;
        }
        match &self.prefixes[..] {
            [] => f.write_str(":-"),
            [all] if all.is_empty() => Ok(()),
            some => some.iter().try_for_each(|prefix| write!(f, ":{}", prefix.escape_ascii())),
        }
    }
}

/// `RIGHTS[@TABLE][:PREFIX]`: `read,write@orders:eu/`. Without a table all tables, without a prefix all keys.
impl FromStr for Grant {
    type Err = String;
    fn from_str(text: &str) -> Result<Grant, String> {
        let (head, prefix) = text.split_once(':').map_or((text, ""), |(head, prefix)| (head, prefix));
        let (rights, table) = head.split_once('@').map_or((head, None), |(rights, table)| (rights, Some(table)));
        let table = table.map(str::parse).transpose()?;
        let grant = Grant { rights: rights.parse()?, table, prefixes: vec![Bytes::copy_from_slice(prefix.as_bytes())] };
        grant.check().map(|()| grant)
    }
}
