//! Where the master puts copies if servers say where they stand.

use super::tests::{decide_all, decide_one, group, kill, view};
use super::*;
use crate::view::tests::{change, configure, member};
use leeward_format::cluster::{ClusterPath, ServerInfo, encode_value};

/// The server registers at this place.
fn place(view: &mut View, member: Member, location: &str, copy: Option<(u32, u64)>) {
    let copies = copy.map(|(term, lsn)| CopyFound::new(RegionId(1), Epoch(term), Lsn(lsn)));
    let (copies, location) = (copies.into_iter().collect(), location.parse().unwrap());
    let info = ServerInfo { copies, location, ..ServerInfo::of(member) };
    change(view, ClusterPath::Server(member.server), Some(encode_value(&info)));
}

#[test]
fn a_new_table_has_its_copies_in_different_zones() {
    let mut view = view(12, 3, &[]);
    for server in 1..=6 {
        place(&mut view, member(server, 1), ["zone=a", "zone=b", "zone=c"][server as usize / 2 % 3], None);
    }
    let zone = |member: Member| member.server.0 / 2 % 3;
    let decided = decide_all(&view, Assign::Any);
    assert_eq!(decided.len(), 12);
    for config in &decided {
        let zones: BTreeSet<u32> = config.members().map(zone).collect();
        assert_eq!(zones.len(), 3, "{config:?}");
    }
    for server in 1..=6 {
        let copies = decided.iter().filter(|config| config.members().any(|member| member.server.0 == server)).count();
        assert_eq!(copies, 6, "server {server}");
    }
}

#[test]
fn a_replacement_stands_apart_from_the_others_even_if_it_has_no_copy() {
    let mut view = view(1, 3, &[]);
    place(&mut view, member(1, 1), "zone=a,host=1", None);
    place(&mut view, member(2, 1), "zone=b,host=2", None);
    place(&mut view, member(3, 1), "zone=a,host=3", Some((4, 9)));
    place(&mut view, member(4, 1), "zone=c,host=4", None);
    let now = group(&view, 5, member(1, 1), &[member(2, 1)], &[]);
    configure(&mut view, &now);
    assert_eq!(decide_one(&view).unwrap().learners, [member(4, 1)]);
    // Where that is no choice, the one with a copy is first.
    kill(&mut view, 4);
    place(&mut view, member(5, 1), "zone=b,host=5", None);
    assert_eq!(decide_one(&view).unwrap().learners, [member(3, 1)]);
}

#[test]
fn the_copy_above_the_number_of_replicas_that_leaves_stands_with_another() {
    let mut view = view(1, 3, &[]);
    for (server, zone) in [(1, "zone=a"), (2, "zone=b"), (3, "zone=b"), (4, "zone=c")] {
        place(&mut view, member(server, 1), zone, None);
    }
    let now = group(&view, 5, member(1, 1), &[member(2, 1), member(3, 1), member(4, 1)], &[]);
    configure(&mut view, &now);
    assert_eq!(decide_one(&view).unwrap().desired.leaving, Some(ServerId(3)));
}
