//! `leeward inspect` and `leeward verify`: read a volume from its file, and print it for people.

use crate::Outcome;
use crate::args::{InspectArgs, Keys, RekeyArgs};
use crate::table::acknowledge_text;
use crate::text::{bytes, table};

use leeward_engine::error::RESTORE;
use leeward_engine::image::Image;
use leeward_engine::verify::{Damage, Item};
use leeward_engine::{Encryption, Secrets, VOLUME_NAME};
use leeward_format::cluster::ReadPaths;
use leeward_format::manifest::{Change, EntryBody, RegionState, SegmentKind, SegmentState, level_name};
use leeward_format::node::{Entry, Node, NodeKind};
use leeward_format::packed::Codec;
use leeward_format::range::NO_END;
use leeward_format::record::RecordKind;
use leeward_format::{Pointer, RegionId, SegmentNo, Stamp};
use leeward_platform::disk::DiskLock;
use leeward_platform::{Disk, RealDisk};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;

/// Bytes of a key or value that are shown.
const SHOWN_BYTES: usize = 48;

pub(crate) fn inspect(args: &InspectArgs) -> Outcome {
    let image = open(&disk(&args.directory)?, &args.directory, &args.keys)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let shown = match (args.region, args.segment) {
        (Some(region), _) => show_region(&mut out, &image, RegionId(region)),
        (None, Some(no)) => show_segment(&mut out, &image, no, args.entries),
        (None, None) if args.manifest => show_manifest(&mut out, &image),
        (None, None) => show_volume(&mut out, &image),
    };
    match shown.and_then(|is_sound| Ok(out.flush().map(|()| is_sound)?)) {
        // `leeward inspect | head`: the reader has closed the pipe.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => Ok(true),
        shown => shown,
    }
}

/// Rewrites a volume with a new data key.
pub(crate) fn rekey(args: &RekeyArgs) -> Outcome {
    let disk = disk(&args.directory)?;
    let _lock: DiskLock = locked(disk.lock(), &args.directory)?;
    let secrets = Secrets::from_file(&args.key_file)?;
    let name = secrets.current().0.to_owned();
    let shows_progress = io::stderr().is_terminal();
    leeward_engine::rekey(&disk, &Encryption::new(secrets), &mut |done, all| {
        if shows_progress {
            eprint!("\r{done} of {all} segments");
        }
    })?;
    if shows_progress {
        eprintln!();
    }
    println!("{}: rewritten with a new data key, which the key {name} encrypts", args.directory.display());
    Ok(true)
}

fn locked<T>(lock: io::Result<T>, directory: &Path) -> Result<T, String> {
    lock.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => format!("{}: in use by another process: stop it first", directory.display()),
        _ => format!("{}: {error}", directory.display()),
    })
}

/// The operator's keys, if they are given.
pub(crate) fn encryption(keys: &Keys) -> io::Result<Option<Arc<Encryption>>> {
    Ok(keys.key_file.as_deref().map(Secrets::from_file).transpose()?.map(Encryption::new))
}

pub(crate) fn verify(directory: &Path, keys: &Keys) -> Outcome {
    let disk = disk(directory)?;
    let _lock: Option<DiskLock> = locked(disk.lock_to_read(), directory)?;
    let image = open(&disk, directory, keys)?;
    let shows_progress = io::stderr().is_terminal();
    let verification = image.verify(&mut |done, all| {
        if shows_progress {
            eprint!("\r{done} of {all} segments");
        }
    });
    if shows_progress {
        eprintln!();
    }
    for damaged in &verification.damaged {
        let SegmentState { id, no, kind, .. } = damaged.segment;
        println!("region {}: {kind} segment {no} (id {id}) is damaged", damaged.region);
        for Damage { offset, detail } in &damaged.damage {
            println!("  at byte {offset} of the volume: {detail}");
        }
    }
    println!(
        "{} segments, {} checked: {} nodes with {} entries, {} log records; {} segments damaged",
        verification.segments,
        bytes(verification.bytes),
        verification.nodes,
        verification.entries,
        verification.records,
        verification.damaged.len()
    );
    if !verification.damaged.is_empty() {
        println!("{RESTORE}");
    }
    Ok(verification.damaged.is_empty())
}

