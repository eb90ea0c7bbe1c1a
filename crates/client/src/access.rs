//! How a program gets into a cluster, beside an address: which authorities' certificates it accepts, and as which user it
//! connects. Plain data, shared by all connections; any thread. Passwords are shown by nothing.

use crate::address::{Address, Seeds};
use crate::options::ClientError;
use bytes::Bytes;
use leeward_format::op::{Request, Secret};
use leeward_security::passwords::{Credentials, Password};
use leeward_security::tls::{Channel, ClientTls, host_of};
use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The variable of the environment with the password of the user whose address names no file.
const PASSWORD_VARIABLE: &str = "LEEWARD_PASSWORD";

/// What the connections to one cluster have in common.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tls: Option<ClientTls>,
    credentials: Option<Credentials>,
}

impl Access {
    /// What native [addresses](Address) of one cluster say.
    ///
    /// # Errors
    /// An address is not valid, they are not alike, a file that they name cannot be used, or there is a user without a
    /// password.
    pub fn of<S: AsRef<str>>(addresses: &[S]) -> Result<Access, ClientError> {
        Access::with(&Address::parse_all(addresses)?, None)
    }

    /// As the addresses say; with this password, if there is one.
    pub(crate) fn with(seeds: &Seeds, password: Option<&Password>) -> Result<Access, ClientError> {
        let tls = seeds.tls_ca.as_deref().map(ClientTls::load).transpose()?;
        let Some(user) = seeds.user.clone() else { return Ok(Access { tls, credentials: None }) };
        let variable = || env::var_os(PASSWORD_VARIABLE).map(OsString::into_vec).map(|bytes| Password::new(&bytes));
        let password = match (password, &seeds.password_file) {
            (Some(password), _) => password.clone(),
            (None, Some(file)) => read_password(file)?,
            (None, None) => variable().ok_or_else(|| ClientError::Password {
                user: user.clone(),
                reason: format!("none is given: set {PASSWORD_VARIABLE}, or add password_file=FILE to the address"),
            })?,
        };
        Ok(Access { tls, credentials: Some(Credentials { user, password }) })
    }

    /// The user and its password, if there is one.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Begins to speak with `host_port` on `stream`, which is connected or about to be.
    pub(crate) fn channel<S>(&self, host_port: &str, stream: S) -> io::Result<Channel<S>> {
        let session = self.tls.as_ref().map(|tls| tls.connect(host_of(host_port))).transpose();
        Ok(Channel::over(stream, session.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?))
    }
}

/// The request that names the user.
pub(crate) fn auth(credentials: &Credentials) -> Request {
    let password = Secret(Bytes::copy_from_slice(credentials.password.bytes()));
    Request::Auth { user: credentials.user.clone(), password }
}

/// Reads a password from a file: all of it, without the end of its last line.
///
/// # Errors
/// The file cannot be read, or is empty.
pub fn read_password(file: &Path) -> Result<Password, ClientError> {
    let wrong = |reason: String| ClientError::Password { user: file.display().to_string(), reason };
    let bytes = zeroize::Zeroizing::new(std::fs::read(file).map_err(|error| wrong(error.to_string()))?);
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(wrong("it is empty".into()));
    }
    Ok(Password::new(line))
}
