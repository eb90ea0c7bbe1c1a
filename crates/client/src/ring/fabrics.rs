//! The fabric of a connection's rings, by the name that the node gives.

use leeward_fabric::{Admission, Fabric, LibfabricFabric, LinkOptions, PeerId, Provider, ShmFabric, Sink, TcpFabric};
use leeward_format::ring::CLIENT_ADDRESS;
use leeward_platform::Rng;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Name of the fabric between processes of one host.
pub(crate) const SHARED_MEMORY: &str = "shm";

/// Whether a thread of this process can read a node's memory by itself over the fabric `name` ([`Fabric::read_now`]).
pub(crate) fn reads_now(name: &str) -> bool {
    name == SHARED_MEMORY
}

/// Attaches to the fabric `name` as `me`, for admitted peers ([`Fabric::admit`]). Fabrics other than shared memory
/// listen at `local`, the address of the interface towards the node.
///
/// # Errors
/// The reason: the fabric is not known, or the system refuses it.
pub(crate) fn bind(name: &str, me: PeerId, local: IpAddr, sink: Sink) -> Result<Arc<dyn Fabric>, String> {
    let options = LinkOptions { admission: Admission::Sessions, ..LinkOptions::default() };
    let anywhere = SocketAddr::new(local, 0).to_string();
    let bound = match name {
        SHARED_MEMORY => {
            let address = format!("{CLIENT_ADDRESS}{:016x}", Rng::from_entropy().u64());
            ShmFabric::bind(me, &address, options, sink).map(|fabric| fabric as Arc<dyn Fabric>)
        }
        "tcp" => TcpFabric::bind(me, &anywhere, options, sink).map(|fabric| fabric as Arc<dyn Fabric>),
        _ => {
            let provider = name.strip_prefix("libfabric:").and_then(|provider| provider.parse::<Provider>().ok());
            let unknown = || format!("the node has them on fabric {name:?}, which this client does not know");
            let provider = provider.ok_or_else(unknown)?;
            LibfabricFabric::bind(me, &anywhere, provider, options, sink).map(|fabric| fabric as Arc<dyn Fabric>)
        }
    };
    bound.map_err(|error| format!("this process cannot attach to the fabric: {error}"))
}
