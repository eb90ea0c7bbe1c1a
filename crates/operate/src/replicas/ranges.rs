//! Compares the replicas of a region while they serve, range by range of its keys: for indexes that backups have built
//! by themselves, of which no other replica has a segment.
//!
//! The primary names a state of the region: an LSN and an instant. All replicas are asked for the digests of the same
//! ranges in that state, the backups at once and the primary last ([why](leeward_format::op::RangeAnswer::TooLate)). If
//! one of them can no longer show the state, the primary names another for the ranges that are left, and fewer ranges
//! are compared at a time. Plain functions; any thread.

use super::{Replica, ask, unexpected_answer};
use bytes::Bytes;
use leeward_client::{Op, OpResult};
use leeward_format::op::{DIGEST_AHEAD_MS, DigestInstant, RangeAnswer, RangeDigest, RangeQuestion};
use leeward_format::{RegionId, ServerId};
use std::ops::Range;
use std::time::{Duration, Instant};

#[cfg(test)]
#[path = "ranges_tests.rs"]
mod tests;

/// How long a replica may take to have an LSN, and between two questions for it.
const LAG_TIMEOUT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Rounds without a range that was compared, after which the rest is not compared.
const MOST_FRUITLESS: u32 = 12;

/// Most ranges that are compared in one state: about 1 GiB. So the instant does not pass meanwhile, and a question is
/// short.
const MOST_IN_ONE_STATE: usize = 512;

/// A range whose pairs differ, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeFault {
    /// First key.
    pub start: Bytes,
    /// Key after the last; `None` for no bound.
    pub end: Option<Bytes>,
    /// The server whose copy is at fault.
    pub server: ServerId,
    /// Description of the fault.
    pub what: String,
    /// It is a backup's copy, and the primary's is readable, and no other backup contradicts the primary, unless a
    /// further one agrees with it. So a backup that has built its index can take the primary's in its place.
    pub can_rebuild: bool,
}

/// The result for one region.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RangeFindings {
    /// Ranges that are the same on all replicas, and their pairs.
    pub equal: (u64, u64),
    /// Ranges that were not compared, and why.
    pub not_compared: Option<(u64, String)>,
    /// Ranges that differ or cannot be read.
    pub faults: Vec<RangeFault>,
}

/// Consecutive ranges: the first begins with the first key, the last has no end.
struct Ranges {
    bounds: Vec<Bytes>,
}

impl Ranges {
    fn len(&self) -> usize {
        self.bounds.len() + 1
    }

    fn start(&self, range: usize) -> Bytes {
        range.checked_sub(1).map_or_else(Bytes::new, |before| self.bounds[before].clone())
    }

    fn end(&self, range: usize) -> Option<Bytes> {
        self.bounds.get(range).cloned()
    }
}

/// How far a replica came with ranges, in one state of the region.
#[derive(Debug, Default)]
struct Told {
    digests: Vec<RangeDigest>,
    /// Why there is no digest of the next range.
    why_not: Option<String>,
}

/// A state of the region that its primary has named.
struct NamedState {
    region: RegionId,
    at: DigestInstant,
    named: Instant,
}

