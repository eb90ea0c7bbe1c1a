//! TLS 1.3 and 1.2, from files of certificates that are read again when they change.
//!
//! | connection | the accepting side proves | the connecting side proves |
//! |---|---|---|
//! | of a client, or an operator's browser | a certificate of the authority, with the host that the client asked for | nothing: it gives a user's password |
//! | between nodes | a certificate of the authority, with the [name](server_name) of the server that was wanted | the same, with the name of the server that it says it is |
//!
//! There is no resumption and no early data. So each connection checks certificates as of now, and no hello can be replayed.
//! A connection keeps the certificates with which it began: new ones count for new connections.
//!
//! Invariant: a reload that fails changes nothing. Values are shared between threads.

mod channel;

pub use channel::{Channel, Session};

use crate::certificates::{Description, describe_pem, server_name};

use arc_swap::ArcSwap;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Most bytes that wait in TLS's own buffers for a socket that takes no more. A node may have thousands of clients.
const BUFFER_BYTES: usize = 64 << 10;
const CLIENT_BUFFER_BYTES: usize = 16 << 10;

/// The files of a node, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that sign nodes' certificates.
    pub ca: PathBuf,
    /// The node's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
}

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// As the caller gave it.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file has no such thing.
    #[error("{}: {what}", path.display())]
    Content {
        /// As the caller gave it.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A name that no certificate can have.
    #[error("'{0}' is neither a host's name nor an IP address")]
    Name(String),
}

/// What a node needs for its connections.
pub struct NodeTls {
    files: TlsFiles,
    name: String,
    current: ArcSwap<Current>,
}

/// Without the key.
impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTls").field("files", &self.files).field("name", &self.name).finish_non_exhaustive()
    }
}

struct Current {
    read: [Vec<u8>; 3],
    days_left: i64,
    for_clients: Arc<ServerConfig>,
    for_nodes: Arc<ServerConfig>,
    to_nodes: Arc<ClientConfig>,
}

impl NodeTls {
    /// Reads the files of the node that others know by `name`: a [server's](server_name), or the
    /// [coordinator's](crate::certificates::COORDINATOR_NAME).
    ///
    /// # Errors
    /// A file cannot be read, or has no certificate or key, or the key is not the certificate's. Or others would not
    /// accept the certificate now: it has not that name, is of another authority, or is not valid at this time.
    pub fn load(files: TlsFiles, name: &str) -> Result<NodeTls, TlsError> {
        let current = Current::new(&files, name, read_all(&files)?)?;
        Ok(NodeTls { files, name: name.into(), current: ArcSwap::from_pointee(current) })
    }

    /// For how many days the certificate was valid when it was read.
    pub fn days_left(&self) -> i64 {
        self.current.load().days_left
    }

    /// Reads the files again. New connections use what they have now. Returns whether they have changed.
    ///
    /// # Errors
    /// As of [`NodeTls::load`]. Then the former certificates stay.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let read = read_all(&self.files)?;
        if read == self.current.load().read {
            return Ok(false);
        }
        self.current.store(Arc::new(Current::new(&self.files, &self.name, read)?));
        Ok(true)
    }

    /// Accepts a client.
    pub fn accept_client(&self) -> Session {
        accept(&self.current.load().for_clients, CLIENT_BUFFER_BYTES)
    }

    /// The configuration of [`NodeTls::accept_client`] as it is now, for code that drives rustls by itself.
    pub fn for_clients(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().for_clients)
    }

    /// Accepts another node. Which one it is, [`Session::proves`] says.
    pub fn accept_node(&self) -> Session {
        accept(&self.current.load().for_nodes, BUFFER_BYTES)
    }

    /// Connects to the node of `server`.
    pub fn connect_node(&self, server: u32) -> Session {
        let name = ServerName::try_from(server_name(server)).expect("it is a host's name");
        connect(&self.current.load().to_nodes, name)
    }

    /// Connects to a service that is no node, by the name or IP address in its certificate. This node shows its own.
    ///
    /// # Errors
    /// `host` is neither.
    pub fn connect_service(&self, host: &str) -> Result<Session, TlsError> {
        let name = ServerName::try_from(host.to_string()).map_err(|_| TlsError::Name(host.into()))?;
        Ok(connect(&self.current.load().to_nodes, name))
    }
}

