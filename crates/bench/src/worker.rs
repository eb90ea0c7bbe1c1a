//! One client thread of a phase: a pipelined session that keeps `depth` operations in flight, measures their latency,
//! and reports the outcome of each write to the ledger.

use crate::figures::new_histogram;
use crate::generators::Chooser;
use crate::keys::{KEY_BYTES, Mix, key, mix64, sequence_of, value};
use crate::ledger::Ledger;
use crate::options::{Options, UNBOUNDED, reading_options};
use crate::records::Records;
use crate::scan::{Scan, asked_regions};
use crate::workload::{Kind, LONGEST_SCAN, Workload};
use hdrhistogram::Histogram;
use leeward_client::{ClientError, Condition, Done, Lifetime, Op, OpError, OpResult, Session, Ticket, Traffic};
use leeward_format::RegionId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread waits for answers before it checks whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// The state that the threads of a phase share.
pub(crate) struct PhaseState<'a> {
    pub(crate) workload: Workload,
    pub(crate) options: &'a Options,
    pub(crate) ledger: &'a Ledger,
    pub(crate) records: Records,
    /// Operations handed out and those that are done.
    pub(crate) issued: AtomicU64,
    pub(crate) completed: AtomicU64,
    /// Of those that are done, those that did not fail.
    pub(crate) succeeded: AtomicU64,
    /// Operations of the phase.
    pub(crate) ops: u64,
    /// Continue past `ops` until this is cleared.
    pub(crate) keep_going: AtomicBool,
    /// The run has failed: threads end without finishing their operations.
    pub(crate) abandon: AtomicBool,
    pub(crate) started: Instant,
}

/// The measurements of a thread.
pub(crate) struct Measured {
    pub(crate) latency: HashMap<Kind, Histogram<u64>>,
    pub(crate) ops: u64,
    pub(crate) errors: u64,
    /// Reads of an existing record that found no value, the value of another record, or a damaged value.
    pub(crate) misses: u64,
    pub(crate) first_error: Option<String>,
    /// Bytes of keys and values written, read and scanned.
    pub(crate) user_bytes: u64,
    pub(crate) traffic: Traffic,
    /// Reads that a hash index answered.
    pub(crate) direct_reads: u64,
}

impl Measured {
    pub(crate) fn new() -> Measured {
        Measured {
            latency: HashMap::new(),
            ops: 0,
            errors: 0,
            misses: 0,
            first_error: None,
            user_bytes: 0,
            traffic: Traffic::default(),
            direct_reads: 0,
        }
    }

    pub(crate) fn add(&mut self, other: Measured) {
        for (kind, histogram) in other.latency {
            let sum = self.latency.entry(kind).or_insert_with(new_histogram);
            sum.add(&histogram).expect("all histograms have the same bounds");
        }
        self.ops += other.ops;
        self.errors += other.errors;
        self.misses += other.misses;
        self.first_error = self.first_error.take().or(other.first_error);
        self.user_bytes += other.user_bytes;
        self.traffic += other.traffic;
        self.direct_reads += other.direct_reads;
    }

    fn record(&mut self, kind: Kind, latency: Duration) {
        let histogram = self.latency.entry(kind).or_insert_with(new_histogram);
        histogram.saturating_record(latency.as_nanos() as u64);
    }
}

/// One operation under way.
struct Flight {
    kind: Kind,
    record: u64,
    /// Sequence number of the write; `None` for a read, and before the write of a read-modify-write.
    sequence: Option<u64>,
    started: Instant,
    /// Of a scan: how far it has come.
    scan: Option<Scan>,
    /// Operations in flight that it counts for: of a scan, the regions that are asked; else one.
    weight: usize,
}

pub(crate) struct Worker<'a> {
    shared: &'a PhaseState<'a>,
    session: Session,
    /// The regions that a scan asks: see [`asked_regions`].
    regions: Vec<RegionId>,
    chooser: Chooser,
    rng: fastrand::Rng,
    flights: HashMap<Ticket, Flight>,
    /// The sum of their weights.
    in_flight: usize,
    measured: Measured,
    /// With a target rate: when the next operation is due, and the time between two.
    pace: Option<(Instant, Duration)>,
}

