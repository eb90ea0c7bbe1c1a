//! A volume: one file of segments, and the manifest that describes their contents.
//!
//! - [`Volume::allocate`] takes a segment; dropping the last [`Arc`] of it frees it. The volume itself holds the
//!   manifest's live segments, once for each region that names them, so readers and shipments can pin a segment beyond
//!   its removal. The free list is never stored: after a start all segments that the manifest does not name are free.
//! - A segment that regions share is complete, and is never written to again.
//! - A segment that the manifest names is in use until the edit that removes the name is durable, whatever fails.
//! - The data read at the open is on the device, not only in the page cache (`Device::settle`).
//! - After a failed write or sync the contents of the device are unknown: the volume takes no more writes, and says so.
//!   The same holds after a panic of a thread that changed something, because the state in memory is unknown.
//! - Each region has one owner at a time, the [`crate::Replica`] or [`crate::Region`] opened last. Edits of others are
//!   refused.
//!
//! Any thread may call anything. No lock is held across a read or a sync. An edit that need not be durable at once waits
//! for no sync ([`Volume::commit`]).

mod accounts;
mod background;
mod device;
pub(crate) mod encryption;
#[cfg(test)]
#[path = "gate_tests.rs"]
mod gate;
mod identity;
mod manifest;
mod open;
mod parts;
mod registry;
mod reserve;
mod room;
mod segments;
mod space;
mod switch;
mod tally;
mod zone;

pub use accounts::Accounts;
pub(crate) use accounts::Complete;
pub(crate) use background::{Reading, Writing};
pub(crate) use device::Device;
pub use encryption::{Encryption, rekey};
#[cfg(test)]
pub(crate) use gate::Gate;
pub(crate) use manifest::{Durability, Manifest};
use manifest::{Framed, Placed};
pub(crate) use open::read_superblock;
pub(crate) use registry::{Owner, Sharing};
pub use reserve::Scarcity;
pub(crate) use reserve::{CompactionRoom, LEAST_MERGE, OfReserve, Planned, TailUse};
pub(crate) use segments::SegmentIds;
pub use space::Segment;
pub(crate) use tally::Figures;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::memory::{Memory, Purpose};
use leeward_format::manifest::{Change, InstallEdit, RegionState, SegmentState};
use leeward_format::superblock::{MIN_SEGMENT_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_COPY_OFFSET, Superblock};
use leeward_format::{Incarnation, MAX_SEGMENT_BYTES, RegionId, SegmentId, SegmentNo, VolumeId};
use leeward_platform::disk::DiskLock;
use leeward_platform::{Bug, DeviceCounters, File, planted};
use open::{check_len, claim_live, create, grow_to_live, reserved_bytes, reserved_segments, upgrade};
use parking_lot::Mutex;
use registry::{Dropped, Registry};
use space::Space;
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use switch::Guarded;

/// Options of a volume, the one file that a store consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Segment size in bytes for a new volume: a power of two, 32 KiB to 2 MiB, by default 2 MiB. An existing volume
    /// keeps its own. The records of a batch in one log must fit a segment.
    pub segment_bytes: usize,
    /// The volume grows to at most this many bytes; `None`, the default: as far as the device lets it. Beyond it,
    /// writes return [`Error::NoSpace`](crate::Error::NoSpace).
    pub capacity_bytes: Option<u64>,
    /// Memory of all regions of the volume, in bytes: L0s, buffers, and the cache, which uses the rest. By default 128
    /// MiB. A region needs at least 64 KiB of it to be of use, and a compaction three segments.
    pub memory_budget: u64,
    /// Keys with which a new volume is encrypted, and an encrypted one is opened; `None`, the default: the volume is not
    /// encrypted. A volume stays what it was created as.
    pub encryption: Option<Arc<Encryption>>,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            segment_bytes: MAX_SEGMENT_BYTES,
            capacity_bytes: None,
            memory_budget: 128 << 20,
            encryption: None,
        }
    }
}

/// Name of the volume's file in a data directory.
pub const VOLUME_NAME: &str = "volume";
/// Segments of each manifest zone of a new volume.
const ZONE_SEGMENTS: u32 = 4;
/// Approximate memory of a region itself, its parts of the manifest, and the allocator's overhead, in bytes. It matters
/// with thousands of regions.
const REGION_BYTES: usize = 12 << 10;
/// Bytes at the start of the file that hold both copies of the superblock.
pub(crate) const SUPERBLOCKS_BYTES: usize = SUPERBLOCK_COPY_OFFSET as usize + SUPERBLOCK_BYTES;

