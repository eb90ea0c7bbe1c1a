//! libfabric's own providers, where they are installed.

use crate::common::{self, Harness, Node, recorder};
use leeward_fabric::{Fabric, LibfabricFabric, LinkOptions, PeerId, Provider, Sink};
use std::{collections::HashMap, env, io, sync::Arc, time::Duration};

/// Set where the tests of libfabric must run: there it is an error that it is not installed.
const REQUIRED: &str = "LEEWARD_TEST_LIBFABRIC";

/// libfabric's own provider for sockets, on loopback.
#[derive(Default)]
pub(crate) struct LibfabricTcp(Libfabric);

/// libfabric's own provider for memory of one host.
#[derive(Default)]
pub(crate) struct LibfabricShm(Libfabric);

/// Free bytes that the tests of that provider need in `/dev/shm`: an endpoint takes 16 MiB.
const SHARED_BYTES: u64 = 512 << 20;

/// Short times, but for a peer's silence: on a machine that is busy with other tests a provider may take seconds to
/// connect.
pub(crate) fn options() -> LinkOptions {
    LinkOptions { peer_timeout: Duration::from_secs(10), ..common::options() }
}

#[derive(Default)]
struct Libfabric {
    addresses: HashMap<u32, String>,
}

impl Libfabric {
    fn bind(&mut self, id: u32, provider: Provider, sink: Sink) -> io::Result<Arc<dyn Fabric>> {
        let address = self.addresses.get(&id).map_or("127.0.0.1:0", String::as_str);
        let fabric = LibfabricFabric::bind(PeerId(id), address, provider, options(), sink)?;
        self.addresses.insert(id, fabric.local_address());
        Ok(fabric)
    }
    /// Whether it is installed, and has what it needs.
    fn is_there(provider: Provider) -> bool {
        let missing = match Libfabric::default().bind(1, provider, recorder().1) {
            Ok(_) => lacks_shared_memory(provider),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(error.to_string()),
            Err(error) => panic!("{error}"),
        };
        if let Some(missing) = &missing {
            assert!(env::var_os(REQUIRED).is_none(), "{REQUIRED} is set: {missing}");
            eprintln!("skipped: {missing}");
        }
        missing.is_none()
    }
}

/// What to do if `/dev/shm` is too small for `provider`.
fn lacks_shared_memory(provider: Provider) -> Option<String> {
    let free = rustix::fs::statvfs("/dev/shm").map_or(0, |found| found.f_bavail * found.f_frsize);
    (provider == Provider::Shm && free < SHARED_BYTES).then(|| {
        format!(
            "/dev/shm has {free} bytes left of {SHARED_BYTES} that are needed: make it larger, or remove fi_shm files"
        )
    })
}

impl Harness for LibfabricTcp {
    fn ready() -> Option<LibfabricTcp> {
        Libfabric::is_there(Provider::Tcp).then(LibfabricTcp::default)
    }
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        self.0.bind(id, Provider::Tcp, sink).expect("a port is free")
    }
    fn kill(&mut self, node: Node) {
        drop(node);
    }
}

impl Harness for LibfabricShm {
    fn ready() -> Option<LibfabricShm> {
        Libfabric::is_there(Provider::Shm).then(LibfabricShm::default)
    }
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric> {
        self.0.bind(id, Provider::Shm, sink).expect("a port is free")
    }
    fn kill(&mut self, node: Node) {
        drop(node);
    }
}
