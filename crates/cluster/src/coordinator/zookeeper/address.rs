//! The address of an ensemble, the path of a cluster in it, and the user that Leeward is there, as operators write them. Pure.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The beginning of every address.
pub const SCHEME: &str = "zk://";
/// ZooKeeper's usual port for clients.
const DEFAULT_PORT: u16 = 2181;
/// Longest path of a cluster, in bytes.
const MAX_ROOT_BYTES: usize = 256;

/// The servers of an ensemble, and the path beneath which a cluster keeps everything.
///
/// ```
/// use leeward_cluster::zookeeper::Ensemble;
///
/// let ensemble: Ensemble = "zk://a,b:2182,[::1]/stores/one".parse().unwrap();
/// assert_eq!(ensemble.to_string(), "zk://a:2181,b:2182,[::1]:2181/stores/one");
/// assert!("zk://a".parse::<Ensemble>().unwrap_err().contains("names no path"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    hosts: Vec<(String, u16)>,
    root: String,
}

impl Ensemble {
    /// Host names or IP addresses, with their ports.
    pub fn hosts(&self) -> &[(String, u16)] {
        &self.hosts
    }

    /// The path of the cluster: begins with a slash, does not end with one.
    pub fn root(&self) -> &str {
        &self.root
    }
}

impl Display for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        for (index, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match host.contains(':') {
                true => write!(f, "{comma}[{host}]:{port}")?,
                false => write!(f, "{comma}{host}:{port}")?,
            }
        }
        f.write_str(&self.root)
    }
}

impl FromStr for Ensemble {
    type Err = String;

    /// Reads `zk://host[:port][,host[:port]...]/path`.
    fn from_str(text: &str) -> Result<Ensemble, String> {
        let refuse = |why: String| {
            Err(format!(
                "{text:?} {why}: write zk://host[:port],host[:port],.../path, such as zk://zk1,zk2,zk3/leeward"
            ))
        };
        let Some(rest) = text.strip_prefix(SCHEME) else { return refuse(format!("does not begin with {SCHEME}")) };
        if rest.contains('@') {
            return Err(
                "an address of ZooKeeper holds no user and password, where everyone could read them: put them \
                        into a file and set zookeeper_auth_file to its path"
                    .into(),
            );
        }
        let Some((hosts, root)) = rest.split_once('/').map(|(hosts, root)| (hosts, format!("/{root}"))) else {
            return refuse("names no path for the cluster".into());
        };
        let mut ensemble = Ensemble { hosts: Vec::new(), root };
        for host in hosts.split(',') {
            match parse_host(host) {
                Ok(host) if ensemble.hosts.contains(&host) => return refuse(format!("names {} twice", host.0)),
                Ok(host) => ensemble.hosts.push(host),
                Err(why) => return refuse(why),
            }
        }
        match check_path(&ensemble.root, MAX_ROOT_BYTES) {
            Err(why) => refuse(format!("has a path that {why}")),
            Ok(()) if ensemble.root == "/zookeeper" || ensemble.root.starts_with("/zookeeper/") => {
                refuse("has a path that is ZooKeeper's own".into())
            }
            Ok(()) => Ok(ensemble),
        }
    }
}

fn parse_host(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) if host.parse::<std::net::Ipv6Addr>().is_ok() => match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(format!("has {rest:?} after the host [{host}]")),
        },
        Some((host, _)) => return Err(format!("has [{host}], which is no IPv6 address")),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_name = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if host.is_empty() {
        return Err("has a host without a name".into());
    }
    if !host.contains(':') && !is_name(host) {
        return Err(format!("has the host {host:?}, which is neither a name nor an IP address"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(format!("has the port {port:?} for {host}, which is no number from 1 to 65535")),
        },
    };
    Ok((host.to_owned(), port))
}

/// Checks `path` by the rules of ZooKeeper. The error says what is wrong with it.
pub(super) fn check_path(path: &str, max_bytes: usize) -> Result<(), String> {
    let Some(parts) = path.strip_prefix('/') else { return Err("does not begin with a slash".into()) };
    if path.len() > max_bytes {
        return Err(format!("has {} bytes, at most {max_bytes}", path.len()));
    }
    if parts.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("has a part that is empty, . or ..".into());
    }
    if path.chars().any(|c| c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || c >= '\u{fff0}') {
        return Err("has a character that ZooKeeper does not take".into());
    }
    Ok(())
}

/// The user that Leeward is for the ensemble. Only this user can read and change what Leeward writes.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// The form that ZooKeeper's scheme `digest` expects.
    pub(super) fn digest(&self) -> String {
        format!("{}:{}", self.user, self.password)
    }
}

impl fmt::Debug for Credentials {
    /// Without the password: many people read logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.user)
    }
}

impl FromStr for Credentials {
    type Err = String;

    /// Reads `user:password`. The error does not contain the password.
    fn from_str(text: &str) -> Result<Credentials, String> {
        match text.split_once(':') {
            Some((user, password)) if !user.is_empty() && !password.is_empty() => {
                if text.chars().any(char::is_control) {
                    return Err("user and password hold a line break or another control character".into());
                }
                Ok(Credentials { user: user.into(), password: password.into() })
            }
            _ => Err("it does not hold user:password, with neither of them empty".into()),
        }
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
