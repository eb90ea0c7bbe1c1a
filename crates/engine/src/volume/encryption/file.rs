//! A file whose data segments are encrypted. It has the offsets and the length of the plain volume.
//!
//! ```text
//!  | superblock, data key  | manifest zones | nonces | segment | nonces | segment | ...
//!    as they are written     as they are      encrypted from here on, except what its writer has encrypted itself
//! ```
//! - A write goes under the use of its range if that has keystream left there. A write over other bytes is compared with
//!   them. A new use begins for what differs, from the first difference to the last, and the rest is not written again.
//!   So every write is safe, and the engine's usual ones cost nothing more. Blocks that the device has lost get a new
//!   use too, and only those: the rest of a segment that regions share is read under its use meanwhile.
//! - The slot of a use is written before any byte under it, and both become durable with the same sync. A crash in
//!   between loses only bytes that were being overwritten.
//! - A plaintext is never in the page cache: mapped memory gets encrypted bytes only.
//!
//! Any thread may call anything. The lock of a segment's uses is held while a slot is written, and while bytes are
//! compared; no read waits for either unless it is of the same segment.

use super::Encryption;
use super::keys::{DataKey, Stream};
use super::uses::{Extent, Uses};
use bytes::Bytes;
use ctr::cipher::StreamCipher;
use leeward_format::nonces::{NONCE_BYTES, Use, UseKind};
use leeward_format::superblock::Superblock;
use leeward_platform::disk::{Content, DIRECT_ALIGN, DeviceRoom, Pending, Read, Transform, is_unreadable};
use leeward_platform::{Appender, Block, DeviceCounters, File, Pool};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Idle memory for encrypted bytes that is kept, in bytes.
const IDLE_BYTES: usize = 4 << 20;

/// Where the bytes of the volume are in the file.
#[derive(Clone, Copy, Debug)]
struct Layout {
    segment_bytes: u64,
    nonce_bytes: u64,
    /// Bytes of the superblock's segment and of the zones.
    reserved: u64,
}

/// A part of a range: within one segment, or all within the reserved ones.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Number of the segment, from the first that is not reserved; `None` for a reserved one.
    segment: Option<u32>,
    /// Offset in the segment.
    at: u32,
    /// Offset in the file.
    offset: u64,
    bytes: usize,
}

impl Piece {
    /// A range of its bytes.
    fn part(&self, range: &Range<usize>) -> Piece {
        Piece {
            at: self.at + range.start as u32,
            offset: self.offset + range.start as u64,
            bytes: range.len(),
            ..*self
        }
    }
}

impl Layout {
    fn new(superblock: &Superblock) -> Layout {
        let segment_bytes = u64::from(superblock.segment_bytes);
        let reserved = (1 + 2 * u64::from(superblock.zone_segments)) * segment_bytes;
        Layout { segment_bytes, nonce_bytes: superblock.nonce_bytes.into(), reserved }
    }

    /// Offset in the file of a segment's block of nonces.
    fn nonces(&self, segment: u32) -> u64 {
        self.reserved + u64::from(segment) * (self.segment_bytes + self.nonce_bytes)
    }

    /// The first piece of `bytes` bytes from `offset` of the volume on.
    fn piece(&self, offset: u64, bytes: usize) -> Piece {
        let Some(beyond) = offset.checked_sub(self.reserved) else {
            let bytes = (bytes as u64).min(self.reserved - offset) as usize;
            return Piece { segment: None, at: 0, offset, bytes };
        };
        let (segment, at) = ((beyond / self.segment_bytes) as u32, beyond % self.segment_bytes);
        let bytes = (bytes as u64).min(self.segment_bytes - at) as usize;
        let offset = self.nonces(segment) + self.nonce_bytes + at;
        Piece { segment: Some(segment), at: at as u32, offset, bytes }
    }

    /// Length of the file that has `len` bytes of the volume.
    fn file_len(&self, len: u64) -> u64 {
        let blocks = len.saturating_sub(self.reserved).div_ceil(self.segment_bytes);
        len + blocks * self.nonce_bytes
    }

    /// Bytes of the volume in a file of `len` bytes.
    fn volume_len(&self, len: u64) -> u64 {
        let Some(beyond) = len.checked_sub(self.reserved) else { return len };
        let stride = self.segment_bytes + self.nonce_bytes;
        self.reserved + beyond / stride * self.segment_bytes + (beyond % stride).saturating_sub(self.nonce_bytes)
    }

