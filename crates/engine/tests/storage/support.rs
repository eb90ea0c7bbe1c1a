//! Shared by the engine's tests: a region that the test drives step by step on a simulated disk, and the history that
//! it must agree with.

use leeward_engine::{
    AppendError, Appended, Encryption, Error, Lookup, Moment, Reach, Region, Replica, Requests, ScanBounds, Snapshot,
    Volume, VolumeOptions, Write,
};
use leeward_format::cluster::{Addressing, BackupMode, CompactionMode, Placement, TableOptions};
use leeward_format::packed::{Codec, Compression};
use leeward_format::record::RecordKind;
use leeward_format::request::{Effect, RequestId};
use leeward_format::superblock::Superblock;
use leeward_format::{Expiry, LogKind, Lsn, RegionId, UnixMs, VolumeId};
use leeward_platform::disk::FaultPlan;
use leeward_platform::{Disk, Entropy, Rng, Secrets, SimDisk};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// Pairs by key: LSN, expiry and value.
pub(crate) type Pairs = BTreeMap<Vec<u8>, (Lsn, Option<Expiry>, Vec<u8>)>;

pub(crate) const REGION: RegionId = RegionId(1);

thread_local! {
    /// Memory budget of opened volumes, in bytes.
    static BUDGET: Cell<u64> = const { Cell::new(1 << 20) };
    /// Options of created regions.
    static MERGING: Cell<(u32, CompactionMode)> = const { Cell::new((4, CompactionMode::Partial)) };
    static COMPRESSION: Cell<Compression> = const { Cell::new(Compression::all(Codec::None)) };
    static ADDRESSING: Cell<Addressing> = const { Cell::new(Addressing::Physical) };
    static BACKUPS: Cell<BackupMode> = const { Cell::new(BackupMode::SendIndex) };
    static ENCRYPTED: Cell<Encrypted> = const { Cell::new(Encrypted::None) };
    /// Seed of the next nonces: no two openings may have the same.
    static NONCES: Cell<u64> = const { Cell::new(0) };
}

/// Which new volumes are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encrypted {
    None,
    All,
    /// Every second one, so that members of both kinds meet.
    EverySecond,
}

/// Which volumes that this thread creates later are encrypted.
pub(crate) fn choose_encryption(encrypted: Encrypted) {
    ENCRYPTED.set(encrypted);
}

/// The keys of encrypted volumes.
pub(crate) fn encryption() -> Arc<Encryption> {
    NONCES.set(NONCES.get() + 1);
    let secrets = Secrets::parse(&format!("test {}", "5c".repeat(32)), "keys").expect("a key");
    Encryption::with_entropy(secrets, Entropy::seeded(NONCES.get()))
}

/// Whether the volume of a disk is encrypted, or is going to be.
fn is_encrypted(disk: &SimDisk) -> bool {
    match Superblock::decode(&disk.contents("volume")) {
        Ok(superblock) => superblock.is_encrypted(),
        Err(_) => match ENCRYPTED.get() {
            Encrypted::None => false,
            Encrypted::All => true,
            Encrypted::EverySecond => {
                NONCES.set(NONCES.get() + 1);
                NONCES.get().is_multiple_of(2)
            }
        },
    }
}

/// How backups of regions that this thread creates later keep their copies.
pub(crate) fn choose_backups(mode: BackupMode) {
    BACKUPS.set(mode);
}

/// Draws from `rng` whether volumes that this thread opens later have little memory, which of them are encrypted, and
/// whether regions that it creates are compressed.
pub(crate) fn choose_options(rng: &mut Rng) {
    BUDGET.set([16 << 10, 64 << 10, 256 << 10, 4 << 20][rng.below(4) as usize]);
    MERGING.set((
        rng.between(1, 6) as u32,
        if rng.one_in(4) { CompactionMode::WholeLevel } else { CompactionMode::Partial },
    ));
    ADDRESSING.set(Addressing::ALL[rng.index(2)]);
    COMPRESSION.set(Compression { upper: Codec::ALL[rng.index(3)], last: Codec::ALL[rng.index(3)] });
    choose_encryption([Encrypted::None, Encrypted::All][rng.clone().index(2)]);
}