/// An open volume.
pub struct Volume {
    device: Arc<Device>,
    segment_bytes: usize,
    capacity_bytes: Option<u64>,
    space: Arc<Space>,
    manifest: Guarded,
    registry: Mutex<Registry>,
    /// See [`Registry::sharing_serial`].
    sharing: Arc<AtomicU64>,
    memory: Memory,
    id: VolumeId,
    incarnation: Incarnation,
    /// The last field: the directory is unlocked after all uses of the file have ended.
    lock: OnceLock<DiskLock>,
}

impl Volume {
    /// [`Volume::open`] without the regions, whose numbers are in the registry.
    pub(crate) fn open_alone(file: Arc<dyn File>, new: VolumeId, options: VolumeOptions) -> Result<Arc<Volume>> {
        let device = Arc::new(Device::new(file));
        if !Superblock::is_segment_size(options.segment_bytes) {
            let allowed = format!("{MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}");
            let detail = format!("segment size {}: must be a power of two, {allowed} bytes", options.segment_bytes);
            return Err(Error::Invalid(detail));
        }
        device.settle()?;
        let unmade_bytes = (1 + 2 * u64::from(ZONE_SEGMENTS)) * options.segment_bytes as u64;
        let (device, superblock) = match read_superblock(&device, unmade_bytes)? {
            Some(superblock) => (encryption::open(device, &superblock, options.encryption.as_ref(), true)?, superblock),
            None => create(device, new, &options)?,
        };
        check_len(&device, reserved_bytes(&superblock), "the manifest")?;
        let segment_bytes = u64::from(superblock.segment_bytes);
        let (mut manifest, state) = Manifest::read(device.clone(), &superblock)?;
        upgrade(&device, &superblock)?;
        let end = grow_to_live(&device, segment_bytes, &state)?;
        let capacity = options.capacity_bytes.unwrap_or(u64::MAX);
        let limit = u32::try_from(capacity / segment_bytes).unwrap_or(u32::MAX);
        let reserved = reserved_segments(&superblock);
        let space = Space::new(device.clone(), segment_bytes, reserved, end, limit);
        manifest.claim(&space)?;
        let mut registry = claim_live(&device, &space, superblock.segment_bytes as usize, state)?;
        let checkpoint = manifest.begin(&space, &mut registry.state, (new.0 >> 32 ^ new.0) as u32)?;
        let (number, incarnation) = (manifest.last(), manifest.incarnation());
        let manifest = Guarded::new(manifest);
        checkpoint.map_or_else(|| device.sync(), |checkpoint| manifest.switch(checkpoint))?;
        manifest.lock().synced(number);
        Ok(Arc::new(Volume {
            device,
            segment_bytes: superblock.segment_bytes as usize,
            capacity_bytes: options.capacity_bytes,
            space,
            id: superblock.volume,
            incarnation,
            manifest,
            sharing: Arc::clone(registry.sharing_serial()),
            registry: Mutex::new(registry),
            memory: Memory::new(options.memory_budget),
            lock: OnceLock::new(),
        }))
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        self.device.file().name()
    }

    /// Takes a free segment for `origin`, growing the file if there is none.
    ///
    /// # Errors
    /// [`Error::NoSpace`] at the capacity or on a full device; nothing is lost, and the volume continues to work.
    pub fn allocate(&self, origin: RegionId) -> Result<Arc<Segment>> {
        self.space.allocate(origin)
    }

    /// [`Volume::allocate`] for at most `bytes` that a compaction writes at once: of a small segment only a
    /// [part](leeward_format::part).
    ///
    /// # Errors
    /// As [`Volume::allocate`].
    pub(crate) fn allocate_part(&self, origin: RegionId, bytes: usize, of: OfReserve) -> Result<Arc<Segment>> {
        // Before the compaction gives back what it has, so that at no time there seems to be enough.
        self.space.allocate_part(origin, bytes, of).inspect_err(|error| self.compacted(origin, Err(error)))
    }

    /// A part of at least `bytes` of a segment that is in use already, if it is smaller than `than`.
    pub(crate) fn spare_part(&self, origin: RegionId, bytes: usize, than: &Segment) -> Option<Arc<Segment>> {
        self.space.spare_part(origin, bytes, than)
    }

