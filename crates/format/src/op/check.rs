//! What no region could hold, and is refused where it enters a node: keys, values and bounds that are too long, empty keys, reversed
//! ranges.

use super::{Op, OpError, RangeOp, Read};
use crate::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

fn invalid(why: String) -> Result<(), OpError> {
    Err(OpError::Invalid(why))
}

fn check_key(key: &[u8]) -> Result<(), OpError> {
    match key.len() {
        0 => invalid("the key is empty".into()),
        1..=MAX_KEY_BYTES => Ok(()),
        len => invalid(format!("the key is {len} bytes long, the limit is {MAX_KEY_BYTES}")),
    }
}

fn check_value(value: &[u8]) -> Result<(), OpError> {
    match value.len() {
        0..=MAX_VALUE_BYTES => Ok(()),
        len => invalid(format!("the value is {len} bytes long, the limit is {MAX_VALUE_BYTES}")),
    }
}

/// Checks the range of keys from `start` to `end`, exclusive.
///
/// # Errors
/// The range is empty or reversed, or a bound is longer than [`MAX_KEY_BYTES`].
pub fn check_range(start: &[u8], end: Option<&[u8]>) -> Result<(), OpError> {
    let shown = |bound: &[u8]| bound[..bound.len().min(64)].escape_ascii().to_string();
    if let Some(end) = end.filter(|end| *end <= start) {
        let detail = format!("empty or reversed range: from \"{}\" to \"{}\"", shown(start), shown(end));
        return Err(OpError::Invalid(detail));
    }
    check_bounds(start.len().max(end.map_or(0, <[u8]>::len)), MAX_KEY_BYTES)
}

fn check_bounds(longest: usize, most: usize) -> Result<(), OpError> {
    if longest > most {
        return invalid(format!("a bound is {longest} bytes long, the limit is {MAX_KEY_BYTES}"));
    }
    Ok(())
}

impl Op {
    /// Refuses what no region could hold. What depends on the options of a table is checked where these are known.
    ///
    /// # Errors
    /// The reason, as a sentence for the client.
    pub fn check(&self) -> Result<(), OpError> {
        if let Some(key) = self.key() {
            check_key(key)?;
        }
        match self {
            Op::Put { value, .. } | Op::Append { suffix: value, .. } => check_value(value),
            Op::Stale { read: Read::Get { key } | Read::GetPair { key, .. }, .. } => check_key(key),
            Op::DeleteRange { start, end } | Op::In { op: RangeOp::DeleteRange { start, end }, .. } => {
                check_range(start, end.as_deref())
            }
            // A bound may be one byte longer than a key: the successor of the longest key is a bound.
            Op::Scan(_) | Op::Approximate { .. } | Op::In { .. } | Op::Stale { .. } => {
                let longest = self.range().map_or(0, |(start, end)| start.len().max(end.map_or(0, |end| end.len())));
                check_bounds(longest, MAX_KEY_BYTES + 1)
            }
            Op::CreateTable { table } => table.check().map_err(OpError::Invalid),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Condition, Lifetime, ScanRange};
    use bytes::Bytes;

    fn said(op: &Op) -> Option<String> {
        op.check().err().map(|error| error.to_string())
    }

    #[test]
    fn what_no_region_holds_is_refused_with_the_limit() {
        let key = |bytes| Bytes::from(vec![b'k'; bytes]);
        let get = |bytes| Op::Get { key: key(bytes) };
        assert!(said(&get(1)).is_none() && said(&get(MAX_KEY_BYTES)).is_none());
        assert!(said(&get(0)).unwrap().contains("empty"));
        assert!(said(&get(MAX_KEY_BYTES + 1)).unwrap().contains("4097 bytes long, the limit is 4096"));
        let value = Bytes::from(vec![0; MAX_VALUE_BYTES + 1]);
        let put = Op::Put { key: key(1), value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever };
        assert!(said(&put).unwrap().contains("the limit is 1048576"));
        let scan = |bytes| {
            let (start, end) = (Bytes::new(), Some(key(bytes)));
            Op::Scan(ScanRange { start, end, reverse: false, limit: 1, keys_only: false })
        };
        assert!(said(&scan(MAX_KEY_BYTES + 1)).is_none(), "the successor of the longest key is a bound");
        assert!(said(&scan(MAX_KEY_BYTES + 2)).is_some());
        assert!(said(&Op::DeleteRange { start: key(2), end: Some(key(1)) }).unwrap().contains("reversed"));
    }
}