pub(crate) fn volume_options() -> VolumeOptions {
    VolumeOptions { segment_bytes: 32 << 10, memory_budget: BUDGET.get(), ..VolumeOptions::default() }
}

pub(crate) fn table_options() -> TableOptions {
    TableOptions {
        placement: Placement { medium_from: 60, large_from: 200 },
        l0_bytes: 12 << 10,
        growth_factor: 2,
        l1_runs: MERGING.get().0,
        compaction: MERGING.get().1,
        compression: COMPRESSION.get(),
        backups: BACKUPS.get(),
        addressing: ADDRESSING.get(),
        wire: COMPRESSION.get().last,
        ..TableOptions::default()
    }
}

pub(crate) fn open_volume(disk: &SimDisk) -> Result<(Arc<Volume>, Vec<Replica>), Error> {
    let encryption = is_encrypted(disk).then(encryption);
    let options = VolumeOptions { encryption, ..volume_options() };
    Volume::open(disk.open("volume").expect("a simulated file opens"), VolumeId(1), options)
}

/// Opens the volume and serves its region, which is created if there is none, in the next term.
pub(crate) fn open_region(disk: &SimDisk) -> Result<Arc<Region>, Error> {
    let (volume, replicas) = open_volume(disk)?;
    let replica = match replicas.into_iter().next() {
        Some(replica) => replica,
        None => Replica::create(&volume, REGION, table_options())?,
    };
    let term = replica.position().0.next();
    let region = replica.serve(term)?;
    region.set_commit(region.last_lsn());
    Ok(region)
}

