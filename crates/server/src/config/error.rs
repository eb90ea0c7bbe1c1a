//! Why settings cannot be used.

use leeward_security::tls::TlsError;
use std::fmt::Display;
use std::path::PathBuf;

/// A setting, or the file that it comes from, cannot be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The configuration file, or one that a setting names.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// It is not TOML, or has names or types that are not known.
    #[error("{origin}: {reason}")]
    Malformed {
        /// The file, or the flag.
        origin: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// The file with the credentials for ZooKeeper holds none.
    #[error("{}: it must be one line, user:password, for ZooKeeper: {reason}", path.display())]
    Credentials {
        /// Value of `zookeeper_auth_file`.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The files of certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A value is out of its range.
    #[error("{origin}: {name} is {value}: it must be {allowed}")]
    OutOfRange {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// What it is set to.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// An address that other machines can reach, without TLS and without permission to listen there.
    #[error(
        "{origin}: {name} is {value}, which is not a loopback address, and there is no TLS: what is sent, passwords too, \
         could be read and changed on the way. Set tls_ca, tls_certificate and tls_key (`leeward certs` makes them), or \
         listen on 127.0.0.1, or set insecure_listen = true (--insecure-listen) if the network is closed to others"
    )]
    NotLoopback {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// IP address and port.
        value: String,
    },
    /// An address that stands for all addresses of the machine, without one to advertise.
    #[error(
        "{origin}: {name} is {value}, which is every address of this machine, so the node cannot tell others where to \
         connect: set advertise_host to the host name or IP address under which they reach it"
    )]
    NotAdvertised {
        /// The file, or the flag.
        origin: String,
        /// Name of the setting.
        name: &'static str,
        /// IP address and port.
        value: String,
    },
}

/// Refuses settings that come from `origin`.
pub(super) struct Check<'a> {
    pub(super) origin: &'a str,
}

impl Check<'_> {
    pub(super) fn malformed(&self, error: impl Display) -> ConfigError {
        let reason = error.to_string().trim_end().replace('\n', "\n  ");
        ConfigError::Malformed { origin: self.origin.into(), reason }
    }

    pub(super) fn refused(&self, name: &'static str, value: impl Display, allowed: impl Display) -> ConfigError {
        let (value, allowed) = (value.to_string(), allowed.to_string());
        ConfigError::OutOfRange { origin: self.origin.into(), name, value, allowed }
    }
}
