//! The tables of `leeward status`, from statuses as nodes send them.

use super::{NodeRow, copy_table, learners, node_table, range, region_table};
use crate::text::bytes;
use leeward_client::{GroupConfig, RegionMap};
use leeward_format::cluster::{Member, Plan, ServerInfo, TableOptions};
use leeward_format::status::{DeviceStatus, NodeStatus, PlanStatus};
use leeward_format::{Epoch, Incarnation, RegionId, ServerId, VolumeId};

fn primary() -> NodeStatus {
    serde_json::from_str(
        r#"{"server":1,"incarnation":4,"pid":77,"is_master":true,"coordinator_up":true,"device":{"segment_bytes_used":4194304},
        "regions":[{"region":1,"role":"primary","state":"serving","epoch":5,"last_lsn":90,"commit_lsn":88,
        "levels":[{"level":1,"bytes":2097152},{"level":2,"bytes":20971520}],
        "peers":[{"server":2,"lag_bytes":64},{"server":3,"lag_bytes":4096}]}]}"#,
    )
    .expect("a status")
}

fn backup() -> NodeStatus {
    serde_json::from_str(
        r#"{"server":2,"incarnation":9,"volume_failure":"write failed","regions":[{"region":1,"start":"a","role":"backup",
        "state":"in sync","epoch":5,"last_lsn":80}]}"#,
    )
    .expect("a status")
}

#[test]
fn nodes_are_listed_with_their_roles_and_health() {
    let (one, two) = (primary(), backup());
    let mut rows = vec![NodeRow::answered(&two), NodeRow::answered(&one)];
    rows.push(NodeRow::silent(None, "its admin port x: refused".into()));
    let text = node_table(rows);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "node      pid  incarnation  primary of  backup of  building  in use    state");
    assert_eq!(lines[1], "1 master  77   4            1           0          0         4096 KiB  ok");
    assert_eq!(
        lines[2],
        "2         -    9            0           1          0         -         volume failed: write failed"
    );
    assert_eq!(
        lines[3],
        "-         -    -            -           -          -         -         its admin port x: refused"
    );
}

#[test]
fn the_worst_about_a_node_is_said() {
    let mut node = primary();
    node.device = node.device.map(|device| DeviceStatus { capacity_bytes: Some(64 << 20), ..device });
    let row = |node: &NodeStatus| NodeRow::answered(node).cells[6..].to_vec();
    assert_eq!(row(&node), ["4096 KiB of 64 MiB", "ok"]);
    node.gets_no_roles = Some("its volume had no room for writes 7 s ago".into());
    assert_eq!(row(&node)[1], "gets no roles: its volume had no room for writes 7 s ago");
    node.settings_differ = vec!["balance is true here and false on server 2".into()];
    assert_eq!(row(&node)[1], "balance is true here and false on server 2");
    node.volume_full = Some("at its capacity".into());
    assert_eq!(row(&node)[1], "volume full: at its capacity");
    node.regions[0].state = "broken: damaged at offset 7".into();
    assert_eq!(row(&node)[1], "region 1 broken: damaged at offset 7");
    node.not_joined = Some("the coordinator at x cannot be reached".into());
    assert_eq!(row(&node)[1], "not part of the cluster: the coordinator at x cannot be reached");
    node.volume_failure = Some("sync failed".into());
    assert_eq!(row(&node)[1], "volume failed: sync failed");
}

fn live(member: Member) -> ServerInfo {
    ServerInfo::of(member)
}

