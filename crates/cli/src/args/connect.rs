//! How a command reaches a cluster, and as which user.

use clap::Args;
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_format::user::UserName;
use std::path::PathBuf;

/// How to reach a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connect {
    /// Native addresses of one or more nodes; one that answers is enough. host:port and leeward://host:port use TCP.
    /// leeward+ring://host:port[?spin_us=N] uses request and reply rings, by default in memory shared on this host.
    /// leeward+direct://host:port[?spin_us=N] fails if that memory is not shared, which direct reads need.
    /// leeward+tls://host:port?ca=FILE, and the others with +tls, use TLS
    #[arg(
        long,
        env = "LEEWARD_CONNECT",
        value_delimiter = ',',
        value_name = "ADDRS",
        default_value = "127.0.0.1:7479,127.0.0.1:7480,127.0.0.1:7481"
    )]
    connect: Vec<String>,
    /// Connect as this user. Its password is in --password-file, or in the variable LEEWARD_PASSWORD
    #[arg(long, env = "LEEWARD_USER", value_name = "NAME")]
    user: Option<UserName>,
    /// File with the user's password
    #[arg(long, env = "LEEWARD_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl Connect {
    /// The addresses, with the user.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.connect.iter().map(|address| self.with_user(address)).collect()
    }

    fn with_user(&self, address: &str) -> String {
        let (scheme, rest) = address.split_once("://").unwrap_or(("leeward", address));
        let Some(user) = self.user.as_ref().filter(|_| !rest.contains('@')) else { return address.into() };
        let mut text = format!("{scheme}://{user}@{rest}");
        if let Some(file) = &self.password_file {
            text += if text.contains('?') { "&" } else { "?" };
            text += &format!("password_file={}", file.display());
        }
        text
    }
}

/// A table of a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct InTable {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// The table
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TABLE)]
    pub(crate) table: TableName,
}
