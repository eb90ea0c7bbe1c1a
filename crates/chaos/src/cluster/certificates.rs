//! The certificates of a run with TLS: an authority of its own, whose files vanish with the run. Shared by all threads.

use crate::cluster::network::{HostNo, Network};
use crate::error::{ChaosError, fault};
use leeward_security::certificates::{Authority, CA_CERTIFICATE, CertificateError, coordinator_files, server_files};
use leeward_security::tls::{Channel, ClientTls};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than a run.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the certificates are, and the client's.
#[derive(Debug)]
pub(crate) struct Certificates {
    directory: PathBuf,
    client: ClientTls,
}

fn failed(error: CertificateError) -> ChaosError {
    ChaosError::Refused(error.to_string())
}

impl Certificates {
    /// Makes certificates for as many servers, and for the coordinator at `hosts`.
    pub(crate) fn make(
        directory: PathBuf,
        servers: usize,
        hosts: &[HostNo],
        network: &Network,
    ) -> Result<Certificates, ChaosError> {
        let authority = Authority::create(&directory).map_err(failed)?;
        authority.add_coordinator(LIFETIME).map_err(failed)?;
        let ip = |host: HostNo| network.ip(host).to_string();
        for (id, host) in (1..).zip(0..servers) {
            authority.add_server(id, &[ip(host)], LIFETIME).map_err(failed)?;
        }
        // Members of ZooKeeper are known by their hosts.
        for host in hosts {
            authority.add_server(*host as u32 + 1, &[ip(*host)], LIFETIME).map_err(failed)?;
        }
        let client = ClientTls::load(&directory.join(CA_CERTIFICATE));
        let client = client.map_err(|error| ChaosError::Refused(error.to_string()))?;
        Ok(Certificates { directory, client })
    }

    /// What Redis clients need.
    pub(crate) fn client(&self) -> ClientTls {
        self.client.clone()
    }

    /// The file with the authority's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.join(CA_CERTIFICATE)
    }

    /// The embedded coordinator's certificate and its key.
    pub(crate) fn of_coordinator(&self) -> (PathBuf, PathBuf) {
        coordinator_files(&self.directory)
    }

    /// Settings of a node.
    pub(crate) fn settings(&self, server: usize) -> String {
        let (certificate, key) = server_files(&self.directory, server as u32 + 1);
        let [ca, certificate, key] = [self.authority(), certificate, key].map(|path| path.display().to_string());
        format!("tls_ca = \"{ca}\"\ntls_certificate = \"{certificate}\"\ntls_key = \"{key}\"\n")
    }

    /// Lines of the configuration of the ZooKeeper at a host: clients use TLS at this address, and must have a certificate.
    ///
    /// # Errors
    /// The file with its key and certificate cannot be written.
    pub(crate) fn of_zookeeper(&self, host: HostNo, address: SocketAddr) -> Result<String, ChaosError> {
        let (certificate, key) = server_files(&self.directory, host as u32 + 1);
        let keys = key.with_extension("pem");
        let read = |path: &Path| fs::read_to_string(path).map_err(fault("read", path));
        fs::write(&keys, read(&key)? + &read(&certificate)?).map_err(fault("write", &keys))?;
        // ZooKeeper knows the format by the name.
        let trusted = keys.with_file_name("authorities.pem");
        fs::copy(self.authority(), &trusted).map_err(fault("write", &trusted))?;
        let (keys, trusted) = (keys.display(), trusted.display());
        Ok(format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nsecureClientPort={}\n\
             secureClientPortAddress={}\nssl.keyStore.location={keys}\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={trusted}\nssl.trustStore.type=PEM\nssl.clientAuth=need\n",
            address.port(),
            address.ip()
        ))
    }
}

/// What a Redis client speaks with `address`: plain, or TLS.
///
/// # Errors
/// Never for an address that is one.
pub(crate) fn channel(
    tls: Option<&ClientTls>,
    address: SocketAddr,
    stream: TcpStream,
) -> io::Result<Channel<TcpStream>> {
    let session = tls.map(|tls| tls.connect(&address.ip().to_string())).transpose().map_err(io::Error::other)?;
    Ok(Channel::over(stream, session))
}