    /// Makes everything written before durable.
    ///
    /// # Errors
    /// A failed sync makes the volume refuse all later writes.
    pub fn sync(&self) -> Result<()> {
        self.device.sync().map(drop)
    }

    /// Segment size in bytes.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Offset in the file of a place in a segment, in bytes: for messages.
    pub fn file_offset(&self, no: SegmentNo, offset: u32) -> u64 {
        self.device.file().place(no.start(self.segment_bytes) + u64::from(offset))
    }

    /// Most bytes of the segment with this number.
    pub(crate) fn bytes_of(&self, no: SegmentNo) -> usize {
        no.bytes(self.segment_bytes)
    }

    /// Its memory budget.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The cache of everything read from this volume.
    pub fn cache(&self) -> &Cache {
        self.memory.cache()
    }

    /// Id of the volume, which never changes.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// The incarnation of the volume. Each open begins a new one, durably.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Bytes read from and written to the device.
    pub fn counters(&self) -> DeviceCounters {
        self.device.file().counters()
    }

    /// Bytes of segments in use, the manifest's included, and bytes that the file takes on the device.
    pub fn usage(&self) -> (u64, u64) {
        self.space.usage()
    }

    /// The operator's keys, if it is encrypted.
    pub fn encryption(&self) -> Option<&Arc<Encryption>> {
        self.device.sealer().map(|sealer| sealer.encryption())
    }

    /// Its limit in bytes, if the operator has set one.
    pub fn capacity(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// Why it has no room for writes, according to the last attempts: for another segment, until one is free; or for the
    /// compactions of a region, until one is installed. Forgotten where nobody asks for room any more.
    pub fn why_full(&self) -> Option<String> {
        if self.space.why_manifest_is_short().is_some()
            && let Some(mut manifest) = self.manifest.manifest.try_lock()
            && let Err(error) = manifest.look_for_room(self.registry.lock().size(), &self.space)
        {
            return Some(error.to_string());
        }
        self.space.why_full()
    }

    /// Whether it refuses writes after a failure.
    pub fn is_failed(&self) -> bool {
        self.device.why_failed().is_some()
    }

    /// The failure because of which it refuses writes.
    pub fn failure(&self) -> Option<&str> {
        self.device.why_failed()
    }

    /// Keeps the directory locked while any part of the volume is in use: snapshots outlive the store, and read
    /// segments that another store would write to. Only the first lock is kept.
    pub(crate) fn keep(&self, lock: DiskLock) {
        drop(self.lock.set(lock));
    }

    /// Calls `change`, which changes shared state, under the lock of that state. If it panics, the change may be
    /// incomplete, so writes are refused from then on.
    pub(crate) fn in_doubt<T>(&self, change: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|panic| {
            self.panicked(&*panic);
            resume_unwind(panic)
        })
    }

