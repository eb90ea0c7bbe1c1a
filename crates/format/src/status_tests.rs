//! The JSON of a node's status, and that of nodes of other versions.

use super::*;

const GOLDEN: &str = include_str!("../tests/golden/status.json");

#[test]
fn the_json_is_that_of_the_golden_file() {
    let status: NodeStatus = serde_json::from_str(GOLDEN).expect("a status");
    assert_eq!((status.server, status.regions[0].peers[0].server), (ServerId(1), ServerId(2)));
    let json = serde_json::to_string_pretty(&status).expect("plain data");
    assert_eq!(json, GOLDEN.trim_end(), "the JSON of a node changed; see docs/formats/status.md");
}

#[test]
fn a_node_of_another_version_can_be_read() {
    let read = |text: &str| serde_json::from_str::<NodeStatus>(text);
    let newer = read(r#"{"server":1,"new":[1],"regions":[{"role":"witness","new":{}},{"role":"backup","new":1}]}"#);
    let newer = newer.expect("what is not known is passed over");
    assert_eq!(newer.regions.iter().map(|region| region.role).collect::<Vec<_>>(), [Role::None, Role::Backup]);
    let older = read(r#"{"server":1,"device":{"bytes_read":7}}"#).expect("what is missing has its default");
    let device = older.device.expect("it tells");
    assert_eq!((device.bytes_read, device.bytes_written, device.capacity_bytes), (7, 0, None));
    assert!(older.network.is_none() && older.cpu.is_none() && older.pid.is_none(), "absent is not zero");
    assert!(read("7").is_err() && read(r#"{"server":"one"}"#).is_err());
}

#[test]
fn a_role_has_the_name_that_json_has() {
    for role in Role::ALL {
        assert_eq!(serde_json::to_value(role).expect("plain data"), role.name());
    }
}
