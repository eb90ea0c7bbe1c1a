//! Readiness and the page, from snapshots; the port itself is tested with a whole node.

use super::*;
use leeward_cluster::MapParts;
use leeward_format::RegionId;
use leeward_format::cluster::{GroupConfig, Member, RegionMap, ServerInfo};
use leeward_format::status::{CpuStatus, NodeStatus, RegionStatus, Role};
use leeward_format::{Epoch, Incarnation, ServerId, VolumeId};

fn snapshot() -> Snapshot {
    let group = GroupConfig {
        start: "<b>".into(),
        epoch: Epoch(3),
        term: Epoch(2),
        ..GroupConfig::unassigned(RegionId(1), "default")
    };
    let region = RegionStatus {
        region: RegionId(1),
        role: Role::Primary,
        state: "serving".into(),
        start: "<b>".into(),
        ..RegionStatus::default()
    };
    let status =
        NodeStatus { server: ServerId(2), coordinator_up: true, regions: vec![region], ..NodeStatus::default() };
    Snapshot { status, map: RegionMap { version: 8, tables: Vec::new(), regions: vec![group], servers: Vec::new() } }
}

#[test]
fn readiness_names_what_is_missing() {
    let said = |snapshot: &Snapshot| view::readiness(snapshot);
    let not_ready = |text: &str| (false, format!("{text}\n"));
    assert_eq!(said(&snapshot()), (true, "ok\n".into()));
    let mut waiting = snapshot();
    waiting.status.coordinator_concern = Some("the timeout is long".into());
    assert_eq!(said(&waiting), (true, "ok, but the timeout is long\n".into()));
    let mut restored = snapshot();
    restored.map.regions[0].restored_in = Some(1);
    assert!(said(&restored).1.starts_with("ok, but region 1 was restored from a copy, and waits until"));
    waiting.status.regions[0].state = "recovering".into();
    assert_eq!(said(&waiting), not_ready("region 1 is recovering\nthe timeout is long"));
    waiting.status.coordinator_concern = None;
    assert_eq!(said(&waiting), not_ready("region 1 is recovering"));
    waiting.status.regions[0].role = Role::Backup;
    assert!(said(&waiting).0, "a backup is not a primary that must serve");
    waiting.map = RegionMap::default();
    assert_eq!(said(&waiting), not_ready("the cluster has no regions yet"));
    waiting.status.not_joined = Some("the coordinator at x cannot be reached".into());
    assert_eq!(said(&waiting), not_ready("the coordinator at x cannot be reached"));
    waiting.status.volume_failure = Some("fsync".into());
    assert_eq!(said(&waiting), not_ready("the volume takes no writes: fsync"));
}

#[test]
fn the_page_escapes_what_users_chose() {
    let page = page::render(&snapshot());
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
}

#[test]
fn the_page_links_to_other_nodes_by_its_own_scheme() {
    let member = Member { server: ServerId(1), volume: VolumeId(1), incarnation: Incarnation(1) };
    let mut shown = snapshot();
    shown.map.servers.push(ServerInfo { admin_address: "host:1".into(), ..ServerInfo::of(member) });
    let page = page::render(&shown);
    assert!(page.contains("<a href=\"//host:1/\">host:1</a>"), "all nodes speak TLS, or none: {page}");
}

#[test]
fn the_status_has_the_figures_and_the_map() {
    let json: serde_json::Value = serde_json::from_str(&view::json(&snapshot())).expect("JSON");
    assert_eq!(json["server"], 2);
    assert_eq!(json["regions"][0]["role"], "primary");
    assert_eq!(json["regions"][0]["counters"]["compactions"], 0);
    assert_eq!(json["map"]["version"], 8);
    assert_eq!(json["map"]["regions"][0]["start"], "<b>");
}

#[test]
fn figures_are_sorted_and_copied_once_for_all_that_read_them() {
    let group = |region, start: &'static str| {
        Arc::new(GroupConfig { start: start.into(), ..GroupConfig::unassigned(RegionId(region), "default") })
    };
    let row = |region, start: &str| RegionStatus {
        region: RegionId(region),
        table: "default".into(),
        start: start.into(),
        ..RegionStatus::default()
    };
    let status = NodeStatus { regions: vec![row(1, "z"), row(2, "a")], ..NodeStatus::default() };
    let map = MapParts { regions: vec![group(1, "z"), group(2, "a")], ..MapParts::default() };
    let figures = Figures::new(Nanos(1), status, map);
    let first = figures.snapshot(CpuStatus::default);
    assert!(first.status.regions.iter().map(|region| region.region.0).eq([2, 1]));
    assert!(first.map.regions.iter().map(|group| group.region.0).eq([2, 1]));
    let again = figures.snapshot(|| panic!("it was made already"));
    assert!(std::ptr::eq(first, again));
}

#[test]
fn an_event_loop_that_turns_is_alive_and_one_that_stands_is_not() {
    let heartbeat = Heartbeat::default();
    heartbeat.beat(BootClock.now());
    assert!(heartbeat.age() < TIMEOUT.into());
    heartbeat.beat(Nanos(BootClock.now().0 - Nanos::from(TIMEOUT).0));
    assert!(heartbeat.age() >= TIMEOUT.into());
}