/// A write, and its effect on a model.
#[derive(Clone)]
pub(crate) enum Change {
    Put(Vec<u8>, Vec<u8>, Option<Expiry>),
    Delete(Vec<u8>),
    /// No end: up to the last key.
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
    /// A request with this number that wrote nothing.
    Refused(u32),
    /// Ingested pairs, and the last LSN taken for them. The first pair has the first LSN; LSNs after the last pair have
    /// none.
    Ingest(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Change {
    /// A random one.
    fn random(rng: &mut Rng, keys: u64) -> Change {
        let name = |n: u64| format!("key{n:05}").into_bytes();
        let n = rng.below(keys);
        if rng.one_in(250) {
            let width = if rng.one_in(50) { keys } else { 40 };
            let end = n + 1 + rng.below(width);
            return Change::DeleteRange(name(n), (end < keys).then(|| name(end)));
        }
        if rng.one_in(6) {
            return Change::Delete(name(n));
        }
        let longest = if rng.one_in(20) { 3000 } else { 350 };
        let mut value = vec![0; rng.below(longest) as usize];
        rng.fill(&mut value);
        if rng.one_in(2) {
            value.iter_mut().for_each(|byte| *byte %= 4);
        }
        let expires = if rng.one_in(4) { Expiry::from_ms(NOW.get() + rng.below(4000)) } else { None };
        Change::Put(name(n), value, expires)
    }

    fn write(&self) -> Write<'_> {
        let write = match self {
            Change::Put(key, value, expires) => Write { expires: *expires, ..Write::put(key, value) },
            Change::Delete(key) => Write::delete(key),
            Change::DeleteRange(start, end) => Write::delete_range(start, end.as_deref()),
            Change::Refused(number) => return Write::refusal(RequestId { client: 8, sequence: *number }, &[]),
            Change::Ingest(..) => unreachable!("no write"),
        };
        Write { request: self.request(), ..write }
    }

    /// One in three keys is written by requests with an id.
    fn request(&self) -> Option<RequestId> {
        let (key, sequence) = match self {
            Change::Put(key, value, _) => (key, value.len() as u32),
            Change::Delete(key) => (key, 1 << 20),
            Change::DeleteRange(start, _) => (start, 2 << 20),
            Change::Refused(number) => return Some(RequestId { client: 8, sequence: *number }),
            Change::Ingest(..) => return None,
        };
        key[key.len() - 1].is_multiple_of(3).then_some(RequestId { client: 7, sequence })
    }

    /// Effect of such a request according to its record.
    fn effect(&self) -> Effect {
        match self {
            Change::Put(_, value, _) => Effect::of(RecordKind::Put, value),
            Change::DeleteRange(_, end) => Effect::of(RecordKind::DeleteRange, end.as_deref().unwrap_or_default()),
            Change::Refused(_) => Effect::Refused { version: None },
            Change::Delete(_) | Change::Ingest(..) => Effect::Deleted,
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Change::Put(key, value, expires) if is_live(*expires) => drop(model.insert(key.clone(), value.clone())),
            Change::Delete(key) | Change::Put(key, ..) => drop(model.remove(key)),
            Change::DeleteRange(start, end) => {
                model.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
            }
            Change::Refused(_) => {}
            Change::Ingest(pairs) => model.extend(pairs.iter().cloned()),
        }
    }
}

impl Change {
    /// The change of a key: `None` if it does not concern the key, otherwise its value, if it has one.
    /// The LSN too, if `lsn` is that of the change.
    fn of(&self, lsn: u64, key: &[u8]) -> Option<(u64, Option<&[u8]>)> {
        match self {
            Change::Put(of, value, expires) if of == key => Some((lsn, is_live(*expires).then_some(&value[..]))),
            Change::Delete(of) if of == key => Some((lsn, None)),
            Change::DeleteRange(start, end) => {
                (&start[..] <= key && end.as_ref().is_none_or(|end| key < &end[..])).then_some((lsn, None))
            }
            Change::Ingest(pairs) => {
                let at = pairs.iter().position(|(of, _)| of == key)?;
                Some((lsn, Some(&pairs[at].1)))
            }
            _ => None,
        }
    }
}

thread_local! {
    /// The wall clock of a test, which runs on one thread: a millisecond a batch, crashes or not.
    static NOW: Cell<u64> = const { Cell::new(1) };
}

pub(crate) fn now() -> UnixMs {
    UnixMs(NOW.get())
}

/// Lets so many milliseconds pass.
pub(crate) fn pass(ms: u64) {
    NOW.set(NOW.get() + ms);
}

fn is_live(expires: Option<Expiry>) -> bool {
    expires.is_none_or(|expires| !expires.is_over(now()))
}

/// Every write that a region has taken, by LSN.
#[derive(Clone, Default)]
pub(crate) struct History {
    writes: Vec<Change>,
    /// Including requests that write nothing.
    has_refusals: bool,
    /// Ends of batches.
    ends: Vec<u64>,
    /// Last LSN that reached the page cache.
    pub(crate) written: u64,
    /// Last LSN that was made durable.
    pub(crate) synced: u64,
    /// An earlier moment of the open region, and its last LSN.
    before: Option<(u64, Moment)>,
}

impl History {
    /// One of writes and of requests that write nothing.
    pub(crate) fn with_refusals() -> History {
        History { has_refusals: true, ..History::default() }
    }

    pub(crate) fn model(&self, last: Lsn) -> Model {
        let mut model = Model::new();
        self.writes[..last.0 as usize].iter().for_each(|change| change.apply(&mut model));
        model
    }

