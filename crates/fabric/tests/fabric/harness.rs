//! The transports that every machine has.

use crate::common::{Harness, Node, options};
use leeward_fabric::{Fabric, PeerId, ShmFabric, SimNetwork, SimOptions, Sink, TcpFabric};
use std::{
    collections::HashMap,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

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
