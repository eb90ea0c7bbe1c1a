//! How a program gets into a cluster, beside an address: which authorities' certificates it accepts. Plain data, shared by
//! all connections; any thread.

use crate::address::Address;
use crate::options::ClientError;
use leeward_security::tls::{Channel, ClientTls, host_of};
use std::io::{self, ErrorKind};
use std::path::Path;

/// What the connections to one cluster have in common.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tls: Option<ClientTls>,
}

impl Access {
    /// What native [addresses](Address) of one cluster say.
    ///
    /// # Errors
    /// An address is not valid, they are not alike, or a file that they name cannot be used.
    pub fn of<S: AsRef<str>>(addresses: &[S]) -> Result<Access, ClientError> {
        Access::with_authority(Address::parse_all(addresses)?.tls_ca.as_deref())
    }

    /// TLS with the authorities in the file `ca`, or plain connections.
    pub(crate) fn with_authority(ca: Option<&Path>) -> Result<Access, ClientError> {
        Ok(Access { tls: ca.map(ClientTls::load).transpose()? })
    }

    /// Begins to speak with `host_port` on `stream`, which is connected or about to be.
    pub(crate) fn channel<S>(&self, host_port: &str, stream: S) -> io::Result<Channel<S>> {
        let session = self.tls.as_ref().map(|tls| tls.connect(host_of(host_port))).transpose();
        Ok(Channel::over(stream, session.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?))
    }
}