    /// Number of segments that are not reserved in a file of `len` bytes, the last one perhaps cut short.
    fn segments(&self, len: u64) -> u32 {
        len.saturating_sub(self.reserved).div_ceil(self.segment_bytes + self.nonce_bytes) as u32
    }
}

/// An encrypted file: see the module.
pub(crate) struct EncryptedFile {
    file: Arc<dyn File>,
    layout: Layout,
    key: Arc<DataKey>,
    encryption: Arc<Encryption>,
    segments: RwLock<HashMap<u32, Arc<Mutex<Uses>>>>,
    /// Memory for encrypted bytes.
    pool: Arc<Pool>,
}

impl fmt::Debug for EncryptedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedFile").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Decrypts, or encrypts, bytes that begin at byte `at` of a segment.
fn apply(key: &DataKey, extents: &[Extent], at: u32, bytes: &mut [u8]) {
    let end = at + bytes.len() as u32;
    for extent in extents.iter().filter(|extent| extent.of.kind == UseKind::Stream) {
        let (from, to) = (extent.start.max(at), extent.end.min(end));
        if from < to {
            key.stream(&extent.of, from).apply_keystream(&mut bytes[(from - at) as usize..(to - at) as usize]);
        }
    }
}

/// Encrypts what is appended to a mapped range.
struct Appending(Stream);

impl fmt::Debug for Appending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Appending")
    }
}

impl Transform for Appending {
    fn apply(&mut self, bytes: &[u8], out: &mut [u8]) {
        self.0.apply_keystream_b2b(bytes, out);
    }
}

impl EncryptedFile {
    pub(super) fn new(
        file: Arc<dyn File>,
        superblock: &Superblock,
        key: Arc<DataKey>,
        encryption: Arc<Encryption>,
    ) -> EncryptedFile {
        let (layout, segments) = (Layout::new(superblock), RwLock::default());
        EncryptedFile { file, layout, key, encryption, segments, pool: Pool::new(IDLE_BYTES) }
    }

    /// The uses of a segment, read when they are first asked for.
    fn uses(&self, segment: u32) -> io::Result<Arc<Mutex<Uses>>> {
        if let Some(known) = self.segments.read().get(&segment) {
            return Ok(Arc::clone(known));
        }
        // If another thread was faster, its uses count: they may have changed since.
        let read = self.read_uses(segment)?;
        Ok(Arc::clone(self.segments.write().entry(segment).or_insert_with(|| Arc::new(Mutex::new(read)))))
    }

    /// Reads a segment's block of nonces. Beyond the end of the file there are none.
    fn read_uses(&self, segment: u32) -> io::Result<Uses> {
        let mut block = self.pool.take(self.layout.nonce_bytes as usize);
        let offset = self.layout.nonces(segment);
        match offset + self.layout.nonce_bytes <= self.file.len()? {
            true => self.file.read_at(&mut block, offset)?,
            false => block.fill(0),
        }
        Ok(Uses::decode(&block, self.layout.segment_bytes as u32))
    }

    fn extents(&self, piece: &Piece) -> io::Result<Option<Arc<Vec<Extent>>>> {
        piece.segment.map(|segment| Ok(self.uses(segment)?.lock().extents())).transpose()
    }

    /// Writes the slot of a use of a range, with a fresh nonce.
    fn begin(&self, segment: u32, uses: &mut Uses, range: (u32, u32), content: Content, used: u32) -> io::Result<Use> {
        let (mut nonce, mut kind) = ([0; NONCE_BYTES], UseKind::Sealed);
        if content == Content::Plain {
            self.encryption.entropy.fill(&mut nonce)?;
            kind = UseKind::Stream;
        }
        let Some(begun) = uses.begin(range, (kind, nonce), used) else {
            return Err(io::Error::other(format!("segment {segment} was written to in too many pieces")));
        };
        let (at, slot) = begun.slot();
        self.file.write_buffered_at(&slot, self.layout.nonces(segment) + at)?;
        let of = begun.of();
        uses.commit(begun);
        Ok(of)
    }

