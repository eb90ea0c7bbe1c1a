//! One workload on an open store: client threads that each do one operation after another, the wait until the engine has settled,
//! and the cost of all of it.

use crate::Failure;
use crate::engine::Engine;
use crate::measurement::{DeviceBytes, Line, Measurement, Spent, peak_memory_bytes, stored_bytes};
use crate::plan::{Plan, pair_bytes};
use crate::work::{SPACE_PASSES, Work};
use hdrhistogram::Histogram;
use leeward_bench::{
    Chooser, KEY_BYTES, Kind, LONGEST_SCAN, Latency, Records, Workload, fill_value, key_bytes, mix64, new_histogram,
    sequence_of,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait after the last operation for the engine to finish its background work.
const SETTLE_AT_MOST: Duration = Duration::from_secs(180);
/// Pause between samples of the engine's activity. This many samples in a row must be quiet.
const SETTLE_PAUSE: Duration = Duration::from_millis(250);
const QUIET_SAMPLES: u32 = 4;
/// CPU time and bytes that an idle process may spend in such a pause.
const QUIET_CPU_SECONDS: f64 = 0.015;
const QUIET_BYTES: u64 = 64 << 10;

/// Longest time without another operation. Write stalls end within seconds; an engine whose clients wait longer has hung.
const STALL_AT_MOST: Duration = Duration::from_secs(180);
/// Pause between two looks at the progress of the clients.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Runs `work` on `engine`, which has its data in `directory`. `records` are those that exist; inserts of D and E add to them.
/// Load and space begin with an empty store and leave all records of the plan.
///
/// An engine that hangs ends the process, after a line that says so: its clients cannot be stopped.
///
/// # Errors
/// The engine fails, or a read does not find a record that must exist.
pub(crate) fn run(
    engine: &dyn Engine,
    directory: &Path,
    plan: &Plan,
    work: Work,
    records: &Records,
) -> Result<Measurement, Failure> {
    let shared =
        ClientsInCommon { engine, plan, work, records, ops: operations(work, plan), issued: AtomicU64::new(0) };
    let chooser = match work {
        Work::Ycsb(workload) => workload.chooser(None, records.limit()),
        Work::Space => Chooser::Uniform,
    };
    let before = Spent::of_this_process()?;
    let engine_before = engine.device_bytes();
    let started = Instant::now();
    let over = AtomicBool::new(false);
    let outcomes: Vec<Result<Measured, Failure>> = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&shared, &over));
        let clients = (0..plan.threads).map(|index| {
            let client = Client::new(&shared, chooser.clone(), index);
            scope.spawn(|| client.run())
        });
        let clients: Vec<_> = clients.collect();
        let outcomes: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        outcomes.into_iter().map(|outcome| outcome.expect("a client does not panic")).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut sum = Measured::new();
    for measured in outcomes {
        sum.add(&measured?);
    }
    if sum.misses > 0 {
        return Err(format!("{work}: {} reads did not find the record that they must", sum.misses).into());
    }
    let live = if work.loads() { plan.records } else { records.limit() };
    let settle_seconds = settle()?;
    let after = Spent::of_this_process()?;
    let engine_device = engine.device_bytes().zip(engine_before).map(|(after, before)| after.minus(before));
    Ok(Measurement {
        workload: work,
        ops: shared.ops,
        seconds,
        settle_seconds,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        user_bytes: sum.user_bytes,
        device: after.device.minus(before.device),
        engine_device,
        stored_bytes: stored_bytes(directory)?,
        live_bytes: pair_bytes(plan.mix, 0..live),
        write_latency_us: latency(&sum.writes),
        read_latency_us: latency(&sum.reads),
        levels: engine.levels()?,
        peak_memory_bytes: peak_memory_bytes(),
    })
}

/// How many operations were issued, and since when no more were.
struct Progress {
    issued: u64,
    since: Instant,
}

