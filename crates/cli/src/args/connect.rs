//! How a command reaches a cluster, and as which user.

use clap::Args;
use leeward_format::table::{DEFAULT_TABLE, TableName};
use leeward_format::user::UserName;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The nodes that `leeward dev` starts.
const DEFAULT_ADDRESSES: &str = "127.0.0.1:7479,127.0.0.1:7480,127.0.0.1:7481";

/// How to reach a cluster. Each part is an option, or else a variable of the environment that is not empty. Options alone
/// conflict with others: a variable is exported for all commands.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connect {
    /// Native addresses (host:port) of one or more nodes; one that answers is enough. docs/operations.md explains
    /// leeward+ring://, leeward+direct:// and leeward+tls:// [env: LEEWARD_CONNECT] [default:
    /// 127.0.0.1:7479,127.0.0.1:7480,127.0.0.1:7481]
    #[arg(long, value_delimiter = ',', value_name = "ADDRS")]
    connect: Vec<String>,
    /// Connect as this user. Its password is in --password-file, or in the variable LEEWARD_PASSWORD [env: LEEWARD_USER]
    #[arg(long, value_name = "NAME")]
    user: Option<UserName>,
    /// File with the user's password [env: LEEWARD_PASSWORD_FILE]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl Connect {
    /// The addresses, with the user.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.within(|variable| std::env::var_os(variable))
    }

    /// As [`Connect::addresses`], in an environment with these variables.
    fn within(&self, variable: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let user = self.user.as_ref().map(ToString::to_string).or_else(|| text("LEEWARD_USER"));
        let file = self.password_file.clone().or_else(|| variable("LEEWARD_PASSWORD_FILE").map(PathBuf::from));
        let addresses = match &self.connect[..] {
            [] => {
                let listed = text("LEEWARD_CONNECT").unwrap_or_else(|| DEFAULT_ADDRESSES.into());
                listed.split(',').map(String::from).collect()
            }
            given => given.to_vec(),
        };
        addresses.iter().map(|address| with_user(address, user.as_deref(), file.as_deref())).collect()
    }
}

fn with_user(address: &str, user: Option<&str>, password_file: Option<&Path>) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("leeward", address));
    let Some(user) = user.filter(|_| !rest.contains('@')) else { return address.into() };
    let mut text = format!("{scheme}://{user}@{rest}");
    if let Some(file) = password_file {
        text += if text.contains('?') { "&" } else { "?" };
        text += &format!("password_file={}", file.display());
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command};
    use clap::Parser;

    /// The addresses of `leeward status` with these options, in an environment.
    fn addresses(options: &str, environment: &[(&str, &str)]) -> Vec<String> {
        let args = ["leeward", "status"].into_iter().chain(options.split_whitespace());
        let Command::Status(status) = Cli::try_parse_from(args).expect("it is well-formed").command else {
            panic!("it is `status`")
        };
        let value =
            |name: &str| environment.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into());
        status.connect.within(value)
    }

    #[test]
    fn an_option_wins_over_the_environment_and_an_empty_variable_is_none() {
        let variables = [("LEEWARD_CONNECT", "a:1,b:2"), ("LEEWARD_USER", "ann"), ("LEEWARD_PASSWORD_FILE", "pw")];
        let of_ann = ["leeward://ann@a:1?password_file=pw", "leeward://ann@b:2?password_file=pw"];
        assert_eq!(addresses("", &variables), of_ann);
        assert_eq!(
            addresses("--connect c:3 --user bob --password-file w", &variables),
            ["leeward://bob@c:3?password_file=w"]
        );
        assert_eq!(addresses("--connect c:3,d:4", &[]), ["c:3", "d:4"]);
        let empty = [("LEEWARD_CONNECT", ""), ("LEEWARD_USER", ""), ("LEEWARD_PASSWORD_FILE", "")];
        assert_eq!(addresses("", &empty).join(","), DEFAULT_ADDRESSES);
        assert_eq!(addresses("", &[]).join(","), DEFAULT_ADDRESSES);
    }
}
