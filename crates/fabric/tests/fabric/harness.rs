//! The transports that every machine has.

use crate::common::{Harness, Node, options};
use leeward_fabric::{Fabric, LinkOptions, PeerId, ShmFabric, SimNetwork, SimOptions, Sink, TcpFabric};
use leeward_security::certificates::{Authority, CA_CERTIFICATE, server_files, server_name};
use leeward_security::tls::{NodeTls, TlsFiles};
use std::{
    collections::HashMap,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;

/// A name in the abstract namespace that no other test has.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("@leeward-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// TCP on loopback.
#[derive(Default)]
pub(crate) struct Tcp {
    addresses: HashMap<u32, String>,
}

impl Harness for Tcp {
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        let address = self.addresses.get(&id).map_or("127.0.0.1:0", String::as_str);
        let fabric = TcpFabric::bind(PeerId(id), address, options(), sink).expect("a port is free");
        self.addresses.insert(id, fabric.local_address());
        fabric
    }
    fn kill(&mut self, node: Node) {
        drop(node);
    }
}

/// TCP on loopback, encrypted: each node has a certificate of one authority.
#[derive(Default)]
pub(crate) struct Tls {
    addresses: HashMap<u32, String>,
    certificates: Option<(TempDir, Authority)>,
}

impl Tls {
    /// Options of a node with the certificate of server `id`.
    pub(crate) fn options(&mut self, id: u32) -> LinkOptions {
        let (directory, authority) = self.certificates.get_or_insert_with(|| {
            let directory = tempfile::tempdir().expect("a directory");
            let authority = Authority::create(directory.path()).expect("it is made");
            (directory, authority)
        });
        let (certificate, key) = server_files(directory.path(), id);
        if !certificate.exists() {
            authority.add_server(id, &[], Duration::from_secs(3600)).expect("it is made");
        }
        let files = TlsFiles { ca: directory.path().join(CA_CERTIFICATE), certificate, key };
        LinkOptions {
            tls: Some(Arc::new(NodeTls::load(files, &server_name(id)).expect("the files are whole"))),
            ..options()
        }
    }
}

impl Harness for Tls {
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        let options = self.options(id);
        let address = self.addresses.get(&id).map_or("127.0.0.1:0", String::as_str);
        let fabric = TcpFabric::bind(PeerId(id), address, options, sink).expect("a port is free");
        self.addresses.insert(id, fabric.local_address());
        fabric
    }
    fn kill(&mut self, node: Node) {
        drop(node);
    }
}

/// Shared memory, within one process.
#[derive(Default)]
pub(crate) struct Shm {
    addresses: HashMap<u32, String>,
}

impl Harness for Shm {
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        let address = self.addresses.entry(id).or_insert_with(unique_name);
        ShmFabric::bind(PeerId(id), address, options(), sink).expect("the name is free")
    }
    fn kill(&mut self, node: Node) {
        drop(node);
    }
}

/// The simulated network.
pub(crate) struct Sim(pub(crate) SimNetwork);

impl Default for Sim {
    fn default() -> Sim {
        Sim(SimNetwork::new(7, SimOptions::default()))
    }
}

impl Harness for Sim {
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        self.0.node(PeerId(id), sink)
    }
    fn kill(&mut self, node: Node) {
        self.0.kill(node.id);
    }
    fn pass(&mut self) {
        self.0.step();
    }
}