impl Current {
    fn new(files: &TlsFiles, name: &str, read: [Vec<u8>; 3]) -> Result<Current, TlsError> {
        let [ca, certificate, key] = &read;
        let roots = Arc::new(roots(&files.ca, ca)?);
        let chain = certificates(&files.certificate, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(of_pem(&files.key, "private key"))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider()).build();
        let verifier = verifier.map_err(|error| content(&files.ca, error.to_string()))?;
        check_own(files, &roots, &*verifier, &chain, name)?;
        let own = describe_pem(&files.certificate, certificate)
            .map_err(|error| content(&files.certificate, error.to_string()))?;
        let days_left = own.first().map_or(0, Description::days_left);
        let of_key = |error: rustls::Error| content(&files.key, error.to_string());
        let accepting = || ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = accepting().map_err(of_key)?.with_no_client_auth();
        let mut for_clients = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(of_key)?;
        let builder = accepting().map_err(of_key)?.with_client_cert_verifier(verifier);
        let mut for_nodes = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(of_key)?;
        for_clients.session_storage = Arc::new(NoServerSessionStorage {});
        for_nodes.session_storage = Arc::new(NoServerSessionStorage {});
        let mut to_nodes = connecting(&files.ca, roots)?.with_client_auth_cert(chain, key).map_err(of_key)?;
        to_nodes.resumption = Resumption::disabled();
        let [for_clients, for_nodes] = [for_clients, for_nodes].map(Arc::new);
        Ok(Current { read, days_left, for_clients, for_nodes, to_nodes: Arc::new(to_nodes) })
    }
}

/// What a client needs: which authorities it believes.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Reads the certificates of authorities, in PEM.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn load(ca: &Path) -> Result<ClientTls, TlsError> {
        let roots = Arc::new(roots(ca, &read(ca)?)?);
        let mut config = connecting(ca, roots)?.with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(ClientTls(Arc::new(config)))
    }

    /// Connects to `host`, a name or an IP address.
    ///
    /// # Errors
    /// `host` is neither.
    pub fn connect(&self, host: &str) -> Result<Session, TlsError> {
        let name = ServerName::try_from(host.to_string()).map_err(|_| TlsError::Name(host.into()))?;
        Ok(connect(&self.0, name))
    }
}

/// The name or IP address in `host:port`, as certificates have it: without the brackets of IPv6.
pub fn host_of(host_port: &str) -> &str {
    let host = host_port.rsplit_once(':').map_or(host_port, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether other nodes accept the node's own certificate, as a server's and as a client's.
fn check_own(
    files: &TlsFiles,
    roots: &Arc<RootCertStore>,
    of_clients: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
    name: &str,
) -> Result<(), TlsError> {
    let odd = |error: &dyn fmt::Display| content(&files.certificate, format!("nodes would not accept it: {error}"));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider()).build();
    let verifier = verifier.map_err(|error| odd(&error))?;
    let (own, rest) = chain.split_first().expect("certificates were found");
    let name = ServerName::try_from(name).map_err(|_| TlsError::Name(name.into()))?;
    let now = UnixTime::now();
    verifier.verify_server_cert(own, rest, &name, &[], now).map_err(|error| odd(&error))?;
    of_clients.verify_client_cert(own, rest, now).map_err(|error| odd(&error))?;
    Ok(())
}

fn accept(config: &Arc<ServerConfig>, buffered: usize) -> Session {
    let connection = ServerConnection::new(Arc::clone(config)).expect("the configuration is one of ours");
    Session::new(Connection::Server(connection), buffered)
}

fn connect(config: &Arc<ClientConfig>, name: ServerName<'static>) -> Session {
    let connection = ClientConnection::new(Arc::clone(config), name).expect("the configuration is one of ours");
    Session::new(Connection::Client(connection), BUFFER_BYTES)
}

fn connecting(
    ca: &Path,
    roots: Arc<RootCertStore>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, TlsError> {
    let of_ca = |error: &dyn fmt::Display| content(ca, error.to_string());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|error| of_ca(&error))?;
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| of_ca(&error))?.with_webpki_verifier(verifier))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read_all(files: &TlsFiles) -> Result<[Vec<u8>; 3], TlsError> {
    Ok([read(&files.ca)?, read(&files.certificate)?, read(&files.key)?])
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::File { path: path.into(), source })
}

fn content(path: &Path, what: String) -> TlsError {
    TlsError::Content { path: path.into(), what }
}

fn of_pem(path: &Path, wanted: &'static str) -> impl Fn(pem::Error) -> TlsError {
    move |error| match error {
        pem::Error::NoItemsFound => content(path, format!("it has no {wanted} in PEM")),
        other => content(path, format!("it is no {wanted} in PEM: {other}")),
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(of_pem(path, "certificate"))?;
    if found.is_empty() {
        return Err(of_pem(path, "certificate")(pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| content(path, error.to_string()))?;
    }
    Ok(roots)
}
