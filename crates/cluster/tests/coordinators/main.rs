//! The coordinators from outside: one suite of guarantees for each of them, and cases for ZooKeeper alone, with real servers.
//!
//! Tests with ZooKeeper are skipped, and say so, where it is not installed; with `LEEWARD_TEST_ZOOKEEPER` set they fail there.

#[path = "../shared/ensemble.rs"]
mod ensemble;
mod probe;
mod proxy;
mod suite;
mod zookeeper;

use leeward_cluster::embedded;
use leeward_platform::Nanos;
use probe::{Actor, Sink};
use std::net::SocketAddr;
use std::time::Duration;
use suite::{CASES, Stage};

struct Embedded(SocketAddr);

impl Stage for Embedded {
    fn server(&self) -> SocketAddr {
        self.0
    }

    fn client(&self, through: Option<SocketAddr>, timeout: Duration, sink: Sink) -> Box<dyn Actor> {
        let address = through.unwrap_or(self.0);
        let options = embedded::ClientOptions { session_timeout: Nanos::from(timeout), address };
        Box::new(embedded::connect(options, sink).expect("a thread"))
    }
}

#[test]
fn the_embedded_coordinator_passes_every_case() {
    for (name, case) in CASES {
        println!("{name}");
        let directory = tempfile::tempdir().expect("a directory");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let host = embedded::Host::start(embedded::HostOptions { directory: directory.path().into(), listen });
        let host = host.expect("a host");
        case(&Embedded(host.address()));
        assert_eq!(host.failure(), None);
    }
}
