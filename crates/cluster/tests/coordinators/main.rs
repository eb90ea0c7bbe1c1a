//! The coordinators from outside: one suite of guarantees for each of them, and cases for ZooKeeper alone, with real servers.
//!
//! Tests with ZooKeeper are skipped, and say so, where it is not installed; with `LEEWARD_TEST_ZOOKEEPER` set they fail there.

#[path = "../shared/ensemble.rs"]
mod ensemble;
mod probe;
#[path = "../shared/proxy.rs"]
mod proxy;
mod suite;
mod zookeeper;

use leeward_cluster::embedded;
use leeward_platform::Nanos;
use leeward_security::certificates::{
    Authority, CA_CERTIFICATE, COORDINATOR_NAME, coordinator_files, server_files, server_name,
};
use leeward_security::tls::{NodeTls, TlsFiles};
use probe::{Actor, Sink};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use suite::{CASES, Stage};

/// An embedded coordinator, and the certificate of a client.
struct Embedded {
    address: SocketAddr,
    tls: Option<Arc<NodeTls>>,
}

impl Stage for Embedded {
    fn server(&self) -> SocketAddr {
        self.address
    }

    fn client(&self, through: Option<SocketAddr>, timeout: Duration, sink: Sink) -> Box<dyn Actor> {
        let address = through.unwrap_or(self.address);
        let options = embedded::ClientOptions { session_timeout: Nanos::from(timeout), address, tls: self.tls.clone() };
        Box::new(embedded::connect(options, sink).expect("a thread"))
    }
}

fn every_case(certificates: Option<&Path>) {
    let load = |name: &str, (certificate, key): (PathBuf, PathBuf)| {
        let ca = certificates?.join(CA_CERTIFICATE);
        Some(Arc::new(NodeTls::load(TlsFiles { ca, certificate, key }, name).expect("they are whole")))
    };
    let of_host = certificates.and_then(|directory| load(COORDINATOR_NAME, coordinator_files(directory)));
    let of_client = certificates.and_then(|directory| load(&server_name(1), server_files(directory, 1)));
    for (name, case) in CASES {
        println!("{name}");
        let directory = tempfile::tempdir().expect("a directory");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = embedded::HostOptions { directory: directory.path().into(), listen, tls: of_host.clone() };
        let host = embedded::Host::start(options).expect("a host");
        case(&Embedded { address: host.address(), tls: of_client.clone() });
        assert_eq!(host.failure(), None);
    }
}

#[test]
fn the_embedded_coordinator_passes_every_case() {
    every_case(None);
}

#[test]
fn the_embedded_coordinator_passes_every_case_with_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(directory.path()).expect("it is made");
    let day = Duration::from_secs(24 * 3600);
    authority.add_coordinator(day).expect("it is made");
    authority.add_server(1, &[], day).expect("it is made");
    every_case(Some(directory.path()));
}