impl Progress {
    /// Whether nothing was issued for too long.
    fn has_stalled(&mut self, issued: u64, now: Instant) -> bool {
        if issued != self.issued {
            (self.issued, self.since) = (issued, now);
        }
        now - self.since > STALL_AT_MOST
    }
}

/// Ends the process if the clients hang.
fn watch(shared: &ClientsInCommon<'_>, over: &AtomicBool) {
    let mut progress = Progress { issued: 0, since: Instant::now() };
    while !over.load(Ordering::Relaxed) {
        thread::park_timeout(WATCH_PAUSE);
        let issued = shared.issued.load(Ordering::Relaxed);
        if progress.has_stalled(issued, Instant::now()) {
            let seconds = STALL_AT_MOST.as_secs();
            let reason = format!(
                "{}: it hung: of {} operations {issued} had begun, and no other in {seconds} s",
                shared.work, shared.ops
            );
            drop(Line::Failed(reason).print());
            // An orderly exit would wait for the engine's threads.
            std::process::abort();
        }
    }
}

fn operations(work: Work, plan: &Plan) -> u64 {
    match work {
        Work::Ycsb(Workload::Load) => plan.records,
        Work::Ycsb(Workload::E) => plan.scans,
        Work::Ycsb(_) => plan.ops,
        Work::Space => plan.records * SPACE_PASSES,
    }
}

fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    (!histogram.is_empty()).then(|| Latency::new(histogram))
}

/// Waits until flushes and compactions are over, judged by the activity of the process. Answers how long that took.
fn settle() -> Result<f64, Failure> {
    let started = Instant::now();
    let mut quiet = 0;
    let mut quiet_since = 0.0;
    let mut before = Spent::of_this_process()?;
    while quiet < QUIET_SAMPLES && started.elapsed() < SETTLE_AT_MOST {
        thread::sleep(SETTLE_PAUSE);
        let now = Spent::of_this_process()?;
        let DeviceBytes { read, written } = now.device.minus(before.device);
        if now.cpu_seconds - before.cpu_seconds < QUIET_CPU_SECONDS && read + written <= QUIET_BYTES {
            quiet += 1;
        } else {
            quiet = 0;
            quiet_since = started.elapsed().as_secs_f64();
        }
        before = now;
    }
    Ok(quiet_since)
}

/// The state that the clients of a phase share.
struct ClientsInCommon<'a> {
    engine: &'a dyn Engine,
    plan: &'a Plan,
    work: Work,
    records: &'a Records,
    ops: u64,
    issued: AtomicU64,
}

/// The measurements of a client.
struct Measured {
    writes: Histogram<u64>,
    reads: Histogram<u64>,
    user_bytes: u64,
    misses: u64,
}

impl Measured {
    fn new() -> Measured {
        Measured { writes: new_histogram(), reads: new_histogram(), user_bytes: 0, misses: 0 }
    }

    fn add(&mut self, other: &Measured) {
        for (sum, part) in [(&mut self.writes, &other.writes), (&mut self.reads, &other.reads)] {
            sum.add(part).expect("all histograms have the same bounds");
        }
        self.user_bytes += other.user_bytes;
        self.misses += other.misses;
    }
}

/// A different seed for each client of each workload. A workload that repeated another's choices would find them
/// cached.
fn seed(workload: &str, client: u32) -> u64 {
    workload.bytes().fold(mix64(!u64::from(client)), |seed, byte| mix64(seed ^ u64::from(byte)))
}

/// One client thread.
struct Client<'a> {
    shared: &'a ClientsInCommon<'a>,
    chooser: Chooser,
    rng: fastrand::Rng,
    /// Sequence number of the last write; its high bits are unique to the thread.
    sequence: u64,
    value: Vec<u8>,
    measured: Measured,
}

