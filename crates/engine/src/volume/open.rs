//! The checks of a volume's file before it is used: superblock, length, and the segments that the manifest names.
//!
//! Called by the thread that opens the volume, before other threads use it.

use super::manifest::Manifest;
use super::registry::Registry;
use super::space::{Segment, Space};
use super::{Device, SUPERBLOCKS_BYTES, VolumeOptions, ZONE_SEGMENTS, encryption};
use crate::error::{Error, RESTORE, Result};
use leeward_format::manifest::{RegionState, SegmentState, VolumeState};
use leeward_format::nonces::nonce_block_bytes;
use leeward_format::superblock::{SUPERBLOCK_COPY_OFFSET, Superblock, VOLUME_VERSION};
use leeward_format::{DecodeError, RegionId, SegmentNo, VolumeId};
use std::collections::HashMap;
use std::sync::Arc;

/// The superblock of the volume in the file. `None` if the file is empty, or has the rest of an interrupted creation,
/// which is at most `unmade_bytes` long.
pub(crate) fn read_superblock(device: &Device, unmade_bytes: u64) -> Result<Option<Superblock>> {
    let len = file_len(device)?;
    let file = device.file().name().to_owned();
    let mut bytes = vec![0; SUPERBLOCKS_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
    device.read(0, &mut bytes)?;
    let copy = bytes.get(SUPERBLOCK_COPY_OFFSET as usize..).unwrap_or_default();
    let error = match (Superblock::decode(&bytes), Superblock::decode(copy)) {
        (Ok(superblock), _) | (Err(_), Ok(superblock)) => return Ok(Some(superblock)),
        (Err(error), Err(_)) => error,
    };
    if bytes.iter().all(|byte| *byte == 0) && len <= unmade_bytes {
        return Ok(None);
    }
    Err(match error {
        DecodeError::Version { found, known, .. } => Error::OtherVersion { file, found, known },
        DecodeError::Invalid { .. } => Error::NotAVolume { file },
        DecodeError::Short { .. } | DecodeError::Checksum { .. } => Error::damaged(&file, 0, &error),
    })
}

/// Creates a volume in the file: the manifest first; the superblock, which makes it a volume, last.
pub(super) fn create(raw: Arc<Device>, volume: VolumeId, options: &VolumeOptions) -> Result<(Arc<Device>, Superblock)> {
    let (version, segment_bytes) = (VOLUME_VERSION, options.segment_bytes as u32);
    let nonce_bytes = options.encryption.as_ref().map_or(0, |_| nonce_block_bytes(segment_bytes));
    let superblock = Superblock { version, segment_bytes, zone_segments: ZONE_SEGMENTS, volume, nonce_bytes };
    let reserved = reserved_bytes(&superblock);
    if options.capacity_bytes.is_some_and(|capacity| capacity < reserved) {
        return Err(Error::Invalid(format!("capacity: a volume takes at least {reserved} bytes")));
    }
    raw.allocate(reserved, u64::from(segment_bytes))?;
    let device = match &options.encryption {
        Some(encryption) => encryption::create(&raw, &superblock, encryption)?,
        None => raw,
    };
    Manifest::create(device.clone(), &superblock)?;
    device.write_buffered(0, &superblock.encode())?;
    device.write_buffered(SUPERBLOCK_COPY_OFFSET, &superblock.encode())?;
    device.sync()?;
    Ok((device, superblock))
}

/// Upgrades the superblock to the present version, before anything is written that the old version did not have. The
/// copies are written one after the other, so that one is readable at any time.
pub(super) fn upgrade(device: &Device, superblock: &Superblock) -> Result<()> {
    if superblock.version == VOLUME_VERSION {
        return Ok(());
    }
    let upgraded = Superblock { version: VOLUME_VERSION, ..*superblock };
    for offset in [SUPERBLOCK_COPY_OFFSET, 0] {
        device.write_buffered(offset, &upgraded.encode())?;
        device.sync()?;
    }
    Ok(())
}

pub(super) fn file_len(device: &Device) -> Result<u64> {
    device.file().len().map_err(|error| device.error("length", 0, error))
}

pub(super) fn reserved_segments(superblock: &Superblock) -> u32 {
    1 + 2 * superblock.zone_segments
}

/// Bytes of the superblock's segment and the manifest's zones: no volume is shorter.
pub(super) fn reserved_bytes(superblock: &Superblock) -> u64 {
    u64::from(reserved_segments(superblock)) * u64::from(superblock.segment_bytes)
}

/// An error if the file ends before byte `needed`, which was durable.
pub(super) fn check_len(device: &Device, needed: u64, what: &str) -> Result<()> {
    let len = file_len(device)?;
    if len >= needed {
        return Ok(());
    }
    let detail = format!("the file is cut short: it ends here, and {what} reaches to byte {needed}");
    Err(Error::Damaged { file: device.file().name().to_owned(), offset: len, detail, advice: RESTORE })
}

/// Grows the file to include every segment that the manifest names; returns its length in segments. After a power loss
/// a manifest entry may have survived while the growth before it was lost, if nothing depended on either: such a
/// segment has no records. Index segments, and log bytes that levels refer to, were durable before they were named.
pub(super) fn grow_to_live(device: &Device, segment_bytes: u64, state: &VolumeState) -> Result<u32> {
    let live = || state.regions.values().flat_map(|region| region.needed_segments());
    for segment in live() {
        let durable = if segment.kind.is_index() { segment.bytes.unwrap_or(0) } else { segment.durable_bytes };
        if durable > 0 {
            let needed = segment.no.start(segment_bytes as usize) + u64::from(durable);
            check_len(device, needed, "a segment that the manifest names")?;
        }
    }
    let wanted = live().map(|segment| u64::from(segment.no.whole().0) + 1).max().unwrap_or(0) * segment_bytes;
    if file_len(device)? < wanted {
        device.allocate(wanted, segment_bytes)?;
    }
    Ok(u32::try_from(file_len(device)? / segment_bytes).unwrap_or(u32::MAX))
}

/// Claims the segments that the manifest names. Regions that name the same segment share it, if its identity is the
/// same in each.
pub(super) fn claim_live(
    device: &Device,
    space: &Arc<Space>,
    segment_bytes: usize,
    state: VolumeState,
) -> Result<Registry> {
    let mut registry = Registry::new(state, segment_bytes);
    let named = |region: &Arc<RegionState>| (region.region, region.needed_segments().collect::<Vec<SegmentState>>());
    let live: Vec<(RegionId, Vec<SegmentState>)> = registry.state.regions.values().map(named).collect();
    // One region may know less of a shared segment than another. Of numbers with one start, the lowest has most room.
    let mut places = HashMap::<SegmentNo, SegmentNo>::new();
    for segment in live.iter().flat_map(|(_, all)| all) {
        let place = segment.place(segment_bytes);
        places.entry(segment.no).and_modify(|known| *known = place.min(*known)).or_insert(place);
    }
    let mut claimed = HashMap::<SegmentNo, (SegmentState, Arc<Segment>)>::new();
    for (region, segment) in live.into_iter().flat_map(|(region, all)| all.into_iter().map(move |one| (region, one))) {
        let identity = |segment: &SegmentState| (segment.origin, segment.id, segment.kind);
        let shared = claimed.get(&segment.no).filter(|(known, _)| identity(known) == identity(&segment));
        let shared = shared.map(|(_, shared)| Arc::clone(shared));
        let place = places.get(&segment.no).copied().unwrap_or(segment.no);
        let Some(found) = shared.or_else(|| space.claim((segment.no, place), segment.origin)) else {
            let detail = format!("the manifest names segment {} for two uses, or one of its own", segment.no);
            let file = device.file().name().to_owned();
            return Err(Error::Damaged { file, offset: 0, detail, advice: RESTORE });
        };
        claimed.insert(segment.no, (segment, Arc::clone(&found)));
        registry.hold(region, segment.id, found);
    }
    registry.tally_all();
    Ok(registry)
}
