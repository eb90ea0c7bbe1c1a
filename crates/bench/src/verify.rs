//! Reads back every record that the run wrote to and asks the ledger whether it may hold what was found.

use crate::keys::{key, sequence_of};
use crate::ledger::Ledger;
use crate::options::{BenchError, Options, UNBOUNDED, client_options};
use leeward_client::{ClientError, Op, OpResult, Session};
use std::collections::HashMap;
use std::thread;
use std::time::Duration;

/// Losses that are described one by one.
const DESCRIBED: usize = 10;

/// The result of reading all records back.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    pub(crate) records: u64,
    /// Records with a value, or without one, that the ledger rules out.
    pub(crate) lost: u64,
    /// For a table that may lose its newest writes with a primary: the number that it lost.
    pub(crate) newest_lost: Option<u64>,
    /// Records that could not be read.
    pub(crate) errors: u64,
    /// The first few losses and errors.
    pub(crate) details: Vec<String>,
}

/// Reads back everything, with as many threads as the run had.
pub(crate) fn run(options: &Options, ledger: &Ledger) -> Result<Verified, BenchError> {
    ledger.settle();
    let records = ledger.records();
    let share = records.len().div_ceil(options.threads).max(1);
    let parts = thread::scope(|scope| {
        let threads: Vec<_> =
            records.chunks(share).map(|part| scope.spawn(move || read_back(options, ledger, part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a reader does not panic")).collect::<Vec<_>>()
    });
    let mut sum = Verified::default();
    for part in parts {
        let part = part?;
        sum.records += part.records;
        sum.lost += part.lost;
        sum.errors += part.errors;
        sum.details.extend(part.details);
    }
    if let Some((taken, gaps)) = ledger.judge_newest() {
        sum.newest_lost = Some(taken);
        sum.lost += gaps.len() as u64;
        sum.details.extend(gaps);
    }
    sum.details.truncate(DESCRIBED);
    Ok(sum)
}

fn read_back(options: &Options, ledger: &Ledger, records: &[u64]) -> Result<Verified, ClientError> {
    let mut session = Session::connect(&options.seeds, client_options(options))?;
    let mut verified = Verified::default();
    let mut asked = HashMap::new();
    let mut left = records.iter();
    loop {
        while asked.len() < options.depth.max(64) {
            let Some(record) = left.next() else { break };
            let ticket = session.submit(vec![Op::Get { key: key(*record) }]).expect(UNBOUNDED);
            asked.insert(ticket, *record);
        }
        if asked.is_empty() {
            return Ok(verified);
        }
        for done in session.poll(Duration::from_secs(1))? {
            let record = asked.remove(&done.ticket).expect("every ticket was asked for");
            verified.judge(options, ledger, record, done.results.into_iter().next());
        }
    }
}

impl Verified {
    fn judge(&mut self, options: &Options, ledger: &Ledger, record: u64, result: Option<OpResult>) {
        self.records += 1;
        let bytes = options.mix.value_bytes(record);
        let (found, whole) = match &result {
            Some(OpResult::Value(None)) => (None, true),
            Some(OpResult::Value(Some(value))) => {
                let sequence = sequence_of(record, value, bytes);
                (sequence, sequence.is_some())
            }
            other => {
                self.errors += 1;
                return self.describe(record, format!("could not be read: {other:?}"));
            }
        };
        if !whole || !ledger.check(record, found) {
            self.lost += 1;
            let found = if whole { format!("{found:?}") } else { "a damaged value".into() };
            self.describe(record, format!("holds {found}, may hold {:?}", ledger.possible(record)));
        }
    }

    fn describe(&mut self, record: u64, what: String) {
        if self.details.len() < DESCRIBED {
            self.details.push(format!("record {record} ({}) {what}", key(record).escape_ascii()));
        }
    }
}
