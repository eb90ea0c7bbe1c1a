//! A node whose volume has lost a part of a region's log.

use super::backups::{create, is_whole, select, select_at, wait_until};
use super::*;
use leeward_engine::VOLUME_NAME;
use leeward_engine::image::Image;
use leeward_format::table::TableChange;
use leeward_format::{RegionId, ServerId};
use leeward_platform::{Disk, RealDisk};
use std::os::unix::fs::FileExt;
use std::path::Path;

const KEYS: u32 = 1_200;

/// Small ones fill L0s, which are merged; leaves point to large ones, in the log.
fn value(n: u32) -> String {
    format!("{n}-{}", "v".repeat(if n.is_multiple_of(2) { 300 } else { 3_000 }))
}

/// Changes a byte of the region's log that was durable, and that a replay reads.
fn damage_log(data: &Path, region: RegionId) {
    let disk = RealDisk::open(data).expect("a directory");
    let image = Image::read(disk.open(VOLUME_NAME).expect("a volume"), None).expect("it is read").expect("a volume");
    let state = &image.state().regions[&region];
    let replayed = state.segments.values().filter(|segment| state.is_replayed(segment));
    let segment = replayed.max_by_key(|segment| segment.certain_bytes()).expect("a log");
    assert!(segment.certain_bytes() > 0, "leaves point there");
    let at = segment.no.start(image.superblock().segment_bytes as usize) + u64::from(segment.certain_bytes() / 2);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(data.join(VOLUME_NAME)).expect("a volume");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("it is written");
}

fn write(client: &mut Client, name: &str) {
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("SET {name}{n} {}", value(n))), "+OK");
    }
}

/// The last primary alone has acknowledged writes, and nothing tells how many once its log is damaged.
#[test]
fn a_region_waits_while_the_log_of_its_last_primary_is_damaged_until_that_is_given_up() {
    let mut cluster = Cluster::start(3);
    create(&cluster, TableOptions::default());
    let region = wait_until(&cluster, "every replica is in sync", is_whole)[0].region;
    let name = "built".parse().expect("a name");
    let change = Box::new(TableChange { name, min_in_sync: Some(1), ..TableChange::default() });
    let alone = identity::request(&cluster.servers[0].info().native_address, &Op::AlterTable { change });
    assert_eq!(alone, OpResult::Done);
    let mut client = select(&cluster);
    write(&mut client, "early");
    cluster.servers.pop().expect("three nodes").stop();
    cluster.servers.pop().expect("two nodes").stop();
    write(&mut client, "late");
    drop(client);
    cluster.servers.pop().expect("the last primary").stop();
    let configs: Vec<NodeConfig> = (1..=3).map(|id| cluster.config(id, 3)).collect();
    damage_log(&configs[0].data_dir(), region);
    cluster.servers = configs.iter().map(|config| start(config).expect("it starts")).collect();
    let info = cluster.servers[1].info().clone();
    let (_, status) = identity::wait_for(&info.admin_address, "/status", "a damaged copy of the region");
    assert!(status.contains(&format!("region {region} waits for volume")), "{status}");
    assert!(status.contains(&format!("`leeward accept-loss --region {region} --server 1`")), "{status}");
    let mut client = select_at(&cluster, 1);
    assert!(client.run("GET early1").starts_with("-LOADING"));
    let give_up = Op::AcceptLoss { region, server: ServerId(1) };
    assert_eq!(identity::request(&info.native_address, &give_up), OpResult::Done);
    for n in 0..KEYS {
        assert_eq!(client.run_until_served(&format!("GET early{n}")), value(n));
    }
    assert_eq!(client.run("GET late1"), "$-1", "what only the lost copy had is gone");
    wait_until(&cluster, "the damaged copy is brought in sync", is_whole);
    // It counts as sound from then on: the server continues alone.
    drop(client);
    cluster.servers.pop().expect("three nodes").stop();
    cluster.servers.pop().expect("two nodes").stop();
    let mut client = select_at(&cluster, 0);
    assert_eq!(client.run_until_served("GET early1"), value(1));
}