    /// Which of the `bytes` of a write are to be written, and under which use: all but those at the start and at the end
    /// that are there already. `None` if all are.
    fn use_for(&self, piece: &Piece, segment: u32, bytes: &[u8]) -> io::Result<Option<(Range<usize>, Use)>> {
        let uses = self.uses(segment)?;
        let mut uses = uses.lock();
        let (start, end) = (piece.at, piece.at + bytes.len() as u32);
        if let Some(of) = uses.take(start, end) {
            return Ok(Some((0..bytes.len(), of)));
        }
        let covered = (uses.uncovered(start, end) - start) as usize;
        let mut known = self.pool.take(covered);
        self.file.read_at(&mut known, piece.offset)?;
        apply(&self.key, &uses.extents(), start, &mut known);
        let differs = |at: &usize| known.get(*at) != Some(&bytes[*at]);
        let Some(first) = (0..bytes.len()).find(differs) else { return Ok(None) };
        let last = (first..bytes.len()).rfind(differs).expect("the first one differs");
        let (from, to) = (start + first as u32, start + last as u32 + 1);
        let of = match uses.take(from, to) {
            Some(of) => of,
            None => {
                let range = (from, uses.end_of(from, to));
                self.begin(segment, &mut uses, range, Content::Plain, to)?
            }
        };
        Ok(Some((first..last + 1, of)))
    }

    /// The bytes of a piece as they are written, and their offset in the file. `None` if they are there.
    fn encrypt(&self, piece: &Piece, bytes: &[u8], padding: usize) -> io::Result<Option<(Block, u64)>> {
        let (new, of) = match piece.segment {
            None => (0..bytes.len(), None),
            Some(segment) => match self.use_for(piece, segment, bytes)? {
                None => return Ok(None),
                Some((new, of)) => (new, Some(of).filter(|of| of.kind == UseKind::Stream)),
            },
        };
        let padding = if new.end == bytes.len() { padding } else { 0 };
        let block = self.seal(of, piece.at + new.start as u32, &bytes[new.clone()], padding);
        Ok(Some((block, piece.offset + new.start as u64)))
    }

    /// Bytes from byte `at` of a segment on as they are written under a use, and zeroes behind them.
    fn seal(&self, of: Option<Use>, at: u32, bytes: &[u8], padding: usize) -> Block {
        let mut block = self.pool.take(bytes.len() + padding);
        let (out, behind) = block.split_at_mut(bytes.len());
        behind.fill(0);
        match of {
            None => out.copy_from_slice(bytes),
            Some(of) => self.key.stream(&of, at).apply_keystream_b2b(bytes, out),
        }
        block
    }

