//! Waits until servers have finished the work that clients have caused.

use crate::meter::{CpuTime, Meter, Totals};
use parking_lot::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// After the last operation, the servers get at most this long to finish the work that it caused.
const SETTLE_AT_MOST: Duration = Duration::from_secs(60);
/// Pause between the samples that show whether they have; three in a row must be alike.
const SETTLE_PAUSE: Duration = Duration::from_millis(250);
/// Bytes that a server may write in such a pause and still count as settled.
const SETTLE_BYTES: u64 = 64 << 10;

/// What a phase cost, and how long the servers worked after its last answer.
pub(crate) struct Settled {
    pub(crate) totals: Totals,
    pub(crate) cpu: CpuTime,
    /// Seconds until the servers had been idle for three samples.
    pub(crate) waited: f64,
    /// Seconds until the last compaction or shipment was over.
    pub(crate) worked: f64,
}

/// Waits until compactions and shipments that the phase caused are over; returns what the phase cost.
pub(crate) fn settle(meter: &Mutex<Meter>) -> Settled {
    let started = Instant::now();
    let (mut alike, mut worked) = (0, 0.0);
    let mut meter = meter.lock();
    meter.sample();
    while alike < 3 && started.elapsed() < SETTLE_AT_MOST {
        let before = *meter.totals();
        thread::sleep(SETTLE_PAUSE);
        meter.sample();
        let now = meter.totals();
        let written = now.all.engine_written_bytes.zip(before.all.engine_written_bytes);
        let quiet = written.is_none_or(|(now, before)| now - before <= SETTLE_BYTES);
        let still = now.primaries == before.primaries && now.backups == before.backups;
        let idle = now.compaction_memory == 0;
        alike = if quiet && still && idle { alike + 1 } else { 0 };
        // The counters of a compaction change when it ends. A tail that is flushed later is no work that is still owed.
        if !still {
            worked = started.elapsed().as_secs_f64();
        }
    }
    Settled { totals: meter.take_totals(), cpu: meter.take_cpu(), waited: started.elapsed().as_secs_f64(), worked }
}