/// Compares the pairs of all replicas of a region, of which one is on `primary`.
///
/// # Errors
/// A replica does not answer.
pub fn compare_ranges(
    replicas: &[Replica<'_>],
    primary: Option<ServerId>,
    region: RegionId,
) -> Result<RangeFindings, String> {
    let mut findings = RangeFindings::default();
    let Some(first) = replicas.iter().find(|replica| Some(replica.server) == primary) else {
        findings.not_compared = Some((1, "its primary was not reached".into()));
        return Ok(findings);
    };
    let (mut state, bounds) = match name_state(first, region, true)? {
        Ok(named) => named,
        Err(why) => {
            findings.not_compared = Some((1, why));
            return Ok(findings);
        }
    };
    let ranges = Ranges { bounds };
    let (mut next, mut most, mut fruitless) = (0, MOST_IN_ONE_STATE, 0);
    loop {
        let chosen = next..ranges.len().min(next + most);
        let (done, why_not) = compare_in(&mut findings, replicas, first, &state, (&ranges, chosen.clone()))?;
        next += done;
        if next == ranges.len() {
            return Ok(findings);
        }
        fruitless = if done > 0 { 0 } else { fruitless + 1 };
        most = if why_not.is_some() { (chosen.len() / 2).max(1) } else { (most * 2).min(MOST_IN_ONE_STATE) };
        let left = (ranges.len() - next) as u64;
        if let Some(why) = why_not.filter(|_| fruitless == MOST_FRUITLESS) {
            findings.not_compared = Some((left, why));
            return Ok(findings);
        }
        state = match name_state(first, region, false)? {
            Ok((state, _)) => state,
            Err(why) => {
                findings.not_compared = Some((left, why));
                return Ok(findings);
            }
        };
    }
}

/// Compares the chosen ranges in one state. Returns how many of them were compared, and why not all.
fn compare_in(
    findings: &mut RangeFindings,
    replicas: &[Replica<'_>],
    primary: &Replica<'_>,
    state: &NamedState,
    (ranges, chosen): (&Ranges, Range<usize>),
) -> Result<(usize, Option<String>), String> {
    let backups: Vec<&Replica<'_>> = replicas.iter().filter(|replica| replica.server != primary.server).collect();
    let chosen = &chosen;
    let told: Vec<Result<Told, String>> = std::thread::scope(|scope| {
        let ask = |replica| scope.spawn(move || digests(replica, state, ranges, chosen.clone()));
        let asked: Vec<_> = backups.iter().map(|replica| ask(*replica)).collect();
        asked.into_iter().map(|asked| asked.join().expect("it does not panic")).collect()
    });
    let mut told: Vec<(ServerId, Told)> =
        backups.iter().zip(told).map(|(replica, told)| Ok((replica.server, told?))).collect::<Result<_, String>>()?;
    // What a backup could not tell is not compared.
    let common = told.iter().map(|(_, told)| told.digests.len()).min().unwrap_or(chosen.len());
    told.push((primary.server, digests(primary, state, ranges, chosen.start..chosen.start + common)?));
    let done = told.iter().map(|(_, told)| told.digests.len()).min().unwrap_or(0);
    for i in 0..done {
        let of_range: Vec<(ServerId, &RangeDigest)> =
            told.iter().map(|(server, told)| (*server, &told.digests[i])).collect();
        let range = chosen.start + i;
        judge(findings, (ranges.start(range), ranges.end(range)), &of_range);
    }
    Ok((done, told.into_iter().find_map(|(_, told)| told.why_not)))
}

/// Compares the digests of one range. The last is the primary's.
fn judge(findings: &mut RangeFindings, (start, end): (Bytes, Option<Bytes>), told: &[(ServerId, &RangeDigest)]) {
    let Some(((primary, right), backups)) = told.split_last() else { return };
    let mut fault = |server: ServerId, what: String, can_rebuild| {
        let (start, end) = (start.clone(), end.clone());
        findings.faults.push(RangeFault { start, end, server, what, can_rebuild });
    };
    let is_as = |right: &RangeDigest, one: &RangeDigest| (one.pairs, one.hash) == (right.pairs, right.hash);
    let readable: Vec<_> = backups.iter().filter(|(_, digest)| digest.damage.is_none()).collect();
    let agrees = |(_, digest): &&(ServerId, &RangeDigest)| is_as(right, digest);
    let is_right = right.damage.is_none() && (readable.is_empty() || readable.iter().any(&agrees));
    for (server, digest) in told {
        if let Some(damage) = &digest.damage {
            fault(*server, format!("cannot be read: {damage}"), server != primary && is_right);
        }
    }
    if right.damage.is_some() {
        return;
    }
    let differ: Vec<_> = readable.iter().filter(|one| !agrees(one)).collect();
    match &differ[..] {
        [] if readable.len() == backups.len() => {
            findings.equal = (findings.equal.0 + 1, findings.equal.1 + right.pairs)
        }
        [first, _, ..] if !is_right && differ.iter().all(|(_, digest)| is_as(first.1, digest)) => {
            let what = format!("has {} pairs, and all backups have the same other {}", right.pairs, first.1.pairs);
            fault(*primary, what, false);
        }
        _ => {
            for (server, digest) in differ {
                let what = match digest.pairs == right.pairs {
                    true => format!("one of its {} pairs, or more, is not that of server {primary}", digest.pairs),
                    false => format!("has {} pairs, server {primary} has {}", digest.pairs, right.pairs),
                };
                fault(*server, what, is_right);
            }
        }
    }
}

/// A state of the region, and the keys between its ranges if they are asked for; or why the primary names none.
fn name_state(
    primary: &Replica<'_>,
    region: RegionId,
    want_bounds: bool,
) -> Result<Result<(NamedState, Vec<Bytes>), String>, String> {
    let begun = Instant::now();
    loop {
        let named = Instant::now();
        match ask(primary, Op::RangeBounds { region, want_bounds })? {
            OpResult::RangeBounds { at, bounds } => return Ok(Ok((NamedState { region, at, named }, bounds))),
            OpResult::Error(error) if error.kind().is_passing() && begun.elapsed() > LAG_TIMEOUT => {
                return Ok(Err(format!("server {}: {error}", primary.server)));
            }
            OpResult::Error(error) if error.kind().is_passing() => std::thread::sleep(ASK_AGAIN),
            other => return Err(unexpected_answer(primary, &other)),
        }
    }
}

/// Asks one replica for the digests of ranges in a state, until it has told all, or cannot.
fn digests(replica: &Replica<'_>, state: &NamedState, ranges: &Ranges, chosen: Range<usize>) -> Result<Told, String> {
    let (mut told, mut begun) = (Told::default(), None);
    let mut heard = Instant::now();
    while told.digests.len() < chosen.len() {
        let range = chosen.start + told.digests.len();
        let (start, so_far) = begun.take().unwrap_or_else(|| (ranges.start(range), RangeDigest::default()));
        let ends = (range..chosen.end).map(|range| ranges.end(range)).collect();
        let NamedState { region, at, .. } = *state;
        let question = RangeQuestion { region, at, start: start.clone(), ends, so_far: so_far.clone() };
        match ask(replica, Op::RangeDigests(Box::new(question)))? {
            OpResult::RangeDigests(RangeAnswer::Digests { whole, begun: next })
                if whole.len() <= chosen.end - range && (!whole.is_empty() || next.is_some()) =>
            {
                told.digests.extend(whole);
                begun = next;
                heard = Instant::now();
            }
            OpResult::RangeDigests(RangeAnswer::NotYet) if heard.elapsed() < LAG_TIMEOUT => {
                begun = Some((start, so_far));
                std::thread::sleep(ASK_AGAIN);
            }
            OpResult::RangeDigests(why_not) if !matches!(why_not, RangeAnswer::Digests { .. }) => {
                told.why_not = Some(reason(replica.server, state, &why_not));
                break;
            }
            other => return Err(unexpected_answer(replica, &other)),
        }
    }
    Ok(told)
}

/// Why a server has no digests of a state.
fn reason(server: ServerId, state: &NamedState, why_not: &RangeAnswer) -> String {
    let (lsn, ahead) = (state.at.lsn, Duration::from_millis(DIGEST_AHEAD_MS));
    match why_not {
        RangeAnswer::NotYet => {
            format!("server {server} did not have LSN {lsn}, or was not in sync, for {} s", LAG_TIMEOUT.as_secs())
        }
        RangeAnswer::InstantPassed if state.named.elapsed() < ahead => format!(
            "clocks are apart: that of server {server} is {} s or more ahead of the primary's",
            (ahead - state.named.elapsed()).as_secs()
        ),
        RangeAnswer::InstantPassed => format!("server {server} was not done in {} s", ahead.as_secs()),
        RangeAnswer::TooLate | RangeAnswer::Digests { .. } => {
            format!("the region changes too fast: server {server} no longer had LSN {lsn}")
        }
    }
}

/// Has a region's primary let a backup take its index in place of the one that the backup has built. It answers before
/// that is done.
///
/// # Errors
/// It refuses, or does not answer.
pub fn rebuild_index(primary: &Replica<'_>, region: RegionId, server: ServerId) -> Result<(), String> {
    match ask(primary, Op::RebuildIndex { region, server })? {
        OpResult::Done => Ok(()),
        other => Err(unexpected_answer(primary, &other)),
    }
}

impl std::fmt::Display for RangeFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "keys from \"{}\"", self.start.escape_ascii())?;
        if let Some(end) = &self.end {
            write!(f, " to \"{}\"", end.escape_ascii())?;
        }
        write!(f, ": server {} {}", self.server, self.what)
    }
}