impl<'a> Worker<'a> {
    /// Thread number `index` of the phase.
    pub(crate) fn connect(
        shared: &'a PhaseState<'a>,
        chooser: Chooser,
        index: usize,
    ) -> Result<Worker<'a>, ClientError> {
        let options = shared.options;
        let pause = options.target_rate.map(|rate| Duration::from_secs_f64(options.threads as f64 / rate));
        let offset = |pause: Duration| pause.mul_f64(index as f64 / options.threads as f64);
        let mut session = Session::connect(&options.seeds, reading_options(options))?;
        let map = session.fetch_map()?;
        let regions = match shared.workload {
            Workload::E => asked_regions(&map, &options.table),
            _ => Vec::new(),
        };
        // That the client connects makes no operation late.
        let first_due = |pause| Instant::now() + offset(pause);
        Ok(Worker {
            shared,
            session,
            regions,
            chooser,
            rng: fastrand::Rng::with_seed(mix64(index as u64) ^ shared.records.limit()),
            flights: HashMap::new(),
            in_flight: 0,
            measured: Measured::new(),
            pace: pause.map(|pause| (first_due(pause), pause)),
        })
    }

    /// Works until the phase is over.
    pub(crate) fn run(mut self) -> Result<Measured, ClientError> {
        loop {
            let over = self.fill();
            if over && self.flights.is_empty() || self.shared.abandon.load(Ordering::Relaxed) {
                self.measured.traffic = self.session.traffic();
                self.measured.direct_reads = self.session.direct_stats().hits;
                return Ok(self.measured);
            }
            let due = self.pace.map_or(LOOK_UP, |(next, _)| next.saturating_duration_since(Instant::now()));
            let due = if self.in_flight < self.shared.options.depth { due } else { LOOK_UP };
            for done in self.session.poll(due.min(LOOK_UP))? {
                self.complete(done);
            }
        }
    }

    /// Issues operations up to the depth; returns whether there are none left.
    fn fill(&mut self) -> bool {
        while self.in_flight < self.shared.options.depth {
            let now = Instant::now();
            let started = match &mut self.pace {
                Some((next, _)) if *next > now => return false,
                Some((next, pause)) => {
                    let due = *next;
                    *next += *pause;
                    due
                }
                None => now,
            };
            let keep_going = self.shared.keep_going.load(Ordering::Relaxed);
            if self.shared.issued.fetch_add(1, Ordering::Relaxed) >= self.shared.ops && !keep_going {
                return true;
            }
            self.issue(started);
        }
        false
    }

    fn issue(&mut self, started: Instant) {
        let kind = self.shared.workload.kind(self.rng.u8(..100));
        let record = match kind {
            Kind::Insert => self.shared.records.insert(),
            _ => self.chooser.next(self.shared.records.limit().max(1), &mut self.rng),
        };
        let mut flight = Flight { kind, record, sequence: None, started, scan: None, weight: 1 };
        if kind == Kind::Read && self.shared.options.read_members > 1 {
            let asked = self.shared.options.read_members as usize;
            return self.submit_all(vec![Op::Get { key: key(record) }; asked], flight);
        }
        let op = match kind {
            Kind::Read | Kind::ReadModifyWrite => Op::Get { key: key(record) },
            Kind::Update | Kind::Insert => self.put(&mut flight),
            Kind::Scan => {
                let scan = flight.scan.insert(Scan::new(key(record), self.rng.u32(1..=LONGEST_SCAN)));
                let ops = scan.next(&self.regions);
                return self.submit_all(ops, flight);
            }
        };
        self.submit(op, flight);
    }

    fn put(&mut self, flight: &mut Flight) -> Op {
        let sequence = self.shared.ledger.begin(flight.record);
        flight.sequence = Some(sequence);
        let value = value(flight.record, sequence, self.mix().value_bytes(flight.record));
        Op::Put {
            key: key(flight.record),
            value,
            when: Condition::Always,
            want_old: false,
            lifetime: Lifetime::Forever,
        }
    }

    fn submit(&mut self, op: Op, flight: Flight) {
        self.submit_all(vec![op], flight);
    }

    /// Several are a read of as many members, to which the session sends them in turn, or a scan of as many regions.
    fn submit_all(&mut self, ops: Vec<Op>, mut flight: Flight) {
        flight.weight = flight.scan.as_ref().map_or(1, |_| ops.len());
        self.in_flight += flight.weight;
        let ticket = self.session.submit(ops).expect(UNBOUNDED);
        self.flights.insert(ticket, flight);
    }

    fn mix(&self) -> Mix {
        self.shared.options.mix
    }

    fn complete(&mut self, done: Done) {
        let mut flight = self.flights.remove(&done.ticket).expect("every ticket is of a flight");
        self.in_flight -= flight.weight;
        if flight.scan.is_some() {
            return self.scanned(flight, done.results);
        }
        let result = self.one_of(&flight, done.results);
        match result {
            OpResult::Error(error) => return self.fail(flight, error),
            OpResult::Value(value) => {
                let value = value.unwrap_or_default();
                self.measured.user_bytes += (KEY_BYTES + value.len()) as u64;
                self.check(&flight, &value);
                if flight.kind == Kind::ReadModifyWrite {
                    let op = self.put(&mut flight);
                    return self.submit(op, flight);
                }
            }
            OpResult::Put { .. } => {
                let sequence = flight.sequence.expect("a put has a number");
                self.shared.ledger.acknowledged(flight.record, sequence);
                let bytes = KEY_BYTES + self.mix().value_bytes(flight.record);
                self.measured.user_bytes += bytes as u64;
            }
            other => return self.fail(flight, OpError::Invalid(format!("unexpected answer {other:?}"))),
        }
        self.succeed(&flight);
    }

    fn scanned(&mut self, mut flight: Flight, results: Vec<OpResult>) {
        let scan = flight.scan.as_mut().expect("only scans come here");
        match scan.answered(results, &self.regions) {
            Ok(read) => {
                let bytes: usize = read.iter().map(|(key, value)| key.len() + value.len()).sum();
                self.measured.user_bytes += bytes as u64;
            }
            Err(error) => return self.fail(flight, error),
        }
        match scan.next(&self.regions) {
            ops if ops.is_empty() => self.succeed(&flight),
            ops => self.submit_all(ops, flight),
        }
    }

    /// The result of a flight: of a read of several members a failure, if there is one. Each value is checked.
    fn one_of(&mut self, flight: &Flight, results: Vec<OpResult>) -> OpResult {
        // An answer of a backup also says how stale it may be.
        let mut results = results.into_iter().map(|result| result.fresh().0);
        let mut result = results.next().expect("one result an operation");
        for other in results {
            match other {
                OpResult::Value(value) => self.check(flight, &value.unwrap_or_default()),
                failure => result = failure,
            }
        }
        result
    }

    /// Counts a value that is not of the record.
    fn check(&mut self, flight: &Flight, value: &[u8]) {
        if sequence_of(flight.record, value, self.mix().value_bytes(flight.record)).is_none() {
            self.measured.misses += 1;
        }
    }

    fn succeed(&mut self, flight: &Flight) {
        self.measured.record(flight.kind, flight.started.elapsed());
        self.shared.succeeded.fetch_add(1, Ordering::Relaxed);
        self.finish(flight);
    }

    fn fail(&mut self, flight: Flight, error: OpError) {
        self.measured.errors += 1;
        if let Some(sequence) = flight.sequence {
            match error {
                // The write may have taken effect, so its value stays possible.
                OpError::Unknown(_) | OpError::Unavailable(_) | OpError::AnswerGone { done: true } => {}
                OpError::Invalid(_)
                | OpError::Recovering(_)
                | OpError::NotEnoughReplicas { .. }
                | OpError::Forgotten(_)
                | OpError::AnswerGone { done: false }
                | OpError::Overloaded(_)
                | OpError::Unauthenticated(_)
                | OpError::NotPermitted(_)
                | OpError::NotPrimary { .. } => self.shared.ledger.refused(flight.record, sequence),
            }
        }
        self.measured.first_error.get_or_insert_with(|| error.to_string());
        self.finish(&flight);
    }

    fn finish(&mut self, flight: &Flight) {
        if flight.kind == Kind::Insert {
            self.shared.records.inserted(flight.record);
        }
        self.measured.ops += 1;
        self.shared.completed.fetch_add(1, Ordering::Relaxed);
    }
}