    /// The live pairs as of an LSN and an instant.
    pub(crate) fn pairs(&self, last: Lsn, now: UnixMs) -> Pairs {
        let mut pairs = Pairs::new();
        for (lsn, change) in (1..=last.0).map(Lsn).zip(&self.writes) {
            match change {
                Change::Put(key, value, expires) => drop(pairs.insert(key.clone(), (lsn, *expires, value.clone()))),
                Change::Delete(key) => drop(pairs.remove(key)),
                Change::DeleteRange(start, end) => {
                    pairs.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
                }
                Change::Refused(_) => {}
                Change::Ingest(..) => unreachable!("no test needs it"),
            }
        }
        pairs.retain(|_, (_, expires, _)| expires.is_none_or(|expires| !expires.is_over(now)));
        pairs
    }

    /// History of a region split from this one: all of it is durable.
    pub(crate) fn split(&self) -> History {
        History { written: self.last(), synced: self.last(), before: None, ..self.clone() }
    }

    /// The recovered state becomes the expected one.
    pub(crate) fn cut(&mut self, last: Lsn) {
        assert!(last.0 == 0 || self.ends.contains(&last.0), "{last} is not the end of a batch");
        self.writes.truncate(last.0 as usize);
        self.ends.retain(|end| *end <= last.0);
        (self.written, self.synced, self.before) = (last.0, last.0, None);
    }

    /// The region, just opened, has found every request with an id after the LSN up to which it has forgotten them.
    pub(crate) fn assert_requests(&self, region: &Region, context: &str) {
        let Requests { forgotten, found } = region.take_requests();
        let rest = self.writes[..region.last_lsn().0 as usize].iter().enumerate().skip(forgotten.0 as usize);
        let named = rest.filter_map(|(at, write)| Some((write.request()?, Lsn(at as u64 + 1), write.effect())));
        assert!(named.eq(found), "{context}: the requests since {forgotten}");
    }

    /// An ingest takes an LSN; its outcome is noted when it is known.
    pub(crate) fn begin_ingest(&mut self) {
        self.writes.push(Change::Ingest(Vec::new()));
        self.ends.push(self.last());
    }

    /// The ingest that took this LSN was installed.
    pub(crate) fn ingested(&mut self, lsn: u64, pairs: Vec<(Vec<u8>, Vec<u8>)>) {
        let Change::Ingest(none) = &mut self.writes[lsn as usize - 1] else { panic!("LSN {lsn} is of no ingest") };
        *none = pairs;
    }