#[test]
fn regions_are_listed_with_members_and_lag() {
    let member =
        |server: u32| Member { server: ServerId(server), volume: VolumeId(server.into()), incarnation: Incarnation(1) };
    let group = |id: u32, primary: Option<u32>| GroupConfig {
        start: if id == 1 { "".into() } else { "m\x00".into() },
        end: (id == 1).then(|| "m\x00".into()),
        epoch: Epoch(5),
        term: Epoch(5),
        primary: primary.map(member),
        backups: vec![member(2), member(3)],
        ..GroupConfig::unassigned(RegionId(id), "default")
    };
    let regions = vec![group(1, Some(1)), group(2, None)];
    let mut map =
        RegionMap { version: 1, tables: Vec::new(), regions, servers: vec![live(member(1)), live(member(2))] };
    let text = region_table(&map, &[&primary(), &backup()]);
    let lines: Vec<&str> = text.lines().collect();
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(String::from).collect::<Vec<_>>();
    let expected = ["1", "first .. m\\x00", "1", "2,3", "-", "5", "serving", "90", "88", "4096 B", "2048 KiB 20 MiB"];
    assert_eq!(cells(lines[1]), expected);
    assert_eq!(cells(lines[2])[6..], ["unknown", "-", "-", "-", "-"]);
    assert_eq!(lines.len(), 3, "no region waits for a volume: {text}");
    let mut few = map.clone();
    few.tables = vec![TableOptions { min_in_sync: 3, ..TableOptions::default() }];
    assert_eq!(cells(region_table(&few, &[&primary()]).lines().nth(1).unwrap())[6], "serving");
    few.regions[0].backups.pop();
    assert_eq!(cells(region_table(&few, &[&primary()]).lines().nth(1).unwrap())[6], "reads only");
    let mut several = map.clone();
    several.regions[1].table = "orders".into();
    let text = region_table(&several, &[&primary(), &backup()]);
    assert_eq!(cells(text.lines().nth(2).unwrap())[..2], ["2", "orders"], "{text}");
    let mut planned = map.clone();
    planned.regions[0].desired.plan = Some(Plan::Split { at: Some("k".into()), child: RegionId(9) });
    let waiting = PlanStatus { waits_for: Some("a copy is being built".into()), ..PlanStatus::default() };
    let mut node = primary();
    assert!(region_table(&planned, &[&node]).ends_with("\nregion 1 is to be split at k; the new region is 9\n"));
    node.regions[0].plan = Some(waiting);
    let text = region_table(&planned, &[&node]);
    assert!(text.ends_with("the new region is 9; not yet: a copy is being built\n"), "{text}");
    planned.regions[0].desired.plan = Some(Plan::Merge { into: RegionId(2) });
    let text = region_table(&planned, &[&node]);
    assert!(text.ends_with("\nregion 1 is to be merged into region 2; not yet: a copy is being built\n"), "{text}");
    assert!(text.contains("merge into 2"), "{text}");
    // All are gone, and the primary's server is back with another volume.
    map.servers = vec![live(Member { volume: VolumeId(0xab), ..member(1) })];
    let text = region_table(&map, &[&primary()]);
    assert_eq!(cells(text.lines().nth(1).unwrap())[6], "waiting for a volume");
    assert!(
        text.contains("region 1 waits for volume 0000000000000001 of server 1, which is back with another"),
        "{text}"
    );
    assert!(text.contains("`leeward accept-loss --region 1 --server 3`"), "{text}");
}

#[test]
fn members_that_are_built_say_how_far_they_are() {
    let member = |server| Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) };
    let mut status = primary().regions.remove(0);
    let mut peer = status.peers[0].clone();
    (peer.server, peer.segments_lacked, peer.segments_sent) = (ServerId(4), 40, 12);
    status.peers.push(peer);
    assert_eq!(learners(&[member(4), member(5)], Some(&status)), "4 (12/40),5");
    assert_eq!((learners(&[member(4)], None), learners(&[], Some(&status))), ("4".into(), "-".into()));
}

#[test]
fn a_single_node_tells_of_its_copies() {
    let text = copy_table(&[&backup()]);
    assert!(text.lines().nth(1).expect("a row").starts_with("2     1       a .. last  backup  5"), "{text}");
}

#[test]
fn sizes_and_ranges_are_short() {
    assert_eq!([bytes(0), bytes(10_239), bytes(10_240), bytes(10 << 20)], ["0 B", "10239 B", "10 KiB", "10 MiB"]);
    assert_eq!(range("", None), "first .. last");
    assert_eq!(range("b", Some("c".into())), "b .. c");
}
