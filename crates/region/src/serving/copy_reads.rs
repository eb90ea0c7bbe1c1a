//! What a read of a backup's copy answers: a key, or a page of a scan, as of a snapshot.

use super::decide::{Decision, decide};
use super::execute::{KeyBounds, current, resume_within, scan, scan_within};
use leeward_engine::version::Lookup;
use leeward_engine::{Error, Reach, Snapshot};
use leeward_format::op::{Op, OpError, OpResult, ReadResult};

/// The result of the read, if memory can tell.
pub fn in_memory(snapshot: &Snapshot, op: &Op) -> Option<Result<ReadResult, Error>> {
    match snapshot.get(op.key()?, Reach::Memory) {
        Ok(Lookup::NotInMemory) => None,
        found => Some(found.map(|found| of_pair(snapshot, op, found))),
    }
}

/// The result of the read, from the device.
pub fn from_device(snapshot: &Snapshot, op: &Op, bounds: KeyBounds) -> Result<ReadResult, Error> {
    if let Some(key) = op.key() {
        return Ok(of_pair(snapshot, op, snapshot.get(key, Reach::Device)?));
    }
    // A scan that names its region resumes as any other.
    let op = op.clone().plain();
    let Op::Scan(range) = &op else { unreachable!("what any member can read is on a key, or a scan") };
    match scan(snapshot, scan_within(bounds.clone(), range), range.limit) {
        OpResult::Entries { entries, resume } => {
            let resume = resume.or_else(|| resume_within(bounds, &op));
            Ok(ReadResult::Entries { entries, resume })
        }
        OpResult::Error(OpError::Unavailable(why)) => Err(Error::Invalid(why)),
        other => unreachable!("a scan has the result {other:?}"),
    }
}

/// The result of a read of a key, from the version that was `found`.
fn of_pair(snapshot: &Snapshot, op: &Op, found: Lookup) -> ReadResult {
    match decide(op, current(found), snapshot.now()) {
        Decision::Answer(OpResult::Value(value)) => ReadResult::Value(value),
        Decision::Answer(OpResult::Pair(pair)) => ReadResult::Pair(pair),
        _ => unreachable!("a read decides nothing"),
    }
}