    /// Encrypts a piece and writes it with `write`, as far as it is not there.
    fn put(
        &self,
        piece: &Piece,
        bytes: &[u8],
        padding: usize,
        write: impl Fn(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.encrypt(piece, bytes, padding) {
            Ok(Some((block, offset))) => write(&block, offset),
            Ok(None) => Ok(()),
            Err(error) => self.put_over_lost(piece, bytes, padding, error),
        }
    }

    /// Writes a piece that cannot be compared with what is there because of `error`. If the device has lost some blocks
    /// of it, those get uses of their own. The others keep theirs: they are readable, and may be read by other regions.
    fn put_over_lost(&self, piece: &Piece, bytes: &[u8], padding: usize, error: io::Error) -> io::Result<()> {
        let Some(segment) = piece.segment.filter(|_| is_unreadable(&error)) else { return Err(error) };
        for (range, is_lost) in self.lost_ranges(piece)? {
            let padding = if range.end == bytes.len() { padding } else { 0 };
            let part = piece.part(&range);
            let new = &bytes[range];
            let sealed = match is_lost {
                false => self.encrypt(&part, new, padding)?,
                true => {
                    let (start, end) = (part.at, part.at + part.bytes as u32);
                    let uses = self.uses(segment)?;
                    let of = self.begin(segment, &mut uses.lock(), (start, end), Content::Plain, end)?;
                    Some((self.seal(Some(of), part.at, new, padding), part.offset))
                }
            };
            if let Some((block, offset)) = sealed {
                self.file.write_buffered_at(&block, offset)?;
            }
        }
        Ok(())
    }

    /// The ranges of a piece that the device can read as a whole, and those that it has lost: whole blocks in the file.
    fn lost_ranges(&self, piece: &Piece) -> io::Result<Vec<(Range<usize>, bool)>> {
        let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
        let mut block = self.pool.take(DIRECT_ALIGN);
        let mut from = 0;
        while from < piece.bytes {
            let start = piece.offset + from as u64;
            let to = (from + DIRECT_ALIGN - (start as usize % DIRECT_ALIGN)).min(piece.bytes);
            let is_lost = match self.file.read_at(&mut block[..to - from], start) {
                Err(error) if is_unreadable(&error) => true,
                read => read.map(|()| false)?,
            };
            match ranges.last_mut() {
                Some((range, known)) if *known == is_lost => range.end = to,
                _ => ranges.push((from..to, is_lost)),
            }
            from = to;
        }
        Ok(ranges)
    }

    /// Number of segments that are not reserved.
    pub(super) fn segments(&self) -> io::Result<u32> {
        Ok(self.layout.segments(self.file.len()?))
    }

    /// The ranges of a segment that have a use: offset in the volume, bytes, and what they hold. Neighbours with the
    /// same content are one.
    pub(super) fn ranges(&self, segment: u32) -> io::Result<Vec<(u64, usize, Content)>> {
        let start = self.layout.reserved + u64::from(segment) * self.layout.segment_bytes;
        let mut ranges: Vec<(u64, usize, Content)> = Vec::new();
        for extent in self.uses(segment)?.lock().extents().iter() {
            let content = if extent.of.kind == UseKind::Stream { Content::Plain } else { Content::Sealed };
            let (offset, bytes) = (start + u64::from(extent.start), (extent.end - extent.start) as usize);
            match ranges.last_mut() {
                Some(last) if last.2 == content && last.0 + last.1 as u64 == offset => last.1 += bytes,
                _ => ranges.push((offset, bytes, content)),
            }
        }
        Ok(ranges)
    }

    /// Calls `each` with every piece of a range, and its position in the range.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut each: impl FnMut(Piece, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = self.layout.piece(offset + done as u64, bytes - done);
            each(piece, done)?;
            done += piece.bytes;
        }
        Ok(())
    }

    /// The range as one piece, if it is one.
    fn one_piece(&self, offset: u64, bytes: usize) -> Option<Piece> {
        Some(self.layout.piece(offset, bytes)).filter(|piece| piece.bytes == bytes)
    }
}