    /// This thread has panicked: see [`Error::Panicked`]. Returns the error that writers get from now on.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        self.device.panicked(panic)
    }

    /// An error if it refuses writes.
    pub(crate) fn check(&self) -> Result<()> {
        self.device.check()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The regions that it has, ascending.
    pub(crate) fn regions(&self) -> Vec<RegionId> {
        self.registry.lock().state.regions.keys().copied().collect()
    }

    /// Whether `region` is the first of those that have the segment.
    pub(crate) fn is_first_holder(&self, region: RegionId, no: SegmentNo) -> bool {
        self.registry.lock().holders(no).next().is_none_or(|first| first == region)
    }

    /// Makes the caller the owner of `region`, if the volume has it.
    pub(crate) fn take_region(&self, region: RegionId) -> Option<Owner> {
        let reservation = self.memory.take(Purpose::Levels, REGION_BYTES);
        let mut registry = self.registry.lock();
        registry.region(region)?;
        Some(registry.take(region, reservation))
    }

    /// A second holder of the owner's right, for a copy that is written to while its index is built.
    pub(crate) fn share(&self, owner: &Owner) -> Owner {
        owner.share(self.memory.reserve(Purpose::Levels))
    }

    /// Creates a region without data; durable with the next sync.
    pub(crate) fn create_region(&self, state: RegionState) -> Result<Owner> {
        let region = state.region;
        let owner = {
            let reservation = self.memory.take(Purpose::Levels, REGION_BYTES);
            let mut registry = self.registry.lock();
            if registry.region(region).is_some() {
                return Err(Error::Invalid(format!("region {region} exists on {}", self.name())));
            }
            registry.take(region, reservation)
        };
        self.commit(&owner, vec![Change::Region(Box::new(state))], &[], Durability::Lazy)?;
        Ok(owner)
    }

    /// Creates or replaces the region of `state`, durably. `held` are the segments that it names.
    pub(crate) fn put_region(&self, state: RegionState, held: &[(SegmentId, Arc<Segment>)]) -> Result<Owner> {
        let reservation = self.memory.take(Purpose::Levels, REGION_BYTES);
        let owner = self.registry.lock().take(state.region, reservation);
        self.commit(&owner, vec![Change::Region(Box::new(state))], held, Durability::Synced)?;
        Ok(owner)
    }

    /// Calls `with` with the state of the owner's region. The event loop waits for the lock that is held meanwhile: no walk
    /// over all segments.
    pub(crate) fn with_region<T>(&self, owner: &Owner, with: impl FnOnce(&RegionState) -> T) -> Result<T> {
        let registry = self.registry.lock();
        registry.check(owner)?;
        registry.region(owner.region).map(with).ok_or(Error::Superseded(owner.region))
    }

    /// The state of the owner's region. While it is held, an edit of the region copies all of it.
    pub(crate) fn shared_region(&self, owner: &Owner) -> Result<Arc<RegionState>> {
        let registry = self.registry.lock();
        registry.check(owner)?;
        registry.shared_region(owner.region).ok_or(Error::Superseded(owner.region))
    }

    /// A copy of the state of the owner's region, made without the lock.
    pub(crate) fn copied_region(&self, owner: &Owner) -> Result<RegionState> {
        Ok(RegionState::clone(&*self.shared_region(owner)?))
    }

    /// How the segment of a region that has `segment` is shared with other regions.
    pub(crate) fn sharing(&self, segment: &SegmentState) -> Sharing {
        self.registry.lock().sharing(segment)
    }

    /// See [`crate::Region::set_inherited_below`].
    pub(crate) fn set_inherited_below(&self, owner: &Owner, id: SegmentId) -> Result<()> {
        let mut registry = self.registry.lock();
        registry.check(owner)?;
        registry.set_inherited_below(owner.region, id);
        Ok(())
    }

    /// The segments of the owner's region that nothing needs once `edit` is installed.
    pub(crate) fn trimmable(&self, owner: &Owner, edit: &InstallEdit) -> Result<Vec<SegmentId>> {
        let registry = self.registry.lock();
        registry.check(owner)?;
        registry.trimmable(owner.region, edit).ok_or(Error::Superseded(owner.region))
    }

    /// A number that changes whenever another region [is called](crate::Region::is_called).
    pub fn calls(&self) -> u64 {
        self.memory().asks().wrapping_add(self.sharing_serial())
    }

    /// A number that changes whenever the sharing of segments, or the live bytes of shared segments, may have changed.
    pub(crate) fn sharing_serial(&self) -> u64 {
        self.sharing.load(Ordering::Acquire)
    }

    /// A live segment of a region.
    pub(crate) fn segment(&self, region: RegionId, id: SegmentId) -> Option<Arc<Segment>> {
        self.registry.lock().segment(region, id)
    }

    /// The description by `describe` of the owner's region, and its live segments at the same instant. An owner that
    /// has lost the region still gets them, but can change nothing.
    pub(crate) fn pin_region<T>(
        &self,
        owner: &Owner,
        describe: impl FnOnce(&RegionState) -> T,
    ) -> (T, HashMap<SegmentId, Arc<Segment>>) {
        let registry = self.registry.lock();
        let state = registry.shared_region(owner.region).expect("a region is not dropped while it is served");
        let segments = registry.segments(owner.region);
        drop(registry);
        (describe(&state), segments)
    }

    /// State of a region, its segments pinned.
    pub(crate) fn state_and_segments(
        &self,
        region: RegionId,
    ) -> Option<(RegionState, HashMap<SegmentId, Arc<Segment>>)> {
        let registry = self.registry.lock();
        Some((registry.region(region)?.clone(), registry.segments(region)))
    }

    /// Every live segment of a region.
    pub(crate) fn segments(&self, region: RegionId) -> HashMap<SegmentId, Arc<Segment>> {
        self.registry.lock().segments(region)
    }

    /// An error if the manifest has no room for `change` with which writes continue.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn check_room(&self, change: &Change) -> Result<()> {
        let bytes = {
            let registry = self.registry.lock();
            registry.size_after(std::slice::from_ref(change)).unwrap_or_else(|| registry.size())
        };
        self.manifest.settled().check_room(bytes, &self.space)
    }

    /// Makes one atomic edit of the owner's region. `added` are the segments that it names for the first time. Segments
    /// that it no longer names are freed once the edit is durable. If it is unknown whether it is, they are never
    /// freed, and nothing more is written.
    ///
    /// A lazy edit that frees nothing waits for no sync: neither its own nor that of another edit. Callers that sync share
    /// the sync (group commit), and execute the moves of the manifest to its other zone.
    pub(crate) fn commit(
        &self,
        owner: &Owner,
        mut changes: Vec<Change>,
        added: &[(SegmentId, Arc<Segment>)],
        durability: Durability,
    ) -> Result<()> {
        let mut manifest = self.manifest.lock();
        let edit = loop {
            self.device.check()?;
            let edit = manifest.frame(changes)?;
            if !manifest.must_wait(&edit) {
                break edit;
            }
            changes = edit.changes;
            self.manifest.wait(&mut manifest);
        };
        let (dropped, placed) = self.in_doubt(|| self.execute(&mut manifest, owner, edit, added))?;
        let number = manifest.last();
        let is_lazy = durability != Durability::Synced && !planted(Bug::SyncEveryEdit);
        let is_synced = !is_lazy || !dropped.is_empty();
        let must_move = placed == Placed::Unwritten;
        let moves = must_move || is_synced && manifest.is_due();
        let checkpoint = moves.then(|| manifest.begin_switch(self.registry.lock().state.clone()));
        drop(manifest);
        if planted(Bug::ForgetSharer) {
            dropped.iter().for_each(|segment| segment.free());
        }
        let moved = checkpoint.map(|checkpoint| self.in_doubt(|| self.manifest.switch(checkpoint)));
        let durable = match moved {
            Some(Ok(durable)) => durable,
            Some(Err(error)) if must_move => {
                self.device.fail(&error.to_string());
                return Err(error);
            }
            // The old zone has room: the next edit tries again.
            _ if !is_synced => return Ok(()),
            _ => self.device.sync()?,
        };
        self.manifest.lock().synced(number);
        dropped.free(&durable);
        Ok(())
    }

    /// A compaction of `region` has ended like this: see [`Volume::why_full`].
    pub(crate) fn compacted(&self, region: RegionId, result: Result<(), &Error>) {
        match result {
            Ok(()) => self.space.compacted(region, None),
            Err(error @ Error::NoSpace { .. }) => self.space.compacted(region, Some(error.to_string())),
            Err(_) => {}
        }
    }

    /// Writes of `region` have room: see [`Volume::why_full`].
    pub(crate) fn writes_have_room(&self, region: RegionId) {
        self.space.writes_have_room(region);
    }

    /// Applies an edit, and appends it to the manifest.
    fn execute(
        &self,
        manifest: &mut Manifest,
        owner: &Owner,
        edit: Framed,
        added: &[(SegmentId, Arc<Segment>)],
    ) -> Result<(Dropped, Placed)> {
        self.registry.lock().check(owner)?;
        let bytes = self.registry.lock().size();
        let size_after = |changes: &[Change]| self.registry.lock().size_after(changes);
        // An error here has no effects. A later error leaves memory ahead of the device.
        manifest.ensure_room(&edit, &self.space, (bytes, size_after))?;
        let dropped = {
            let mut registry = self.registry.lock();
            registry.check(owner)?;
            registry.apply(&self.device, (owner.region, &edit.changes), added)?
        };
        // The state in memory is not on the device, or it is unknown whether it is.
        let placed = manifest.append(edit).inspect_err(|error| self.device.fail(&error.to_string()))?;
        Ok((dropped, placed))
    }

    /// Bytes that the records of an L0 may have in the logs. Until the L0 is compacted, nobody knows which of them are
    /// overwritten, and a snapshot keeps them all. So it is one part in 32 of a declared capacity: with one in 16, space
    /// grows by more than half while a few keys are overwritten under a snapshot.
    pub(crate) fn l0_log_bytes(&self) -> u64 {
        self.capacity_bytes.map_or(u64::MAX, |capacity| capacity / 32)
    }

    /// Gives space back to the device if much is free. Called after segments were freed.
    pub(crate) fn release_space(&self) {
        self.space.release();
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("device", &self.device).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