impl<'a> Client<'a> {
    fn new(shared: &'a ClientsInCommon<'a>, chooser: Chooser, index: u32) -> Client<'a> {
        Client {
            shared,
            chooser,
            rng: fastrand::Rng::with_seed(seed(&shared.work.to_string(), index)),
            sequence: u64::from(index) << 48,
            value: Vec::new(),
            measured: Measured::new(),
        }
    }

    fn run(mut self) -> Result<Measured, Failure> {
        loop {
            let number = self.shared.issued.fetch_add(1, Ordering::Relaxed);
            if number >= self.shared.ops {
                return Ok(self.measured);
            }
            let done = match self.shared.work {
                Work::Ycsb(Workload::Load) => self.write(number),
                Work::Ycsb(workload) => self.ycsb(workload),
                Work::Space => self.space(number),
            };
            if let Err(error) = done {
                // The other clients have no more to do either.
                self.shared.issued.store(self.shared.ops, Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    fn ycsb(&mut self, workload: Workload) -> Result<(), Failure> {
        let records = self.shared.records;
        let kind = workload.kind(self.rng.u8(..100));
        if kind == Kind::Insert {
            let record = records.insert();
            self.write(record)?;
            records.inserted(record);
            return Ok(());
        }
        let record = self.chooser.next(records.limit(), &mut self.rng);
        match kind {
            Kind::Read => self.read(record),
            Kind::Update => self.write(record),
            Kind::Scan => self.scan(record),
            Kind::ReadModifyWrite => self.read(record).and_then(|()| self.write(record)),
            Kind::Insert => unreachable!("inserts choose no record that exists"),
        }
    }

    /// Operation `number` of passes over all records, each in an order of its own.
    fn space(&mut self, number: u64) -> Result<(), Failure> {
        let records = self.shared.plan.records;
        let (pass, place) = (number / records, number % records);
        let record = (u128::from(place) * u128::from(stride(pass, records)) % u128::from(records)) as u64;
        self.write(record)
    }

    fn write(&mut self, record: u64) -> Result<(), Failure> {
        self.sequence += 1;
        fill_value(&mut self.value, record, self.sequence, self.shared.plan.mix.value_bytes(record));
        let key = key_bytes(record);
        let started = Instant::now();
        self.shared.engine.put(&key, &self.value)?;
        note(&mut self.measured.writes, started);
        self.measured.user_bytes += (KEY_BYTES + self.value.len()) as u64;
        Ok(())
    }

    fn read(&mut self, record: u64) -> Result<(), Failure> {
        let key = key_bytes(record);
        let bytes = self.shared.plan.mix.value_bytes(record);
        let mut is_right = false;
        let started = Instant::now();
        self.shared.engine.get(&key, &mut |value| is_right = sequence_of(record, value, bytes).is_some())?;
        note(&mut self.measured.reads, started);
        self.measured.misses += u64::from(!is_right);
        self.measured.user_bytes += (KEY_BYTES + bytes) as u64;
        Ok(())
    }

    fn scan(&mut self, record: u64) -> Result<(), Failure> {
        let limit = self.rng.u32(1..=LONGEST_SCAN);
        let start = key_bytes(record);
        let (mut first_is_right, mut seen, mut bytes) = (false, 0, 0);
        let started = Instant::now();
        self.shared.engine.scan(&start, limit, &mut |key, value| {
            first_is_right |= seen == 0 && key == start;
            seen += 1;
            bytes += (key.len() + value.len()) as u64;
        })?;
        note(&mut self.measured.reads, started);
        self.measured.misses += u64::from(!first_is_right);
        self.measured.user_bytes += bytes;
        Ok(())
    }
}

fn note(histogram: &mut Histogram<u64>, started: Instant) {
    histogram.saturating_record(started.elapsed().as_nanos() as u64);
}

/// A step that visits each of `records` places once, in another order for each pass; the first pass is in order.
fn stride(pass: u64, records: u64) -> u64 {
    let is_coprime = |step: &u64| {
        let (mut a, mut b) = (*step, records);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    if pass == 0 || records < 3 {
        return 1;
    }
    let first = mix64(pass) % records;
    (first..).find(is_coprime).expect("a prime above the records is coprime to them")
}

#[cfg(test)]
#[path = "phase_tests.rs"]
mod tests;
