//! The first server sets the protocol version, and a server of another version does not join.

use super::super::tests::{CLUSTER, Fixture};
use super::*;
use crate::CoordinatorOp;
use crate::NotJoined;
use crate::view::tests::member;
use leeward_format::RegionId;

const PATH: &str = "/leeward/protocol";

#[test]
fn the_first_server_writes_its_protocol_version_and_then_registers() {
    let mut fixture = Fixture::unconnected();
    fixture.tell_tree(&[]);
    let (_, op) = fixture.ask();
    assert!(matches!(&op, CoordinatorOp::Create { path, ephemeral: false, .. } if path == PATH), "{op:?}");
    assert!(fixture.asked.is_empty(), "it registers once the version is written");
    fixture.change(PATH, Some(encode_value(&PROTOCOL_VERSION)));
    let (_, op) = fixture.ask();
    let CoordinatorOp::Create { path, value, ephemeral: false } = &op else { panic!("{op:?}") };
    assert_eq!(path, CLUSTER, "then it says of which cluster the tree is");
    assert!(fixture.asked.is_empty());
    fixture.change(CLUSTER, Some(value.clone()));
    assert!(fixture.agent.view().cluster().is_some_and(|cluster| cluster.0 != 0));
    let (_, op) = fixture.ask();
    assert!(matches!(&op, CoordinatorOp::Create { path, .. } if path == "/leeward/server/1"), "{op:?}");
}

#[test]
fn a_server_of_another_protocol_version_asks_for_nothing_and_says_why() {
    let mut fixture = Fixture::unconnected();
    fixture.tell_tree(&[(PATH, Some(encode_value(&(PROTOCOL_VERSION + 1))))]);
    fixture.pass_a_second();
    assert!(fixture.asked.is_empty(), "{:?}", fixture.asked);
    let other = Incompatible::Protocol { found: PROTOCOL_VERSION + 1, own: PROTOCOL_VERSION };
    assert_eq!(fixture.agent.not_joined(), Some(NotJoined::Incompatible(other)));
    assert!(fixture.agent.can_change().is_err());
}

#[test]
fn a_server_whose_fabric_cannot_reach_the_others_does_not_join_until_they_are_gone() {
    let there = ServerInfo { fabric_address: "@leeward-1".into(), ..ServerInfo::of(member(2, 1)) };
    let mut fixture = Fixture::unconnected();
    fixture.connect(&[("/leeward/server/2", Some(encode_value(&there)))]);
    fixture.pass_a_second();
    assert!(fixture.asked.is_empty(), "{:?}", fixture.asked);
    let Some(NotJoined::Incompatible(incompatible)) = fixture.agent.not_joined() else {
        panic!("{:?}", fixture.agent.not_joined())
    };
    let text = incompatible.to_string();
    assert!(text.contains("server 2, at @leeward-1, is shared memory") && text.contains("set `fabric`"), "{text}");
    fixture.change("/leeward/server/2", None);
    let (_, op) = fixture.ask();
    assert!(matches!(&op, CoordinatorOp::Create { path, .. } if path == "/leeward/server/1"), "{op:?}");
}

#[test]
fn only_the_fabric_of_servers_with_copies_counts() {
    let mut config = GroupConfig { primary: Some(member(3, 1)), ..GroupConfig::unassigned(RegionId(1), "default") };
    for has_copy in [false, true] {
        config.backups = Vec::from_iter(has_copy.then(|| member(2, 1)));
        let stray = ServerInfo { fabric_address: "run/leeward-2".into(), ..ServerInfo::of(member(2, 1)) };
        let mut fixture = Fixture::unconnected();
        fixture.connect(&[
            ("/leeward/server/2", Some(encode_value(&stray))),
            ("/leeward/region/1", Some(encode_value(&config))),
        ]);
        fixture.pass_a_second();
        assert_eq!(fixture.asked.is_empty(), has_copy, "{:?}", fixture.asked);
    }
}
