//! What the event loop of a node calls waits for no sync: neither its own, nor that of another region or of the manifest.
//! The page "What the event loop may wait for" of the architecture says this.

use super::*;
use crate::replica::Replica;
use crate::volume::{Gate, VolumeOptions};
use leeward_format::VolumeId;
use leeward_format::cluster::{CopyIdentity, Placement};
use leeward_format::{ClusterId, SegmentId, TableId};
use leeward_platform::{Disk, SimDisk};
use std::thread;

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write::put(key, value)
}

/// Everything that the event loop calls of a region that it serves; among it writes that fill `tails` tails.
fn serve(region: &Region, tails: u64) {
    let first = region.tails(LogKind::Recovery).last().map_or(0, |tail| tail.index());
    for log in LogKind::APPENDED {
        region.allow_tails(log, 1000);
    }
    while region.tails(LogKind::Recovery).last().is_none_or(|tail| tail.index() < first + tails) {
        region.append(&[put(b"small", &[1; 100]), put(b"large", &[2; 400])]).unwrap();
        assert!(region.write_tails().is_ok());
        region.set_commit(region.last_lsn());
    }
    assert!(region.get(b"small", Reach::Memory, &UnixMs::default).unwrap().into_value().is_some());
    let volume = region.volume();
    let identity = CopyIdentity {
        cluster: ClusterId(1),
        table_id: TableId(1),
        epoch: Epoch(region.last_lsn().0 as u32),
        start: "".into(),
        end: None,
        inherited_below: SegmentId(0),
    };
    assert!(volume.identify(region.id(), identity).unwrap());
    let figures = (region.space(), region.stats().estimated_keys, region.pair_bytes(), region.promotion_bytes());
    assert!(figures.0.bytes > 0 && figures.1 > 0);
    drop((region.is_called(), region.is_idle(UnixMs(0)), region.wants_tails(), volume.calls(), volume.why_full()));
    region.freeze_if_asked();
    drop(region.next_compaction(UnixMs(0)));
    region.seal_tails();
    drop(region.base());
}

#[test]
fn the_event_loop_waits_for_no_sync() {
    let gate = Gate::new(SimDisk::new(1, 1 << 30).open("volume").unwrap());
    let options = VolumeOptions { segment_bytes: 32 << 10, ..VolumeOptions::default() };
    let (volume, _) = Volume::open(gate.clone(), VolumeId(1), options).unwrap();
    let region = |id| {
        let options = TableOptions { placement: Placement::threshold(200), ..TableOptions::default() };
        let region = Replica::create(&volume, RegionId(id), options).unwrap().serve(Epoch(1)).unwrap();
        region.append(&[put(b"a", b"1"), put(b"b", &[3; 1000])]).unwrap();
        region.set_commit(region.last_lsn());
        region.freeze();
        region
    };
    let (served, other) = (region(1), region(2));
    let done = other.next_compaction_at_once(UnixMs(0)).unwrap().finish().unwrap();
    let before = gate.close();
    thread::scope(|scope| {
        let install = scope.spawn(|| other.install(&done));
        // The logs' sync, then that of the edit.
        for number in 1..=2 {
            gate.until_begun(before + number);
            gate.must_return("a region beside an install", || serve(&served, 3));
            gate.must_return("the region of an install", || serve(&other, 2));
            gate.let_one_end();
        }
        install.join().unwrap().unwrap();
        // A region that makes its tails durable.
        let sync = scope.spawn(|| other.sync_tails());
        gate.until_begun(before + 3);
        gate.must_return("a region beside a sync", || serve(&served, 3));
        gate.open();
        sync.join().unwrap().unwrap();
    });
    assert_eq!(other.stats().compactions.installed, 1);
}