impl File for EncryptedFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.layout.volume_len(self.file.len()?))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.pieces(offset, buffer.len(), |piece, done| {
            let part = &mut buffer[done..done + piece.bytes];
            let extents = self.extents(&piece)?;
            self.file.read_at(part, piece.offset)?;
            if let Some(extents) = extents {
                apply(&self.key, &extents, piece.at, part);
            }
            Ok(())
        })
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        let pieces: Option<Vec<Piece>> =
            reads.iter().map(|read| self.one_piece(read.offset, read.buffer.len())).collect();
        let Some(pieces) = pieces else {
            return reads.iter_mut().try_for_each(|read| self.read_at(read.buffer, read.offset));
        };
        let extents: Vec<_> = pieces.iter().map(|piece| self.extents(piece)).collect::<io::Result<_>>()?;
        let mut inner: Vec<Read<'_>> = reads
            .iter_mut()
            .zip(&pieces)
            .map(|(read, piece)| Read { offset: piece.offset, buffer: &mut *read.buffer })
            .collect();
        // The order of these may change, the buffers do not.
        self.file.read_many(&mut inner)?;
        for ((read, piece), extents) in reads.iter_mut().zip(&pieces).zip(extents) {
            if let Some(extents) = extents {
                apply(&self.key, &extents, piece.at, read.buffer);
            }
        }
        Ok(())
    }

    fn begin_read(&self, mut buffer: Block, offset: u64) -> Pending {
        let Some(piece) = self.one_piece(offset, buffer.len()) else {
            return Pending::done(self.read_at(&mut buffer, offset).map(|()| buffer));
        };
        match self.extents(&piece) {
            Err(error) => Pending::done(Err(error)),
            Ok(None) => self.file.begin_read(buffer, piece.offset),
            Ok(Some(extents)) => {
                let key = Arc::clone(&self.key);
                let decrypt = move |block: &mut Block| apply(&key, &extents, piece.at, block);
                self.file.begin_read(buffer, piece.offset).then(decrypt)
            }
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.pieces(offset, bytes.len(), |piece, done| {
            let write = |block: &[u8], offset| self.file.write_at(block, offset);
            self.put(&piece, &bytes[done..done + piece.bytes], 0, write)
        })
    }

    fn begin_write(&self, bytes: Bytes, offset: u64) -> Pending {
        let Some(piece) = self.one_piece(offset, bytes.len()) else {
            return Pending::done(self.write_at(&bytes, offset).map(|()| Block::default()));
        };
        match self.encrypt(&piece, &bytes, 0) {
            Ok(Some((block, offset))) => self.file.begin_write(block.into(), offset),
            Ok(None) => Pending::done(Ok(Block::default())),
            Err(error) => Pending::done(self.put_over_lost(&piece, &bytes, 0, error).map(|()| Block::default())),
        }
    }

    fn write_buffered_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_padded_at(bytes, 0, offset)
    }

    /// The padding is zeroes, not encrypted ones: they would show the keystream of the records that follow.
    fn write_padded_at(&self, bytes: &[u8], padding: usize, offset: u64) -> io::Result<()> {
        let last = bytes.len();
        self.pieces(offset, bytes.len(), |piece, done| {
            let end = done + piece.bytes;
            let padding = if end == last { padding } else { 0 };
            let write = |block: &[u8], offset| self.file.write_buffered_at(block, offset);
            self.put(&piece, &bytes[done..end], padding, write)
        })
    }

    fn renew(&self, offset: u64, bytes: u64, content: Content) -> io::Result<()> {
        self.pieces(offset, bytes as usize, |piece, _| {
            let Some(segment) = piece.segment else { return Ok(()) };
            let uses = self.uses(segment)?;
            let range = (piece.at, piece.at + piece.bytes as u32);
            self.begin(segment, &mut uses.lock(), range, content, piece.at).map(drop)
        })
    }

    /// The bytes are in memory twice: as they are, on the heap, and encrypted.
    fn map(&self, offset: u64, bytes: usize) -> io::Result<Option<Appender>> {
        let piece = self.one_piece(offset, bytes).and_then(|piece| Some((piece, piece.segment?)));
        let Some((piece, segment)) = piece else { return Err(io::ErrorKind::InvalidInput.into()) };
        let Some(inner) = self.file.map(piece.offset, bytes)? else { return Ok(None) };
        let (start, end) = (piece.at, piece.at + bytes as u32);
        let uses = self.uses(segment)?;
        let mut uses = uses.lock();
        let of = match uses.take(start, end).filter(|of| of.kind == UseKind::Stream) {
            Some(of) => of,
            None => self.begin(segment, &mut uses, (start, end), Content::Plain, end)?,
        };
        let stream = self.key.stream(&of, start);
        Ok(Some(Appender::through(inner, Box::new(Appending(stream)))))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }

    /// The nonces of new segments are zeroes, and need not be read.
    fn allocate(&self, len: u64, extents: &[u64]) -> io::Result<()> {
        let old = self.file.len()?;
        // The nonces of a segment stay when its space is given back.
        let with_nonces: Vec<u64> = extents.iter().flat_map(|bytes| [self.layout.nonce_bytes, *bytes]).collect();
        self.file.allocate(self.layout.file_len(len), &with_nonces)?;
        let mut segments = self.segments.write();
        for segment in self.layout.segments(old)..self.layout.segments(self.layout.file_len(len)) {
            let none = || Arc::new(Mutex::new(Uses::none(self.layout.nonce_bytes as usize)));
            segments.entry(segment).or_insert_with(none);
        }
        Ok(())
    }

    fn place(&self, offset: u64) -> u64 {
        self.layout.piece(offset, 1).offset
    }

    fn reserve(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.pieces(offset, bytes as usize, |piece, _| self.file.reserve(piece.offset, piece.bytes as u64))
    }

    fn release(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let mut is_released = true;
        self.pieces(offset, bytes as usize, |piece, _| {
            is_released &= self.file.release(piece.offset, piece.bytes as u64)?;
            Ok(())
        })?;
        Ok(is_released)
    }

    fn device_room(&self) -> Option<DeviceRoom> {
        self.file.device_room()
    }

    fn counters(&self) -> DeviceCounters {
        self.file.counters()
    }
}