    pub(crate) fn last(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Appends a random batch, with the upkeep that makes room for it.
    pub(crate) fn append(&mut self, region: &Region, rng: &mut Rng) -> Result<(), Error> {
        if self.before.is_none() || self.last().is_multiple_of(31) {
            self.before = Some((self.last(), region.moment()));
        }
        let size = if rng.one_in(4) { 1 + rng.below(5) } else { 1 };
        NOW.set(NOW.get() + 1);
        let mut batch: Vec<_> = (0..size).map(|_| Change::random(rng, 2000)).collect();
        if self.has_refusals && self.last().is_multiple_of(50) {
            batch[0] = Change::Refused(self.last() as u32);
        }
        let writes: Vec<_> = batch.iter().map(Change::write).collect();
        let key = match &batch[0] {
            Change::Put(key, ..) | Change::Delete(key) if size == 1 && rng.one_in(4) => Some(&key[..]),
            _ => None,
        };
        let result = loop {
            let result = match key {
                Some(key) => self.append_after_a_look(region, (key, &writes[0]))?,
                None => region.append(&writes),
            };
            match result {
                Err(AppendError::TailBusy(_)) => flush(region)?,
                Err(AppendError::L0Full) => {
                    self.write(region)?;
                    assert!(compact(region)?, "a full L0 can be compacted");
                }
                other => break other,
            }
        };
        let first = self.last() + 1;
        // A failed batch may have been written all the same.
        self.writes.extend(batch);
        self.ends.push(self.last());
        match result {
            Ok(appended) => assert_eq!((appended.first.0, appended.last.0), (first, self.last()), "LSNs are dense"),
            Err(AppendError::Engine(error)) => return Err(error),
            Err(other) => panic!("{other}"),
        }
        Ok(())
    }

    /// Appends a conditional write, decided on the current pair; one decided on an older pair is not appended.
    fn append_after_a_look(
        &self,
        region: &Region,
        (key, write): (&[u8], &Write<'_>),
    ) -> Result<Result<Appended, AppendError>, Error> {
        let since = region.moment();
        let newest = self.writes.iter().enumerate().rev().find_map(|(at, change)| change.of(at as u64 + 1, key));
        let found = match region.get(key, Reach::Device, &now)? {
            Lookup::Found { lsn, value, .. } => Some((lsn.0, value)),
            _ => None,
        };
        let expected = newest.and_then(|(lsn, value)| Some((lsn, value?)));
        assert_eq!(found.as_ref().map(|(lsn, value)| (*lsn, &value[..])), expected);
        if let Some(before) = self.before
            && newest.is_some_and(|(lsn, _)| lsn > before.0)
        {
            let stale = region.append_unchanged(write, before.1);
            assert!(!matches!(stale, Ok(Some(_))), "the key has been written since");
        }
        Ok(region.append_unchanged(write, since).map(|appended| appended.expect("there is no other writer")))
    }

    pub(crate) fn write(&mut self, region: &Region) -> Result<(), Error> {
        let last = region.last_lsn();
        region.write_tails()?;
        self.written = last.0;
        region.set_commit(last);
        Ok(())
    }

    pub(crate) fn sync(&mut self, region: &Region) -> Result<(), Error> {
        self.synced = region.sync_tails()?.0;
        self.written = self.written.max(self.synced);
        Ok(())
    }
}

/// Flushes and releases sealed tails, lets the next ones open.
pub(crate) fn flush(region: &Region) -> Result<(), Error> {
    for log in LogKind::APPENDED {
        for tail in region.tails(log).iter().filter(|tail| tail.sealed()) {
            region.flush_tail(log, tail.index())?;
            region.release_tail(log, tail.index());
            region.allow_tails(log, tail.index() + 2);
        }
    }
    region.prepare_tails()
}

/// Executes one compaction, if there is one to do.
pub(crate) fn compact(region: &Region) -> Result<bool, Error> {
    let Some(compaction) = region.next_compaction_at_once(now()) else { return Ok(false) };
    region.install(&compaction.finish()?)?;
    Ok(true)
}

/// Ends the process: by a fault if it `died`, otherwise it is killed, or the machine loses power. Returns the last LSN
/// that must have survived.
pub(crate) fn end_process(disk: &SimDisk, rng: &mut Rng, history: &History, died: bool) -> u64 {
    disk.set_faults(FaultPlan::default());
    if rng.one_in(2) {
        disk.lose_power(rng);
        return history.synced;
    }
    if !died {
        disk.kill_process();
    }
    history.written
}

pub(crate) fn contents(region: &Region) -> Model {
    read_all(&region.snapshot(region.last_lsn(), now()))
}

pub(crate) fn read_all(snapshot: &Snapshot) -> Model {
    let mut cursor = snapshot.cursor(ScanBounds::default());
    let mut all = Model::new();
    while let Some(entry) = cursor.next().expect("a sound device") {
        all.insert(entry.key.to_vec(), entry.value.to_vec());
    }
    all
}

/// The region holds exactly `model`, by scan and by look-up.
pub(crate) fn assert_holds(region: &Region, model: &Model, context: &str) {
    let found = contents(region);
    assert!(&found == model, "{context}: scan finds {} keys, {} are expected", found.len(), model.len());
    for (key, value) in model.iter().step_by(7) {
        match region.get(key, Reach::Device, &now).expect("a sound device") {
            Lookup::Found { value: found, .. } => assert_eq!(&found[..], &value[..], "{context}"),
            other => panic!("{context}: {other:?}"),
        }
    }
}
