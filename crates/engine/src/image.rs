//! A volume that is inspected but not opened: nothing is written.
//!
//! For `leeward inspect` and `leeward verify`, of volumes that no process uses, damaged ones included. One thread.

use crate::error::Result;
use crate::verify::{Damage, Item, Verification, walk};
use crate::volume::{Device, Encryption, Manifest, SUPERBLOCKS_BYTES, encryption, read_superblock};
use leeward_format::manifest::{Entry, RegionState, SegmentState, VolumeState};
use leeward_format::superblock::{SUPERBLOCK_COPY_OFFSET, Superblock};
use leeward_format::{DecodeError, RegionId, SegmentNo};
use leeward_platform::File;
use std::collections::HashSet;
use std::sync::Arc;

/// Contents of a volume's file.
#[derive(Debug)]
pub struct Image {
    device: Arc<Device>,
    superblock: Superblock,
    key_name: Option<String>,
    manifest: Manifest,
    state: VolumeState,
}

/// An entry of the manifest, and where it lies.
#[derive(Clone, Debug)]
pub struct PlacedEntry {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length of its frame in bytes, without padding.
    pub bytes: usize,
    /// Decrypted, if the volume is encrypted.
    pub entry: Entry,
}

impl Image {
    /// Reads superblock and manifest of the volume in `file`, with the operator's keys if it is encrypted; `None` if the
    /// file is empty.
    ///
    /// # Errors
    /// As [`crate::Volume::open`].
    pub fn read(file: Arc<dyn File>, encryption: Option<&Arc<Encryption>>) -> Result<Option<Image>> {
        let device = Arc::new(Device::new(file));
        let Some(superblock) = read_superblock(&device, 0)? else { return Ok(None) };
        let key_name = superblock.is_encrypted().then(|| encryption::key_name(&device)).transpose()?;
        let device = encryption::open(device, &superblock, encryption, false)?;
        let (manifest, state) = Manifest::read(device.clone(), &superblock)?;
        Ok(Some(Image { device, superblock, key_name, manifest, state }))
    }

    /// The superblock: the first copy that can be read.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Name of the operator's key that the volume's data key is encrypted with, if the volume is encrypted.
    pub fn key_name(&self) -> Option<&str> {
        self.key_name.as_deref()
    }

    /// Each copy of the superblock, or why it cannot be read.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn superblock_copies(&self) -> Result<[Result<Superblock, DecodeError>; 2]> {
        let mut bytes = vec![0; SUPERBLOCKS_BYTES];
        self.device.read(0, &mut bytes)?;
        Ok([Superblock::decode(&bytes), Superblock::decode(&bytes[SUPERBLOCK_COPY_OFFSET as usize..])])
    }

    /// The state that the manifest describes.
    pub fn state(&self) -> &VolumeState {
        &self.state
    }

    /// The current entries of the manifest, in order: the newest checkpoint and the edits after it.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn manifest(&self) -> Result<Vec<PlacedEntry>> {
        let entries = self.manifest.entries()?.into_iter();
        Ok(entries.map(|(offset, bytes, entry)| PlacedEntry { offset, bytes, entry }).collect())
    }

    /// Bytes that those entries take, and bytes that they may take before the next checkpoint.
    pub fn manifest_bytes(&self) -> (u64, u64) {
        let (used, room) = self.manifest.extent();
        (used as u64, room as u64)
    }

    /// Length of the file in bytes.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn file_bytes(&self) -> Result<u64> {
        self.device.file().len().map_err(|error| self.device.error("length", 0, error))
    }

    /// The live segment at `no`, and the first region that has it.
    pub fn segment(&self, no: SegmentNo) -> Option<(&RegionState, SegmentState)> {
        self.live().find(|(_, segment)| segment.no == no)
    }

    /// The regions that have the segment at `no`.
    pub fn holders(&self, no: SegmentNo) -> Vec<RegionId> {
        self.live().filter(|(_, segment)| segment.no == no).map(|(region, _)| region.region).collect()
    }

    /// Passes every structure of a segment to `see`; returns the damage in it.
    pub fn walk(&self, region: &RegionState, segment: &SegmentState, see: &mut dyn FnMut(Item<'_>)) -> Vec<Damage> {
        let (segment_bytes, addressing) = (self.superblock.segment_bytes as usize, region.options.addressing);
        walk(&self.device, segment_bytes, addressing, segment, see).damage
    }

    /// Reads every live segment once, even if regions share it, and checks every checksum. Calls `progress` with the
    /// number of checked segments and of all.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Verification {
        let (mut verification, mut seen) = (Verification::default(), HashSet::new());
        let all: Vec<_> = self.live().filter(|(_, segment)| seen.insert(segment.no)).collect();
        for (region, segment) in &all {
            let of = (region.region, region.options.addressing);
            verification.check(&self.device, self.superblock.segment_bytes as usize, of, segment);
            progress(verification.segments, all.len() as u64);
        }
        verification
    }

    /// Every live segment, with each region that has it.
    fn live(&self) -> impl Iterator<Item = (&RegionState, SegmentState)> {
        let regions = self.state.regions.values().map(|region| &**region);
        regions.flat_map(|region| region.needed_segments().map(move |segment| (region, segment)))
    }
}
