//! The port numbers that README and help state, and the message about a port in use.

use super::{DEFAULT_BASE, Ports};
use std::net::TcpListener;

#[test]
fn the_ports_are_those_that_are_documented() {
    let ports = Ports::new(DEFAULT_BASE);
    let of =
        |node: u32| [ports.resp(node), ports.native(node), ports.admin(node), ports.fabric(node)].map(|a| a.port());
    assert_eq!(of(1), [7379, 7479, 7579, 7679]);
    assert_eq!(of(3), [7381, 7481, 7581, 7681]);
    assert_eq!(ports.coordinator().port(), 7779);
}

#[test]
fn a_port_in_use_is_named_with_what_it_is_for() {
    let ports = Ports::free(3).expect("some ports are free");
    let taken = TcpListener::bind(ports.admin(2)).expect("it was free a moment ago");
    let error = ports.check_nodes(3).expect_err("it is taken").to_string();
    assert!(error.contains(&ports.admin(2).port().to_string()), "{error}");
    assert!(error.contains("operators of node 2") && error.contains("--base-port"), "{error}");
    assert_ne!(Ports::free(3).map(Ports::base), Some(ports.base()));
    drop(taken);
}