/// Opens the directory. Fails if it holds no volume, because opening it would create one.
fn disk(directory: &Path) -> Result<RealDisk, String> {
    if !directory.join(VOLUME_NAME).is_file() {
        let shown = directory.display();
        return Err(format!(
            "{shown}: has no file named {VOLUME_NAME}: give the data directory of a node, such as leeward-data/node-1"
        ));
    }
    RealDisk::open(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn open(disk: &RealDisk, directory: &Path, keys: &Keys) -> Result<Image, Box<dyn std::error::Error>> {
    let image = Image::read(disk.open_to_read(VOLUME_NAME)?, encryption(keys)?.as_ref())?;
    Ok(image.ok_or_else(|| format!("{}: the volume is empty: no node has started on it", directory.display()))?)
}

fn show_volume(out: &mut dyn Write, image: &Image) -> Outcome {
    let superblock = image.superblock();
    writeln!(
        out,
        "volume {}: format {}, segments of {}, file of {}, incarnation {}",
        superblock.volume,
        superblock.version,
        bytes(superblock.segment_bytes.into()),
        bytes(image.file_bytes()?),
        image.state().incarnation
    )?;
    if let Some(name) = image.key_name() {
        writeln!(out, "encrypted: the key {name} encrypts its data key")?;
    }
    for (name, copy) in ["superblock", "its copy"].into_iter().zip(image.superblock_copies()?) {
        match copy {
            Ok(_) => writeln!(out, "{name}: valid")?,
            Err(error) => writeln!(out, "{name}: DAMAGED: {error}")?,
        }
    }
    let manifest = image.manifest()?;
    let (used, room) = image.manifest_bytes();
    let (first, last) = (manifest.first().expect("a checkpoint"), manifest.last().expect("a checkpoint"));
    writeln!(
        out,
        "manifest: {} entries from byte {} on, {} to {}, {} of {}",
        manifest.len(),
        first.offset,
        first.entry.sequence,
        last.entry.sequence,
        bytes(used),
        bytes(room)
    )?;
    for region in image.state().regions.values() {
        writeln!(out)?;
        summarize_region(out, region)?;
    }
    Ok(true)
}

fn summarize_region(out: &mut dyn Write, region: &RegionState) -> io::Result<()> {
    let RegionState { region: id, options, term, replay_from, commit, .. } = region;
    writeln!(
        out,
        "region {id} of table {}: term {term}, replay from LSN {replay_from}, durable up to LSN {commit}",
        options.name
    )?;
    writeln!(
        out,
        "placement {:?}, L0 of {}, growth factor {}, {} runs of L1, {} compactions, {} replicas of which {} take writes",
        options.placement,
        bytes(options.l0_bytes),
        options.growth_factor,
        options.l1_runs,
        options.compaction,
        options.replicas,
        options.min_in_sync
    )?;
    writeln!(
        out,
        "backups {}, {} addressing, wire {}, acknowledged at {}, {} posting",
        options.backups,
        options.addressing,
        options.wire,
        acknowledge_text(options),
        options.posting
    )?;
    let ReadPaths { stale, index, scans } = options.reads;
    writeln!(out, "stale reads of {stale}, index {index}, scans of {scans}")?;
    if region.segments.is_empty() {
        return writeln!(out, "no segments");
    }
    let levels = region.levels.iter().enumerate().filter(|(_, level)| level.root.is_some()).map(|(i, level)| {
        vec![
            level_name(i),
            level.leaf_segments.to_string(),
            level.index_segments.len().to_string(),
            level.entries.to_string(),
            bytes(level.bytes),
            level.root.map_or_else(String::new, place),
        ]
    });
    let head = ["LEVEL", "LEAF SEGMENTS", "INDEX SEGMENTS", "ENTRIES", "BYTES IN PLACE", "ROOT"];
    write!(out, "{}", table(&head, levels.collect()))?;
    let mut kinds = BTreeMap::<SegmentKind, (u64, u64, u64)>::new();
    for segment in region.segments.values() {
        let (count, used, open) = kinds.entry(segment.kind).or_default();
        *count += 1;
        *used += u64::from(segment.bytes.unwrap_or(0));
        *open += u64::from(segment.bytes.is_none());
    }
    let rows = kinds
        .into_iter()
        .map(|(kind, (count, used, open))| vec![kind.to_string(), count.to_string(), open.to_string(), bytes(used)]);
    write!(out, "{}", table(&["SEGMENTS", "COUNT", "OPEN", "BYTES"], rows.collect()))?;
    if region.checkpoints.is_empty() {
        return Ok(());
    }
    let checkpoints = region.checkpoints.iter().map(|(name, base)| {
        let own = base.segments.iter().filter(|segment| !region.segments.contains_key(&segment.id)).count();
        vec![name.clone(), base.last_lsn.to_string(), base.segments.len().to_string(), own.to_string()]
    });
    write!(out, "{}", table(&["CHECKPOINT", "LAST LSN", "SEGMENTS", "NOT THE REGION'S"], checkpoints.collect()))
}

fn show_region(out: &mut dyn Write, image: &Image, region: RegionId) -> Outcome {
    let Some(state) = image.state().regions.get(&region) else {
        let known: Vec<String> = image.state().regions.keys().map(ToString::to_string).collect();
        return Err(format!("the volume has no region {region}; it has: {}", known.join(", ")).into());
    };
    summarize_region(out, state)?;
    let mut segments: Vec<&SegmentState> = state.segments.values().collect();
    segments.sort_by_key(|segment| (segment.kind, segment.id));
    let rows = segments.into_iter().map(|segment| {
        vec![
            segment.no.to_string(),
            segment.kind.to_string(),
            format!("{}.{}", segment.id.term(), segment.id.counter()),
            segment.origin.to_string(),
            segment.bytes.map_or_else(|| "open".into(), |used| bytes(used.into())),
            if segment.kind.is_index() { String::new() } else { bytes(segment.durable_bytes.into()) },
            if segment.last_lsn.0 == 0 { String::new() } else { segment.last_lsn.to_string() },
        ]
    });
    let head = ["SEGMENT", "HOLDS", "ID", "MADE FOR", "BYTES", "DURABLE", "LAST LSN"];
    write!(out, "\n{}", table(&head, rows.collect()))?;
    Ok(true)
}

fn show_segment(out: &mut dyn Write, image: &Image, no: SegmentNo, with_entries: bool) -> Outcome {
    let Some((region, segment)) = image.segment(no) else {
        return Err(format!(
            "segment {no} is free, or beyond the end of the volume, or holds the superblock and the manifest"
        )
        .into());
    };
    let regions: Vec<String> = image.holders(no).iter().map(ToString::to_string).collect();
    let (kind, id, origin) = (segment.kind, segment.id, segment.origin);
    writeln!(out, "segment {no}: {kind} of region {}, id {id}, made for region {origin}", regions.join(" and "))?;
    let mut written = Ok(());
    let damage = image.walk(region, &segment, &mut |item| {
        if written.is_ok() {
            written = show_item(out, &item, with_entries);
        }
    });
    written?;
    for Damage { offset, detail } in &damage {
        writeln!(out, "DAMAGED at byte {offset} of the volume: {detail}")?;
    }
    Ok(damage.is_empty())
}

fn show_item(out: &mut dyn Write, item: &Item<'_>, with_entries: bool) -> io::Result<()> {
    match item {
        Item::LogHeader(header) => writeln!(out, "header: first LSN {}", header.first_lsn),
        Item::Record { .. } if !with_entries => Ok(()),
        Item::Record { offset, record } => {
            let (lsn, key) = (record.stamp.lsn, shown(record.key));
            let more = if record.flags == 0 { "" } else { ", the batch continues" };
            let more = until(record.stamp) + more;
            match record.kind {
                RecordKind::Put => writeln!(out, "{offset:>8} LSN {lsn} put {key} = {}{more}", shown(record.value)),
                RecordKind::Delete => writeln!(out, "{offset:>8} LSN {lsn} delete {key}{more}"),
                RecordKind::Refused => writeln!(out, "{offset:>8} LSN {lsn} a request that wrote nothing{more}"),
                RecordKind::Ingest => writeln!(out, "{offset:>8} LSNs {lsn} to {} were ingested", record.last_lsn()),
                RecordKind::DeleteRange if record.value.is_empty() => {
                    writeln!(out, "{offset:>8} LSN {lsn} delete all from {key} on{more}")
                }
                RecordKind::DeleteRange => {
                    writeln!(out, "{offset:>8} LSN {lsn} delete all from {key} to before {}{more}", shown(record.value))
                }
            }
        }
        Item::Footer(footer) => writeln!(
            out,
            "footer: {} leaves, {} entries of which {} are tombstones, LSNs {} to {}, {} in place, {} in logs\n\
             {} range tombstones, keys {} to {}\ntree at {}, root at {}, filter of {} at {}, end at {}",
            footer.leaves,
            footer.entries,
            footer.tombstones,
            footer.min_lsn,
            footer.max_lsn,
            bytes(footer.payload_bytes),
            bytes(footer.log_bytes),
            footer.ranges,
            shown(&footer.span.first),
            bound(&footer.span.last, footer.span.is_open),
            footer.tree_at,
            footer.root_at,
            bytes(footer.filter_bytes.into()),
            footer.filter_at,
            footer.end
        ),
        Item::Ranges(_) if !with_entries => Ok(()),
        Item::Ranges(ranges) => ranges.as_slice().iter().try_for_each(|range| {
            let end = bound(&range.end, true);
            writeln!(out, "         LSN {} all from {} to {end} were deleted", range.lsn, shown(&range.start))
        }),
        Item::Node { offset, node, packed } => show_node(out, (*offset, *packed), node, with_entries),
    }
}

fn show_node<B: std::ops::Deref<Target = [u8]>>(
    out: &mut dyn Write,
    (offset, packed): (u32, Option<(Codec, u32)>),
    node: &Node<B>,
    with_entries: bool,
) -> io::Result<()> {
    let kind = if node.kind() == NodeKind::Leaf { "leaf" } else { "index node" };
    let packed = packed.map_or_else(String::new, |(codec, stored)| {
        format!(", {codec}: {} in {}", bytes(node.bytes().len() as u64), bytes(stored.into()))
    });
    writeln!(out, "{offset:>8} {kind}: {} entries, prefix {}{packed}", node.len(), shown(node.prefix()))?;
    if !with_entries {
        return Ok(());
    }
    let mut key = Vec::new();
    for i in 0..node.len() {
        key.clear();
        if node.kind() == NodeKind::Index {
            node.pivot_into(i, &mut key);
            let child = node.child(i);
            writeln!(
                out,
                "         from {} on: {}, {}",
                shown(&key),
                place(child.pointer),
                bytes(child.bytes() as u64)
            )?;
            continue;
        }
        node.key_into(i, &mut key);
        let (stamp, entry) = node.entry(i);
        let (lsn, key, until) = (stamp.lsn, shown(&key), until(stamp));
        match entry {
            Entry::InPlace(value) => writeln!(out, "         LSN {lsn} {key} = {}{until}", shown(value))?,
            Entry::InLog { pointer, value_bytes } => {
                writeln!(out, "         LSN {lsn} {key}: {value_bytes} bytes in {}{until}", place(pointer))?;
            }
            Entry::Tombstone => writeln!(out, "         LSN {lsn} {key} was deleted{until}")?,
        }
    }
    Ok(())
}

fn until(stamp: Stamp) -> String {
    stamp.expires.map_or_else(String::new, |expires| format!(", expires at {} ms since 1970", expires.ms()))
}

fn show_manifest(out: &mut dyn Write, image: &Image) -> Outcome {
    for placed in image.manifest()? {
        let (sequence, durable, incarnation) = (placed.entry.sequence, placed.entry.durable, placed.entry.incarnation);
        writeln!(
            out,
            "{sequence} at byte {}, {} bytes, incarnation {incarnation}, durable up to entry {durable}",
            placed.offset, placed.bytes
        )?;
        match placed.entry.body {
            body @ (EntryBody::Checkpoint(_) | EntryBody::Identified(..)) => {
                let state = body.into_state().expect("a checkpoint has a state");
                let regions: Vec<String> = state.regions.keys().map(ToString::to_string).collect();
                writeln!(out, "    checkpoint of regions {}", regions.join(", "))?;
            }
            EntryBody::Edit(changes) => {
                changes.iter().try_for_each(|change| show_change(out, change))?;
            }
            EntryBody::Moved => writeln!(out, "    continues in the other zone")?,
            EntryBody::Zone(segments) => {
                let segments: Vec<String> = segments.iter().map(ToString::to_string).collect();
                writeln!(out, "    zone, continues in segments [{}]", segments.join(", "))?;
            }
        }
    }
    Ok(true)
}

fn show_change(out: &mut dyn Write, change: &Change) -> io::Result<()> {
    match change {
        Change::Region(state) => {
            writeln!(out, "    region {} replaced: {} segments", state.region, state.segments.len())
        }
        Change::Install { region, edit, places, commit } => writeln!(
            out,
            "    region {region}: install of {} levels, {} segments added at [{}], {} removed, replay from LSN {}, durable \
             up to LSN {commit}",
            edit.levels.len(),
            edit.added.len(),
            places.iter().map(|(no, _)| no.to_string()).collect::<Vec<_>>().join(", "),
            edit.removed.len(),
            edit.replay_from
        ),
        Change::Checkpoint { region, name, base } => {
            let (last, segments) = (base.last_lsn, base.segments.len());
            writeln!(out, "    region {region}: checkpoint {name:?} at LSN {last}, {segments} segments")
        }
        other => writeln!(out, "    {other:?}"),
    }
}

fn place(pointer: Pointer) -> String {
    format!("segment {} at {}", pointer.segment(), pointer.offset())
}

/// The end of a range of keys.
fn bound(key: &[u8], is_open: bool) -> String {
    match is_open {
        false => shown(key),
        true if key == NO_END => "the end".into(),
        true => format!("before {}", shown(key)),
    }
}

/// A key or value as text, shortened.
fn shown(all: &[u8]) -> String {
    let start = &all[..all.len().min(SHOWN_BYTES)];
    let rest = if start.len() < all.len() { format!("... ({} bytes)", all.len()) } else { String::new() };
    format!("\"{}\"{rest}", start.escape_ascii())
}
