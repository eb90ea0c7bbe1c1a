//! By which names the admin port answers. A page of the web may give its own name the address of a node, and then read
//! the port through the browser of an operator, which takes both for one origin (DNS rebinding). The browser sends that
//! name in `Host`. So a request that needs no password is answered only under a name that no stranger can have: an IP
//! address, `localhost`, a name without a dot, or the node's `advertise_host`. With TLS any name will do, since the
//! browser checks it against the certificate. Pure functions over hostile bytes.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use std::net::{IpAddr, Ipv6Addr};

/// The names of the port.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    /// All: the client checks the name.
    Any,
    /// Those that only this node can have, and this one.
    Own(Option<String>),
}

impl Hosts {
    /// Whether the request is for one of the names.
    ///
    /// # Errors
    /// The name that it is for.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let Hosts::Own(advertised) = self else { return Ok(()) };
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).into_owned();
        for value in headers.get_all(header::HOST) {
            let authority = Authority::try_from(value.as_bytes());
            let is_own = authority.is_ok_and(|authority| is_own(authority.host(), advertised.as_deref()));
            if !is_own {
                return Err(shown(value.as_bytes()));
            }
        }
        // What a request to a proxy names; no browser sends that to a node.
        match uri.host() {
            Some(host) if !is_own(host, advertised.as_deref()) => Err(shown(host.as_bytes())),
            _ => Ok(()),
        }
    }
}

fn is_own(host: &str, advertised: Option<&str>) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_localhost = host.ends_with(".localhost");
    let is_advertised = advertised.is_some_and(|name| name.trim_end_matches('.').eq_ignore_ascii_case(&host));
    !host.is_empty() && (!host.contains('.') || is_localhost || is_advertised || host.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &Hosts, uri: &str, host: Option<&str>) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().expect("a value of a header"));
        }
        hosts.check(&uri.parse().expect("a URI"), &headers)
    }

    #[test]
    fn only_names_that_no_stranger_can_have_are_answered() {
        let hosts = Hosts::Own(Some("Node-1.example.org".into()));
        let own =
            ["127.0.0.1:7380", "10.1.2.3", "[::1]:7380", "[fd00::1]", "localhost:7380", "LOCALHOST.", "a.localhost"];
        for host in own.into_iter().chain(["node1:7380", "node-1.EXAMPLE.org:7380", "node-1.example.org."]) {
            assert_eq!(check(&hosts, "/status", Some(host)), Ok(()), "{host}");
        }
        let foreign = ["evil.example", "evil.example:7380", "127.0.0.1.evil.example", "localhost.evil.example"];
        let odd = ["", ":7380", "[evil.example]", "x-node-1.example.org", "1.2.3.4.5", "a b"];
        for host in foreign.into_iter().chain(odd) {
            assert_eq!(check(&hosts, "/status", Some(host)), Err(host.to_owned()));
        }
        assert_eq!(check(&hosts, "/status", None), Ok(()), "no browser leaves it out");
        assert_eq!(check(&hosts, "http://evil.example/status", Some("localhost")), Err("evil.example".into()));
        assert_eq!(check(&Hosts::Own(None), "/", Some("node-1.example.org")), Err("node-1.example.org".into()));
        assert_eq!(check(&Hosts::Any, "/", Some("evil.example")), Ok(()));
    }

    #[test]
    fn a_second_name_does_not_hide_the_first() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, "evil.example".parse().expect("a value"));
        headers.append(header::HOST, "localhost".parse().expect("a value"));
        assert!(Hosts::Own(None).check(&Uri::from_static("/"), &headers).is_err());
    }
}
